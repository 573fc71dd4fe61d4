//! What ONNX Runtime's optimiser writes, operators of the domain com.microsoft into which it fused others, is read as
//! the standard operators that it stands for.
//!
//! What each means is in ONNX Runtime's docs/ContribOperators.md, and where that is silent, in what its CPU kernels do.
//! A form that is not known here, or that those kernels refuse, stays as it came.

mod activation;
mod attention;
mod integer;
mod layer;
mod nbits;
mod norm;
mod rotary;

use super::{
    Declared, Importer,
    listing::{self, Listing},
};
use crate::{error::Result, onnx::opset};
use onnx_protobuf::NodeProto;

/// Lists what a node stands for, or leaves it.
type Meaning = fn(&mut Listing) -> Option<()>;

fn meaning(node: &NodeProto) -> Option<Meaning> {
    let list: Meaning = match (&node.domain[..], &node.op_type[..]) {
        ("com.microsoft", "FusedConv") => layer::conv,
        ("com.microsoft", "FusedGemm") => layer::gemm,
        ("com.microsoft", "FusedMatMul" | "TransposeMatMul") => layer::matmul,
        ("com.microsoft", "Gelu") => activation::gelu,
        ("com.microsoft", "BiasGelu") => activation::bias_gelu,
        ("com.microsoft", "FastGelu") => activation::fast_gelu,
        ("com.microsoft", "QuickGelu") => activation::quick_gelu,
        ("com.microsoft", "SkipLayerNormalization") => norm::skip,
        ("com.microsoft", "SkipSimplifiedLayerNormalization") => norm::skip_simplified,
        ("com.microsoft", "EmbedLayerNormalization") => norm::embed,
        ("com.microsoft", "Attention") => attention::packed,
        ("com.microsoft", "MultiHeadAttention") => attention::apart,
        ("com.microsoft", "RotaryEmbedding") => rotary::embedding,
        ("com.microsoft", "DynamicQuantizeMatMul") => integer::dynamic,
        ("com.microsoft", "MatMulNBits") => nbits::matmul,
        ("com.microsoft", "GatherBlockQuantized") => nbits::gather,
        ("com.microsoft", "MatMulIntegerToFloat") => integer::to_float,
        // ONNX Runtime has put it into ONNX's own domain.
        (domain, "SimplifiedLayerNormalization") if opset::is_default(domain) => norm::simplified,
        _ => return None,
    };
    Some(list)
}

impl Importer<'_> {
    /// Adds what `node` stands for if it is one that others were fused into, and says whether it was.
    pub(super) fn fused(&mut self, node: &NodeProto, declared: &Declared) -> Result<bool> {
        match meaning(node) {
            Some(list) => self.stands_for(node, declared, list),
            None => Ok(false),
        }
    }
}

/// Lists the size of one axis of `x`.
fn length(list: &mut Listing, x: &str, axis: i64) -> String {
    let shape = list.op("Shape", &[x]);
    let axis = list.int(axis);
    list.op("Gather", &[&shape, &axis])
}

/// Lists the numbers from 0 to before `end`.
fn range(list: &mut Listing, end: &str) -> String {
    let (zero, one) = (list.int(0), list.int(1));
    list.op("Range", &[&zero, end, &one])
}
