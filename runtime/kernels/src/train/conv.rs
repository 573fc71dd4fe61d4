//! Convolutions, and their gradients by the input and by the bias.

use super::Shape2d;
use super::batch_norm::add_elements;
use super::copy::{Aligned, join_columns, written};
use super::factors::{FactorWidth, Set};
use super::tile::{Filters, Start, convolve};
use super::unroll::{Axis, Unrolling};
use crate::Isa;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// The convolution of `x` with `weight`: `[filters, channels / groups, rows, columns]`.
pub fn conv(width: FactorWidth, at: &Shape2d, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let (set, [x, weight]) = at.width(width).operands(Isa::detect(), [x, weight]);
    conv_on(set, at, &x, &weight, bias)
}

/// [`conv`] on a set.
pub(super) fn conv_on(set: Set, at: &Shape2d, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    at.check(Some(x), Some(weight), None);
    assert!(bias.is_none_or(|bias| bias.len() == at.filters), "the bias doesn't fit {at:?}");
    if at.output_len() == 0 || x.is_empty() {
        let mut y = vec![0.0; at.output_len()];
        let planes = y.chunks_exact_mut(at.pixels().max(1));
        planes.enumerate().for_each(|(i, y)| y.fill(bias.map_or(0.0, |bias| bias[i % at.filters])));
        return y;
    }
    let (channels, [rows, columns]) = (at.group_channels(), at.kernel);
    let layer =
        SampleConv::new(set, at.axes(), at.groups, channels, at.group_filters(), |group, filter, channel, i, j| {
            weight[(((group * at.group_filters() + filter) * channels + channel) * rows + i) * columns + j]
        });
    layer.run_all(at.samples, x, bias)
}

/// The gradient of [`conv`] by its input, of that by its output.
pub fn conv_input_gradient(width: FactorWidth, at: &Shape2d, weight: &[f32], dy: &[f32]) -> Vec<f32> {
    let (set, [weight, dy]) = at.width(width).operands(Isa::detect(), [weight, dy]);
    conv_input_gradient_on(set, at, &weight, &dy)
}

/// [`conv_input_gradient`] on a set.
///
/// Inputs a stride apart are read by the same taps: each such phase of the input is a convolution
/// of the output's gradient, with a stride of 1.
pub(super) fn conv_input_gradient_on(set: Set, at: &Shape2d, weight: &[f32], dy: &[f32]) -> Vec<f32> {
    at.check(None, Some(weight), Some(dy));
    if at.input_len() == 0 || dy.is_empty() {
        return vec![0.0; at.input_len()];
    }
    let (channels, filters, [rows, columns]) = (at.group_channels(), at.group_filters(), at.kernel);
    let axes = at.axes();
    let phases: Vec<Option<SampleConv>> = (0..at.stride[0] * at.stride[1])
        .map(|phase| {
            let (down, i_of) = axes[0].adjoint(phase / at.stride[1]);
            let (across, j_of) = axes[1].adjoint(phase % at.stride[1]);
            let any = down.taps * across.taps * down.output * across.output > 0;
            any.then(|| {
                SampleConv::new(set, [down, across], at.groups, filters, channels, |group, channel, filter, i, j| {
                    let plane = (group * filters + filter) * channels + channel;
                    weight[(plane * rows + i_of[i]) * columns + j_of[j]]
                })
            })
        })
        .collect();
    if let [Some(layer)] = &phases[..] {
        return layer.run_all(at.samples, dy, None);
    }
    let mut dx = vec![0.0; at.input_len()];
    let [size, dy_size] = [at.channels * at.plane(), at.filters * at.pixels()];
    dx.par_chunks_exact_mut(size).zip(dy.par_chunks_exact(dy_size)).for_each_init(
        || phases.iter().map(|layer| layer.as_ref().map(SampleConv::scratch)).collect::<Vec<_>>(),
        |scratch, (dx, dy)| {
            let parts = phases.iter().zip(scratch).map(|(layer, scratch)| {
                let (layer, scratch) = layer.as_ref().zip(scratch.as_mut())?;
                // SAFETY: `run` writes every element of a sample's output, of which there are `len`.
                Some((layer, unsafe { written(layer.len(), |part| layer.run(dy, None, part, scratch)) }))
            });
            scatter(set.isa, at, &parts.collect::<Vec<_>>(), dx);
        },
    );
    dx
}

/// Puts each phase's gradient where it belongs in that of the input.
fn scatter(isa: Isa, at: &Shape2d, parts: &[Option<(&SampleConv, Vec<f32>)>], dx: &mut [f32]) {
    let [down, across] = at.stride;
    for (n, row) in dx.chunks_exact_mut(at.columns).enumerate() {
        let (channel, y) = (n / at.rows, n % at.rows);
        let of_phase = |phase: usize| {
            parts[y % down * across + phase].as_ref().map(|(layer, part)| {
                let [rows, columns] = layer.output;
                &part[(channel * rows + y / down) * columns..][..columns]
            })
        };
        if across == 2
            && let (Some(a), Some(b)) = (of_phase(0), of_phase(1))
        {
            join_columns(isa, [a, b], row);
            continue;
        }
        for phase in 0..across {
            for (dx, part) in row.iter_mut().skip(phase).step_by(across).zip(of_phase(phase).unwrap_or_default()) {
                *dx = *part;
            }
        }
    }
}

