//! Register tiles of convolutions: some filters times some vectors of pixels, all sums in
//! registers.
//!
//! They are reached through a safe function, which asserts that its operands fit each other.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use super::factors::{Factors, Set};
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

/// Filters in panels, `height(isa)` at a time side by side: what a tile multiplies by, a step's factors a word.
#[derive(Debug)]
pub(super) struct Filters {
    panels: Vec<u32>,
    count: usize,
    taps: usize,
    height: usize,
}

impl Filters {
    /// Packs what `weight` gives for a filter and a tap.
    pub fn new(set: Set, count: usize, taps: usize, weight: impl Fn(usize, usize) -> f32 + Sync) -> Self {
        let height = height(set.isa).min(count.next_power_of_two());
        let steps = taps.div_ceil(set.depth());
        let mut panels = vec![0; count.next_multiple_of(height) * steps];
        panels.par_chunks_exact_mut((height * steps).max(1)).enumerate().for_each(|(first, panel)| {
            for (step, side) in panel.chunks_exact_mut(height).enumerate() {
                let tap = step * set.depth();
                let has_second = set.bf16 && tap + 1 < taps;
                for (filter, w) in (first * height..count).zip(side) {
                    *w = set.pack([weight(filter, tap), if has_second { weight(filter, tap + 1) } else { 0.0 }]);
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
        unsafe fn $name(isa: $crate::Isa, t: &mut $operands) {
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
                    $crate::Isa::Avx512Vnni | $crate::Isa::Amx => avx512(t),
                    #[cfg(target_arch = "x86_64")]
                    $crate::Isa::AvxVnni | $crate::Isa::Avx2 => avx2(t),
                    #[cfg(target_arch = "aarch64")]
                    $crate::Isa::Neon | $crate::Isa::Dotprod | $crate::Isa::I8mm => {
                        $body::<$crate::isa::neon::Neon, 8>(t)
                    }
                    _ => $body::<$crate::isa::portable::Portable<false>, 4>(t),
                }
            }
        }
    };
}

pub(super) use versions;

/// Defines a function that runs `$body` compiled for a set: as [`versions`], or with products of bfloat16.
macro_rules! products {
    ($name:ident, $operands:ty, $body:ident) => {
        /// Runs it compiled for a set.
        ///
        /// # Safety
        /// The operands are as the body asks for.
        unsafe fn $name(set: Set, t: &mut $operands) {
            versions!(wide, $operands, $body);
            /// # Safety
            /// The machine has these features, and the operands are as the body asks for.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")]
            unsafe fn bf16(t: &mut $operands) {
                // SAFETY: the caller guarantees the operands, and the features, which are those of `Bf16<Avx512>`.
                unsafe { $body::<$crate::train::factors::Bf16<$crate::isa::avx512vnni::Avx512>, 8>(t) }
            }
            /// # Safety
            /// The machine has this feature, and the operands are as the body asks for.
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "bf16")]
            unsafe fn bf16(t: &mut $operands) {
                // SAFETY: the caller guarantees the operands, and the feature, which is that of `Bf16<Neon>`.
                unsafe { $body::<$crate::train::factors::Bf16<$crate::isa::neon::Neon>, 8>(t) }
            }
            // SAFETY: the caller guarantees the operands. The assert finds the features of `bf16`.
            unsafe {
                if set.bf16 {
                    assert!(set.isa.multiplies_bf16(), "this machine has no bfloat16 beside {}", set.isa);
                    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                    bf16(t);
                } else {
                    wide(set.isa, t);
                }
            }
        }
    };
}

pub(super) use products;

products!(convolve_on, Convolve, convolve_all);

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
/// set, and there is at least one tap.
pub(super) unsafe fn convolve(
    set: Set,
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
    unsafe { convolve_on(set, &mut Convolve { filters, x, taps, runs, start, y }) }
}

/// Runs tiles over all of it.
///
/// # Safety
/// The machine has the instruction set of `P`; `M` is the most of its tiles' rows, and operands
/// are as [`convolve`] asserts and asks for.
#[inline(always)]
unsafe fn convolve_all<P: Factors, const M: usize>(t: &mut Convolve) {
    // SAFETY: the caller guarantees the instruction set and the operands, and each arm is that of the panels' height.
    unsafe {
        match t.filters.height {
            1 => convolve_panels::<P, 1>(t),
            2 => convolve_panels::<P, 2>(t),
            4 => convolve_panels::<P, 4>(t),
            _ => convolve_panels::<P, M>(t),
        }
    }
}

