//! What each operator computes: one file a family, and the one match that finds it.

mod arrange;
mod attention;
mod binary;
mod cast;
mod conv;
mod deform_conv;
mod einsum;
mod elementwise;
mod empty;
mod fill;
mod find;
mod grid;
mod grouped;
mod index;
mod int_matmul;
mod integer;
mod linear_attention;
mod loss;
mod matmul;
mod movement;
mod norm;
mod numbers;
mod pool;
mod pool_device;
mod quantize;
mod recurrent;
mod reduce;
mod resize;
mod roi;
mod scatter;
mod signal;
mod tfidf;

pub(super) use attention::flex as flex_attention;
pub(crate) use quantize::dequantize_constant;
pub(crate) use resize::{mixed_entries, nearest_entries};

use super::tensor::{Float, Value};
use crate::device::Device;
use compress_compiler::{
    error::{Error, Result},
    op::{Op, Operator},
    tensor::DType,
};
use std::sync::Arc;

/// An operator's inputs by slot. Taken out rather than borrowed: a value nobody else holds
/// is overwritten in place by Burn.
pub struct Args<'a> {
    values: Vec<Option<Value>>,
    /// Where new values go.
    pub device: &'a Device,
    /// Whether a Relu that alone reads the first output is computed with it.
    rectified: bool,
}

impl<'a> Args<'a> {
    /// Inputs by slot.
    pub fn new(values: Vec<Option<Value>>, device: &'a Device) -> Self {
        Self { values, device, rectified: false }
    }

    /// The same, for an operator with a Relu behind it if `rectified`.
    pub fn rectified(self, rectified: bool) -> Self {
        Self { rectified, ..self }
    }

    /// How many inputs there are, absent ones counted.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Looks at the input at `slot`.
    pub fn peek(&self, slot: usize) -> Option<&Value> {
        self.values.get(slot)?.as_ref()
    }

    /// Takes the input at `slot`, if present.
    pub fn opt(&mut self, slot: usize) -> Option<Value> {
        self.values.get_mut(slot)?.take()
    }

    /// Takes the input at `slot`.
    ///
    /// # Errors
    /// Malformed when it is absent.
    pub fn take(&mut self, slot: usize) -> Result<Value> {
        self.opt(slot).ok_or_else(|| Error::malformed(format!("input {slot} is missing")))
    }

    /// Takes a floating-point input.
    ///
    /// # Errors
    /// Malformed when absent, unsupported when of another type.
    pub fn float(&mut self, slot: usize) -> Result<Float> {
        as_float(self.take(slot)?)
    }

    /// Takes a floating-point input, if present.
    ///
    /// # Errors
    /// Unsupported when of another type.
    pub fn opt_float(&mut self, slot: usize) -> Result<Option<Float>> {
        self.opt(slot).map(as_float).transpose()
    }

    /// Takes the elements of an integer input.
    ///
    /// # Errors
    /// Malformed when absent or of another type.
    pub fn ints(&mut self, slot: usize) -> Result<Arc<Vec<i64>>> {
        Ok(self.take(slot)?.into_ints()?.data)
    }

    /// Takes the elements of an integer input, if present.
    ///
    /// # Errors
    /// Malformed when of another type.
    pub fn opt_ints(&mut self, slot: usize) -> Result<Option<Arc<Vec<i64>>>> {
        if self.peek(slot).is_some() { self.ints(slot).map(Some) } else { Ok(None) }
    }
}

fn as_float(v: Value) -> Result<Float> {
    match v {
        Value::Float(f) if f.dtype().is_float() => Ok(f),
        v => Err(Error::unsupported(format!("this operator on {} values", v.dtype()))),
    }
}

