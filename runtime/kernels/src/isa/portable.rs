//! Plain Rust, for any machine; and the same with sums of two products cut off at 16 bits, as `vpmaddubsw` of AVX2 makes them.

// Iterators would hide that the lanes of several vectors meet.
#![allow(clippy::needless_range_loop)]

use crate::{
    coded4::{Nibbles, codes},
    tile::{Products, Requantize, Vectors, tiles},
};

/// Vectors of eight lanes, which compilers turn into what there is. `CUT` says that sums of two products are cut off.
pub(crate) struct Portable<const CUT: bool>;

const LANES: usize = 8;

/// Adding and subtracting it rounds a float of less than 2²² to an integer, half to even.
const ROUND: f32 = 12_582_912.0;

// SAFETY: each operation does what its name says, in a loop over all lanes.
unsafe impl<const CUT: bool> Vectors for Portable<CUT> {
    const LANES: usize = LANES;
    type I = [i32; LANES];
    type F = [f32; LANES];

    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> Self::I {
        // SAFETY: the caller guarantees `LANES` aligned integers at `from`. An array of them needs the same alignment.
        unsafe { from.cast::<Self::I>().read() }
    }
    #[inline(always)]
    unsafe fn requantize<const N: usize>(
        sums: [Self::I; 4],
        scale: [Self::F; 4],
        to: &Requantize,
        y: *mut u8,
        rows: usize,
        columns: usize,
    ) {
        let zero = i32::from(to.zero);
        let (min, max) = ((i32::from(to.min) - zero) as f32, (i32::from(to.max) - zero) as f32);
        for v in 0..rows * N {
            // SAFETY: `v / N` is less than `rows`. The caller guarantees that each row has more than `v % N * LANES`
            // columns at `y`.
            let y = unsafe { y.add(v / N * to.stride + v % N * LANES) };
            for lane in 0..LANES.min(columns - v % N * LANES) {
                let scaled = (sums[v][lane] as f32 * scale[v][lane]).max(min).min(max);
                let rounded = scaled + ROUND - ROUND;
                // SAFETY: `lane` is less than the columns left of the row. The caller guarantees room for them.
                unsafe { y.add(lane).write((rounded as i32 + zero) as u8) };
            }
        }
    }
    #[inline(always)]
    unsafe fn to_f32(sums: Self::I) -> Self::F {
        sums.map(|sum| sum as f32)
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller guarantees `LANES` aligned floats at `from`. An array of them needs the same alignment.
        unsafe { from.cast::<Self::F>().read() }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self::F {
        let mut x = [0.0; LANES];
        for lane in 0..n {
            // SAFETY: `lane` is less than `n`. The caller guarantees `n` aligned floats at `from`.
            x[lane] = unsafe { from.add(lane).read() };
        }
        x
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        // SAFETY: the caller guarantees room for `LANES` aligned floats at `to`. An array needs the same alignment.
        unsafe { to.cast::<Self::F>().write(x) }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, x: Self::F, n: usize) {
        for lane in 0..n {
            // SAFETY: `lane` is less than `n`. The caller guarantees room for `n` aligned floats at `to`.
            unsafe { to.add(lane).write(x[lane]) };
        }
    }
    #[inline(always)]
    unsafe fn add(mut a: Self::F, b: Self::F) -> Self::F {
        for lane in 0..LANES {
            a[lane] += b[lane];
        }
        a
    }
    #[inline(always)]
    unsafe fn mul(mut a: Self::F, b: Self::F) -> Self::F {
        for lane in 0..LANES {
            a[lane] *= b[lane];
        }
        a
    }
    #[inline(always)]
    unsafe fn mul_add(mut sum: Self::F, a: Self::F, b: Self::F) -> Self::F {
        for lane in 0..LANES {
            sum[lane] += a[lane] * b[lane];
        }
        sum
    }
    #[inline(always)]
    unsafe fn clamp(mut x: Self::F, min: Self::F, max: Self::F) -> Self::F {
        for lane in 0..LANES {
            x[lane] = if x[lane] < min[lane] { min[lane] } else { x[lane] };
            x[lane] = if x[lane] > max[lane] { max[lane] } else { x[lane] };
        }
        x
    }
}

// SAFETY: each operation does what its name says, in a loop over all lanes.
unsafe impl<const CUT: bool> Products for Portable<CUT> {
    type Activation = u8;
    type Weight = i8;
    type X = [i32; 4];
    type W = [[i32; LANES]; 4];

    #[inline(always)]
    unsafe fn load_x(from: *const u8) -> Self::X {
        // SAFETY: the caller guarantees four bytes at `from`. An array of bytes needs no alignment.
        unsafe { from.cast::<[u8; 4]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_w(from: *const i8) -> Self::W {
        let mut w = [[0; LANES]; 4];
        for lane in 0..LANES {
            // Shifts, unlike single bytes, are vector operations anywhere.
            // SAFETY: the caller guarantees `4 * LANES` bytes at `from`, and `lane` is less than `LANES`.
            let four = i32::from_le_bytes(unsafe { from.add(4 * lane).cast::<[u8; 4]>().read() });
            for k in 0..4 {
                w[k][lane] = four << (24 - 8 * k) >> 24;
            }
        }
        w
    }
    #[inline(always)]
    unsafe fn dot(mut sum: Self::I, x: Self::X, w: Self::W) -> Self::I {
        for k in [0, 2] {
            for lane in 0..LANES {
                let two = x[k] * w[k][lane] + x[k + 1] * w[k + 1][lane];
                let two = if CUT { two.clamp(i16::MIN.into(), i16::MAX.into()) } else { two };
                sum[lane] = sum[lane].wrapping_add(two);
            }
        }
        sum
    }
}

tiles!(Portable<false>, int8: Bytes 1: 4 [1]; float: 1: 4 [1]);

// SAFETY: each operation does what its name says, in a loop over all lanes.
unsafe impl<const CUT: bool> Nibbles for Portable<CUT> {
    type Four = [[i32; LANES]; 4];

    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [Self::Four; 2] {
        let (mut low, mut high) = ([[0; LANES]; 4], [[0; LANES]; 4]);
        for lane in 0..LANES {
            // SAFETY: the caller guarantees `4 * LANES` bytes at `from`, and `lane` is less than `LANES`.
            let four = i32::from_le_bytes(unsafe { from.add(4 * lane).cast::<[u8; 4]>().read() });
            for k in 0..4 {
                low[k][lane] = four >> (8 * k) & 15;
                high[k][lane] = four >> (8 * k + 4) & 15;
            }
        }
        [low, high]
    }
    #[inline(always)]
    unsafe fn dot_four(mut sum: Self::I, w: Self::Four, x: *const i8) -> Self::I {
        // SAFETY: the caller guarantees four bytes at `x`. An array of bytes needs no alignment.
        let x = unsafe { x.cast::<[i8; 4]>().read() }.map(i32::from);
        for k in 0..4 {
            for lane in 0..LANES {
                sum[lane] += x[k] * w[k][lane];
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn bytes_times(from: *const u8, by: i32) -> Self::I {
        // SAFETY: the caller guarantees `LANES` bytes at `from`. An array of bytes needs no alignment.
        unsafe { from.cast::<[u8; LANES]>().read() }.map(|byte| i32::from(byte) * by)
    }
}

codes!(Portable<false>, 4: 1, 1: 1);

/// With sums that are cut off.
pub(crate) mod saturating {
    use super::{Portable, tiles};

    tiles!(Portable<true>, int8: Bytes 1: 4 [1]; float: super::tiles_f);
}
