//! The operators: one enum, one trait, one file each under `ops/`.
//!
//! Every operator has one form, that of the newest ONNX operator set: what old opsets kept
//! in attributes is an input here. Reading lifts ([`Reader`]), writing lowers again
//! ([`Operator::lower`]).

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides},
    error::Result,
    ops::{self, control::Body},
    tensor::Tensor,
    value::{Dim, Fact, Shape},
};
use std::ops::RangeInclusive;

/// What is known of an operator's inputs, by slot.
#[derive(Clone, Copy)]
pub struct Inputs<'a>(pub &'a [Option<&'a Fact>]);

impl<'a> Inputs<'a> {
    const UNKNOWN: &'static Fact = &Fact { dtype: None, shape: None, elems: None, floats: None };

    /// The fact at `slot`; one that knows nothing when the input is absent.
    pub fn get(&self, slot: usize) -> &'a Fact {
        self.opt(slot).unwrap_or(Self::UNKNOWN)
    }

    /// The fact at `slot`, if the input is present.
    pub fn opt(&self, slot: usize) -> Option<&'a Fact> {
        self.0.get(slot).copied().flatten()
    }

    /// The shape at `slot`.
    pub fn shape(&self, slot: usize) -> &'a Shape {
        &self.get(slot).shape
    }

    /// The dimensions at `slot`, if the rank is known.
    pub fn dims(&self, slot: usize) -> Option<&'a [Dim]> {
        self.get(slot).dims()
    }

    /// The integers at `slot`, if all are known.
    pub fn ints(&self, slot: usize) -> Option<Vec<i64>> {
        self.get(slot).known_elems()
    }

    /// The inputs that are present.
    pub fn present(&self) -> impl Iterator<Item = &'a Fact> + '_ {
        self.0.iter().copied().flatten()
    }
}

/// Which axes of an operator's weight are channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightAxes {
    /// The input slot of the weight.
    pub slot: usize,
    /// The axis of its output channels: per-channel quantisation runs along it.
    pub output: usize,
    /// The axis of its input channels.
    pub input: usize,
    /// The rank of a weight; of another the axes are not channels.
    pub rank: Option<usize>,
    /// The input slot of the bias, where the operator has one.
    pub bias: Option<usize>,
}

/// How an operator takes part in INT8 inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quant {
    /// Stays in floating point.
    Float,
    /// Multiplies input 0 by a weight: integer kernel with INT32 accumulation and bias.
    Weighted,
    /// Moves or picks values of input 0: the output shares its scale and zero point.
    Same,
    /// Joins its inputs, which all take the output's scale and zero point.
    Tied,
    /// Has an integer kernel that takes every input with its own scale.
    Arithmetic,
}

/// In which width an operator computes where a run is in half precision (Micikevicius et al. 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// Narrow: where the time goes, and sums are wide inside.
    Product,
    /// As it is given.
    Moving,
    /// In 32 bits, to numbers of about the size of those it reads, or of 1.
    Bounded,
    /// In 32 bits.
    Wide,
}

/// What the compiler must know of an operator. The kernel lives in runtime/.
pub trait Operator {
    /// The ONNX operator name; outside of the default domain, behind `domain.`.
    fn op_type(&self) -> &str;

    /// The attributes in canonical form, without those at their default where ONNX allows.
    fn attrs(&self) -> Attrs {
        vec![]
    }

    /// How many inputs it takes, trailing optional ones included.
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    /// How many outputs it can make.
    fn max_outputs(&self) -> usize {
        1
    }

    /// What is known of the outputs, given what is known of the inputs. Unknown in, unknown
    /// out: an error is only for inputs that break the specification.
    ///
    /// # Errors
    /// Malformed.
    fn infer(&self, inputs: &Inputs) -> Result<Vec<Fact>>;

    /// The first opset that has the operator in this form or one that [`Operator::lower`] can write.
    fn since(&self) -> i64 {
        1
    }

    /// The last opset in which the operator, as it is, means what it means here.
    fn until(&self) -> Option<i64> {
        None
    }

    /// Inputs that opset `opset` keeps in attributes: (input slot, attribute name).
    fn lower(&self, _opset: i64) -> Option<(usize, &'static str)> {
        None
    }

    /// The role in INT8 inference.
    fn quant(&self) -> Quant {
        Quant::Float
    }

    /// The weight's channel axes. Prunable and quantisable per channel is what has them.
    fn weight(&self) -> Option<WeightAxes> {
        None
    }