/// Runs `op`. As many values come back as the operator makes.
///
/// # Errors
/// Unsupported where there is no kernel, malformed when the inputs break the specification,
/// limit when a result would be too large.
pub fn eval(op: &Op, mut a: Args) -> Result<Vec<Value>> {
    if !op.arity().contains(&a.values.len()) {
        return Err(Error::malformed(format!("{} does not take {} inputs", op.op_type(), a.values.len())));
    }
    // Burn's kernels don't all accept tensors without elements. To Resize they are lists that
    // are not given; where there is a past, it may be empty.
    let data = match op {
        Op::Resize(_) | Op::CastLike(_) => 1,
        Op::CausalConv(_) => 2,
        Op::Attention(_) => 3,
        // These move elements by index, and nothing where there is none.
        Op::Size(_) | Op::NonZero(_) | Op::Compress(_) | Op::Unique(_) | Op::TopK(_) | Op::Pad(_) | Op::Einsum(_) => 0,
        Op::ScatterNd(_) | Op::ScatterElements(_) | Op::TensorScatter(_) | Op::NonMaxSuppression(_) => 0,
        _ => a.values.len(),
    };
    if a.values[..data].iter().flatten().any(|v| v.shape().contains(&0) && matches!(v, Value::Float(_))) {
        return empty::eval(op, a);
    }
    let one = match op {
        Op::Input(_) | Op::Constant(_) => return Err(Error::bug("a source has nothing to compute")),
        Op::Opaque(o) => return Err(Error::unsupported(o.reason.clone())),
        Op::Conv(op) => conv::conv(op, a)?,
        Op::ConvTranspose(op) => conv::conv_transpose(op, a)?,
        Op::Pool(op) => return pool::pool(op, a),
        Op::GlobalPool(op) => pool::global(op, a)?,
        Op::MaxUnpool(op) => pool::unpool(op, a)?,
        Op::DeformConv(op) => deform_conv::deform_conv(op, a)?,
        Op::IntegerConv(op) => integer::convolve(op, a)?,
        Op::IntegerMatMul(op) => integer::matmul(op, a)?,
        Op::DynamicQuantize(_) => return quantize::dynamic(a),
        Op::BatchNorm(op) => return norm::batch(op, a),
        Op::LayerNorm(op) => return norm::layer(op, a),
        Op::RmsNorm(op) => norm::rms(op, a)?,
        Op::GroupNorm(op) => norm::group(op, a)?,
        Op::InstanceNorm(op) => norm::instance(op, a)?,
        Op::Lrn(op) => norm::local_response(op, a)?,
        Op::Attention(op) => return attention::attention(op, a),
        Op::FlexAttention(op) => return attention::flex(op, a, &mut |_, x| Ok(x)),
        Op::RotaryEmbedding(op) => attention::rotary(op, a)?,
        Op::GroupQueryAttention(op) => return grouped::attend(op, a),
        Op::LinearAttention(op) => return linear_attention::linear_attention(op, a),
        Op::CausalConv(op) => return linear_attention::causal_conv(op, a),
        Op::Recurrent(op) => return recurrent::recurrent(op, a),
        Op::DynamicLstm(op) => return recurrent::dynamic(op, a),
        Op::Gemm(op) => matmul::gemm(op, a)?,
        Op::MatMul(_) => matmul::matmul(a)?,
        Op::MatMulNBits(op) => matmul::by_bits(op, a)?,
        Op::Unary(op) => elementwise::unary(*op, a)?,
        Op::Activation(op) => elementwise::activation(op, a)?,
        Op::IsInf(op) => elementwise::is_inf(op, a)?,
        Op::Binary(op) => binary::binary(*op, a)?,
        Op::Mod(op) => binary::modulo(op, a)?,
        Op::BitShift(op) => binary::bit_shift(op, a)?,
        Op::Variadic(op) => binary::variadic(*op, a)?,
        Op::SwiGlu(op) => elementwise::swiglu(op, a)?,
        Op::Arg(op) => reduce::arg(op, a)?,
        Op::Cumulative(op) => reduce::cumulative(op, a)?,
        Op::LpNorm(op) => loss::lp_norm(op, a)?,
        Op::MeanVarianceNorm(op) => loss::mean_variance(op, a)?,
        Op::Loss(op) => return loss::loss(op, a),
        Op::Clip(_) => elementwise::clip(a)?,
        Op::Softmax(op) => reduce::softmax(op, a)?,
        Op::Reduce(op) => reduce::reduce(op, a)?,
        Op::Identity(_) => a.take(0)?,
        Op::Dropout(op) => return elementwise::dropout(op, a),
        Op::Cast(op) => cast::cast(op.to, op.rounding, a)?,
        Op::CastLike(op) => cast::cast_like(op.rounding, a)?,
        Op::BitCast(op) => cast::bit_cast(op, a)?,
        Op::Where(_) => index::select(a)?,
        Op::Reshape(op) => movement::reshape(op, a)?,
        Op::Flatten(op) => movement::flatten(op, a)?,
        Op::Squeeze(_) => movement::squeeze(a)?,
        Op::Unsqueeze(_) => movement::unsqueeze(a)?,
        Op::Transpose(op) => movement::transpose(op, a)?,
        Op::Concat(op) => movement::concat(op, a)?,
        Op::Split(op) => return movement::split(op, a),
        Op::Slice(_) => movement::slice(a)?,
        Op::Gather(op) => index::gather(op, a)?,
        Op::GatherBlocks(op) => index::gather_blocks(op, a)?,
        Op::GatherElements(op) => index::gather_elements(op, a)?,
        Op::GatherNd(op) => index::gather_nd(op, a)?,
        Op::ScatterNd(op) => scatter::scatter_nd(op, a)?,
        Op::ScatterElements(op) => scatter::scatter_elements(op, a)?,
        Op::TensorScatter(op) => scatter::tensor_scatter(op, a)?,
        Op::OneHot(op) => arrange::one_hot(op, a)?,
        Op::EyeLike(op) => arrange::eye_like(op, a)?,
        Op::Trilu(op) => arrange::trilu(op, a)?,
        Op::Tile(_) => arrange::tile(a)?,
        Op::NonZero(_) => find::non_zero(a)?,
        Op::Compress(op) => find::compress(op, a)?,
        Op::Unique(op) => return find::unique(op, a),
        Op::TopK(op) => return find::top_k(op, a),
        Op::DepthToSpace(op) => arrange::depth_to_space(&op.0, a)?,
        Op::SpaceToDepth(op) => arrange::space_to_depth(&op.0, a)?,
        Op::Col2Im(op) => arrange::col2im(op, a)?,
        Op::CenterCropPad(op) => arrange::center_crop_pad(op, a)?,
        Op::ReverseSequence(op) => arrange::reverse_sequence(op, a)?,
        Op::Einsum(op) => einsum::einsum(op, a)?,
        Op::Det(_) => einsum::det(a)?,
        Op::NonMaxSuppression(op) => roi::non_max_suppression(op, a)?,
        Op::RoiAlign(op) => roi::roi_align(op, a)?,
        Op::MaxRoiPool(op) => roi::max_roi_pool(op, a)?,
        Op::GridSample(op) => grid::grid_sample(op, a)?,
        Op::AffineGrid(op) => grid::affine_grid(op, a)?,
        Op::SignalWindow(op) => signal::window(op, a)?,
        Op::Dft(op) => signal::dft(op, a)?,
        Op::Stft(op) => signal::stft(op, a)?,
        Op::TfIdf(op) => tfidf::tfidf(op, a)?,
        Op::MelWeightMatrix(op) => signal::mel_weight_matrix(op, a)?,
        Op::Pad(op) => fill::pad(op, a)?,
        Op::Expand(_) => fill::expand(a)?,
        Op::ConstantOfShape(op) => fill::constant_of_shape(op, a)?,
        Op::Range(_) => fill::range(a)?,
        Op::Resize(op) => resize::resize(op, a)?,
        Op::Shape(op) => fill::shape(op, a)?,
        Op::Size(_) => arrange::size(a)?,
        Op::Quantize(op) => quantize::quantize(op, a)?,
        Op::Dequantize(op) => quantize::dequantize(op, a)?,
        Op::If(_) | Op::Loop(_) | Op::Scan(_) => {
            return Err(Error::bug("an operator with bodies is run by the interpreter"));
        }
    };
    Ok(vec![one])
}

/// A value without elements.
pub(super) fn empty_value(dtype: DType, shape: &[usize], device: &Device) -> Result<Value> {
    Ok(if dtype.is_float() {
        Value::Float(Float::from_vec(vec![], shape, device)?.with_dtype(dtype))
    } else {
        Value::Int(super::host::IntArray::new(dtype, shape.to_vec(), vec![]))
    })
}
