//! GroupNormalization and InstanceNormalization.

use super::layer_norm::stash_type;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Width},
    tensor::DType,
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Normalises groups of channels (axis 1) together with all axes after them, then scales and
/// shifts. Inputs: X, scale, bias.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupNorm {
    /// The number of groups.
    pub num_groups: i64,
    /// Added to the variance.
    pub epsilon: f32,
    /// The type in which the statistics are computed at least.
    pub stash_type: DType,
    /// Whether scale and bias have an entry a group, as before opset 21, not one a channel.
    pub per_group: bool,
}

/// Normalises each channel over the axes after it, then scales and shifts. Inputs: X, scale,
/// bias, the latter two with an entry a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl GroupNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let num_groups = r.opt_int("num_groups")?.unwrap_or(0);
        if num_groups < 1 {
            return Err(Error::malformed(format!("num_groups {num_groups} must be 1 or more")));
        }
        Ok(Self { num_groups, epsilon: r.float("epsilon", 1e-5)?, stash_type: stash_type(r)?, per_group: r.opset < 21 })
    }
}

impl GroupNorm {
    /// How many channels a group has.
    fn group(&self, sides: &Sides) -> Option<usize> {
        let groups = usize::try_from(self.num_groups).ok().filter(|n| *n > 0)?;
        sides.size(Axis::In(0, 1)).map(|c| c / groups).filter(|n| *n > 0)
    }
}

impl InstanceNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { epsilon: r.float("epsilon", 1e-5)? })
    }
}

/// Why spatial axes can't lose indices.
const OVER: &str = "it normalises over these";

/// The shape of X, once scale and bias are known to fit `entries`.
fn checked(x: &Inputs, entries: Option<i64>) -> Result<Vec<Fact>> {
    for slot in [1, 2] {
        let Some(dims) = x.dims(slot) else { continue };
        let fits = matches!(dims, [d] if entries.zip(d.known()).is_none_or(|(a, b)| a == b));
        if !fits {
            return Err(Error::malformed(format!(
                "input {slot} is {}, where a vector of {entries:?} is due",
                x.get(slot)
            )));
        }
    }
    Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
}

fn channels(x: &Inputs) -> Result<Option<i64>> {
    match x.dims(0) {
        Some(dims) if dims.len() < 2 => {
            Err(Error::malformed(format!("an input of rank {} has no channels", dims.len())))
        }
        dims => Ok(dims.and_then(|d| Dim::known(&d[1]))),
    }
}

impl Operator for GroupNorm {
    fn op_type(&self) -> &str {
        "GroupNormalization"
    }
    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("num_groups", self.num_groups.into()), ("epsilon", self.epsilon.into())];
        if self.stash_type != DType::F32 {
            a.push(("stash_type", (self.stash_type as i64).into()));
        }
        a
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }
    fn parameters(&self) -> &'static [usize] {
        &[1, 2]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let channels = channels(x)?;
        if channels.is_some_and(|c| c % self.num_groups != 0) {
            return Err(Error::malformed(format!("{channels:?} channels in {} groups", self.num_groups)));
        }
        checked(x, if self.per_group { Some(self.num_groups) } else { channels })
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        use Axis::{In, Out};
        match (at, self.group(sides)) {
            (In(0, 1) | In(1 | 2, 0) | Out(0, 1), Some(group)) => {
                let entries = if self.per_group { 1 } else { group };
                sides.blocks(at, [(In(0, 1), group), (In(1, 0), entries), (In(2, 0), entries), (Out(0, 1), group)])
            }
            (In(0, 1) | In(1 | 2, 0) | Out(0, 1), None) => Flow::closed(UNKNOWN),
            _ => sides.passes(at, OVER, |axis| axis != 0),
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let left = kept.count(Axis::In(0, 1)).zip(self.group(sides)).map(|(channels, group)| (channels / group) as i64);
        Ok(left.map_or_else(ChannelSlice::default, |num_groups| ChannelSlice::op(Self { num_groups, ..self.clone() })))
    }
    fn since(&self) -> i64 {
        if self.per_group { 18 } else { 21 }
    }
    fn until(&self) -> Option<i64> {
        // One group a channel, or a single channel a group, would be the same in both forms,
        // but that is a matter of shapes.
        self.per_group.then_some(20)
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}

impl Operator for InstanceNorm {
    fn op_type(&self) -> &str {
        "InstanceNormalization"
    }
    fn attrs(&self) -> Attrs {
        vec![("epsilon", self.epsilon.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }
    fn parameters(&self) -> &'static [usize] {
        &[1, 2]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        checked(x, channels(x)?)
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.alike(at, OVER, |axis| match axis {
            Axis::In(0, 0) | Axis::Out(_, 0) => Some("batch"),
            Axis::In(0, 1) | Axis::In(1 | 2, 0) | Axis::Out(_, 1) => Some("channel"),
            _ => None,
        })
    }
    fn since(&self) -> i64 {
        6
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}
