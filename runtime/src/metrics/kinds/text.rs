//! Text, as connectionist temporal classification writes it (Graves et al. 2006): a score for each character, and for
//! none, at each step.

use super::{Best, Facts, Made, Pair, Share, TELLING, Tally, largest};
use crate::metrics::{Meaning, Metric};
use compress_compiler::{error::Result, words::Unit};

pub(in crate::metrics) const TEXT: Facts = Facts {
    unit: Unit::Share,
    best: Best::One,
    labelled: false,
    takes: &[Meaning::Text],
    made: Made::Tallied(|| Box::<Texts>::default()),
    beside: &[],
};

#[derive(Default)]
struct Texts {
    /// The code for no character: the first or the last, whichever the first batch has more of.
    blank: Option<usize>,
    same: Share,
    /// Whether the original reads anything in any sample.
    reads: bool,
}

impl Tally for Texts {
    /// `[N, T, C]`, or `[T, 1, C]` of one sample.
    fn add(&mut self, pair: &Pair) -> Result<()> {
        let width = pair.width();
        let best = |v: &[f32]| -> Vec<usize> { v.chunks_exact(width).map(|row| largest(row).unwrap_or(0)).collect() };
        let (p, q) = (best(pair.before), best(pair.after));
        let blank = *self.blank.get_or_insert_with(|| {
            let count = |code: usize| p.iter().filter(|c| **c == code).count();
            if count(width - 1) > count(0) { width - 1 } else { 0 }
        });
        let steps = (p.len() / pair.batch.len.max(1)).max(1);
        for (p, q) in p.chunks(steps).zip(q.chunks(steps)) {
            let (p, q) = (read(p, blank), read(q, blank));
            self.reads |= !p.is_empty();
            self.same.add(f64::from(u8::from(p == q)));
        }
        Ok(())
    }

    fn value(&self, _: Metric) -> (Option<f64>, Option<f64>) {
        (None, self.same.value())
    }

    fn doubt(&self) -> Option<&'static str> {
        (!self.reads && self.same.whole >= TELLING).then_some("the original reads nothing in any sample")
    }
}

/// The characters that the codes stand for: repetitions are one, and blanks none.
fn read(codes: &[usize], blank: usize) -> Vec<usize> {
    let mut codes = codes.to_vec();
    codes.dedup();
    codes.retain(|c| *c != blank);
    codes
}
