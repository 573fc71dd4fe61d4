//! Transposition of one matrix.

use super::Element;
use crate::{Isa, Rows, RowsMut};

/// The side of a block of which both the rows read and the rows written stay in the first cache.
const BLOCK: usize = 16;

/// `y[c][r] = x[r][c]`.
///
/// # Panics
/// When `y` has not a row for each column of `x`, as wide as `x` has rows.
pub(crate) fn transpose<T: Element>(isa: Isa, x: Rows<T>, mut y: RowsMut<T>) {
    assert_eq!((x.rows(), x.width()), (y.width(), y.rows()), "y is of the shape of x, transposed");
    match x.rows() {
        2 => return few_rows::<T, 2>(x, y),
        3 => return few_rows::<T, 3>(x, y),
        4 => return few_rows::<T, 4>(x, y),
        _ => {}
    }
    // Without tiles, no side is so short.
    let side = tile_side::<T>(isa).unwrap_or(usize::MAX);
    for column in (0..x.width()).step_by(BLOCK) {
        let columns = BLOCK.min(x.width() - column);
        for row in (0..x.rows()).step_by(BLOCK) {
            let rows = BLOCK.min(x.rows() - row);
            let (down, along) = (rows - rows % side, columns - columns % side);
            for c in (0..along).step_by(side) {
                for r in (0..down).step_by(side) {
                    tile(isa, x, row + r, column + c, y.reborrow());
                }
            }
            // What tiles leave: some rows of the columns that have any, and all of the others.
            for c in if down < rows { 0 } else { along }..columns {
                let first = row + if c < along { down } else { 0 };
                let x = x.data()[first * x.stride() + column + c..].iter().step_by(x.stride());
                for (y, x) in y.row(column + c)[first..row + rows].iter_mut().zip(x) {
                    *y = *x;
                }
            }
        }
    }
}

/// `R` rows, such as the colours of an image: they are read side by side.
fn few_rows<T: Element, const R: usize>(x: Rows<T>, mut y: RowsMut<T>) {
    let n = x.width();
    let rows: [&[T]; R] = std::array::from_fn(|r| &x.row(r)[..n]);
    let stride = y.stride();
    for (c, y) in y.data().chunks_mut(stride).enumerate().take(n) {
        for (y, row) in y.iter_mut().zip(rows) {
            *y = row[c];
        }
    }
}

/// How many rows and columns [`tile`] transposes, which divides [`BLOCK`].
fn tile_side<T: Element>(isa: Isa) -> Option<usize> {
    // Others than plain Rust have vectors for it.
    match size_of::<T>() {
        1 if isa.fuses() => Some(16),
        4 if isa.fuses() => Some(if cfg!(target_arch = "x86_64") { 8 } else { 4 }),
        _ => None,
    }
}

/// Transposes the tile of `x` at a row and a column.
#[inline(always)]
fn tile<T: Element>(isa: Isa, x: Rows<T>, row: usize, column: usize, mut y: RowsMut<T>) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let side = tile_side::<T>(isa).expect("a tile of such elements");
        assert!(isa.is_available() && row + side <= x.rows() && column + side <= x.width());
        let (x_stride, y_stride) = (x.stride(), y.stride());
        // SAFETY: the assert found the tile in `x`, and `transpose` asserted that `y` is of its shape,
        // transposed; strides are those of their rows. `T` has as many bytes as the function moves,
        // all of which count. The set is available, and is at least AVX2 or NEON where it has a side.
        unsafe {
            let from = x.data().as_ptr().add(row * x_stride + column);
            let to = y.data().as_mut_ptr().add(column * y_stride + row);
            match size_of::<T>() {
                1 => vectors::tile_of_bytes(from.cast(), x_stride, to.cast(), y_stride),
                _ => vectors::tile_of_words(from.cast(), x_stride, to.cast(), y_stride),
            }
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unreachable!("{isa} has no tile for {row} {column} of {} and {}", x.rows(), y.rows());
}

