//! Conv: convolution over any number of spatial axes, grouped, dilated.

use super::window::Window;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, WeightAxes, Width},
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

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        channels(at, sides, self.group, [Axis::In(1, 1), Axis::In(1, 0)])
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let left = groups_left(self.group, kept, sides);
        Ok(left.map_or_else(ChannelSlice::default, |group| ChannelSlice::op(Self { group, ..self.clone() })))
    }

    fn quant(&self) -> Quant {
        Quant::Weighted
    }

    fn weight(&self) -> Option<WeightAxes> {
        Some(WeightAxes { slot: 1, output: 0, input: 1, rank: None, bias: Some(2) })
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        let taps: u64 = size(x.dims(1).map(|w| &w[1..]));
        taps * size(outputs[0].dims())
    }

    fn width(&self) -> Width {
        Width::Product
    }
}

/// How the channels of a convolution of `group` groups go together, given the axes of its weight that face the data and
/// the result. A group of a depthwise convolution goes as a whole. Other groups stay, and each of them loses the channels
/// at the same places.
pub(super) fn channels(at: Axis, sides: &Sides, group: i64, [data, result]: [Axis; 2]) -> Flow {
    use Axis::{In, Out};
    let window = "its window slides over these";
    if group == 1 || matches!(at, In(0, 0) | Out(0, 0)) {
        return sides.alike(at, window, |axis| match axis {
            In(0, 0) | Out(0, 0) => Some("batch"),
            _ if axis == data || axis == In(0, 1) => Some("data"),
            _ if axis == result || matches!(axis, In(2, 0) | Out(0, 1)) => Some("result"),
            _ => None,
        });
    }
    let (Some(c), Some(m), Ok(groups @ 1..)) = (sides.size(In(0, 1)), sides.size(Out(0, 1)), usize::try_from(group))
    else {
        return Flow::closed(UNKNOWN);
    };
    let whole = [In(0, 1), In(1, 0), In(2, 0), Out(0, 1)];
    if c == groups && whole.contains(&at) {
        return sides.blocks(at, whole.map(|axis| (axis, sides.size(axis).unwrap_or(0) / groups)));
    }
    let places = |axes: &[Axis], each: usize| {
        sides.labelled(at, axes.iter().map(|axis| (*axis, move |i: usize| i % each.max(1))))
    };
    match at {
        _ if c == groups => Flow::closed(window),
        _ if at == data || at == In(0, 1) => places(&[In(0, 1), data], c / groups),
        _ if at == result || whole.contains(&at) => places(&[result, In(2, 0), Out(0, 1)], m / groups),
        _ => Flow::closed(window),
    }
}

/// How many groups a depthwise convolution has left, if it lost any.
pub(super) fn groups_left(group: i64, kept: &Kept, sides: &Sides) -> Option<i64> {
    let depthwise = group > 1 && sides.size(Axis::In(0, 1)).map(|c| c as i64) == Some(group);
    kept.count(Axis::In(0, 1)).filter(|_| depthwise).map(|n| n as i64)
}

/// The product of dimensions, unknown ones counted as 1; 0 when not even the rank is known.
pub(super) fn size(dims: Option<&[Dim]>) -> u64 {
    dims.map_or(0, |d| d.iter().map(|d| d.known().unwrap_or(1).max(0) as u64).fold(1, u64::saturating_mul))
}
