//! Register tiles of convolutions: some filters times some vectors of pixels, all sums in
//! registers.
//!
//! They are reached through a safe function, which asserts that its operands fit each other.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use crate::Isa;
use crate::tile::Vectors;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// What is read from where a tap begins: `count` times `length` elements, `step` apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    pub count: usize,
    pub step: usize,
    pub length: usize,
}

impl Runs {
    /// All elements.
    pub fn elements(&self) -> usize {
        self.count * self.length
    }

    /// Elements from the first to behind the last.
    pub fn extent(&self) -> usize {
        if self.elements() == 0 { 0 } else { (self.count - 1) * self.step + self.length }
    }
}

/// Filters in panels, `height(isa)` at a time side by side: what a tile multiplies by.
#[derive(Debug)]
pub(super) struct Filters {
    panels: Vec<f32>,
    count: usize,
    taps: usize,
    height: usize,
}

impl Filters {
    /// Packs what `weight` gives for a filter and a tap.
    pub fn new(isa: Isa, count: usize, taps: usize, weight: impl Fn(usize, usize) -> f32 + Sync) -> Self {
        let height = height(isa).min(count.next_power_of_two());
        let mut panels = vec![0.0; count.next_multiple_of(height) * taps];
        panels.par_chunks_exact_mut((height * taps).max(1)).enumerate().for_each(|(first, panel)| {
            for (tap, side) in panel.chunks_exact_mut(height).enumerate() {
                for (filter, w) in (first * height..count).zip(side) {
                    *w = weight(filter, tap);
                }
            }
        });
        Self { panels, count, taps, height }
    }

    /// Taps of a filter.
    pub fn taps(&self) -> usize {
        self.taps
    }
}

/// How many filters a tile has at most.
pub(super) fn height(isa: Isa) -> usize {
    match isa {
        Isa::Avx512Vnni | Isa::Amx | Isa::Neon | Isa::Dotprod | Isa::I8mm => 8,
        _ => 4,
    }
}

/// Defines a function that runs `$body` compiled for an instruction set.
macro_rules! versions {
    ($name:ident, $operands:ty, $body:ident) => {
        /// Runs it compiled for an instruction set.
        ///
        /// # Safety
        /// The operands are as the body asks for.
        unsafe fn $name(isa: Isa, t: &mut $operands) {
            /// # Safety
            /// The machine has these features, and the operands are as the body asks for.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn avx512(t: &mut $operands) {
                // SAFETY: the caller guarantees the operands, and the features, which are those of `Avx512`.
                unsafe { $body::<$crate::isa::avx512vnni::Avx512, 8>(t) }
            }
            /// # Safety
            /// The machine has these features, and the operands are as the body asks for.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2(t: &mut $operands) {
                // SAFETY: the caller guarantees the operands, and the features, which are those of `Avx2`.
                unsafe { $body::<$crate::isa::avx2::Avx2, 4>(t) }
            }
            assert!(isa.is_available(), "this machine has no {isa}");
            // SAFETY: the assert found the set available. The caller guarantees the operands.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512Vnni | Isa::Amx => avx512(t),
                    #[cfg(target_arch = "x86_64")]
                    Isa::AvxVnni | Isa::Avx2 => avx2(t),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon | Isa::Dotprod | Isa::I8mm => $body::<$crate::isa::neon::Neon, 8>(t),
                    _ => $body::<$crate::isa::portable::Portable<false>, 4>(t),
                }
            }
        }
    };
}

pub(super) use versions;

versions!(convolve_on, Convolve, convolve_all);

/// With what the sums of [`convolve`] begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a> {
    /// With 0.
    Zero,
    /// With an element for each filter.
    Bias(&'a [f32]),
    /// With what is there.
    Sums,
}

/// Operands of [`convolve`], for a tile.
struct Convolve<'a> {
    filters: &'a Filters,
    x: &'a [f32],
    taps: &'a [usize],
    runs: Runs,
    start: Start<'a>,
    y: &'a mut [MaybeUninit<f32>],
}

/// For each filter, what the taps read of `x` times its weights, added up; a row of `y` for each
/// filter, of which every element is written.
///
/// # Safety
/// To begin with [`Start::Sums`], `y` has been written before. Filters were packed for this
/// instruction set, and there is at least one tap.
pub(super) unsafe fn convolve(
    isa: Isa,
    filters: &Filters,
    x: &[f32],
    taps: &[usize],
    runs: Runs,
    start: Start,
    y: &mut [MaybeUninit<f32>],
) {
    assert_eq!(taps.len(), filters.taps, "taps and weights");
    assert_eq!(y.len(), filters.count * runs.elements(), "filters and results");
    if let Start::Bias(bias) = start {
        assert_eq!(bias.len(), filters.count, "a bias for each filter");
    }
    assert!(taps.iter().all(|&tap| tap + runs.extent() <= x.len()), "taps and the input");
    // SAFETY: the asserts found that the operands fit each other. The caller guarantees that panels are of this set's
    // height or of less, and that sums are there if they are to be read.
    unsafe { convolve_on(isa, &mut Convolve { filters, x, taps, runs, start, y }) }
}

