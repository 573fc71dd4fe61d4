//! The loops that need intrinsics: register tiles of convolutions and of their gradients by the
//! weight, and copies of rows.
//!
//! Each is reached through a safe function, which asserts that its operands fit each other.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

pub(super) use crate::Isa;

use crate::multiversion::multiversion;
use crate::tile::Vectors;

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
    fn extent(&self) -> usize {
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
    pub fn new(isa: Isa, count: usize, taps: usize, weight: impl Fn(usize, usize) -> f32) -> Self {
        let height = height(isa).min(count.next_power_of_two());
        let mut panels = vec![0.0; count.next_multiple_of(height) * taps];
        for (first, panel) in panels.chunks_exact_mut((height * taps).max(1)).enumerate() {
            for (tap, side) in panel.chunks_exact_mut(height).enumerate() {
                for (filter, w) in (first * height..count).zip(side) {
                    *w = weight(filter, tap);
                }
            }
        }
        Self { panels, count, taps, height }
    }
}

/// How many filters a tile has at most.
fn height(isa: Isa) -> usize {
    match isa {
        Isa::Avx512Vnni => 8,
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
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn avx512(t: &mut $operands) {
                // SAFETY: the caller's, here and below.
                unsafe { $body::<crate::isa::avx512vnni::Avx512, 8>(t) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2(t: &mut $operands) {
                unsafe { $body::<crate::isa::avx2::Avx2, 4>(t) }
            }
            assert!(isa.is_available(), "this machine has no {isa}");
            // SAFETY: the machine has the set; the rest is the caller's.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512Vnni => avx512(t),
                    #[cfg(target_arch = "x86_64")]
                    Isa::AvxVnni | Isa::Avx2 => avx2(t),
                    _ => $body::<crate::isa::portable::Portable, 4>(t),
                }
            }
        }
    };
}

versions!(convolve_on, Convolve, convolve_all);
versions!(correlate_on, Correlate, correlate_all);
versions!(copy_on, Copies, copy_all);

/// Operands of [`convolve`], for a tile.
struct Convolve<'a> {
    filters: &'a Filters,
    x: &'a [f32],
    taps: &'a [usize],
    runs: Runs,
    bias: Option<&'a [f32]>,
    y: &'a mut [f32],
}

/// For each filter, what the taps read of `x` times its weights, added up from `bias` on; a row of
/// `y` for each filter.
pub(super) fn convolve(
    isa: Isa,
    filters: &Filters,
    x: &[f32],
    taps: &[usize],
    runs: Runs,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    assert_eq!(taps.len(), filters.taps, "taps and weights");
    assert_eq!(y.len(), filters.count * runs.elements(), "filters and results");
    assert!(bias.is_none_or(|bias| bias.len() == filters.count), "a bias for each filter");
    assert!(taps.iter().all(|&tap| tap + runs.extent() <= x.len()), "taps and the input");
    // SAFETY: the operands fit each other, and panels are of this set's height or of less.
    unsafe { convolve_on(isa, &mut Convolve { filters, x, taps, runs, bias, y }) }
}

/// Runs tiles over all of it.
///
/// # Safety
/// The machine has the instruction set of `V`; `M` is the most of its tiles' rows, and operands
/// are as [`convolve`] asserts.
#[inline(always)]
unsafe fn convolve_all<V: Vectors, const M: usize>(t: &mut Convolve) {
    // SAFETY: the caller's.
    unsafe {
        for first in (0..t.filters.count).step_by(t.filters.height) {
            match t.filters.height {
                1 => convolve_panel::<V, 1>(t, first),
                2 => convolve_panel::<V, 2>(t, first),
                4 => convolve_panel::<V, 4>(t, first),
                _ => convolve_panel::<V, M>(t, first),
            }
        }
    }
}

/// Runs tiles over a panel.
///
/// # Safety
/// As for [`convolve_all`], with panels of `M`; there is a panel from filter `first` on.
#[inline(always)]
unsafe fn convolve_panel<V: Vectors, const M: usize>(t: &mut Convolve, first: usize) {
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
            // SAFETY: the caller's; these columns are there.
            unsafe {
                match vectors {
                    1 => convolve_tile::<V, M, 1>(t, first, run, at, columns),
                    2 => convolve_tile::<V, M, 2>(t, first, run, at, columns),
                    _ => convolve_tile::<V, M, 3>(t, first, run, at, columns),
                }
            }
            at += columns;
        }
    }
}

