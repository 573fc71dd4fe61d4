//! Register tiles of gradients by the weight: some filters times some taps, each sum a vector,
//! whose lanes are added up in the end.
//!
//! They are reached through a safe function, which asserts that its operands fit each other.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use super::copy::Aligned;
use super::factors::{Factors, Set};
use super::tile::{Runs, products, versions};
use crate::tile::Vectors;

/// The most lanes of a vector.
const LANES: usize = 16;

/// Elements of the output's gradient as tiles read them: as many filters as a tile has side by
/// side, a vector of each in turn. What is left of filters follows by two, and then one.
#[derive(Debug)]
pub(super) struct Panels {
    data: Aligned,
    samples: usize,
    filters: usize,
}

impl Panels {
    /// With room for so many filters of so many samples.
    pub fn new(samples: usize, filters: usize, runs: Runs) -> Self {
        let run = runs.length.next_multiple_of(LANES);
        Self { data: Aligned::zeros(samples * filters * runs.count * run), samples: 0, filters: 0 }
    }

    /// Packs filters of samples; those begin `steps[0]` and `steps[1]` apart.
    pub fn pack(&mut self, set: Set, dy: &[f32], [samples, filters]: [usize; 2], steps: [usize; 2], runs: Runs) {
        (self.samples, self.filters) = (samples, filters);
        if samples == 0 || filters == 0 || runs.elements() == 0 {
            return;
        }
        let last = (samples - 1) * steps[0] + (filters - 1) * steps[1];
        assert!(last + runs.elements() <= dy.len(), "filters of all samples");
        let needed = samples * filters * runs.count * runs.length.next_multiple_of(LANES);
        assert!(needed <= self.data.len(), "room for panels");
        // SAFETY: the asserts above found the filters of all samples in `dy`, and room for them in vectors of up to
        // `LANES` lanes.
        unsafe { pack_on(set, &mut Pack { dy, steps, runs, panels: self }) }
    }
}

/// Operands of [`Panels::pack`].
struct Pack<'a> {
    dy: &'a [f32],
    steps: [usize; 2],
    runs: Runs,
    panels: &'a mut Panels,
}

/// Operands of [`correlate`], for a tile.
struct Correlate<'a> {
    dy: &'a Panels,
    x: &'a [f32],
    x_step: usize,
    taps: &'a [usize],
    runs: Runs,
    sums: &'a mut [f32],
}

products!(pack_on, Pack, pack_all);
products!(correlate_on, Correlate, correlate_all);

/// Adds to `sums`, for each filter and tap, the products of the filter's elements and of what the
/// tap reads of `x`, of all samples, in `x` so many elements apart.
pub(super) fn correlate(set: Set, dy: &Panels, x: &[f32], x_step: usize, taps: &[usize], runs: Runs, sums: &mut [f32]) {
    if dy.samples == 0 || dy.filters == 0 || runs.elements() == 0 {
        return;
    }
    let needed = dy.samples * dy.filters * runs.count * runs.length.next_multiple_of(LANES);
    assert!(needed <= dy.data.len(), "panels of these runs");
    assert_eq!(sums.len(), dy.filters * taps.len(), "a sum for each filter and tap");
    let last = (dy.samples - 1) * x_step + runs.extent();
    assert!(taps.iter().all(|&tap| tap + last <= x.len()), "taps and the input");
    // SAFETY: the asserts above found that the operands fit each other, if vectors have at most `LANES` lanes, which
    // `correlate_tile` asserts.
    unsafe { correlate_on(set, &mut Correlate { dy, x, x_step, taps, runs, sums }) }
}

/// The filters of the panel that begins with filter `first`.
#[inline(always)]
fn panel(most: usize, first: usize, filters: usize) -> usize {
    match filters - first {
        left if left >= most => most,
        2.. => 2,
        _ => 1,
    }
}

/// The next factors of a run, of which `left` are left.
///
/// # Safety
/// The machine has the instruction set of `P`; `left` elements can be read.
#[inline(always)]
unsafe fn read<P: Factors>(from: *const f32, left: usize) -> P::X {
    // SAFETY: the caller guarantees the set, and what is left.
    unsafe { if left >= P::V::LANES * P::DEPTH { P::read_line(from) } else { P::read_line_first(from, left) } }
}

