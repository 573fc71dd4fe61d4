//! Whole layers on the device: products, reductions, normalisation, convolution, pooling.

use super::{B, Float, Prim, check_size, extension::Train, lines::LayerNorm, training::has_kernels, width};
use crate::burn::host;
use ::burn::backend::{
    TensorMetadata,
    ops::{ActivationOps, ConvOptions, ConvTransposeOptions, FloatTensorOps, ModuleOps},
};
use compress_compiler::{error::Result, ops::reduce::ReduceKind, tensor::DType};

/// Where a window of `N` axes stands.
#[derive(Debug, Clone, Copy)]
pub struct Geometry<const N: usize> {
    /// Steps between positions.
    pub stride: [usize; N],
    /// Steps between taps.
    pub dilation: [usize; N],
    /// (begin, end) padding.
    pub pads: [(usize, usize); N],
}

macro_rules! convolutions {
    ($n:literal, $conv:ident, $transpose:ident) => {
        impl Float {
            /// Convolution of `[N, C, ...]` by `[M, C / groups, ...]` with bias `[M]`. The caller
            /// has checked that the shapes fit.
            ///
            /// # Errors
            /// Limit when the result is too large.
            pub fn $conv(self, weight: Self, bias: Option<Self>, at: &Geometry<$n>, groups: usize) -> Result<Self> {
                let mut shape = vec![self.shape[0], weight.shape[0]];
                for i in 0..$n {
                    let room = self.shape[2 + i] + at.pads[i].0 + at.pads[i].1;
                    shape.push((room - at.dilation[i] * (weight.shape[2 + i] - 1) - 1) / at.stride[i] + 1);
                }
                check_size(&shape)?;
                let (weight, bias) = (weight.widened_like(&self), bias.map(|b| b.widened_like(&self)));
                let options = ConvOptions::new_with_padding(at.stride, at.pads, at.dilation, groups);
                let t = B::$conv(self.t, weight.t, bias.map(|b| b.t), options);
                Ok(Self::wrap(t, shape, self.dtype))
            }

            /// Transposed convolution of `[N, C, ...]` by `[C, M / groups, ...]` with bias `[M]`,
            /// whose output grows by `extra` at the end. Takes symmetric padding only (the begins
            /// of `at`). The caller has checked that the shapes fit and the output is not empty.
            ///
            /// # Errors
            /// Limit when the result is too large.
            pub fn $transpose(
                self,
                weight: Self,
                bias: Option<Self>,
                at: &Geometry<$n>,
                extra: [usize; $n],
                groups: usize,
            ) -> Result<Self> {
                let pads = at.pads.map(|(begin, _)| begin);
                let mut shape = vec![self.shape[0], weight.shape[1] * groups];
                for i in 0..$n {
                    let full = (self.shape[2 + i] - 1) * at.stride[i] + at.dilation[i] * (weight.shape[2 + i] - 1) + 1;
                    shape.push(full + extra[i] - 2 * pads[i]);
                }
                check_size(&shape)?;
                let (weight, bias) = (weight.widened_like(&self), bias.map(|b| b.widened_like(&self)));
                let options = ConvTransposeOptions::new(at.stride, pads, extra, at.dilation, groups);
                let t = B::$transpose(self.t, weight.t, bias.map(|b| b.t), options);
                Ok(Self::wrap(t, shape, self.dtype))
            }
        }
    };
}

/// The axes before the last two.
fn batches(x: &Prim) -> Vec<usize> {
    let shape = x.shape();
    shape[..shape.num_dims() - 2].to_vec()
}

/// The product over the last two axes.
fn product(x: Prim, y: Prim) -> Prim {
    #[cfg(feature = "gpu")]
    if super::gpu::has_kernels(&x) {
        use super::gpu::Products;
        return B::product(x, y);
    }
    if has_kernels(&x) && has_kernels(&y) && batches(&x) == batches(&y) {
        return B::train_product(x, y, width::of_factors());
    }
    B::float_matmul(x, y)
}

convolutions!(2, conv2d, conv_transpose2d);
convolutions!(3, conv3d, conv_transpose3d);

impl Float {
    /// The matrix product over the last two axes; those before broadcast. The caller has
    /// checked that both have two axes or more and that the inner sizes agree.
    ///
    /// # Errors
    /// Malformed when the batch axes don't broadcast; limit when the result is too large.
    pub fn matmul(self, other: Self) -> Result<Self> {
        let (ra, rb) = (self.shape.len(), other.shape.len());
        let mut shape = host::broadcast(&self.shape[..ra - 2], &other.shape[..rb - 2])?;
        shape.extend([self.shape[ra - 2], other.shape[rb - 1]]);
        check_size(&shape)?;
        let (rank, dtype) = (shape.len(), self.dtype);
        let other = other.widened_like(&self);
        let prim = |x: Self| if rank <= x.shape.len() { x.t } else { x.padded(rank) };
        Ok(Self::wrap(product(prim(self), prim(other)), shape, dtype))
    }

    /// `softmax`, or its logarithm, along `axis`.
    pub fn softmax(self, axis: usize, log: bool) -> Self {
        if !log && axis + 1 == self.shape.len() && self.has_kernels() {
            return self.map(B::train_softmax);
        }
        self.map(|t| if log { B::log_softmax(t, axis) } else { B::softmax(t, axis) })
    }

