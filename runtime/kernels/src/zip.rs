//! Functions of up to three operands of any types, which are broadcast.

use crate::{RowsMut, parallel::in_rows};

/// An operand, and how far apart its elements are along each axis of the result: 0 where it has one for all.
#[derive(Debug, Clone, Copy)]
pub struct Broadcast<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// A step for each axis.
    pub steps: &'a [usize],
}

impl<T> Broadcast<'_, T> {
    /// Where row `row` of a result of sizes `dims` begins, and how far apart its elements are.
    #[inline(always)]
    fn row(&self, dims: &[usize], row: usize) -> (usize, usize) {
        let Some((last, steps)) = self.steps.split_last() else { return (0, 0) };
        let (mut at, mut rest) = (0, row);
        for (n, step) in dims.iter().zip(steps).rev() {
            at += rest % n * step;
            rest /= n;
        }
        (at, *last)
    }
}

/// `y = f(a, b, c)` for every element of a result of sizes `dims`, the last axis of which is a row of `y`.
///
/// # Panics
/// When an operand is too short.
pub fn zip<A, B, C, Y>(
    dims: &[usize],
    (a, b, c): (Broadcast<A>, Broadcast<B>, Broadcast<C>),
    y: RowsMut<Y>,
    threads: usize,
    f: impl Fn(A, B, C) -> Y + Sync,
) where
    A: Copy + Sync,
    B: Copy + Sync,
    C: Copy + Sync,
    Y: Send,
{
    let outer = dims.split_last().map_or(&[][..], |(_, outer)| outer);
    in_rows(y, 1, threads, &|part, mut y: RowsMut<Y>| {
        for i in 0..y.rows() {
            let y = y.row(i);
            let [of_a, of_b, of_c] =
                [a.row(outer, part.row + i), b.row(outer, part.row + i), c.row(outer, part.row + i)];
            let (n, last) = (y.len(), y.len().saturating_sub(1));
            let (a, b, c) = (
                &a.data[of_a.0..][..last * of_a.1 + 1],
                &b.data[of_b.0..][..last * of_b.1 + 1],
                &c.data[of_c.0..][..last * of_c.1 + 1],
            );
            match (of_a.1, of_b.1, of_c.1) {
                // The forms of masks: nothing is multiplied to find an element.
                (1, 0, 0) => y.iter_mut().zip(a).for_each(|(y, a)| *y = f(*a, b[0], c[0])),
                (1, 0, 1) => y.iter_mut().zip(a).zip(c).for_each(|((y, a), c)| *y = f(*a, b[0], *c)),
                (1, 1, 0) => y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = f(*a, *b, c[0])),
                (1, 1, 1) => y.iter_mut().zip(a).zip(b).zip(c).for_each(|(((y, a), b), c)| *y = f(*a, *b, *c)),
                _ => (0..n).for_each(|j| y[j] = f(a[j * of_a.1], b[j * of_b.1], c[j * of_c.1])),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_broadcast() {
        let (a, b, c): (Vec<u8>, Vec<u32>, Vec<i64>) = ((0..6).collect(), (0..4).collect(), vec![1000]);
        // a: [2, 1, 3], b: [4, 1], c: []
        let of = (
            Broadcast { data: &a, steps: &[3, 0, 1] },
            Broadcast { data: &b, steps: &[0, 1, 0] },
            Broadcast { data: &c, steps: &[0, 0, 0] },
        );
        for threads in [1, 3] {
            let mut y = vec![0; 24];
            zip(&[2, 4, 3], of, RowsMut::dense(&mut y, 8, 3), threads, |a, b, c| i64::from(a) + 10 * i64::from(b) + c);
            let want = (0..24).map(|i| 1000 + i / 12 * 3 + i % 3 + i / 3 % 4 * 10);
            assert!(y.iter().copied().eq(want), "{y:?}");
        }
    }
}