    /// The input slots whose floating-point constants training learns.
    fn parameters(&self) -> &'static [usize] {
        &[]
    }

    /// Multiply-accumulates of one run, when the shapes are known; unknown batches count as 1.
    fn macs(&self, _inputs: &Inputs, _outputs: &[&Fact]) -> u64 {
        0
    }

    /// What goes with indices of `at`, an axis of an operand or of a result, when they are removed. The axes of
    /// constants are listed like those of any operand.
    fn axes_map(&self, _at: Axis, _sides: &Sides) -> Flow {
        Flow::closed(format!("what goes with them through {} is not known", self.op_type()))
    }

    /// What else changes in the node of which only the indices `kept` stay, as [`Operator::axes_map`] ties them;
    /// `sides` is how it was before.
    ///
    /// # Errors
    /// Malformed, where inference says so too.
    fn channel_slice(&self, _kept: &Kept, _sides: &Sides) -> Result<ChannelSlice> {
        Ok(ChannelSlice::default())
    }

    /// Whether folding the operator over constants may make the file larger (Expand,
    /// ConstantOfShape): such a result is folded only while small.
    fn inflates(&self) -> bool {
        false
    }

    /// In which width it computes where a run is in half precision.
    fn width(&self) -> Width {
        Width::Wide
    }

    /// Whether it gives its first input another shape and does nothing else.
    fn reshapes(&self) -> bool {
        false
    }

    /// Whether its first output, of which `y` is known, surely is its first input.
    fn is_unchanged(&self, x: &Inputs, y: &Fact) -> bool {
        self.reshapes() && x.get(0).has_shape_of(y)
    }

    /// Whether it may make something else each time that it runs, bodies aside.
    fn is_random(&self) -> bool {
        false
    }

    /// Between which bounds it puts its first input, if it does that and they are known.
    fn clamps(&self, _x: &Inputs) -> Option<(f32, f32)> {
        None
    }

    /// Between which values of its first input its result changes: beyond them it is constant, or as good as constant to
    /// eight bits.
    fn heeds(&self, x: &Inputs) -> Option<(f32, f32)> {
        self.clamps(x)
    }

    /// The neutral element of its sum or reduction: an operand without elements fills the result with it.
    fn neutral_element(&self) -> Option<f32> {
        None
    }

    /// The graphs that the operator runs.
    fn bodies(&self) -> Vec<&Body> {
        vec![]
    }

    /// Replaces [`Operator::bodies`], in the same order.
    fn set_bodies(&mut self, _bodies: Vec<Body>) {}
}

macro_rules! operators {
    ($($variant:ident($path:path)),* $(,)?) => {
        /// An operator.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($path)),* }

        impl Op {
            fn get(&self) -> &dyn Operator {
                match self { $(Op::$variant(op) => op),* }
            }

            fn get_mut(&mut self) -> &mut dyn Operator {
                match self { $(Op::$variant(op) => op),* }
            }
        }

        $(impl From<$path> for Op {
            fn from(op: $path) -> Self { Op::$variant(op) }
        })*
    };
}

operators! {
    Input(ops::source::Input),
    Constant(ops::source::Constant),
    Opaque(ops::opaque::Opaque),
    Conv(ops::conv::Conv),
    ConvTranspose(ops::conv_transpose::ConvTranspose),
    Pool(ops::pool::Pool),
    GlobalPool(ops::pool::GlobalPool),
    MaxUnpool(ops::max_unpool::MaxUnpool),
    DeformConv(ops::deform_conv::DeformConv),
    IntegerConv(ops::integer::IntegerConv),
    IntegerMatMul(ops::integer::IntegerMatMul),
    DynamicQuantize(ops::integer::DynamicQuantize),
    BatchNorm(ops::batch_norm::BatchNorm),
    LayerNorm(ops::layer_norm::LayerNorm),
    RmsNorm(ops::layer_norm::RmsNorm),
    GroupNorm(ops::group_norm::GroupNorm),
    InstanceNorm(ops::group_norm::InstanceNorm),
    Lrn(ops::lrn::Lrn),
    Attention(ops::attention::Attention),
    FlexAttention(ops::flex_attention::FlexAttention),
    RotaryEmbedding(ops::rotary_embedding::RotaryEmbedding),
    GroupQueryAttention(ops::group_query_attention::GroupQueryAttention),
    LinearAttention(ops::linear_attention::LinearAttention),
    CausalConv(ops::linear_attention::CausalConv),
    Recurrent(ops::recurrent::Recurrent),
    DynamicLstm(ops::dynamic_lstm::DynamicLstm),
    Gemm(ops::gemm::Gemm),
    MatMul(ops::matmul::MatMul),
    MatMulNBits(ops::matmul_nbits::MatMulNBits),
    GatherBlocks(ops::gather_blocks::GatherBlocks),
    Unary(ops::unary::Unary),
    Activation(ops::activation::Activation),
    IsInf(ops::unary::IsInf),
    Binary(ops::binary::Binary),
    Mod(ops::binary::Mod),
    BitShift(ops::binary::BitShift),
    Variadic(ops::variadic::Variadic),
    SwiGlu(ops::swiglu::SwiGlu),
    Arg(ops::arg::Arg),
    Cumulative(ops::cumulative::Cumulative),
    LpNorm(ops::normalize::LpNorm),
    MeanVarianceNorm(ops::normalize::MeanVarianceNorm),
    Loss(ops::loss::Loss),
    Clip(ops::clip::Clip),
    Softmax(ops::softmax::Softmax),
    Reduce(ops::reduce::Reduce),
    Identity(ops::identity::Identity),
    Dropout(ops::identity::Dropout),
    Cast(ops::cast::Cast),
    CastLike(ops::cast::CastLike),
    BitCast(ops::cast::BitCast),
    Where(ops::select::Where),
    Reshape(ops::reshape::Reshape),
    Flatten(ops::reshape::Flatten),
    Squeeze(ops::squeeze::Squeeze),
    Unsqueeze(ops::squeeze::Unsqueeze),
    Transpose(ops::transpose::Transpose),
    Concat(ops::concat::Concat),
    Split(ops::split::Split),
    Slice(ops::slice::Slice),
    Gather(ops::gather::Gather),
    GatherElements(ops::gather::GatherElements),
    GatherNd(ops::gather::GatherNd),
    ScatterNd(ops::scatter::ScatterNd),
    ScatterElements(ops::scatter::ScatterElements),
    TensorScatter(ops::scatter::TensorScatter),
    OneHot(ops::one_hot::OneHot),
    EyeLike(ops::one_hot::EyeLike),
    Trilu(ops::one_hot::Trilu),
    Tile(ops::tile::Tile),
    NonZero(ops::find::NonZero),
    Compress(ops::find::Compress),
    Unique(ops::find::Unique),
    TopK(ops::top_k::TopK),
    DepthToSpace(ops::space::DepthToSpace),
    SpaceToDepth(ops::space::SpaceToDepth),
    Col2Im(ops::space::Col2Im),
    CenterCropPad(ops::crop::CenterCropPad),
    ReverseSequence(ops::crop::ReverseSequence),
    Einsum(ops::einsum::Einsum),
    Det(ops::einsum::Det),
    NonMaxSuppression(ops::roi::NonMaxSuppression),
    RoiAlign(ops::roi::RoiAlign),
    MaxRoiPool(ops::roi::MaxRoiPool),
    GridSample(ops::grid::GridSample),
    AffineGrid(ops::grid::AffineGrid),
    SignalWindow(ops::signal::SignalWindow),
    Dft(ops::signal::Dft),
    Stft(ops::signal::Stft),
    MelWeightMatrix(ops::signal::MelWeightMatrix),
    TfIdf(ops::tfidf::TfIdf),
    Pad(ops::pad::Pad),
    Expand(ops::expand::Expand),
    ConstantOfShape(ops::expand::ConstantOfShape),
    Range(ops::range::Range),
    Resize(ops::resize::Resize),
    Shape(ops::shape::Shape),
    Size(ops::shape::Size),
    Quantize(ops::quantize::Quantize),
    Dequantize(ops::quantize::Dequantize),
    If(ops::control::If),
    Loop(ops::control::Loop),
    Scan(ops::control::Scan),
}