    /// Normalises the rows of a matrix, then scales and shifts its columns.
    pub fn layer_norm(self, scale: Self, bias: Option<Self>, epsilon: f32) -> Self {
        let (scale, bias) = (scale.widened_like(&self), bias.map(|b| b.widened_like(&self)));
        let tracked = [&self, &scale].into_iter().chain(&bias).any(Self::is_tracked);
        if tracked && scale.elements() > 0 && [&self, &scale].into_iter().chain(&bias).all(Self::has_kernels) {
            let bias = bias.map_or_else(|| scale.clone().detached().mul_scalar(0.0).t, |b| b.t);
            return self.map(|t| B::train_layer_norm(t, scale.t, bias, LayerNorm { epsilon }));
        }
        self.map(|t| B::layer_norm(t, scale.t, bias.map(|b| b.t), f64::from(epsilon)))
    }

    /// Reduces over `axes` (ascending, no axis of them empty).
    ///
    /// # Errors
    /// None for checked axes.
    pub fn reduce(self, kind: ReduceKind, axes: &[usize], keepdims: bool) -> Result<Self> {
        let sum = |x: Self| x.reduce_by(B::float_sum_dim, axes, keepdims);
        let squared = |x: Self| x.clone().mul(x);
        match kind {
            ReduceKind::Sum => sum(self),
            ReduceKind::Mean => self.reduce_by(B::float_mean_dim, axes, keepdims),
            ReduceKind::Max => self.reduce_by(B::float_max_dim, axes, keepdims),
            ReduceKind::Min => self.reduce_by(B::float_min_dim, axes, keepdims),
            ReduceKind::Prod => self.reduce_by(B::float_prod_dim, axes, keepdims),
            ReduceKind::L1 => sum(self.abs()),
            ReduceKind::SumSquare => sum(squared(self)?),
            ReduceKind::L2 => Ok(sum(squared(self)?)?.norm()),
            ReduceKind::LogSum => Ok(sum(self)?.log()),
            ReduceKind::LogSumExp => {
                // The largest exponent is taken out, so that none overflows; infinity minus
                // itself would be NaN.
                // Whatever is taken out comes back, so it has no derivative.
                let largest = self.clone().detached().reduce_by(B::float_max_dim, axes, true)?;
                let most = if largest.dtype == DType::F64 { f64::MAX } else { f32::MAX.into() };
                let largest = largest.clamp_min(-most).clamp_max(most);
                let rest = sum(self.sub(largest.clone())?.exp())?.log();
                let shape = rest.shape.clone();
                rest.add(largest.reshape(&shape)?)
            }
        }
    }

    /// Reduces over `axes` by `f`, which reduces one axis to size 1.
    fn reduce_by(self, f: fn(Prim, usize) -> Prim, axes: &[usize], keepdims: bool) -> Result<Self> {
        let out = host::reduced_shape(&self.shape, axes, keepdims);
        let (Some(&first), Some(&last)) = (axes.first(), axes.last()) else { return Ok(self) };
        let size = |r: &[usize]| r.iter().product::<usize>();
        // Axes side by side are one axis to a reshape; others are first brought side by side.
        let x = if last - first + 1 == axes.len() {
            let (before, after) = (size(&self.shape[..first]), size(&self.shape[last + 1..]));
            let middle = size(&self.shape[first..=last]);
            self.reshape(&[before, middle, after])?
        } else {
            let kept: Vec<usize> = (0..self.shape.len()).filter(|i| !axes.contains(i)).collect();
            let rows = kept.iter().map(|i| self.shape[*i]).product();
            let columns = axes.iter().map(|i| self.shape[*i]).product();
            self.permute(&[&kept, axes].concat()).reshape(&[rows, columns, 1])?
        };
        let shape = vec![x.shape[0], 1, x.shape[2]];
        let dtype = x.dtype;
        Self::wrap(f(x.t, 1), shape, dtype).reshape(&out)
    }

    /// Maximum over a window with symmetric padding (the begins of `at`), giving `out`
    /// positions.
    pub fn max_pool2d(self, kernel: [usize; 2], at: &Geometry<2>, ceil: bool, out: [usize; 2]) -> Self {
        let shape = vec![self.shape[0], self.shape[1], out[0], out[1]];
        let t = B::max_pool2d(self.t, kernel, at.stride, at.pads.map(|p| p.0), at.dilation, ceil);
        Self::wrap(t, shape, self.dtype)
    }

    /// Average over a window with symmetric padding (the begins of `at`) and without
    /// dilation, giving `out` positions.
    pub fn avg_pool2d(
        self,
        kernel: [usize; 2],
        at: &Geometry<2>,
        count_pad: bool,
        ceil: bool,
        out: [usize; 2],
    ) -> Self {
        let shape = vec![self.shape[0], self.shape[1], out[0], out[1]];
        let t = B::avg_pool2d(self.t, kernel, at.stride, at.pads.map(|p| p.0), count_pad, ceil);
        Self::wrap(t, shape, self.dtype)
    }
}
