//! Copies of rows, and buffers for them.

use super::tile::versions;
use crate::Isa;
use crate::multiversion::multiversion;
use crate::tile::Vectors;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Floats that begin with a cache line: what is read a vector at a time should not lie on two.
#[derive(Debug)]
pub(super) struct Aligned {
    data: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// So many zeros.
    pub fn zeros(len: usize) -> Self {
        let data = vec![0.0f32; len + 16];
        let start = data.as_ptr().align_offset(64).min(16);
        Self { data, start, len }
    }
}

impl Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.data[self.start..][..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..][..self.len]
    }
}

/// A vector of so many elements, written by `fill`: to make them 0 before would take up to
/// a tenth of the time of what writes them.
///
/// # Safety
/// `fill` writes every element.
pub(super) unsafe fn written<T>(len: usize, fill: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut data = Vec::with_capacity(len);
    fill(&mut data.spare_capacity_mut()[..len]);
    // SAFETY: there is this capacity, and the caller's word that it is written.
    unsafe { data.set_len(len) };
    data
}

versions!(copy_on, Copies, copy_all);

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
    // SAFETY: the asserts above found these rows in both.
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
    // SAFETY: the caller guarantees the instruction set, and `columns` floats of each row in both. Vectors end at
    // `whole` at the latest, and what is left is less than one.
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
