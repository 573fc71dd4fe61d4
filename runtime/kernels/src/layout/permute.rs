//! Permutation of axes.

use super::{Element, tile};
use crate::{Isa, Rows, RowsMut, team::join};

/// How many axes there may be.
const RANK: usize = 8;

/// An axis of the result: how long it is, and how far apart its elements lie in `x` and in `y`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Axis {
    len: usize,
    x: usize,
    y: usize,
}

/// Transpose: axis `i` of `y` is axis `perm[i]` of `x`, whose shape is `dims`. Both are dense.
///
/// # Panics
/// When `perm` is not a permutation of the axes of `dims`, there are more than 8, or the number of
/// elements of `x` or `y` is not that of `dims`.
pub fn permute<T: Element>(x: &[T], dims: &[usize], perm: &[usize], y: &mut [T], threads: usize) {
    let n = dims.iter().product::<usize>();
    assert_eq!((x.len(), y.len()), (n, n), "the elements of {dims:?}");
    let mut axes = [Axis::default(); RANK];
    let axes = axes_of(dims, perm, &mut axes);
    if n > 0 {
        divide(Isa::detect(), x, axes, y, threads);
    }
}

/// The axes of the result, those left out whose length is 1, and those one that stay neighbours.
fn axes_of<'a>(dims: &[usize], perm: &[usize], axes: &'a mut [Axis; RANK]) -> &'a [Axis] {
    let rank = dims.len();
    assert!(rank <= RANK && perm.len() == rank, "{perm:?} of {dims:?}");
    assert!((0..rank).all(|axis| perm.contains(&axis)), "{perm:?} is not a permutation");
    let mut used = 0;
    for &axis in perm.iter().filter(|&&axis| dims[axis] != 1) {
        let x: usize = dims[axis + 1..].iter().product();
        let len = dims[axis];
        match axes[..used].last_mut() {
            Some(last) if last.x == len * x => *last = Axis { len: last.len * len, x, y: 0 },
            _ => {
                axes[used] = Axis { len, x, y: 0 };
                used += 1;
            }
        }
    }
    let mut y = 1;
    for axis in axes[..used].iter_mut().rev() {
        axis.y = y;
        y *= axis.len;
    }
    &axes[..used]
}

/// Divides the first axis of the result between threads.
fn divide<T: Element>(isa: Isa, x: &[T], axes: &[Axis], y: &mut [T], threads: usize) {
    let left = threads / 2;
    let n = axes.first().map_or(0, |axis| axis.len * left / threads.max(1));
    if n == 0 {
        return walk(isa, x, axes, y);
    }
    let part = |len| {
        let mut part = [Axis::default(); RANK];
        part[..axes.len()].copy_from_slice(axes);
        part[0].len = len;
        part
    };
    let (a, b) = (part(n), part(axes[0].len - n));
    let (y_a, y_b) = y.split_at_mut(n * axes[0].y);
    join(
        || divide(isa, x, &a[..axes.len()], y_a, left),
        || divide(isa, &x[n * axes[0].x..], &b[..axes.len()], y_b, threads - left),
    );
}

/// Writes the elements of some of the axes; `x` and `y` begin at the first.
fn walk<T: Element>(isa: Isa, x: &[T], axes: &[Axis], y: &mut [T]) {
    // The axis that is contiguous in `x`: only with the last one of `y` it makes a matrix.
    let inner = axes.iter().position(|axis| axis.x == 1);
    match (axes, inner) {
        ([], _) => y[0] = x[0],
        (&[axis], Some(_)) => y[..axis.len].copy_from_slice(&x[..axis.len]),
        (&[column, row], Some(0)) => {
            let x = Rows::new(x, row.len, column.len, row.x);
            tile::transpose(isa, x, RowsMut::new(y, column.len, row.len, column.y));
        }
        // The contiguous axis goes inwards, beside the last.
        (&[.., _, _], Some(at)) if at + 2 < axes.len() => {
            let mut order = [Axis::default(); RANK];
            let order = &mut order[..axes.len()];
            order.copy_from_slice(axes);
            order[at..axes.len() - 1].rotate_left(1);
            walk(isa, x, order, y);
        }
        (&[axis, ref inner @ ..], _) => {
            for i in 0..axis.len {
                walk(isa, &x[i * axis.x..], inner, &mut y[i * axis.y..]);
            }
        }
    }
}