/// Computes `columns` columns of a panel: at most those of `N` vectors, and more than of one less.
///
/// # Safety
/// As for [`convolve_panel`]; there are these columns from `at` on.
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
                let y = t.y.as_mut_ptr().add((first + i) * t.runs.elements() + run * t.runs.length + at);
                let bias = V::splat(t.bias.map_or(0.0, |bias| *bias.get_unchecked(first + i)));
                for v in 0..N - 1 {
                    V::store(y.add(v * V::LANES), V::add(sums[i][v], bias));
                }
                let sum = V::add(sums[i][N - 1], bias);
                let y = y.add((N - 1) * V::LANES);
                if last == V::LANES { V::store(y, sum) } else { V::store_first(y, sum, last) }
            }
        }
    }
}

/// Operands of [`correlate`], for a tile.
struct Correlate<'a> {
    dy: &'a [f32],
    samples: usize,
    /// From sample to sample, and from filter to filter.
    dy_steps: [usize; 2],
    filters: usize,
    x: &'a [f32],
    x_step: usize,
    taps: &'a [usize],
    runs: Runs,
    sums: &'a mut [f32],
}

/// Adds to `sums`, for each filter and tap, the products of the filter's elements of `dy` and of
/// what the tap reads of `x`, of all samples. Those are `dy_steps[0]` and `x_step` apart, filters
/// `dy_steps[1]`.
#[allow(clippy::too_many_arguments)]
pub(super) fn correlate(
    isa: Isa,
    samples: usize,
    dy: &[f32],
    dy_steps: [usize; 2],
    filters: usize,
    x: &[f32],
    x_step: usize,
    taps: &[usize],
    runs: Runs,
    sums: &mut [f32],
) {
    if samples == 0 || filters == 0 {
        return;
    }
    assert_eq!(sums.len(), filters * taps.len(), "a sum for each filter and tap");
    let last = (samples - 1) * dy_steps[0] + (filters - 1) * dy_steps[1];
    assert!(last + runs.elements() <= dy.len(), "filters of all samples");
    let last = (samples - 1) * x_step + runs.extent();
    assert!(taps.iter().all(|&tap| tap + last <= x.len()), "taps and the input");
    // SAFETY: the operands fit each other.
    unsafe { correlate_on(isa, &mut Correlate { dy, samples, dy_steps, filters, x, x_step, taps, runs, sums }) }
}

/// Runs tiles over all of it.
///
/// # Safety
/// The machine has the instruction set of `V`, and operands are as [`correlate`] asserts.
#[inline(always)]
unsafe fn correlate_all<V: Vectors, const M: usize>(t: &mut Correlate) {
    let mut first = 0;
    // SAFETY: the caller's.
    unsafe {
        while first + M <= t.filters {
            correlate_rows::<V, M>(t, first);
            first += M;
        }
        while first + 2 <= t.filters {
            correlate_rows::<V, 2>(t, first);
            first += 2;
        }
        if first < t.filters {
            correlate_rows::<V, 1>(t, first);
        }
    }
}

/// Runs tiles over all taps of `M` filters.
///
/// # Safety
/// As for [`correlate_all`]; there are `M` filters from `first` on.
#[inline(always)]
unsafe fn correlate_rows<V: Vectors, const M: usize>(t: &mut Correlate, first: usize) {
    let mut tap = 0;
    // SAFETY: the caller's.
    unsafe {
        while tap + 3 <= t.taps.len() {
            correlate_tile::<V, M, 3>(t, first, tap);
            tap += 3;
        }
        while tap < t.taps.len() {
            correlate_tile::<V, M, 1>(t, first, tap);
            tap += 1;
        }
    }
}

/// Adds to the sums of `M` filters from `first` on and `N` taps from `tap` on.
///
/// # Safety
/// As for [`correlate_all`]; there are these filters and taps.
#[inline(always)]
unsafe fn correlate_tile<V: Vectors, const M: usize, const N: usize>(t: &mut Correlate, first: usize, tap: usize) {
    // SAFETY: for every sample, filter and tap all runs are within `dy` and `x`, and beyond them
    // nothing is read.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; M];
        let mut taps = [0; N];
        taps.copy_from_slice(&t.taps[tap..tap + N]);
        for sample in 0..t.samples {
            let dy = t.dy.as_ptr().add(sample * t.dy_steps[0] + first * t.dy_steps[1]);
            let x = t.x.as_ptr().add(sample * t.x_step);
            for run in 0..t.runs.count {
                let (dy, x) = (dy.add(run * t.runs.length), x.add(run * t.runs.step));
                let mut at = 0;
                while at + V::LANES <= t.runs.length {
                    let mut side = [V::load(x.add(taps[0] + at)); N];
                    for j in 1..N {
                        side[j] = V::load(x.add(taps[j] + at));
                    }
                    for i in 0..M {
                        let dy = V::load(dy.add(i * t.dy_steps[1] + at));
                        for j in 0..N {
                            sums[i][j] = V::mul_add(sums[i][j], dy, side[j]);
                        }
                    }
                    at += V::LANES;
                }
                let rest = t.runs.length - at;
                if rest > 0 {
                    let mut side = [V::load_first(x.add(taps[0] + at), rest); N];
                    for j in 1..N {
                        side[j] = V::load_first(x.add(taps[j] + at), rest);
                    }
                    for i in 0..M {
                        let dy = V::load_first(dy.add(i * t.dy_steps[1] + at), rest);
                        for j in 0..N {
                            sums[i][j] = V::mul_add(sums[i][j], dy, side[j]);
                        }
                    }
                }
            }
        }
        for i in 0..M {
            for j in 0..N {
                t.sums[(first + i) * t.taps.len() + tap + j] += sum::<V>(sums[i][j]);
            }
        }
    }
}