/// The gradient of [`conv`] by its bias, of that by its output.
pub fn conv_bias_gradient(at: &Shape2d, dy: &[f32]) -> Vec<f32> {
    at.check(None, None, Some(dy));
    let (isa, pixels) = (Isa::detect(), at.pixels());
    let sum = |filter: usize| {
        let mut sum = 0.0;
        let planes = dy.chunks_exact(pixels.max(1)).skip(filter).step_by(at.filters);
        planes.for_each(|dy| add_elements(isa, dy, &mut sum));
        sum as f32
    };
    (0..at.filters).into_par_iter().map(sum).collect()
}

/// What a thread needs from sample to sample.
struct Scratch {
    planes: Aligned,
    split: Vec<f32>,
}

/// Elements of unrolled planes, and of weights, that channels of a block have at most: as many as
/// stay in the cache while tiles go over them again and again.
const UNROLLED: usize = 1 << 16;
const WEIGHTS: usize = 1 << 17;

/// A convolution, ready to be run sample by sample.
struct SampleConv {
    set: Set,
    layout: Unrolling,
    /// Of each group the filters' weights, by blocks of channels.
    groups: Vec<Vec<Filters>>,
    /// Where each tap of a block's channels begins.
    taps: Vec<usize>,
    /// Channels of a block.
    block: usize,
    /// Elements of an input plane.
    plane: usize,
    channels: usize,
    filters: usize,
    output: [usize; 2],
}

impl SampleConv {
    /// `weight` is asked for a group, a filter, a channel of the group, and a tap's row and column.
    fn new(
        set: Set,
        axes: [Axis; 2],
        groups: usize,
        channels: usize,
        filters: usize,
        weight: impl Fn(usize, usize, usize, usize, usize) -> f32 + Sync,
    ) -> Self {
        // Lines of some whole vectors are read as fast as whole planes, and are copied but once.
        let are_long = axes[1].output >= 32 && axes[1].output.is_multiple_of(16);
        let layout = Unrolling::new(axes, filters > 2 && !are_long);
        let plane = if layout.is_plain() { axes[0].input * axes[1].input } else { layout.plane };
        let (rows, window) = (axes[0].taps, layout.taps.len());
        let block = (UNROLLED / plane).min(WEIGHTS / (filters * window)).clamp(1, channels);
        let taps = (0..block).flat_map(|c| layout.taps.iter().map(move |tap| c * plane + tap)).collect();
        let blocks = |group| {
            let filters_of = |first: usize| {
                Filters::new(set, filters, block.min(channels - first) * window, |filter, tap| {
                    let (channel, tap) = (first + tap / window, tap % window);
                    weight(group, filter, channel, tap % rows, tap / rows)
                })
            };
            (0..channels).step_by(block).map(filters_of).collect()
        };
        let groups = (0..groups).map(blocks).collect();
        let (plane, output) = (axes[0].input * axes[1].input, axes.map(|axis| axis.output));
        Self { set, layout, groups, taps, block, plane, channels, filters, output }
    }

    /// Elements of a sample's output.
    fn len(&self) -> usize {
        self.groups.len() * self.filters * self.output[0] * self.output[1]
    }

    fn scratch(&self) -> Scratch {
        let len = if self.layout.is_plain() { 0 } else { self.block * self.layout.plane };
        Scratch { planes: Aligned::zeros(len), split: vec![] }
    }

    /// Convolves all samples.
    fn run_all(&self, samples: usize, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let size = self.groups.len() * self.channels * self.plane;
        let samples_of = |y: &mut [MaybeUninit<f32>]| {
            y.par_chunks_exact_mut(self.len())
                .zip(x.par_chunks_exact(size))
                .for_each_init(|| self.scratch(), |scratch, (y, x)| self.run(x, bias, y, scratch));
        };
        assert_eq!(x.len(), samples * size, "samples");
        // SAFETY: there is an input for each sample, and `run` writes every element of its output.
        unsafe { written(samples * self.len(), samples_of) }
    }

    /// Convolves a sample: every element of `y` is written.
    fn run(&self, x: &[f32], bias: Option<&[f32]>, y: &mut [MaybeUninit<f32>], scratch: &mut Scratch) {
        let (set, layout) = (self.set, &self.layout);
        let y = y.chunks_exact_mut(self.filters * layout.runs.elements());
        let groups = self.groups.iter().zip(x.chunks_exact(self.channels * self.plane));
        for (group, ((blocks, x), y)) in groups.zip(y).enumerate() {
            let mut start = bias.map_or(Start::Zero, |bias| Start::Bias(&bias[group * self.filters..][..self.filters]));
            for (filters, x) in blocks.iter().zip(x.chunks(self.block * self.plane)) {
                let taps = &self.taps[..filters.taps()];
                let x = if layout.is_plain() {
                    x
                } else {
                    layout.fill(set.isa, x, &mut scratch.planes, &mut scratch.split);
                    &scratch.planes
                };
                // SAFETY: sums are added to from the second block on, when the first has written. `new` packed the
                // filters for `set`, and each block has at least one tap.
                unsafe { convolve(set, filters, x, taps, layout.runs, start, y) }
                start = Start::Sums;
            }
        }
    }
}
