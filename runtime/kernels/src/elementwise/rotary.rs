//! Rotary position embedding: pairs of features, half a row apart, are turned by angles.

use crate::multiversion::multiversion;
use crate::parallel::{Part, in_rows};
use crate::{Isa, Rows, RowsMut};

/// `y = x * cos + turned(x) * sin`, where the second half of a row, negated, comes before the first in `turned`. Row `i` is
/// multiplied by rows `angle(i)` of `cos` and `sin`, which are as wide, or half as wide where both halves have the same angles.
///
/// # Panics
/// When the shapes don't fit, or `angle` gives a row that is not there.
pub fn rotate(
    isa: Isa,
    x: Rows<f32>,
    [cos, sin]: [Rows<f32>; 2],
    angle: impl Fn(usize) -> [usize; 2] + Sync,
    y: RowsMut<f32>,
    threads: usize,
) {
    let width = y.width();
    assert_eq!((x.rows(), x.width()), (y.rows(), width), "x and y are of one shape");
    let fits = |t: &Rows<f32>| t.width() == width || 2 * t.width() == width;
    assert!(width.is_multiple_of(2) && [cos, sin].iter().all(fits), "an angle for each pair");
    in_rows(y, 1, threads, &|part: Part, mut y: RowsMut<f32>| {
        for i in 0..y.rows() {
            let [of_cos, of_sin] = angle(part.row + i);
            rotate_row(isa, x.row(part.row + i), cos.row(of_cos), sin.row(of_sin), y.row(i));
        }
    });
}

multiversion! {
    fn rotate_row(isa: Isa, x: &[f32], cos: &[f32], sin: &[f32], y: &mut [f32]) {
        let half = y.len() / 2;
        let (x_a, x_b) = x.split_at(half);
        let (cos_a, cos_b) = (&cos[..half], &cos[cos.len() - half..]);
        let (sin_a, sin_b) = (&sin[..half], &sin[sin.len() - half..]);
        let (y_a, y_b) = y.split_at_mut(half);
        for ((((y, a), b), cos), sin) in y_a.iter_mut().zip(x_a).zip(x_b).zip(cos_a).zip(sin_a) {
            *y = a * cos - b * sin;
        }
        for ((((y, a), b), cos), sin) in y_b.iter_mut().zip(x_a).zip(x_b).zip(cos_b).zip(sin_b) {
            *y = b * cos + a * sin;
        }
    }
}
