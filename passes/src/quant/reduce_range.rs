//! Scales of weights with which sums of two products fit 16 bits.
//!
//! Processors with AVX2 and without VNNI multiply codes by `vpmaddubsw`, which adds the products of two neighbouring inputs in
//! 16 bits and cuts off what is beyond; 2 · 255 · 127 is. ONNX Runtime and oneDNN, which OpenVINO computes with, use it, and
//! their way out is weights of 7 bits (`reduce_range`). But few pairs of weights are large, of one sign, and meet large codes.
//! So a larger scale for the output channels that have such a pair is enough.

use super::{choices::Choices, params::Affine, scheme::Scheme};
use crate::{layers::Layer, weight_matrix::WeightMatrix};
use compress_compiler::{
    choice,
    error::{Error, Result},
    graph::Graph,
    node::Port,
    op::Op,
    ops::reduce::{Reduce, ReduceKind},
    part::only,
    pass::Calibrator,
    tensor::Tensor,
    verify::verify,
};
use std::{collections::HashMap, sync::Arc};

/// When scales of weights are enlarged so that sums of two products fit 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReduceRange {
    /// For the codes that calibration data has in each input channel.
    #[default]
    Auto,
    /// For all codes.
    Always,
    /// Not at all.
    Never,
}

choice!(ReduceRange, "range reduction", [
    Auto "auto" "sums of two products fit 16 bits for the codes of each input channel on calibration data, or by ranges of each run for any codes",
    Always "always" "they fit 16 bits for any data: larger scales for more channels",
    Never "never" "weights use all 8 bits: processors with AVX2 and without VNNI cut off sums beyond 16 bits",
]);

/// The least and the largest value of each channel of values that layers read.
pub(super) type Channels = HashMap<Port, Arc<[(f32, f32)]>>;

/// Samples that the ranges of channels are taken from. By 128, smoothed values were cut off in a sentence encoder.
const SAMPLES: usize = 1024;

/// The part of its range by which a channel may reach beyond what was seen of it, at either end.
const BEYOND: f32 = 1.0 / 16.0;

/// The greatest sum of two products.
const MOST: f32 = i16::MAX as f32;

/// The greatest sum of two codes of one sign by which any codes of activations may be multiplied in 16 bits: 255 times that fits.
const MOST_OF_PAIR: f32 = 128.0;

/// The axis of the input channels of what a layer reads.
fn axis(g: &Graph, l: &Layer) -> Option<usize> {
    let rank = g.fact(g.operand(l.node, 0)?).rank()?;
    match g.op(l.node) {
        Op::Conv(_) => Some(1),
        Op::MatMul(_) => rank.checked_sub(1),
        Op::Gemm(gemm) if !gemm.trans_a => rank.checked_sub(1),
        _ => None,
    }
}

