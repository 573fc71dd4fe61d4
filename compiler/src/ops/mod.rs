//! One file an operator, or a family that differs in one word: attributes, reading, inference,
//! facets. `docs/adding-an-op.md` shows how to add one.

use crate::{
    attr::Reader,
    error::{Error, Result},
    op::Op,
};

pub mod activation;
pub mod batch_norm;
pub mod binary;
pub mod cast;
pub mod clip;
pub mod concat;
pub mod conv;
pub mod conv_transpose;
pub mod expand;
pub mod gather;
pub mod gemm;
pub mod identity;
pub mod layer_norm;
pub mod matmul;
pub mod opaque;
pub mod pad;
pub mod pool;
pub mod quantize;
pub mod range;
pub mod reduce;
pub mod reshape;
pub mod resize;
pub mod scatter_nd;
pub mod select;
pub mod shape;
pub mod slice;
pub mod softmax;
pub mod source;
pub mod split;
pub mod squeeze;
pub mod transpose;
pub mod unary;
pub mod window;

/// Reads the operator that `r` holds: the one table from ONNX names to files.
pub(crate) fn read(r: &mut Reader) -> Result<Op> {
    Ok(match r.op_type.as_str() {
        "Conv" => conv::Conv::read(r)?.into(),
        "ConvTranspose" => conv_transpose::ConvTranspose::read(r)?.into(),
        "MaxPool" | "AveragePool" => pool::Pool::read(r)?.into(),
        "GlobalAveragePool" | "GlobalMaxPool" => pool::GlobalPool::read(r)?.into(),
        "BatchNormalization" => batch_norm::BatchNorm::read(r)?.into(),
        "LayerNormalization" => layer_norm::LayerNorm::read(r)?.into(),
        "Gemm" => gemm::Gemm::read(r)?.into(),
        "MatMul" => matmul::MatMul.into(),
        "LeakyRelu" | "Elu" | "HardSigmoid" | "Gelu" => activation::Activation::read(r)?.into(),
        "Clip" => clip::Clip::read(r)?.into(),
        "Softmax" | "LogSoftmax" => softmax::Softmax::read(r)?.into(),
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" => reduce::Reduce::read(r)?.into(),
        "Identity" => identity::Identity.into(),
        "Dropout" => identity::Dropout::read(r)?.into(),
        "Cast" => cast::Cast::read(r)?.into(),
        "Where" => select::Where.into(),
        "Reshape" => reshape::Reshape::read(r)?.into(),
        "Flatten" => reshape::Flatten::read(r)?.into(),
        "Squeeze" => squeeze::Squeeze::read(r)?.into(),
        "Unsqueeze" => squeeze::Unsqueeze::read(r)?.into(),
        "Transpose" => transpose::Transpose::read(r)?.into(),
        "Concat" => concat::Concat::read(r)?.into(),
        "Split" => split::Split::read(r)?.into(),
        "Slice" => slice::Slice::read(r)?.into(),
        "Gather" => gather::Gather::read(r)?.into(),
        "ScatterND" => scatter_nd::ScatterNd::read(r)?.into(),
        "Pad" => pad::Pad::read(r)?.into(),
        "Expand" => expand::Expand.into(),
        "ConstantOfShape" => expand::ConstantOfShape::read(r)?.into(),
        "Range" => range::Range.into(),
        "Resize" | "Upsample" => resize::Resize::read(r)?.into(),
        "Shape" => shape::Shape::read(r)?.into(),
        "QuantizeLinear" => quantize::Quantize::read(r)?.into(),
        "DequantizeLinear" => quantize::Dequantize::read(r)?.into(),
        name => match (unary::Unary::from_name(name), binary::Binary::from_name(name)) {
            (Some(op), _) => op.into(),
            (None, Some(op)) => op.into(),
            (None, None) => return Err(Error::unsupported(format!("operator {name}"))),
        },
    })
}
