//! The gradient of convolutions by their weight.

use super::Shape2d;
use super::copy::Aligned;
use super::correlate::{Panels, correlate};
use super::factors::{FactorWidth, Set};
use super::unroll::Unrolling;
use crate::Isa;
use rayon::prelude::*;
use std::ops::Range;

/// Pixels of a part of the samples: sums are taken in registers over so many at least.
const PIXELS: usize = 1024;

/// Parts into which the samples are divided at most.
const PARTS: usize = 16;

/// Elements of all parts' sums together, at most, and of what planes are unrolled to at a time.
const SUMS: usize = 1 << 22;
const UNROLLED: usize = 1 << 15;

/// The gradient of [`conv`] by its weight, of that by its output.
///
/// [`conv`]: super::conv
pub fn conv_weight_gradient(width: FactorWidth, at: &Shape2d, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let (set, [x, dy]) = at.width(width).operands(Isa::detect(), [x, dy]);
    conv_weight_gradient_on(set, at, &x, &dy)
}

/// [`conv_weight_gradient`] on a set.
pub(super) fn conv_weight_gradient_on(set: Set, at: &Shape2d, x: &[f32], dy: &[f32]) -> Vec<f32> {
    at.check(Some(x), None, Some(dy));
    let mut dw = vec![0.0; at.weight_len()];
    if dw.is_empty() || dy.is_empty() || x.is_empty() {
        return dw;
    }
    let (channels, filters, taps) = (at.group_channels(), at.group_filters(), at.taps());
    let layout = Unrolling::new(at.axes(), filters > 2);
    let plane = if layout.is_plain() { at.plane() } else { layout.plane };

    let parts = (at.samples * at.pixels()).div_ceil(PIXELS).min(at.samples).min(PARTS).min(SUMS.div_ceil(dw.len()));
    let per_part = at.samples.div_ceil(parts);
    let together = PIXELS.div_ceil(at.pixels()).min(per_part);
    let block = (UNROLLED / (plane * together)).clamp(1, channels);
    let blocks: Vec<(usize, Range<usize>)> = (0..at.groups)
        .flat_map(|group| (0..channels).step_by(block).map(move |c| (group, c..(c + block).min(channels))))
        .collect();
    // Of few parts, each is divided further.
    let blocks_of_task = blocks.len().div_ceil(PARTS.div_ceil(parts));
    let tasks: Vec<&[(usize, Range<usize>)]> = blocks.chunks(blocks_of_task).collect();

    let gradient = Gradient { set, at, layout: &layout, plane, together, x, dy };
    let sums: Vec<Vec<f32>> = (0..parts * tasks.len())
        .into_par_iter()
        .map(|i| {
            let first = i / tasks.len() * per_part;
            gradient.sums(first.min(at.samples)..(first + per_part).min(at.samples), tasks[i % tasks.len()])
        })
        .collect();
    // A block lies filter by filter: where those of each begin.
    let [rows, columns] = at.kernel;
    dw.par_chunks_exact_mut(channels * taps).enumerate().for_each(|(filter, dw)| {
        let (group, filter) = (filter / filters, filter % filters);
        for (i, sums) in sums.iter().enumerate() {
            let mut start = 0;
            for (of, block) in tasks[i % tasks.len()] {
                if *of == group {
                    let sums = &sums[start + filter * block.len() * taps..][..block.len() * taps];
                    let dw = &mut dw[block.start * taps..block.end * taps];
                    for (dw, sums) in dw.chunks_exact_mut(taps).zip(sums.chunks_exact(taps)) {
                        for i in 0..rows {
                            for j in 0..columns {
                                dw[i * columns + j] += sums[j * rows + i];
                            }
                        }
                    }
                }
                start += filters * block.len() * taps;
            }
        }
    });
    dw
}

struct Gradient<'a> {
    set: Set,
    at: &'a Shape2d,
    layout: &'a Unrolling,
    /// Elements of a plane, unrolled.
    plane: usize,
    /// Samples that are unrolled at a time.
    together: usize,
    x: &'a [f32],
    dy: &'a [f32],
}

impl Gradient<'_> {
    /// The gradient by some samples: of each block of channels the taps, filter by filter.
    fn sums(&self, samples: Range<usize>, blocks: &[(usize, Range<usize>)]) -> Vec<f32> {
        let (at, layout) = (self.at, self.layout);
        let (filters, pixels) = (at.group_filters(), at.pixels());
        let size = |block: &Range<usize>| filters * block.len() * at.taps();
        let mut all = vec![0.0; blocks.iter().map(|(_, block)| size(block)).sum()];
        let most = blocks.iter().map(|(_, block)| block.len()).max().unwrap_or(0);
        let room = if layout.is_plain() { 0 } else { most * self.together * self.plane };
        let (mut unrolled, mut split) = (Aligned::zeros(room), vec![]);
        let mut panels = Panels::new(self.together, filters, layout.runs);
        for first in samples.clone().step_by(self.together) {
            let together = first..(first + self.together).min(samples.end);
            let mut rest = &mut all[..];
            let mut packed = None;
            for (group, block) in blocks {
                let (sums, others) = rest.split_at_mut(size(block));
                rest = others;
                if packed.replace(group) != Some(group) {
                    let dy = &self.dy[(first * at.filters + group * filters) * pixels..];
                    let steps = [at.filters * pixels, pixels];
                    panels.pack(self.set, dy, [together.len(), filters], steps, layout.runs);
                }
                let planes = |n: usize| {
                    let channel = n * at.channels + group * at.group_channels() + block.start;
                    &self.x[channel * at.plane()..]
                };
                let taps: Vec<usize> =
                    (0..block.len()).flat_map(|c| layout.taps.iter().map(move |tap| c * self.plane + tap)).collect();
                let (x, step) = if layout.is_plain() {
                    (planes(first), at.channels * at.plane())
                } else {
                    let step = block.len() * self.plane;
                    for (n, to) in together.clone().zip(unrolled.chunks_exact_mut(step)) {
                        layout.fill(self.set.isa, &planes(n)[..block.len() * at.plane()], to, &mut split);
                    }
                    (&unrolled[..], step)
                };
                correlate(self.set, &panels, x, step, &taps, layout.runs, sums);
            }
        }
        all
    }
}