/// The ranges of the channels of all that `layers` read, on calibration data.
///
/// # Errors
/// Whatever running the graph can raise.
pub(super) fn observe(g: &Graph, layers: &[Layer], calibrator: &dyn Calibrator) -> Result<Channels> {
    let mut axes: Vec<(Port, usize)> =
        layers.iter().filter_map(|l| Some((g.operand(l.node, 0)?, axis(g, l)?))).collect();
    axes.sort();
    axes.dedup();
    // A value whose readers find its channels on different axes has no channels in our sense.
    let is_plain = |(port, _): &(Port, usize)| axes.iter().filter(|(p, _)| p == port).count() == 1;
    let axes: Vec<(Port, usize)> = axes.iter().copied().filter(is_plain).collect();
    if axes.is_empty() {
        return Ok(Channels::new());
    }
    let mut reduced = g.clone();
    let mut ports = vec![];
    for (port, axis) in &axes {
        for kind in [ReduceKind::Min, ReduceKind::Max] {
            ports.push(by_channel(&mut reduced, *port, *axis, kind)?);
        }
    }
    let mut found: Vec<Vec<(f32, f32)>> = vec![vec![]; axes.len()];
    calibrator.run(&[&verify(&only(&reduced, &ports))?], SAMPLES, &mut |made| {
        for (channels, pair) in found.iter_mut().zip(made[0].chunks(2)) {
            let [low, high] = pair else { continue };
            let values =
                |t: &Tensor| Ok::<_, Error>(t.as_f32().ok_or_else(|| Error::bug("a range is not f32"))?.into_owned());
            let (low, high) = (values(low)?, values(high)?);
            let count = pair[0].shape().last().copied().unwrap_or(1).max(1);
            channels.resize(count, (f32::INFINITY, f32::NEG_INFINITY));
            for (i, (low, high)) in low.iter().zip(&high).enumerate() {
                let (least, most) = &mut channels[i % count];
                (*least, *most) = (least.min(*low), most.max(*high));
            }
        }
        Ok(())
    })?;
    let seen = axes.into_iter().zip(found).filter(|(_, channels)| !channels.is_empty());
    Ok(seen.map(|((port, _), channels)| (port, channels.into())).collect())
}

/// What is left of `port` where all axes but the first and that of the channels are reduced: the first may be samples, which
/// runs of some at a time keep apart.
fn by_channel(g: &mut Graph, port: Port, axis: usize, kind: ReduceKind) -> Result<Port> {
    let rank = g.fact(port).rank().unwrap_or(2);
    let axes: Vec<i64> = (1..rank).filter(|i| *i != axis).map(|i| i as i64).collect();
    if axes.is_empty() {
        return Ok(port);
    }
    let axes = g.add_constant("axes", Tensor::i64s(&axes)).into();
    let name = g.fresh("extremes");
    let op = Reduce { kind, keepdims: false, noop_with_empty_axes: false };
    Ok(g.add_node(&name, op.into(), &[Some(port), Some(axes)], &[&name])?.into())
}

/// Neighbouring inputs of a layer, whose products kernels add in 16 bits.
pub(super) struct Pairs {
    matrix: WeightMatrix,
    /// Output channels that read the same input channels.
    each_group: usize,
    /// The codes that each input channel has, those of all groups.
    ranges: Vec<(f32, f32)>,
}

impl Pairs {
    /// Those of a layer that `scheme` wants to leave room for. Activations have these parameters and, as far as they are known,
    /// these ranges of channels.
    pub fn of(
        g: &Graph,
        l: &Layer,
        params: &HashMap<Port, Affine>,
        known: &Channels,
        scheme: &Scheme,
        choices: &Choices,
    ) -> Option<Self> {
        let (input, matrix) = (g.operand(l.node, 0)?, WeightMatrix::of(g, l)?);
        let group = match g.op(l.node) {
            Op::Conv(conv) => usize::try_from(conv.group).ok().filter(|n| *n > 0)?,
            _ => 1,
        };
        // Depthwise kernels add one product at a time.
        let depthwise = matrix.channels == 1 && group > 1;
        if scheme.reduce_range == ReduceRange::Never || !scheme.may_be_cut_off() || depthwise {
            return None;
        }
        let (x, codes) = (params.get(&input)?, scheme.activations.codes());
        let (least, most) = (codes.range().0 as f32, codes.range().1 as f32);
        let code = |v: f32| (v / x.scale + x.zero as f32).round_ties_even().clamp(least, most);
        // The second of two terms has all codes in every channel.
        let has_all = scheme.reduce_range == ReduceRange::Always || choices.two_terms.contains(&input);
        let count = matrix.channels * group;
        let ranges = match known.get(&input).filter(|channels| !has_all && channels.len() == count) {
            Some(channels) => {
                let of = |(low, high): &(f32, f32)| {
                    let beyond = BEYOND * (high - low);
                    (code(low - beyond), code(high + beyond))
                };
                channels.iter().map(of).collect()
            }
            None => vec![(least, most); count],
        };
        Some(Self { matrix, each_group: (matrix.rows / group).max(1), ranges })
    }