/// Runs tiles over panels of `M` filters.
///
/// # Safety
/// As for [`convolve_all`], with panels of `M`.
#[inline(always)]
unsafe fn convolve_panels<P: Factors, const M: usize>(t: &mut Convolve) {
    for run in 0..t.runs.count {
        let mut at = 0;
        while at < t.runs.length {
            let left = t.runs.length - at;
            // Of four vectors two tiles of two, not of three and one.
            let vectors = match left.div_ceil(P::V::LANES) {
                1 => 1,
                2 | 4 => 2,
                _ => 3,
            };
            let columns = left.min(vectors * P::V::LANES);
            // Panels one after the other: what they read of the input stays in the cache.
            for first in (0..t.filters.count).step_by(M) {
                // SAFETY: the caller guarantees the instruction set and the operands. `first` is a filter's.
                // At most the `left` columns of the run are taken.
                unsafe {
                    match vectors {
                        1 => convolve_tile::<P, M, 1>(t, first, run, at, columns),
                        2 => convolve_tile::<P, M, 2>(t, first, run, at, columns),
                        _ => convolve_tile::<P, M, 3>(t, first, run, at, columns),
                    }
                }
            }
            at += columns;
        }
    }
}

/// The factors of a step in `N` vectors, of which the last has `last` lanes: of two taps, or of the first alone.
///
/// # Safety
/// The machine has the instruction set of `P`. So much can be read at `a`, and at `b` if it `has_second`.
#[inline(always)]
unsafe fn side<P: Factors, const N: usize>(a: *const f32, b: *const f32, last: usize, has_second: bool) -> [P::X; N] {
    let lanes = P::V::LANES;
    let end = (N - 1) * lanes;
    let second = |n: usize| if has_second { n } else { 0 };
    // SAFETY: the caller guarantees the set, and what is read.
    unsafe {
        let mut side = [match (last == lanes, has_second) {
            (true, true) => P::read(a.add(end), b.add(end)),
            _ => P::read_first(a.add(end), b.add(end), [last, second(last)]),
        }; N];
        for v in 0..N - 1 {
            let [a, b] = [a, b].map(|x| x.add(v * lanes));
            side[v] = if has_second { P::read(a, b) } else { P::read_first(a, b, [lanes, 0]) };
        }
        side
    }
}

/// Adds the products of a step: of each row's word and of each vector.
///
/// # Safety
/// The machine has the instruction set of `P`. There are `M` words.
#[inline(always)]
unsafe fn add_step<P: Factors, const M: usize, const N: usize>(
    sums: &mut [[<P::V as Vectors>::F; N]; M],
    words: *const u32,
    side: [P::X; N],
) {
    for i in 0..M {
        // SAFETY: the caller guarantees the set and the words.
        unsafe {
            let factor = P::splat_word(*words.add(i));
            for v in 0..N {
                sums[i][v] = P::add_products(sums[i][v], factor, side[v]);
            }
        }
    }
}

/// Computes `columns` columns of a panel: at most those of `N` vectors, and more than of one less.
///
/// # Safety
/// As for [`convolve_panels`]; there are filters from `first` on, and these columns from `at` on.
#[inline(always)]
unsafe fn convolve_tile<P: Factors, const M: usize, const N: usize>(
    t: &mut Convolve,
    first: usize,
    run: usize,
    at: usize,
    columns: usize,
) {
    let lanes = P::V::LANES;
    let last = columns - (N - 1) * lanes;
    // SAFETY: a panel has `M` words for each step; every tap has its runs within `x`, and `y` has
    // them for every filter. What is beyond the columns is neither read nor written.
    unsafe {
        let x = t.x.as_ptr().add(run * t.runs.step + at);
        let mut w = t.filters.panels.as_ptr().add(first * t.filters.taps.div_ceil(P::DEPTH));
        let mut sums = [[P::V::splat(0.0); N]; M];
        let (pairs, odd) = t.taps.split_at(t.taps.len() - t.taps.len() % P::DEPTH);
        // Twice, as what is whole is read faster.
        if last == lanes {
            for pair in pairs.chunks_exact(P::DEPTH) {
                let side = side::<P, N>(x.add(pair[0]), x.add(pair[P::DEPTH - 1]), lanes, true);
                add_step::<P, M, N>(&mut sums, w, side);
                w = w.add(M);
            }
        } else {
            for pair in pairs.chunks_exact(P::DEPTH) {
                let side = side::<P, N>(x.add(pair[0]), x.add(pair[P::DEPTH - 1]), last, true);
                add_step::<P, M, N>(&mut sums, w, side);
                w = w.add(M);
            }
        }
        for tap in odd {
            add_step::<P, M, N>(&mut sums, w, side::<P, N>(x.add(*tap), x.add(*tap), last, false));
        }
        for i in 0..M {
            if first + i < t.filters.count {
                let y = t.y.as_mut_ptr().cast::<f32>().add((first + i) * t.runs.elements() + run * t.runs.length + at);
                let (bias, add) = match t.start {
                    Start::Zero => (P::V::splat(0.0), false),
                    Start::Bias(bias) => (P::V::splat(*bias.get_unchecked(first + i)), false),
                    Start::Sums => (P::V::splat(0.0), true),
                };
                for v in 0..N - 1 {
                    let y = y.add(v * lanes);
                    P::V::store(y, P::V::add(sums[i][v], if add { P::V::load(y) } else { bias }));
                }
                let y = y.add((N - 1) * lanes);
                let sum = P::V::add(sums[i][N - 1], if add { P::V::load_first(y, last) } else { bias });
                if last == lanes { P::V::store(y, sum) } else { P::V::store_first(y, sum, last) }
            }
        }
    }
}
