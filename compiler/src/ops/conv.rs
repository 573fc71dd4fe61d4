//! Conv: convolution over any number of spatial axes, grouped, dilated.

use super::window::Window;
use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, WeightAxes},
    value::{Dim, Fact, Shape},
};
use std::ops::RangeInclusive;

/// `Y = conv(X, W) + B` with X `[N, C, ...]`, W `[M, C / group, ...]`, B `[M]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// The sliding window.
    pub window: Window,
    /// Channels are split into this many independent convolutions.
    pub group: i64,
    /// The kernel's size; empty means that of W, which it must equal.
    pub kernel: Vec<i64>,
}

impl Conv {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self {
            window: Window::read(r)?,
            group: r.int("group", 1)?,
            kernel: r.opt_ints("kernel_shape")?.unwrap_or_default(),
        };
        if op.group < 1 {
            return Err(Error::malformed(format!("group {} must be 1 or more", op.group)));
        }
        Ok(op)
    }

    /// The output's shape, given those of data and weight.
    ///
    /// # Errors
    /// Malformed when they don't fit each other or the attributes.
    pub fn output(&self, data: Option<&[Dim]>, weight: Option<&[Dim]>) -> Result<Shape> {
        let (Some(data), Some(weight)) = (data, weight) else { return Ok(None) };
        if data.len() < 3 || data.len() != weight.len() {
            return Err(Error::malformed(format!(
                "input of rank {} and weight of rank {} should be equal and at least 3",
                data.len(),
                weight.len()
            )));
        }
        let spatial = data.len() - 2;
        self.window.check_rank(spatial)?;
        if !self.kernel.is_empty() {
            let fits = self.kernel.len() == spatial
                && self.kernel.iter().zip(&weight[2..]).all(|(k, w)| w.known().is_none_or(|w| w == *k));
            if !fits {
                return Err(Error::malformed(format!("kernel_shape {:?} is not that of the weight", self.kernel)));
            }
        }
        if let (Some(c), Some(w)) = (data[1].known(), weight[1].known())
            && w.checked_mul(self.group) != Some(c)
        {
            return Err(Error::malformed(format!(
                "input has {c} channels, the weight wants {w} in each of {} groups",
                self.group
            )));
        }
        if weight[0].known().is_some_and(|m| m % self.group != 0) {
            return Err(Error::malformed(format!("{} filters do not divide into {} groups", weight[0], self.group)));
        }
        let mut shape = vec![data[0].clone(), weight[0].clone()];
        for i in 0..spatial {
            shape.push(match weight[2 + i].known() {
                Some(k) => self.window.output(i, &data[2 + i], k)?,
                None => Dim::Unknown,
            });
        }
        Ok(Some(shape))
    }
}

impl Operator for Conv {
    fn op_type(&self) -> &str {
        "Conv"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if !self.kernel.is_empty() {
            a.push(("kernel_shape", self.kernel.clone().into()));
        }
        a.extend(self.window.attrs());
        if self.group != 1 {
            a.push(("group", self.group.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn parameters(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, self.output(x.dims(0), x.dims(1))?)])
    }

    fn quant(&self) -> Quant {
        Quant::Weighted
    }

    fn weight(&self) -> Option<WeightAxes> {
        Some(WeightAxes { slot: 1, output: 0, bias: Some(2) })
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        let taps: u64 = size(x.dims(1).map(|w| &w[1..]));
        taps * size(outputs[0].dims())
    }
}

/// The product of dimensions, unknown ones counted as 1; 0 when not even the rank is known.
pub(super) fn size(dims: Option<&[Dim]>) -> u64 {
    dims.map_or(0, |d| d.iter().map(|d| d.known().unwrap_or(1).max(0) as u64).fold(1, u64::saturating_mul))
}
