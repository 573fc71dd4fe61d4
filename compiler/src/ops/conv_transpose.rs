//! ConvTranspose: the transpose (gradient) of a convolution, used to upsample.

use super::{
    conv::{channels, groups_left, size},
    window::{AutoPad, Window},
};
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Width},
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
    /// The spatial sizes of the output, from which padding follows; empty means that padding is
    /// given, and sizes follow.
    pub output_shape: Vec<i64>,
}

impl ConvTranspose {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self {
            window: Window::read(r)?,
            group: r.int("group", 1)?,
            kernel: r.opt_ints("kernel_shape")?.unwrap_or_default(),
            output_padding: r.opt_ints("output_padding")?.unwrap_or_default(),
            output_shape: r.opt_ints("output_shape")?.unwrap_or_default(),
        };
        let sizes = [&op.output_padding, &op.output_shape].into_iter().flatten();
        if sizes.into_iter().any(|n| !(0..=i64::from(i32::MAX)).contains(n)) {
            return Err(Error::malformed(format!(
                "output_padding {:?} and output_shape {:?} must not be negative",
                op.output_padding, op.output_shape
            )));
        }
        if op.group < 1 {
            return Err(Error::malformed(format!("group {} must be 1 or more", op.group)));
        }
        Ok(op)
    }

    /// Checks that every list has one entry an axis (two for pads).
    ///
    /// # Errors
    /// Malformed otherwise.
    pub fn check_rank(&self, spatial: usize) -> Result<()> {
        self.window.check_rank(spatial)?;
        let fits = |list: &[i64]| list.is_empty() || list.len() == spatial;
        // Some exporters write the whole shape.
        if fits(&self.output_padding) && (fits(&self.output_shape) || self.output_shape.len() == spatial + 2) {
            return Ok(());
        }
        Err(Error::malformed(format!(
            "output_padding {:?} and output_shape {:?} do not fit {spatial} spatial axes",
            self.output_padding, self.output_shape
        )))
    }

    /// Along one of `spatial` axes, of size `size` under a kernel of `kernel` taps: how much is cut
    /// from the start of what all taps reach, and the size of the output; `None` when that is
    /// negative or absurd.
    pub fn placed(&self, axis: usize, spatial: usize, size: i64, kernel: i64) -> Option<(i64, i64)> {
        let w = &self.window;
        let taps = w.dilation(axis).checked_mul(kernel - 1)?.checked_add(1)?;
        let reach = w.stride(axis).checked_mul(size - 1)?.checked_add(taps)?;
        let reach = reach.checked_add(self.output_padding.get(axis).copied().unwrap_or(0))?;
        let given = self.output_shape.len().checked_sub(spatial).and_then(|i| self.output_shape.get(i + axis).copied());
        let same = matches!(w.auto_pad, AutoPad::SameUpper | AutoPad::SameLower);
        let (begin, out) = match given.or(same.then(|| size.saturating_mul(w.stride(axis)))) {
            Some(out) => {
                let cut = (reach - out).max(0);
                (if w.auto_pad == AutoPad::SameUpper { cut / 2 } else { cut - cut / 2 }, out)
            }
            None => {
                let (begin, end) = w.padding(axis, size, kernel);
                (begin, reach - begin - end)
            }
        };
        (0..=i64::from(i32::MAX)).contains(&out).then_some((begin, out))
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
        if !self.output_shape.is_empty() {
            a.push(("output_shape", self.output_shape.clone().into()));
        }
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
        let dtype = x.get(0).dtype;
        let (Some(data), Some(weight)) = (x.dims(0), x.dims(1)) else {
            return Ok(vec![Fact::new(dtype, None)]);
        };
        if data.len() < 3 || data.len() != weight.len() {
            return Err(Error::malformed("input and weight should have one rank, at least 3"));
        }
        let spatial = data.len() - 2;
        self.check_rank(spatial)?;
        if let (Some(c), Some(w)) = (data[1].known(), weight[0].known())
            && (c != w || c % self.group != 0)
        {
            return Err(Error::malformed(format!("input has {c} channels, the weight {w}, in {} groups", self.group)));
        }
        let channels = weight[1].zip(&Dim::Known(self.group), i64::checked_mul);
        let mut shape = vec![data[0].clone(), channels];
        for (i, size) in data[2..].iter().enumerate() {
            shape.push(size.zip(&weight[2 + i], |n, k| Some(self.placed(i, spatial, n, k)?.1)));
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        channels(at, sides, self.group, [Axis::In(1, 0), Axis::In(1, 1)])
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let mut op = self.clone();
        op.group = groups_left(op.group, kept, sides).unwrap_or(op.group);
        // Of the whole shape, which some exporters write, only the spatial sizes mean anything.
        let spatial = sides.inputs.get(0).rank().map_or(0, |rank| rank.saturating_sub(2));
        op.output_shape.drain(..op.output_shape.len().saturating_sub(spatial));
        Ok(ChannelSlice::op(op))
    }

    fn macs(&self, x: &Inputs, _: &[&Fact]) -> u64 {
        size(x.dims(1).map(|w| &w[1..])) * size(x.dims(0))
    }

    fn width(&self) -> Width {
        Width::Product
    }
}
