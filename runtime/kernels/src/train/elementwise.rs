//! Rectifiers and sums, divided over threads. They are bound by memory: what can be is done in place.

use super::copy::written;
use crate::Isa;
use crate::multiversion::multiversion;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Elements that a thread takes at a time: they fit its cache, and are worth the handing out.
const CHUNK: usize = 1 << 14;

/// What passes a rectifier that gets `x`, forward `x` itself and backward a gradient; NaN is not below 0.
#[inline(always)]
pub(super) fn passed(x: f32, v: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { v }
}

/// Elements that share a word of [`Signs`].
const WORD: usize = u32::BITS as usize;

multiversion! {
    fn rectify_chunk(isa: Isa, x: &mut [f32], signs: &mut [MaybeUninit<u32>]) {
        let (words, rest) = x.as_chunks_mut::<WORD>();
        for (x, signs) in words.iter_mut().zip(&mut *signs) {
            signs.write(rectify_word(x));
        }
        if let (Some(signs), [_, ..]) = (signs.last_mut(), &*rest) {
            signs.write(rectify_word(rest));
        }
    }

    fn mask_chunk(isa: Isa, signs: &[u32], dy: &mut [f32]) {
        let (words, rest) = dy.as_chunks_mut::<WORD>();
        for (dy, signs) in words.iter_mut().zip(signs) {
            mask_word(*signs, dy);
        }
        mask_word(signs.last().copied().unwrap_or(0), rest);
    }

    fn add_chunk(isa: Isa, a: &mut [f32], b: &[f32]) {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
    }
}

/// Rectifies up to as many elements as a word has bits; a bit is 1 where the element passed.
#[inline(always)]
fn rectify_word(x: &mut [f32]) -> u32 {
    let mut signs = 0;
    for (lane, x) in x.iter_mut().enumerate() {
        signs |= u32::from(*x > 0.0 || x.is_nan()) << lane;
        *x = passed(*x, *x);
    }
    signs
}

#[inline(always)]
fn mask_word(signs: u32, dy: &mut [f32]) {
    for (lane, dy) in dy.iter_mut().enumerate() {
        // 0 as it is in bits, all ones or none.
        let keep = ((signs >> lane) & 1).wrapping_neg();
        *dy = f32::from_bits(dy.to_bits() & keep);
    }
}

/// Which elements a rectifier let pass, a bit for each: a chunk has words of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signs(Vec<u32>);

/// `max(x, 0)`, in place; NaN stays.
pub fn relu(x: &mut [f32]) -> Signs {
    let isa = Isa::detect();
    let words = x.len().div_ceil(WORD);
    let rectify_all = |signs: &mut [MaybeUninit<u32>]| {
        x.par_chunks_mut(CHUNK)
            .zip(signs.par_chunks_mut(CHUNK / WORD))
            .for_each(|(x, signs)| rectify_chunk(isa, x, signs));
    };
    // SAFETY: there are as many words as the elements need, and those of each chunk are written.
    Signs(unsafe { written(words, rectify_all) })
}

/// The gradient of [`relu`], in the place of that by its output.
pub fn relu_gradient(signs: &Signs, dy: &mut [f32]) {
    assert_eq!(signs.0.len(), dy.len().div_ceil(WORD), "elements of a rectifier and its gradient");
    let isa = Isa::detect();
    dy.par_chunks_mut(CHUNK).zip(signs.0.par_chunks(CHUNK / WORD)).for_each(|(dy, signs)| mask_chunk(isa, signs, dy));
}

/// `a + b`, in the place of `a`.
pub fn add(a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "elements of a sum");
    let isa = Isa::detect();
    a.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).for_each(|(a, b)| add_chunk(isa, a, b));
}

/// A copy.
pub fn copied(x: &[f32]) -> Vec<f32> {
    let fill = |to: &mut [MaybeUninit<f32>]| {
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
        for len in [0, 1, WORD, 3 * WORD + 5, CHUNK, CHUNK + 3] {
            let x: Vec<f32> = (0..len).map(|i| if i == 7 { f32::NAN } else { (i % 11) as f32 - 5.0 }).collect();
            let mut y = copied(&x);
            let signs = relu(&mut y);
            let mut dx: Vec<f32> = (0..len).map(|i| i as f32).collect();
            relu_gradient(&signs, &mut dx);
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
