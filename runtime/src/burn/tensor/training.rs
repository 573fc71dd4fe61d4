//! Gradients: leaves, the backward pass, and layers with kernels of ours.

use super::{
    B, Float, Prim, check_size,
    extension::{Train, begin_backward},
    layers::Geometry,
    operators::{BatchNorm, Conv, Quantised, Window2d},
    width,
};
use ::burn::backend::{
    AutodiffBackend, DType as BurnDType, Dispatch, DispatchAutodiffContext, DispatchTensorKind,
    GradientCheckpointingStrategy, TensorMetadata,
    ops::{ConvOptions, FloatTensorOps},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
};
use compress_kernels::train::{Codes, FactorWidth};

/// The gradients of one backward pass.
pub struct Gradients(<B as AutodiffBackend>::Gradients);

impl Gradients {
    /// Takes out the gradient of a leaf, if the loss depends on it.
    pub fn take(&mut self, leaf: &Float) -> Option<Float> {
        let t = B::grad_remove(&leaf.t, &mut self.0)?;
        Some(Float::wrap(t, leaf.shape.clone(), leaf.dtype))
    }
}

/// Whether a CPU holds it, as floats of 32 bits: kernels of ours are for these, whatever they are in ONNX.
pub(super) fn has_kernels(t: &Prim) -> bool {
    let on_cpu = match &t.kind {
        DispatchTensorKind::Autodiff(inner) => matches!(**inner, DispatchTensorKind::Flex(_)),
        kind => matches!(kind, DispatchTensorKind::Flex(_)),
    };
    on_cpu && t.dtype() == BurnDType::F32
}

