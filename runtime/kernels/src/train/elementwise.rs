//! Rectifiers and sums, divided over threads. They are bound by memory: what can be is done in place.

use super::copy::written;
use crate::Isa;
use crate::multiversion::multiversion;
use rayon::prelude::*;

/// Elements that a thread takes at a time: they fit its cache, and are worth the handing out.
const CHUNK: usize = 1 << 14;

multiversion! {
    fn rectify_chunk(isa: Isa, x: &mut [f32]) {
        // NaN is not below 0, and stays.
        x.iter_mut().for_each(|v| *v = if *v <= 0.0 { 0.0 } else { *v });
    }

    fn mask_chunk(isa: Isa, y: &[f32], dy: &mut [f32]) {
        dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = if *y <= 0.0 { 0.0 } else { *dy });
    }

    fn add_chunk(isa: Isa, a: &mut [f32], b: &[f32]) {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
    }
}

/// `max(x, 0)`, in place; NaN stays.
pub fn relu(x: &mut [f32]) {
    let isa = Isa::detect();
    x.par_chunks_mut(CHUNK).for_each(|x| rectify_chunk(isa, x));
}

/// The gradient of [`relu`], whose output is `y`, in the place of that by its output.
pub fn relu_gradient(y: &[f32], dy: &mut [f32]) {
    assert_eq!(y.len(), dy.len(), "elements of a rectifier and its gradient");
    let isa = Isa::detect();
    dy.par_chunks_mut(CHUNK).zip(y.par_chunks(CHUNK)).for_each(|(dy, y)| mask_chunk(isa, y, dy));
}

/// `a + b`, in the place of `a`.
pub fn add(a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "elements of a sum");
    let isa = Isa::detect();
    a.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).for_each(|(a, b)| add_chunk(isa, a, b));
}

/// A copy.
pub fn copied(x: &[f32]) -> Vec<f32> {
    let fill = |to: &mut [std::mem::MaybeUninit<f32>]| {
        to.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(to, x)| {
            to.iter_mut().zip(x).for_each(|(to, x)| {
                to.write(*x);
            });
        });
    };
    // SAFETY: both are as long, and so are their chunks.
    unsafe { written(x.len(), fill) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectifiers_and_sums() {
        for len in [0, 1, CHUNK, CHUNK + 3] {
            let x: Vec<f32> = (0..len).map(|i| if i == 7 { f32::NAN } else { (i % 11) as f32 - 5.0 }).collect();
            let mut y = copied(&x);
            relu(&mut y);
            let mut dx: Vec<f32> = (0..len).map(|i| i as f32).collect();
            relu_gradient(&y, &mut dx);
            let mut sum = copied(&x);
            add(&mut sum, &dx);
            for (i, x) in x.iter().enumerate() {
                assert!(y[i].to_bits() == if *x <= 0.0 { 0 } else { x.to_bits() });
                assert_eq!(dx[i], if *x <= 0.0 { 0.0 } else { i as f32 });
                assert!(sum[i] == x + dx[i] || x.is_nan());
            }
        }
    }
}