    /// The codes of what output channel `row` reads.
    fn ranges_of(&self, row: usize) -> &[(f32, f32)] {
        let n = self.matrix.channels;
        let first = (row / self.each_group * n).min(self.ranges.len() - n);
        &self.ranges[first..][..n]
    }

    /// The least scale of each output channel of a weight, as it is stored, with which all sums fit once it is rounded to the
    /// nearest codes.
    pub fn least_scales(&self, stored: &[f32]) -> Vec<f32> {
        let of = |(r, row): (usize, &[f32])| {
            let ranges = self.ranges_of(r);
            let largest = pairs(row.len(), ranges.len()).map(|pair| {
                // Each may grow by half a code.
                let slack: f32 = pair.iter().flatten().map(|at| furthest(ranges, *at) / 2.0).sum();
                sum(row, self.matrix.taps, ranges, pair) / (MOST - slack)
            });
            largest.fold(0.0, f32::max)
        };
        self.matrix.matrix(stored).chunks_exact(self.matrix.columns()).enumerate().map(of).collect()
    }

    /// Makes all sums of a weight, whose elements are codes under `scales`, fit: where they do not, the larger of two weights
    /// gives way. Rounding that makes up for other weights, and training, move codes further than to the nearest.
    pub fn settle(&self, stored: &[f32], scales: &[f32]) -> Vec<f32> {
        let mut matrix = self.matrix.matrix(stored);
        for (r, row) in matrix.chunks_exact_mut(self.matrix.columns()).enumerate() {
            let (ranges, scale) = (self.ranges_of(r), scales[r]);
            row.iter_mut().for_each(|w| *w = (*w / scale).round_ties_even());
            for pair in pairs(row.len(), ranges.len()) {
                while sum(row, self.matrix.taps, ranges, pair) > MOST {
                    let places = pair.iter().flatten().map(|at| place(*at, self.matrix.taps, ranges.len()));
                    // A sum beyond the greatest has a summand that is not zero.
                    let Some(largest) = places.max_by(|a, b| row[*a].abs().total_cmp(&row[*b].abs())) else { break };
                    row[largest] -= row[largest].signum();
                }
            }
            row.iter_mut().for_each(|w| *w *= scale);
        }
        self.matrix.stored(&matrix)
    }
}

/// The pairs of inputs of an output channel, in the order in which kernels take them: the channels of a tap one after the other.
/// An odd number of channels makes pairs across taps, of which it depends on the kernel which are made.
fn pairs(inputs: usize, channels: usize) -> impl Iterator<Item = [Option<usize>; 2]> {
    let step = if channels.is_multiple_of(2) { 2 } else { 1 };
    (0..inputs).step_by(step).map(move |at| [Some(at), (at + 1 < inputs).then_some(at + 1)])
}

/// Where the weight of an input in that order lies in the row of an output channel.
fn place(at: usize, taps: usize, channels: usize) -> usize {
    at % channels * taps + at / channels
}

/// The largest code of an input.
fn furthest(ranges: &[(f32, f32)], at: usize) -> f32 {
    let (low, high) = ranges[at % ranges.len()];
    high.max(-low)
}

/// The largest sum, up or down, of the products of a pair.
fn sum(row: &[f32], taps: usize, ranges: &[(f32, f32)], pair: [Option<usize>; 2]) -> f32 {
    let mut sums = (0.0, 0.0);
    for at in pair.into_iter().flatten() {
        let (w, (low, high)) = (row[place(at, taps, ranges.len())], ranges[at % ranges.len()]);
        let (a, b) = (w * low, w * high);
        sums = (sums.0 + a.min(b), sums.1 + a.max(b));
    }
    sums.1.max(-sums.0)
}