impl Float {
    /// The tensor as a leaf of a new tape: its gradient can be asked for. With `recompute` cheap operators
    /// are computed again in the backward pass instead of kept ("gradient checkpointing").
    pub fn leaf(self, recompute: bool) -> Self {
        self.without_host_copy().map(|t| {
            let mut t = B::from_inner(t);
            if recompute {
                t.autodiff = DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::Balanced);
            }
            B::float_set_require_grad(t, true)
        })
    }

    /// Whether gradients flow through this tensor.
    pub fn is_tracked(&self) -> bool {
        matches!(self.t.kind, DispatchTensorKind::Autodiff(_)) && Dispatch::is_tracked(&self.t)
    }

    /// The same elements off the tape, where what reads them may read values on it too.
    pub(super) fn beside_tape(&self) -> Self {
        let context = self.t.autodiff;
        self.clone().detached().map(|t| {
            let mut t = B::from_inner(t);
            t.autodiff = context;
            t
        })
    }

    /// The same elements off the tape.
    pub fn detached(self) -> Self {
        match self.t.kind {
            DispatchTensorKind::Autodiff(_) => self.map(B::inner),
            _ => self,
        }
    }

    /// Rounded to the nearest, the even one of two; the gradient is that of what is not rounded (the
    /// "straight-through estimator", Bengio et al. 2013).
    ///
    /// # Errors
    /// None: all shapes are one.
    pub fn round_through(self) -> Result<Self> {
        if !self.is_tracked() {
            return Ok(self.round());
        }
        // The difference is exact, and so is the sum: both are within a factor of two of each other, or 0.
        let plain = self.clone().detached();
        let step = plain.clone().round().sub(plain)?;
        self.add(step)
    }

    /// The gradients of all leaves with respect to this, a single element.
    ///
    /// # Errors
    /// Unsupported when it depends on no leaf.
    pub fn backward(self) -> Result<Gradients> {
        if !self.is_tracked() {
            return Err(Error::unsupported("the loss depends on no parameter that is trained"));
        }
        begin_backward();
        Ok(Gradients(B::backward(self.t)))
    }

    /// The elements as Burn's own tensor of one axis, which optimisers take.
    ///
    /// # Errors
    /// None: any shape has a flat form.
    pub fn into_list(self) -> Result<::burn::Tensor<1>> {
        let n = self.elements();
        Ok(::burn::Tensor::from_dispatch(self.reshape(&[n])?.t))
    }

    /// A tensor of one axis from Burn's own.
    pub fn from_list(list: ::burn::Tensor<1>, dtype: DType) -> Self {
        let n = list.dims()[0];
        Self::wrap(list.into_dispatch(), vec![n], dtype)
    }

    /// The host copy of a constant must not stand in for what is trained.
    fn without_host_copy(mut self) -> Self {
        self.host = None;
        self
    }

    /// Whether there are kernels of ours for it.
    pub(crate) fn has_kernels(&self) -> bool {
        has_kernels(&self.t)
    }

    /// Convolution of `[N, C, H, W]` on the tape, or by factors of 16 bits; the caller has checked that the shapes
    /// fit. `None` where there is no kernel of ours.
    ///
    /// # Errors
    /// Limit when the result is too large.
    pub fn convolved(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        at: &Geometry<2>,
        groups: usize,
        out: [usize; 2],
    ) -> Result<Option<Self>> {
        let tracked = [self, weight].into_iter().chain(bias).any(Self::is_tracked);
        let width = width::of_factors();
        let fits = [self, weight].into_iter().chain(bias).all(Self::has_kernels);
        if !((tracked || width != FactorWidth::F32) && fits) {
            return Ok(None);
        }
        let shape = vec![self.shape[0], weight.shape[0], out[0], out[1]];
        check_size(&shape)?;
        let conv = Conv { options: ConvOptions::new_with_padding(at.stride, at.pads, at.dilation, groups), width };
        let (x, weight) = (self.t.clone(), weight.t.clone());
        let t = match bias {
            Some(bias) => B::train_conv_bias(x, weight, bias.t.clone(), conv),
            None => B::train_conv(x, weight, conv),
        };
        Ok(Some(Self::wrap(t, shape, self.dtype)))
    }

    /// Normalises `[N, C, ...]` by the mean and variance of each channel, scales and shifts (`[C]` each), and
    /// gives the mean and the population variance too; what is `rectified` then is 0 where it was below. `None`
    /// where there is no kernel of ours.
    pub fn batch_norm(&self, scale: &Self, bias: &Self, epsilon: f32, rectified: bool) -> Option<[Self; 3]> {
        let tracked = [self, scale, bias].iter().any(|t| t.is_tracked());
        if !(tracked && self.has_kernels()) {
            return None;
        }
        let norm = BatchNorm { epsilon, rectified };
        let (y, mean, variance) = B::train_batch_norm(self.t.clone(), scale.t.clone(), bias.t.clone(), norm);
        let statistic = |t| Self::wrap(t, scale.shape.clone(), self.dtype).detached();
        Some([Self::wrap(y, self.shape.clone(), self.dtype), statistic(mean), statistic(variance)])
    }

    /// Maximum over a window, on the tape. `None` where there is no kernel of ours.
    pub fn max_pooled(&self, kernel: [usize; 2], at: &Geometry<2>, out: [usize; 2]) -> Option<Self> {
        if !(self.is_tracked() && self.has_kernels()) {
            return None;
        }
        let Geometry { stride, dilation, pads } = *at;
        let t = B::train_max_pool(self.t.clone(), Window2d { kernel, stride, dilation, pads, out });
        Some(Self::wrap(t, vec![self.shape[0], self.shape[1], out[0], out[1]], self.dtype))
    }

    /// What QuantizeLinear makes of this by a scale a channel along `axis` or by one, or DequantizeLinear (`back`), on
    /// the tape. `None` where there is no kernel of ours.
    pub fn quantised(&self, scale: &Self, axis: usize, zero: Vec<f32>, range: (f32, f32), back: bool) -> Option<Self> {
        let tracked = self.is_tracked() || scale.is_tracked();
        let channels = scale.elements();
        let fits = channels == 1 || scale.shape == [*self.shape.get(axis)?];
        if !(tracked && fits && zero.len() == channels && self.has_kernels() && scale.has_kernels()) {
            return None;
        }
        let inner = if channels == 1 { 1 } else { self.shape[axis + 1..].iter().product() };
        let by = Quantised { codes: Codes { channels, inner, range }, zero, back };
        let t = B::train_quantised(self.t.clone(), scale.t.clone(), by);
        Some(Self::wrap(t, self.shape.clone(), self.dtype))
    }
}
