//! Arithmetic on the device, element by element.

use super::{B, Float, Prim, bool_dtype, check_size, drops_nan, extension::Train, held_as, on_gpu, scalar};
use crate::{burn::host, device::Device};
use ::burn::backend::{
    TensorMetadata,
    ops::{ActivationOps, BoolTensorOps, FloatTensorOps},
};
use compress_compiler::{error::Result, tensor::DType};
use compress_kernels::train::Function;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $prim:ident),* $(,)?) => {
        // The operators of the standard library cannot fail, and these can.
        #[allow(clippy::should_implement_trait)]
        impl Float {$(
            $(#[$doc])*
            pub fn $name(self) -> Self { self.map(B::$prim) }
        )*}
    };
}

unary! {
    /// `log(sigmoid(x))`, stable.
    log_sigmoid => log_sigmoid,
    /// Natural logarithm.
    log => float_log,
    /// Square root.
    sqrt => float_sqrt,
    /// `-x`.
    neg => float_neg,
    /// Absolute value.
    abs => float_abs,
    /// -1, 0 or 1.
    sign => float_sign,
    /// Rounds up.
    ceil => float_ceil,
    /// Rounds down.
    floor => float_floor,
    /// Rounds to the nearest integer, halves to the even one.
    round => float_round,
    /// `1 / x`.
    recip => float_recip,
    /// Sine.
    sin => float_sin,
    /// Cosine.
    cos => float_cos,
    /// Tangent.
    tan => float_tan,
    /// Inverse sine.
    asin => float_asin,
    /// Inverse cosine.
    acos => float_acos,
    /// Hyperbolic sine.
    sinh => float_sinh,
    /// Hyperbolic cosine.
    cosh => float_cosh,
    /// Inverse hyperbolic sine.
    asinh => float_asinh,
    /// Inverse hyperbolic cosine.
    acosh => float_acosh,
    /// Inverse hyperbolic tangent.
    atanh => float_atanh,
    /// `log(1 + x)`.
    log1p => float_log1p,
}

macro_rules! with_scalar {
    ($($(#[$doc:meta])* $name:ident => $prim:ident),* $(,)?) => {
        impl Float {$(
            $(#[$doc])*
            pub fn $name(self, v: impl Into<f64>) -> Self { self.map(|t| B::$prim(t, scalar(v))) }
        )*}
    };
}

with_scalar! {
    /// `x + v`.
    add_scalar => float_add_scalar,
    /// `x - v`.
    sub_scalar => float_sub_scalar,
    /// `x * v`.
    mul_scalar => float_mul_scalar,
    /// `x / v`.
    div_scalar => float_div_scalar,
    /// `x < 0 ? v * x : x`.
    leaky_relu => leaky_relu,
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $prim:ident),* $(,)?) => {
        #[allow(clippy::should_implement_trait)]
        impl Float {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// Malformed when the shapes don't broadcast, limit when the result is too large.
            pub fn $name(self, other: Self) -> Result<Self> {
                let (a, b, shape, dtype) = Self::pair(self, other)?;
                Ok(Self { t: B::$prim(a, b), shape, dtype, host: None })
            }
        )*}
    };
}

binary! {
    /// `a - b`, broadcast.
    sub => float_sub,
    /// `a * b`, broadcast.
    mul => float_mul,
    /// `a / b`, broadcast.
    div => float_div,
    /// `a < 0 ? b * a : a`, broadcast.
    prelu => prelu,
}

/// `a` to the power of `b`, which have the same shape, where a device has no power of 0, of 1 and of NaN that IEEE 754 asks for.
fn mended_power(a: Prim, b: Prim) -> Prim {
    let bools = bool_dtype(&a);
    let is = |t: &Prim, v: f64| B::float_equal_elem(t.clone(), scalar(v), bools);
    let nan = B::bool_or(B::float_is_nan(a.clone(), bools), B::float_is_nan(b.clone(), bools));
    let pole = B::bool_and(is(&a, 0.0), B::float_lower_elem(b.clone(), scalar(0.0), bools));
    let one = B::bool_or(is(&b, 0.0), is(&a, 1.0));
    let power = B::float_powf(a.clone(), b.clone());
    let power = B::float_mask_where(power, nan, B::float_add(a, b));
    let power = B::float_mask_fill(power, pole, scalar(f64::INFINITY));
    B::float_mask_fill(power, one, scalar(1.0))
}

impl Float {
    /// `max(x, v)`; NaN stays.
    pub fn clamp_min(self, v: impl Into<f64>) -> Self {
        let v = scalar(v);
        self.map(|t| match drops_nan(&t) {
            // Of NaN no comparison holds.
            true => B::float_mask_fill(t.clone(), B::float_lower_elem(t.clone(), v, bool_dtype(&t)), v),
            false => B::float_clamp_min(t, v),
        })
    }

    /// `min(x, v)`; NaN stays.
    pub fn clamp_max(self, v: impl Into<f64>) -> Self {
        let v = scalar(v);
        self.map(|t| match drops_nan(&t) {
            true => B::float_mask_fill(t.clone(), B::float_greater_elem(t.clone(), v, bool_dtype(&t)), v),
            false => B::float_clamp_max(t, v),
        })
    }