/// The scale of a row of weights whose codes end at `most`, where activations have the range of each run: no calibration tells their
/// codes, so room is for any codes or for none.
pub(super) fn scale_for_any_codes(row: &[f32], room: ReduceRange, most: f32) -> f32 {
    let greatest = row.iter().fold(0f32, |m, v| m.max(v.abs())) / most;
    let of_pair = |pair: &[f32]| {
        let sum = |sign: f32| pair.iter().map(|v| (sign * v).max(0.0)).sum::<f32>();
        sum(1.0).max(sum(-1.0))
    };
    // Rounding may make both a step larger by half.
    let pairs = row.chunks(2).map(of_pair).fold(0f32, f32::max) / (MOST_OF_PAIR - 1.0);
    let scale = if room == ReduceRange::Never { greatest } else { greatest.max(pairs) };
    if scale.is_normal() { scale } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(row: &[f32], taps: usize, ranges: &[(f32, f32)]) -> f32 {
        pairs(row.len(), ranges.len()).map(|pair| sum(row, taps, ranges, pair)).fold(0.0, f32::max)
    }

    #[test]
    fn pairs_are_neighbours_of_one_tap() {
        // Two channels of two taps, stored by channel: the pairs are 100 and 120, -90 and 127.
        let row = [100.0, -90.0, 120.0, 127.0];
        assert_eq!(largest(&row, 2, &[(0.0, 255.0); 2]), 255.0 * 220.0);
        assert_eq!(largest(&row, 2, &[(0.0, 10.0), (0.0, 255.0)]), 255.0 * 127.0);
        assert_eq!(largest(&row, 2, &[(0.0, 255.0), (0.0, 0.0)]), 255.0 * 100.0);
        // Codes that can't be small: what one product adds the other has to take away.
        assert_eq!(largest(&[-100.0, 20.0], 1, &[(100.0, 200.0), (50.0, 60.0)]), 200.0 * 100.0 - 50.0 * 20.0);
    }

    #[test]
    fn an_odd_number_of_channels_pairs_across_taps() {
        // Three channels of two taps: in order 1, 2, 100 of one tap, then 90, 3, 4 of the other.
        let row = [1.0, 90.0, 2.0, 3.0, 100.0, 4.0];
        assert_eq!(largest(&row, 2, &[(0.0, 10.0); 3]), 1900.0);
    }

    #[test]
    fn scales_leave_room_for_rounding_and_codes_give_way() {
        let matrix = WeightMatrix::dense(2, 2);
        let pairs = Pairs { matrix, each_group: 2, ranges: vec![(0.0, 255.0); 2] };
        let stored = [1.0, 0.9, 1.0, -0.9];
        let scales = pairs.least_scales(&stored);
        let codes = |w: f32, s: f32| (w / s).round_ties_even();
        assert!(codes(1.0, scales[0]) + codes(0.9, scales[0]) <= 128.0, "{scales:?}");
        assert!(scales[1] <= 1.0 / 127.0, "one product alone always fits");
        let settled = pairs.settle(&[127.0, 3.0, 100.0, 90.0], &[1.0, 1.0]);
        assert_eq!(settled, [125.0, 3.0, 64.0, 64.0]);
    }

    #[test]
    fn two_large_weights_of_one_sign_get_room() {
        let alone = scale_for_any_codes(&[1.0, -1.0, 1.0, 0.0], ReduceRange::Auto, 127.0);
        assert_eq!(alone, 1.0 / 127.0, "signs cancel out");
        let beside = scale_for_any_codes(&[0.0, 0.0, 1.0, 0.9], ReduceRange::Auto, 127.0);
        assert!(255.0 * ((1.0 / beside).round() + (0.9 / beside).round()) <= f32::from(i16::MAX));
        assert_eq!(scale_for_any_codes(&[0.0, 0.0, 1.0, 0.9], ReduceRange::Never, 127.0), 1.0 / 127.0);
    }
}
