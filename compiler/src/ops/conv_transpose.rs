//! ConvTranspose: the transpose (gradient) of a convolution, used to upsample.

use super::{
    conv::size,
    window::{AutoPad, Window},
};
use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// `Y = conv_transpose(X, W) + B` with X `[N, C, ...]`, W `[C, M / group, ...]`, B `[M]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvTranspose {
    /// The sliding window.
    pub window: Window,
    /// Channels are split into this many independent convolutions.
    pub group: i64,
    /// The kernel's size; empty means that of W.
    pub kernel: Vec<i64>,
    /// Added to the end of each output axis; empty means 0.
    pub output_padding: Vec<i64>,
}

impl ConvTranspose {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opt_ints("output_shape")?.is_some() {
            return Err(Error::unsupported("ConvTranspose with output_shape"));
        }
        let op = Self {
            window: Window::read(r)?,
            group: r.int("group", 1)?,
            kernel: r.opt_ints("kernel_shape")?.unwrap_or_default(),
            output_padding: r.opt_ints("output_padding")?.unwrap_or_default(),
        };
        if op.group < 1 {
            return Err(Error::malformed(format!("group {} must be 1 or more", op.group)));
        }
        if op.window.auto_pad != AutoPad::NotSet {
            return Err(Error::unsupported("ConvTranspose with auto_pad"));
        }
        Ok(op)
    }
}

impl Operator for ConvTranspose {
    fn op_type(&self) -> &str {
        "ConvTranspose"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if !self.kernel.is_empty() {
            a.push(("kernel_shape", self.kernel.clone().into()));
        }
        a.extend(self.window.attrs());
        if !self.output_padding.is_empty() {
            a.push(("output_padding", self.output_padding.clone().into()));
        }
        if self.group != 1 {
            a.push(("group", self.group.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (Some(data), Some(weight)) = (x.dims(0), x.dims(1)) else {
            return Ok(vec![Fact::new(dtype, None)]);
        };
        if data.len() < 3 || data.len() != weight.len() {
            return Err(Error::malformed("input and weight should have one rank, at least 3"));
        }
        self.window.check_rank(data.len() - 2)?;
        if let (Some(c), Some(w)) = (data[1].known(), weight[0].known())
            && (c != w || c % self.group != 0)
        {
            return Err(Error::malformed(format!("input has {c} channels, the weight {w}, in {} groups", self.group)));
        }
        let channels = weight[1].zip(&Dim::Known(self.group), i64::checked_mul);
        let mut shape = vec![data[0].clone(), channels];
        for (i, size) in data[2..].iter().enumerate() {
            let extra = self.output_padding.get(i).copied().unwrap_or(0);
            shape.push(size.zip(&weight[2 + i], |n, k| {
                let (begin, end) = self.window.padding(i, n, k);
                Some(self.window.stride(i) * (n - 1) + extra + self.window.dilation(i) * (k - 1) + 1 - begin - end)
            }));
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn macs(&self, x: &Inputs, _: &[&Fact]) -> u64 {
        size(x.dims(1).map(|w| &w[1..])) * size(x.dims(0))
    }
}