    /// Inverse tangent; NaN stays.
    pub fn atan(self) -> Self {
        self.map(|t| match drops_nan(&t) {
            true => B::float_mask_where(B::float_atan(t.clone()), B::float_is_nan(t.clone(), bool_dtype(&t)), t),
            false => B::float_atan(t),
        })
    }

    /// `log(1 + exp(x))`, which doesn't overflow.
    pub fn softplus(self) -> Self {
        if !on_gpu(&self.t) {
            return self.neg().log_sigmoid().neg();
        }
        // There Burn's formula subtracts infinity from itself.
        let infinite = B::float_equal_elem(self.t.clone(), scalar(f64::INFINITY), bool_dtype(&self.t));
        self.neg().log_sigmoid().neg().map(|t| B::float_mask_fill(t, infinite, scalar(f64::INFINITY)))
    }

    /// A function of each element: by a kernel of ours on a CPU, as Burn's there have one thread.
    fn function(self, f: Function, elsewhere: impl FnOnce(Prim) -> Prim) -> Self {
        match self.has_kernels() {
            true => self.map(|t| B::train_function(t, f)),
            false => self.map(elsewhere),
        }
    }

    /// The logistic function.
    pub fn sigmoid(self) -> Self {
        self.function(Function::Sigmoid, B::sigmoid)
    }

    /// Gaussian error linear unit, by the error function.
    pub fn gelu(self) -> Self {
        self.function(Function::Gelu, B::gelu)
    }

    /// Hyperbolic tangent.
    pub fn tanh(self) -> Self {
        self.function(Function::Tanh, B::float_tanh)
    }

    /// Exponential.
    pub fn exp(self) -> Self {
        self.function(Function::Exp, B::float_exp)
    }

    /// The error function.
    pub fn erf(self) -> Self {
        self.function(Function::Erf, B::float_erf)
    }

    /// `max(x, 0)`; NaN stays.
    pub fn relu(self) -> Self {
        if drops_nan(&self.t) {
            return self.clamp_min(0.0);
        }
        match self.is_tracked() && self.has_kernels() {
            true => self.map(B::train_relu),
            false => self.map(B::relu),
        }
    }