/// Packs all panels.
///
/// # Safety
/// The machine has the instruction set of `P`, `M` is the most rows of its tiles, and operands are
/// as [`Panels::pack`] asserts.
#[inline(always)]
unsafe fn pack_all<P: Factors, const M: usize>(t: &mut Pack) {
    let (samples, filters) = (t.panels.samples, t.panels.filters);
    let vectors = t.runs.length.div_ceil(P::V::LANES * P::DEPTH);
    let mut first = 0;
    while first < filters {
        let rows = panel(M, first, filters);
        let to = first * samples * t.runs.count * vectors * P::V::LANES;
        for i in 0..rows {
            for sample in 0..samples {
                for run in 0..t.runs.count {
                    let from = sample * t.steps[0] + (first + i) * t.steps[1] + run * t.runs.length;
                    let index = (sample * t.runs.count + run) * vectors;
                    // SAFETY: the caller guarantees the set, this run of `dy`, and room for all runs in whole vectors.
                    unsafe {
                        let from = t.dy.as_ptr().add(from);
                        let to = t.panels.data.as_mut_ptr().cast::<u32>().add(to + (index * rows + i) * P::V::LANES);
                        for v in 0..vectors {
                            let at = v * P::V::LANES * P::DEPTH;
                            let x = read::<P>(from.add(at), t.runs.length - at);
                            P::store_words(to.add(v * rows * P::V::LANES), x);
                        }
                    }
                }
            }
        }
        first += rows;
    }
}

/// Runs tiles over all of it.
///
/// # Safety
/// The machine has the instruction set of `P`, `M` is the most rows of its tiles, and operands are
/// as [`correlate`] asserts, packed for this set.
#[inline(always)]
unsafe fn correlate_all<P: Factors, const M: usize>(t: &mut Correlate) {
    let mut first = 0;
    while first < t.dy.filters {
        let rows = panel(M, first, t.dy.filters);
        // SAFETY: the caller guarantees the instruction set and the operands. The panel at `first` has `rows` filters.
        unsafe {
            match rows {
                1 => correlate_rows::<P, 1>(t, first),
                2 => correlate_rows::<P, 2>(t, first),
                _ => correlate_rows::<P, M>(t, first),
            }
        }
        first += rows;
    }
}

/// Runs tiles over all taps of `M` filters.
///
/// # Safety
/// As for [`correlate_all`]; there is a panel of `M` filters from `first` on.
#[inline(always)]
unsafe fn correlate_rows<P: Factors, const M: usize>(t: &mut Correlate, first: usize) {
    let mut tap = 0;
    // SAFETY: the caller guarantees the instruction set, the operands and the panel. The loops' conditions
    // find the taps there.
    unsafe {
        while tap + 3 <= t.taps.len() {
            correlate_tile::<P, M, 3>(t, first, tap);
            tap += 3;
        }
        while tap < t.taps.len() {
            correlate_tile::<P, M, 1>(t, first, tap);
            tap += 1;
        }
    }
}

/// Adds to the sums of `M` filters from `first` on and `N` taps from `tap` on.
///
/// # Safety
/// As for [`correlate_all`]; there are this panel and these taps.
#[inline(always)]
unsafe fn correlate_tile<P: Factors, const M: usize, const N: usize>(t: &mut Correlate, first: usize, tap: usize) {
    const { assert!(P::V::LANES <= LANES) };
    let lanes = P::V::LANES;
    let vectors = t.runs.length.div_ceil(lanes * P::DEPTH);
    let whole = t.runs.length / (lanes * P::DEPTH);
    // SAFETY: the panel has a vector of each filter for each of every run; for every sample and tap
    // all runs are within `x`, and beyond them nothing is read.
    unsafe {
        let mut sums = [[P::V::splat(0.0); N]; M];
        let mut taps = [0; N];
        taps.copy_from_slice(&t.taps[tap..tap + N]);
        let mut dy = t.dy.data.as_ptr().cast::<u32>().add(first * t.dy.samples * t.runs.count * vectors * lanes);
        for sample in 0..t.dy.samples {
            for run in 0..t.runs.count {
                let x = t.x.as_ptr().add(sample * t.x_step + run * t.runs.step);
                for vector in 0..vectors {
                    let at = vector * lanes * P::DEPTH;
                    // Of whole vectors it is known that all can be read.
                    let left = if vector < whole { lanes * P::DEPTH } else { t.runs.length - at };
                    let mut side = [read::<P>(x.add(taps[0] + at), left); N];
                    for j in 1..N {
                        side[j] = read::<P>(x.add(taps[j] + at), left);
                    }
                    for i in 0..M {
                        let dy = P::load_words(dy.add(i * lanes));
                        for j in 0..N {
                            sums[i][j] = P::add_products(sums[i][j], dy, side[j]);
                        }
                    }
                    dy = dy.add(M * lanes);
                }
            }
        }
        // All are written before any is read: a loop that is not unrolled would keep them in memory.
        let mut all = [[[0.0; LANES]; N]; M];
        for i in 0..M {
            for j in 0..N {
                P::V::store(all[i][j].as_mut_ptr(), sums[i][j]);
            }
        }
        for i in 0..M {
            for j in 0..N {
                t.sums[(first + i) * t.taps.len() + tap + j] += sum(&all[i][j]);
            }
        }
    }
}

/// The sum of all lanes.
#[inline(always)]
fn sum(lanes: &[f32; LANES]) -> f32 {
    // Halves upon halves, each step one operation on vectors.
    let eight: [f32; 8] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 8]);
    let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
