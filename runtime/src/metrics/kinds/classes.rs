//! Classes: how many are right by labels, and how many both models choose.

use super::{Best, Facts, Made, Pair, Share, TELLING, Tally, largest};
use crate::metrics::{Meaning, Metric};
use compress_compiler::{
    error::{Error, Result},
    words::Unit,
};

pub(in crate::metrics) const TOP1: Facts = Facts {
    unit: Unit::Share,
    best: Best::One,
    labelled: true,
    takes: &[Meaning::Classes],
    made: Made::Tallied(|| Box::<Classes>::default()),
    beside: &[Metric::Agreement],
};

pub(in crate::metrics) const TOP5: Facts = Facts { beside: &[Metric::Top1, Metric::Agreement], ..TOP1 };

pub(in crate::metrics) const AGREEMENT: Facts = Facts {
    labelled: false,
    takes: &[Meaning::Classes, Meaning::Flags, Meaning::Labels, Meaning::Positions],
    beside: &[],
    ..TOP1
};

#[derive(Default)]
struct Classes {
    /// Of labelled samples those that each model has right: by the largest score, by the five largest.
    right: [[Share; 2]; 2],
    /// Rows or elements for which both models choose the same.
    same: Share,
    chosen: Chosen,
}

/// What the original chose: classes differ from sample to sample, and their scores are in no order.
#[derive(Default)]
struct Chosen {
    samples: usize,
    first: Option<usize>,
    several: bool,
    unsorted: bool,
}

impl Chosen {
    /// Takes note of a class, and whether its scores are in no order.
    fn see(&mut self, class: usize, unsorted: bool) {
        self.several |= self.first.is_some_and(|first| first != class);
        self.first.get_or_insert(class);
        self.unsorted |= unsorted;
    }
}

impl Tally for Classes {
    fn add(&mut self, pair: &Pair) -> Result<()> {
        match pair.meaning {
            Meaning::Flags => {
                let flags = |v: &f32| *v > 0.5;
                self.chosen.samples += pair.batch.len;
                pair.before.iter().for_each(|x| self.chosen.see(usize::from(flags(x)), true));
                // Of many flags nearly all are down: those count that one of the models has up.
                let counts = |x: &f32, y: &f32| pair.each() == 1 || flags(x) || flags(y);
                self.equal(pair, counts, |x, y| flags(x) == flags(y));
            }
            Meaning::Labels => {
                self.chosen.samples += pair.batch.len;
                pair.before.iter().for_each(|x| self.chosen.see(x.to_bits() as usize, true));
                self.equal(pair, |_, _| true, |x, y| x == y);
            }
            Meaning::Positions => {
                let mask = pair.mask(pair.before.len() / pair.width());
                self.rows(pair.width(), pair, mask.as_deref());
            }
            _ => self.samples(pair)?,
        }
        Ok(())
    }

    fn value(&self, metric: Metric) -> (Option<f64>, Option<f64>) {
        let right = |of: usize| (self.right[0][of].value(), self.right[1][of].value());
        match metric {
            Metric::Top1 => right(0),
            Metric::Top5 => right(1),
            _ => (None, self.same.value()),
        }
    }

    fn doubt(&self) -> Option<&'static str> {
        match self.chosen {
            Chosen { samples, .. } if samples < TELLING => None,
            Chosen { several: false, .. } => Some("the original chooses the same in every sample"),
            Chosen { unsorted: false, .. } => Some("its values are sorted, so they are not scores of classes"),
            Chosen { .. } => None,
        }
    }
}

impl Classes {
    fn equal(&mut self, pair: &Pair, counts: impl Fn(&f32, &f32) -> bool, same: impl Fn(&f32, &f32) -> bool) {
        let both = pair.before.iter().zip(pair.after).filter(|(x, y)| counts(x, y));
        both.for_each(|(x, y)| self.same.add(f64::from(u8::from(same(x, y)))));
    }

    fn rows(&mut self, width: usize, pair: &Pair, mask: Option<&[bool]>) {
        let rows = pair.before.chunks_exact(width).zip(pair.after.chunks_exact(width));
        for (i, (p, q)) in rows.enumerate() {
            if mask.is_some_and(|m| !m[i]) {
                continue;
            }
            let Some(best) = largest(p) else { continue };
            self.same.add(f64::from(u8::from(largest(q) == Some(best))));
            self.chosen.samples += 1;
            self.chosen.see(best, width < 3 || !(p.is_sorted() || p.is_sorted_by(|a, b| a >= b)));
        }
    }

    /// `[N, C]`, or with more axes of size 1; any other shape is taken row by row.
    fn samples(&mut self, pair: &Pair) -> Result<()> {
        let (batch, shape) = (pair.batch, pair.shape);
        let one_row = shape.iter().skip(1).filter(|n| **n != 1).count() <= 1 && shape.first() == Some(&batch.len);
        let width = if one_row { pair.each() } else { pair.width() };
        self.rows(width, pair, None);
        let Some(labels) = batch.labels.as_deref().filter(|_| one_row) else { return Ok(()) };
        if let Some(bad) = labels.iter().find(|l| usize::try_from(**l).map_or(true, |l| l >= width)) {
            return Err(Error::data(format!(
                "label {bad} is outside the model's {width} classes, which are numbered from 0"
            )));
        }
        if labels.len() != batch.len {
            return Err(Error::data(format!("{} labels for {} samples", labels.len(), batch.len)));
        }
        for (side, scores) in [pair.before, pair.after].into_iter().enumerate() {
            for (row, label) in scores.chunks_exact(width).zip(labels) {
                // The check above: labels are places in a row.
                let better = rank(row, *label as usize);
                for (of, most) in [1, 5].into_iter().enumerate() {
                    self.right[side][of].add(f64::from(u8::from(better.is_some_and(|n| n < most))));
                }
            }
        }
        Ok(())
    }
}

/// How many scores come before that at `place`: larger ones, and equal ones that stand before it.
fn rank(scores: &[f32], place: usize) -> Option<usize> {
    let own = *scores.get(place).filter(|v| !v.is_nan())?;
    Some(scores.iter().enumerate().filter(|(i, v)| **v > own || (**v == own && *i < place)).count())
}