#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::*;

    /// Transposes 16 rows of 16 bytes.
    ///
    /// # Safety
    /// The machine has AVX2. Rows lie as far apart as the strides say: 16 bytes of each may be read
    /// from `x` on, and written from `y` on.
    #[target_feature(enable = "avx2")]
    pub unsafe fn tile_of_bytes(x: *const u8, x_stride: usize, y: *mut u8, y_stride: usize) {
        // SAFETY: the caller guarantees 16 bytes of each of 16 rows, of which all are read before any is written.
        unsafe {
            let mut rows: [__m128i; 16] = std::array::from_fn(|i| _mm_loadu_si128(x.add(i * x_stride).cast()));
            // Each round interleaves rows that are half of all apart, which rotates the bits of an
            // element's address; after as many rounds as a row's number has bits it is transposed.
            for _ in 0..4 {
                rows = std::array::from_fn(|i| match i % 2 {
                    0 => _mm_unpacklo_epi8(rows[i / 2], rows[i / 2 + 8]),
                    _ => _mm_unpackhi_epi8(rows[i / 2], rows[i / 2 + 8]),
                });
            }
            for (i, row) in rows.into_iter().enumerate() {
                _mm_storeu_si128(y.add(i * y_stride).cast(), row);
            }
        }
    }

    /// Transposes 8 rows of 8 elements of 32 bits.
    ///
    /// # Safety
    /// The machine has AVX2. Rows lie as far apart as the strides say: 8 elements of each may be
    /// read from `x` on, and written from `y` on.
    #[target_feature(enable = "avx2")]
    pub unsafe fn tile_of_words(x: *const f32, x_stride: usize, y: *mut f32, y_stride: usize) {
        // SAFETY: the caller guarantees 8 elements of each of 8 rows, of which all are read before any is written.
        unsafe {
            let rows: [__m256; 8] = std::array::from_fn(|i| {
                // Half of row i % 4, and the same half of row i % 4 + 4.
                let half = x.add(i % 4 * x_stride + i / 4 * 4);
                let low = _mm256_castps128_ps256(_mm_loadu_ps(half));
                _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(half.add(4 * x_stride)))
            });
            for half in 0..2 {
                let [a, b, c, d] = std::array::from_fn(|i| rows[half * 4 + i]);
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                let y = y.add(half * 4 * y_stride);
                _mm256_storeu_ps(y, _mm256_shuffle_ps::<0x44>(ab_low, cd_low));
                _mm256_storeu_ps(y.add(y_stride), _mm256_shuffle_ps::<0xee>(ab_low, cd_low));
                _mm256_storeu_ps(y.add(2 * y_stride), _mm256_shuffle_ps::<0x44>(ab_high, cd_high));
                _mm256_storeu_ps(y.add(3 * y_stride), _mm256_shuffle_ps::<0xee>(ab_high, cd_high));
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod vectors {
    use std::arch::aarch64::*;

    /// Transposes 16 rows of 16 bytes.
    ///
    /// # Safety
    /// Rows lie as far apart as the strides say: 16 bytes of each may be read from `x` on, and written from `y` on.
    pub unsafe fn tile_of_bytes(x: *const u8, x_stride: usize, y: *mut u8, y_stride: usize) {
        // SAFETY: the caller guarantees 16 bytes of each of 16 rows, of which all are read before any is written.
        unsafe {
            let mut rows: [uint8x16_t; 16] = std::array::from_fn(|i| vld1q_u8(x.add(i * x_stride)));
            // As on x86-64: each round interleaves rows that are half of all apart.
            for _ in 0..4 {
                rows = std::array::from_fn(|i| match i % 2 {
                    0 => vzip1q_u8(rows[i / 2], rows[i / 2 + 8]),
                    _ => vzip2q_u8(rows[i / 2], rows[i / 2 + 8]),
                });
            }
            for (i, row) in rows.into_iter().enumerate() {
                vst1q_u8(y.add(i * y_stride), row);
            }
        }
    }

    /// Transposes 4 rows of 4 elements of 32 bits.
    ///
    /// # Safety
    /// Rows lie as far apart as the strides say: 4 elements of each may be read from `x` on, and written from `y` on.
    pub unsafe fn tile_of_words(x: *const f32, x_stride: usize, y: *mut f32, y_stride: usize) {
        // SAFETY: the caller guarantees 4 elements of each of 4 rows, of which all are read before any is written.
        unsafe {
            let mut rows: [float32x4_t; 4] = std::array::from_fn(|i| vld1q_f32(x.add(i * x_stride)));
            for _ in 0..2 {
                rows = std::array::from_fn(|i| match i % 2 {
                    0 => vzip1q_f32(rows[i / 2], rows[i / 2 + 2]),
                    _ => vzip2q_f32(rows[i / 2], rows[i / 2 + 2]),
                });
            }
            for (i, row) in rows.into_iter().enumerate() {
                vst1q_f32(y.add(i * y_stride), row);
            }
        }
    }
}