/// The sum of all lanes.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
unsafe fn sum<V: Vectors>(vector: V::F) -> f32 {
    const { assert!(V::LANES == 16 || V::LANES == 8) };
    let mut lanes = [0.0; 16];
    // SAFETY: there is room for 16 lanes.
    unsafe { V::store(lanes.as_mut_ptr(), vector) };
    let mut width = V::LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// Copies `rows` rows of `columns` elements, those of `from` and of `to` so many apart.
pub(super) fn copy_rows(
    isa: Isa,
    from: &[f32],
    from_step: usize,
    to: &mut [f32],
    to_step: usize,
    [rows, columns]: [usize; 2],
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * from_step + columns <= from.len(), "rows to be copied");
    assert!((rows - 1) * to_step + columns <= to.len(), "room for the copies");
    // SAFETY: these rows are there.
    unsafe { copy_on(isa, &mut Copies { from, from_step, to, to_step, rows, columns }) }
}

/// Operands of [`copy_rows`].
struct Copies<'a> {
    from: &'a [f32],
    from_step: usize,
    to: &'a mut [f32],
    to_step: usize,
    rows: usize,
    columns: usize,
}

/// Copies rows.
///
/// # Safety
/// The machine has the instruction set of `V`; `from` and `to` have these rows.
#[inline(always)]
unsafe fn copy_all<V: Vectors, const M: usize>(t: &mut Copies) {
    let columns = t.columns;
    let whole = columns - columns % V::LANES;
    // SAFETY: the caller's.
    unsafe {
        for row in 0..t.rows {
            let from = t.from.as_ptr().add(row * t.from_step);
            let to = t.to.as_mut_ptr().add(row * t.to_step);
            let mut at = 0;
            while at < whole {
                V::store(to.add(at), V::load(from.add(at)));
                at += V::LANES;
            }
            if whole < columns {
                V::store_first(to.add(whole), V::load_first(from.add(whole), columns - whole), columns - whole);
            }
        }
    }
}

multiversion! {
    /// Sorts the columns of rows by their remainder: a plane for each, as wide as the first.
    pub(super) fn split_columns(isa: Isa, plane: &[f32], columns: usize, by: usize, to: &mut [f32]) {
        let width = columns.div_ceil(by);
        let size = plane.len() / columns * width;
        if by == 2 {
            let (even, odd) = to.split_at_mut(size);
            for (row, (even, odd)) in
                plane.chunks_exact(columns).zip(even.chunks_exact_mut(width).zip(odd.chunks_exact_mut(width)))
            {
                for ((pair, even), odd) in row.chunks_exact(2).zip(&mut *even).zip(odd) {
                    (*even, *odd) = (pair[0], pair[1]);
                }
                if let [.., last] = row && columns % 2 == 1 {
                    even[width - 1] = *last;
                }
            }
            return;
        }
        for (remainder, to) in to.chunks_exact_mut(size).enumerate() {
            for (row, to) in plane.chunks_exact(columns).zip(to.chunks_exact_mut(width)) {
                for (x, to) in row.iter().skip(remainder).step_by(by).zip(to) {
                    *to = *x;
                }
            }
        }
    }

    /// The elements of two rows in turn.
    pub(super) fn join_columns(isa: Isa, rows: [&[f32]; 2], to: &mut [f32]) {
        for ((pair, a), b) in to.chunks_exact_mut(2).zip(rows[0]).zip(rows[1]) {
            (pair[0], pair[1]) = (*a, *b);
        }
        if let ([last], Some(x)) = (to.as_chunks_mut::<2>().1, rows[0].last()) {
            *last = *x;
        }
    }
}