/// Runs tiles over all of it.
///
/// # Safety
/// The machine has the instruction set of `V`; `M` is the most of its tiles' rows, and operands
/// are as [`convolve`] asserts and asks for.
#[inline(always)]
unsafe fn convolve_all<V: Vectors, const M: usize>(t: &mut Convolve) {
    // SAFETY: the caller guarantees the instruction set and the operands, and each arm is that of the panels' height.
    unsafe {
        match t.filters.height {
            1 => convolve_panels::<V, 1>(t),
            2 => convolve_panels::<V, 2>(t),
            4 => convolve_panels::<V, 4>(t),
            _ => convolve_panels::<V, M>(t),
        }
    }
}

/// Runs tiles over panels of `M` filters.
///
/// # Safety
/// As for [`convolve_all`], with panels of `M`.
#[inline(always)]
unsafe fn convolve_panels<V: Vectors, const M: usize>(t: &mut Convolve) {
    for run in 0..t.runs.count {
        let mut at = 0;
        while at < t.runs.length {
            let left = t.runs.length - at;
            // Of four vectors two tiles of two, not of three and one.
            let vectors = match left.div_ceil(V::LANES) {
                1 => 1,
                2 | 4 => 2,
                _ => 3,
            };
            let columns = left.min(vectors * V::LANES);
            // Panels one after the other: what they read of the input stays in the cache.
            for first in (0..t.filters.count).step_by(M) {
                // SAFETY: the caller guarantees the instruction set and the operands. `first` is a filter's.
                // At most the `left` columns of the run are taken.
                unsafe {
                    match vectors {
                        1 => convolve_tile::<V, M, 1>(t, first, run, at, columns),
                        2 => convolve_tile::<V, M, 2>(t, first, run, at, columns),
                        _ => convolve_tile::<V, M, 3>(t, first, run, at, columns),
                    }
                }
            }
            at += columns;
        }
    }
}

/// Computes `columns` columns of a panel: at most those of `N` vectors, and more than of one less.
///
/// # Safety
/// As for [`convolve_panels`]; there are filters from `first` on, and these columns from `at` on.
#[inline(always)]
unsafe fn convolve_tile<V: Vectors, const M: usize, const N: usize>(
    t: &mut Convolve,
    first: usize,
    run: usize,
    at: usize,
    columns: usize,
) {
    // SAFETY: a panel has `M` weights for each tap; every tap has its runs within `x`, and `y` has
    // them for every filter. What is beyond the columns is neither read nor written.
    unsafe {
        let x = t.x.as_ptr().add(run * t.runs.step + at);
        let mut w = t.filters.panels.as_ptr().add(first * t.filters.taps);
        let mut sums = [[V::splat(0.0); N]; M];
        let last = columns - (N - 1) * V::LANES;
        if last == V::LANES {
            for &tap in t.taps {
                let x = x.add(tap);
                let mut side = [V::load(x); N];
                for v in 1..N {
                    side[v] = V::load(x.add(v * V::LANES));
                }
                for i in 0..M {
                    let weight = V::splat(*w.add(i));
                    for v in 0..N {
                        sums[i][v] = V::mul_add(sums[i][v], weight, side[v]);
                    }
                }
                w = w.add(M);
            }
        } else {
            for &tap in t.taps {
                let x = x.add(tap);
                let mut side = [V::load_first(x.add((N - 1) * V::LANES), last); N];
                for v in 0..N - 1 {
                    side[v] = V::load(x.add(v * V::LANES));
                }
                for i in 0..M {
                    let weight = V::splat(*w.add(i));
                    for v in 0..N {
                        sums[i][v] = V::mul_add(sums[i][v], weight, side[v]);
                    }
                }
                w = w.add(M);
            }
        }
        for i in 0..M {
            if first + i < t.filters.count {
                let y = t.y.as_mut_ptr().cast::<f32>().add((first + i) * t.runs.elements() + run * t.runs.length + at);
                let (bias, add) = match t.start {
                    Start::Zero => (V::splat(0.0), false),
                    Start::Bias(bias) => (V::splat(*bias.get_unchecked(first + i)), false),
                    Start::Sums => (V::splat(0.0), true),
                };
                for v in 0..N - 1 {
                    let y = y.add(v * V::LANES);
                    V::store(y, V::add(sums[i][v], if add { V::load(y) } else { bias }));
                }
                let y = y.add((N - 1) * V::LANES);
                let sum = V::add(sums[i][N - 1], if add { V::load_first(y, last) } else { bias });
                if last == V::LANES { V::store(y, sum) } else { V::store_first(y, sum, last) }
            }
        }
    }
}