    /// `a + b`, broadcast.
    ///
    /// # Errors
    /// As for the other operators of two tensors.
    // The operator of the standard library cannot fail.
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, other: Self) -> Result<Self> {
        let ours = (self.is_tracked() || other.is_tracked()) && self.has_kernels() && other.has_kernels();
        let alike = self.shape == other.shape;
        if ours && other.has_lines_for(&self.shape) && self.dtype == other.dtype {
            return Ok(Self::wrap(B::train_add_lines(self.t, other.t), self.shape, self.dtype));
        }
        if ours && self.has_lines_for(&other.shape) && self.dtype == other.dtype {
            return Ok(Self::wrap(B::train_add_lines(other.t, self.t), other.shape, self.dtype));
        }
        let (a, b, shape, dtype) = Self::pair(self, other)?;
        let t = if ours && alike { B::train_add(a, b) } else { B::float_add(a, b) };
        Ok(Self::wrap(t, shape, dtype))
    }

    /// Whether each of its lines is added to lines of the shape that follow each other: as biases are, and masks of attention.
    fn has_lines_for(&self, shape: &[usize]) -> bool {
        let (Some((width, counts)), Some((own_width, own))) = (shape.split_last(), self.shape.split_last()) else {
            return false;
        };
        let equal = own.iter().zip(counts).take_while(|(a, b)| own.len() == counts.len() && a == b).count();
        let others_are_one = own[equal..].iter().all(|n| *n == 1);
        width == own_width && own.len() <= counts.len() && equal < counts.len() && others_are_one
    }

    /// Both operands with equal ranks, and the shape and type of the result.
    fn pair(a: Self, b: Self) -> Result<(Prim, Prim, Vec<usize>, DType)> {
        let shape = host::broadcast(&a.shape, &b.shape)?;
        check_size(&shape)?;
        // Computed in the wider of both types.
        let dtype = if b.dtype == DType::F64 { b.dtype } else { a.dtype };
        let alike = a.t.dtype() == b.t.dtype();
        let held = |x: Self| if alike { x } else { x.held(held_as(dtype)) };
        let (a, b, rank) = (held(a), held(b), shape.len());
        // An operand that needs no axes is moved, not cloned, so that Burn may overwrite it.
        let prim = |x: Self| if rank <= x.shape.len().max(1) { x.t } else { x.padded(rank) };
        Ok((prim(a), prim(b), shape, dtype))
    }

    /// The larger (or smaller) of two, broadcast; NaN wins, as in numpy.
    ///
    /// # Errors
    /// As for the other operators of two tensors.
    pub fn extremum(self, other: Self, max: bool) -> Result<Self> {
        let shape = host::broadcast(&self.shape, &other.shape)?;
        let dtype = self.dtype;
        let (a, b) = (self.expand(&shape)?, other.with_dtype(dtype).expand(&shape)?);
        let keep = if max { B::float_greater_equal } else { B::float_lower_equal };
        // False where either is NaN: `b` is taken there, and NaNs of `a` are put back after.
        let bools = bool_dtype(&a.t);
        let kept = keep(a.t.clone(), b.t.clone(), bools);
        let nan = B::float_is_nan(a.t.clone(), bools);
        let t = B::float_mask_where(b.t, kept, a.t.clone());
        Ok(Self::wrap(B::float_mask_where(t, nan, a.t), shape, a.dtype))
    }

    /// `a` to the power of `b`, broadcast.
    ///
    /// # Errors
    /// As for the other operators of two tensors.
    pub fn powf(self, other: Self) -> Result<Self> {
        let power = |a: Self, b: Self| {
            if drops_nan(&a.t) {
                let shape = host::broadcast(&a.shape, &b.shape)?;
                let (dtype, b) = (a.dtype, b.with_dtype(a.dtype).expand(&shape)?);
                return Ok(Self::wrap(mended_power(a.expand(&shape)?.t, b.t), shape, dtype));
            }
            Self::pair(a, b).map(|(a, b, shape, dtype)| Self::wrap(B::float_powf(a, b), shape, dtype))
        };
        if !other.is_tracked() {
            return power(self, other);
        }
        // A power of 0 doesn't depend on the exponent, but Burn's derivative has the logarithm of 0.
        let shape = host::broadcast(&self.shape, &other.shape)?;
        let base = self.expand(&shape)?;
        let zero = B::float_equal_elem(base.t.clone(), scalar(0.0), bool_dtype(&base.t));
        let at_zero = power(base.clone(), other.clone().detached())?;
        let elsewhere = power(base.replace_zero(1.0), other)?;
        Ok(elsewhere.map(|t| B::float_mask_where(t, zero, at_zero.t)))
    }

    /// `x` to the power of `v`.
    ///
    /// # Errors
    /// As for the other operators of two tensors.
    pub fn pow_scalar(self, v: impl Into<f64>, device: &Device) -> Result<Self> {
        let v = v.into();
        // Burn converts a whole exponent to an integer, and panics when it doesn't fit.
        if v.abs() < 1e9 {
            return Ok(self.map(|t| B::float_powf_scalar(t, scalar(v))));
        }
        let exponent = Self::full(&[], v, device)?;
        // Without a sign the result is the same, and Vulkan has no power of a negative number.
        if v.is_infinite() { self.abs().powf(exponent) } else { self.powf(exponent) }
    }

    /// The elements of `yes`, which has the same shape, where `self` is above `bound`; 0 elsewhere.
    pub fn where_above(self, bound: impl Into<f64>, yes: Self) -> Self {
        let below = B::bool_not(B::float_greater_elem(self.t.clone(), scalar(bound), bool_dtype(&self.t)));
        yes.map(|t| B::float_mask_fill(t, below, scalar(0.0)))
    }

    /// `x == 0 ? v : x`
    pub fn replace_zero(self, v: impl Into<f64>) -> Self {
        let zero = B::float_equal_elem(self.t.clone(), scalar(0.0), bool_dtype(&self.t));
        self.map(|t| B::float_mask_fill(t, zero, scalar(v)))
    }

    /// The square root of a sum of squares. Its derivative at 0 is taken for 0: the infinite one of a square root,
    /// times that of the squares, would be NaN.
    pub fn norm(self) -> Self {
        if !self.is_tracked() {
            return self.sqrt();
        }
        let zero = B::float_equal_elem(self.t.clone(), scalar(0.0), bool_dtype(&self.t));
        let root = |t| B::float_sqrt(B::float_mask_fill(t, zero.clone(), scalar(1.0)));
        self.map(|t| B::float_mask_fill(root(t), zero.clone(), scalar(0.0)))
    }

    /// The root of a sum of powers of `p`, whose derivative at 0 is taken for 0, as that of [`Self::norm`].
    ///
    /// # Errors
    /// As for [`Self::pow_scalar`].
    pub fn root(self, p: f64, device: &Device) -> Result<Self> {
        if !self.is_tracked() {
            return self.pow_scalar(1.0 / p, device);
        }
        let zero = B::float_equal_elem(self.t.clone(), scalar(0.0), bool_dtype(&self.t));
        let root = self.replace_zero(1.0).pow_scalar(1.0 / p, device)?;
        Ok(root.map(|t| B::float_mask_fill(t, zero, scalar(0.0))))
    }

    /// The sums of all elements up to each along `axis`.
    pub fn cumsum(self, axis: usize) -> Self {
        self.map(|t| B::float_cumsum(t, axis))
    }

    /// The products of all elements up to each along `axis`.
    pub fn cumprod(self, axis: usize) -> Self {
        self.map(|t| B::float_cumprod(t, axis))
    }

    /// `max(0, min(1, alpha * x + beta))`; NaN stays.
    pub fn hard_sigmoid(self, alpha: impl Into<f64>, beta: impl Into<f64>) -> Self {
        self.map(|t| B::hard_sigmoid(t, scalar(alpha), scalar(beta)))
    }
}