impl Op {
    /// A constant.
    pub fn constant(tensor: Tensor) -> Self {
        Op::Constant(ops::source::Constant(tensor))
    }

    /// Reads the operator of the default domain that `r` holds.
    ///
    /// # Errors
    /// Unsupported for an operator, or a use of one, that we don't know; malformed when its
    /// attributes break the specification.
    pub fn read(r: &mut Reader) -> Result<Op> {
        ops::read(r)
    }
}

impl Operator for Op {
    fn op_type(&self) -> &str {
        self.get().op_type()
    }
    fn attrs(&self) -> Attrs {
        self.get().attrs()
    }
    fn arity(&self) -> RangeInclusive<usize> {
        self.get().arity()
    }
    fn max_outputs(&self) -> usize {
        self.get().max_outputs()
    }
    fn infer(&self, inputs: &Inputs) -> Result<Vec<Fact>> {
        self.get().infer(inputs)
    }
    fn since(&self) -> i64 {
        self.get().since()
    }
    fn until(&self) -> Option<i64> {
        self.get().until()
    }
    fn lower(&self, opset: i64) -> Option<(usize, &'static str)> {
        self.get().lower(opset)
    }
    fn quant(&self) -> Quant {
        self.get().quant()
    }
    fn weight(&self) -> Option<WeightAxes> {
        self.get().weight()
    }
    fn parameters(&self) -> &'static [usize] {
        self.get().parameters()
    }
    fn macs(&self, inputs: &Inputs, outputs: &[&Fact]) -> u64 {
        self.get().macs(inputs, outputs)
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        self.get().axes_map(at, sides)
    }
    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        self.get().channel_slice(kept, sides)
    }
    fn inflates(&self) -> bool {
        self.get().inflates()
    }
    fn width(&self) -> Width {
        self.get().width()
    }
    fn reshapes(&self) -> bool {
        self.get().reshapes()
    }
    fn is_unchanged(&self, x: &Inputs, y: &Fact) -> bool {
        self.get().is_unchanged(x, y)
    }
    fn is_random(&self) -> bool {
        self.get().is_random()
    }
    fn heeds(&self, x: &Inputs) -> Option<(f32, f32)> {
        self.get().heeds(x)
    }
    fn clamps(&self, x: &Inputs) -> Option<(f32, f32)> {
        self.get().clamps(x)
    }
    fn neutral_element(&self) -> Option<f32> {
        self.get().neutral_element()
    }
    fn bodies(&self) -> Vec<&Body> {
        self.get().bodies()
    }
    fn set_bodies(&mut self, bodies: Vec<Body>) {
        self.get_mut().set_bodies(bodies);
    }
}
