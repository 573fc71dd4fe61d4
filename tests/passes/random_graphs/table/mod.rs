//! Every operator that has a kernel: how operands are found for it, and with which attributes.

mod control;
mod dense;
mod index;
mod moving;
mod patterns;
mod pointwise;
mod sampling;
mod sequence;

use crate::maker::{Maker, V};
use compress_compiler::{attr::Attr, op::Op};

/// Something to add to a graph.
#[derive(Clone)]
pub struct Entry {
    /// What it is called here.
    pub name: &'static str,
    /// Adds it; `None` where nothing came of it.
    pub make: fn(&mut Maker) -> Option<()>,
    /// How often it is taken, compared with others.
    pub weight: usize,
    /// Whether it may stand in a body: its shapes don't hang on elements.
    pub tame: bool,
}

/// `name => function` as entries.
macro_rules! entries {
    ($tame:literal: $($name:ident $weight:literal),* $(,)?) => {
        &[$(crate::table::Entry { name: stringify!($name), make: $name, weight: $weight, tame: $tame }),*]
    };
}
use entries;

/// All entries, each as often as its weight says.
pub fn all() -> Vec<Entry> {
    let lists = [
        pointwise::ENTRIES,
        moving::ENTRIES,
        index::ENTRIES,
        dense::ENTRIES,
        sampling::ENTRIES,
        sequence::ENTRIES,
        control::ENTRIES,
        patterns::ENTRIES,
    ];
    let entries = lists.into_iter().flatten().copied().flatten();
    entries.flat_map(|e| std::iter::repeat_n(e.clone(), e.weight)).collect()
}

/// Those that rules are about.
pub fn focused() -> Vec<Entry> {
    let lists = [patterns::ENTRIES, moving::ENTRIES].into_iter().flatten().copied().flatten();
    lists.flat_map(|e| std::iter::repeat_n(e.clone(), e.weight)).collect()
}

/// Those that may stand in a body.
pub fn tame() -> Vec<Entry> {
    all().into_iter().filter(|e| e.tame).collect()
}

macro_rules! kernels {
    ($($variant:ident)*) => {
        /// The variants of [`Op`] that have a kernel.
        pub const KERNELS: &[&str] = &[$(stringify!($variant)),*];

        /// The variant; `None` for what is not an operator, is kept as it came, or is written alone: files with it are read as others. A new variant does not compile before
        /// it is in the list here, and [`KERNELS`] asks for an entry in the table.
        pub fn variant(op: &Op) -> Option<&'static str> {
            match op {
                Op::Input(_) | Op::Constant(_) | Op::Opaque(_) | Op::MatMulNBits(_) | Op::GatherBlocks(_) => None,
                $(Op::$variant(_) => Some(stringify!($variant))),*
            }
        }
    };
}

kernels! {
    Conv ConvTranspose Pool GlobalPool MaxUnpool DeformConv IntegerConv IntegerMatMul DynamicQuantize BatchNorm LayerNorm
    RmsNorm GroupNorm InstanceNorm Lrn Attention FlexAttention RotaryEmbedding GroupQueryAttention LinearAttention CausalConv Recurrent DynamicLstm
    Gemm MatMul Unary Activation IsInf Binary Mod BitShift Variadic SwiGlu Arg Cumulative LpNorm MeanVarianceNorm Loss Clip
    Softmax Reduce Identity Dropout Cast CastLike BitCast Where Reshape Flatten Squeeze Unsqueeze Transpose Concat Split
    Slice Gather GatherElements GatherNd ScatterNd ScatterElements TensorScatter OneHot EyeLike Trilu Tile NonZero Compress
    Unique TopK DepthToSpace SpaceToDepth Col2Im CenterCropPad ReverseSequence Einsum Det NonMaxSuppression RoiAlign
    MaxRoiPool GridSample AffineGrid SignalWindow Dft Stft MelWeightMatrix TfIdf Pad Expand ConstantOfShape Range Resize
    Shape Size Quantize Dequantize If Loop Scan
}

// Attributes.

fn i(v: i64) -> Attr {
    v.into()
}

fn f(v: f32) -> Attr {
    v.into()
}

fn s(v: &str) -> Attr {
    v.into()
}

fn list(v: &[i64]) -> Attr {
    v.into()
}

/// Attributes that are there by chance.
fn some<'a>(m: &mut Maker, attrs: &[(&'a str, Attr)]) -> Vec<(&'a str, Attr)> {
    attrs.iter().filter(|_| m.chance(0.6)).cloned().collect()
}

fn done(v: Option<V>) -> Option<()> {
    v.map(drop)
}
