//! Whole layers on the device: products, reductions, normalisation, convolution, pooling.

use super::{B, Float, check_size};
use crate::burn::host;
use ::burn::backend::ops::{ActivationOps, ConvOptions, ConvTransposeOptions, FloatTensorOps, ModuleOps};
use compress_compiler::{error::Result, ops::reduce::ReduceKind};

/// Where a window of two axes stands.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// Steps between positions.
    pub stride: [usize; 2],
    /// Steps between taps.
    pub dilation: [usize; 2],
    /// (begin, end) padding.
    pub pads: [(usize, usize); 2],
}

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
        let prim = |x: Self| if rank <= x.shape.len() { x.t } else { x.padded(rank) };
        Ok(Self::wrap(B::float_matmul(prim(self), prim(other)), shape, dtype))
    }

    /// `softmax`, or its logarithm, along `axis`.
    pub fn softmax(self, axis: usize, log: bool) -> Self {
        self.map(|t| if log { B::log_softmax(t, axis) } else { B::softmax(t, axis) })
    }

    /// Normalises the rows of a matrix, then scales and shifts its columns.
    pub fn layer_norm(self, scale: Self, bias: Option<Self>, epsilon: f32) -> Self {
        self.map(|t| B::layer_norm(t, scale.t, bias.map(|b| b.t), f64::from(epsilon)))
    }

    /// Reduces axis 1 of a tensor of three axes, which stays with size 1.
    fn reduce_middle(self, kind: ReduceKind) -> Self {
        let shape = vec![self.shape[0], 1, self.shape[2]];
        let t = match kind {
            ReduceKind::Mean => B::float_mean_dim(self.t, 1),
            ReduceKind::Sum => B::float_sum_dim(self.t, 1),
            ReduceKind::Max => B::float_max_dim(self.t, 1),
            ReduceKind::Min => B::float_min_dim(self.t, 1),
            ReduceKind::Prod => B::float_prod_dim(self.t, 1),
        };
        Self::wrap(t, shape, self.dtype)
    }

    /// Reduces over `axes` (ascending, no axis of them empty).
    ///
    /// # Errors
    /// None for checked axes.
    pub fn reduce(self, kind: ReduceKind, axes: &[usize], keepdims: bool) -> Result<Self> {
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
        x.reduce_middle(kind).reshape(&out)
    }

    /// Convolution of `[N, C, H, W]` by `[M, C / groups, h, w]` with bias `[M]`. The caller has
    /// checked that the shapes fit.
    ///
    /// # Errors
    /// Limit when the result is too large.
    pub fn conv2d(self, weight: Self, bias: Option<Self>, at: &Geometry, groups: usize) -> Result<Self> {
        let size = |i: usize| {
            let room = self.shape[2 + i] + at.pads[i].0 + at.pads[i].1;
            (room - at.dilation[i] * (weight.shape[2 + i] - 1) - 1) / at.stride[i] + 1
        };
        let shape = vec![self.shape[0], weight.shape[0], size(0), size(1)];
        check_size(&shape)?;
        let options = ConvOptions::new_with_padding(at.stride, at.pads, at.dilation, groups);
        let t = B::conv2d(self.t, weight.t, bias.map(|b| b.t), options);
        Ok(Self::wrap(t, shape, self.dtype))
    }

    /// Transposed convolution of `[N, C, H, W]` by `[C, M / groups, h, w]` with bias `[M]`,
    /// whose output grows by `extra` at the end. Takes symmetric padding only (the begins of
    /// `at`). The caller has checked that the shapes fit and the output is not empty.
    ///
    /// # Errors
    /// Limit when the result is too large.
    pub fn conv_transpose2d(
        self,
        weight: Self,
        bias: Option<Self>,
        at: &Geometry,
        extra: [usize; 2],
        groups: usize,
    ) -> Result<Self> {
        let pads = at.pads.map(|(begin, _)| begin);
        let size = |i: usize| {
            let full = (self.shape[2 + i] - 1) * at.stride[i] + at.dilation[i] * (weight.shape[2 + i] - 1) + 1;
            full + extra[i] - 2 * pads[i]
        };
        let shape = vec![self.shape[0], weight.shape[1] * groups, size(0), size(1)];
        check_size(&shape)?;
        let options = ConvTransposeOptions::new(at.stride, pads, extra, at.dilation, groups);
        let t = B::conv_transpose2d(self.t, weight.t, bias.map(|b| b.t), options);
        Ok(Self::wrap(t, shape, self.dtype))
    }

    /// Maximum over a window with symmetric padding (the begins of `at`), giving `out`
    /// positions.
    pub fn max_pool2d(self, kernel: [usize; 2], at: &Geometry, ceil: bool, out: [usize; 2]) -> Self {
        let shape = vec![self.shape[0], self.shape[1], out[0], out[1]];
        let t = B::max_pool2d(self.t, kernel, at.stride, at.pads.map(|p| p.0), at.dilation, ceil);
        Self::wrap(t, shape, self.dtype)
    }

    /// Average over a window with symmetric padding (the begins of `at`) and without
    /// dilation, giving `out` positions.
    pub fn avg_pool2d(self, kernel: [usize; 2], at: &Geometry, count_pad: bool, ceil: bool, out: [usize; 2]) -> Self {
        let shape = vec![self.shape[0], self.shape[1], out[0], out[1]];
        let t = B::avg_pool2d(self.t, kernel, at.stride, at.pads.map(|p| p.0), count_pad, ceil);
        Self::wrap(t, shape, self.dtype)
    }
}
