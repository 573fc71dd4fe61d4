//! Masks: intersection over union, class by class, on average over the classes of a sample and over samples.

use super::{Best, Facts, Made, Pair, Share, TELLING, Tally};
use crate::metrics::{Meaning, Metric};
use compress_compiler::{error::Result, words::Unit};
use std::collections::{BTreeMap, BTreeSet};

pub(in crate::metrics) const IOU: Facts = Facts {
    unit: Unit::Share,
    best: Best::One,
    labelled: false,
    takes: &[Meaning::Mask],
    made: Made::Tallied(|| Box::<Overlap>::default()),
    beside: &[],
};

#[derive(Default)]
struct Overlap {
    shared: Share,
    /// Whether the original sees more than one class in some sample, or another one than in the first.
    several: bool,
    first: Option<usize>,
}

impl Tally for Overlap {
    /// `[N, C, H, W]` with scores for each of C classes, or anything else with one number a point.
    fn add(&mut self, pair: &Pair) -> Result<()> {
        let classes = if pair.shape.len() == 4 { pair.shape[1].max(1) } else { 1 };
        for (p, q) in pair.before.chunks(pair.each()).zip(pair.after.chunks(pair.each())) {
            self.shared.add(iou(p, q, classes));
            self.several = self.several
                || (0..p.len() / classes).any(|i| {
                    let class = class(p, i, classes);
                    *self.first.get_or_insert(class) != class
                });
        }
        Ok(())
    }

    fn value(&self, _: Metric) -> (Option<f64>, Option<f64>) {
        (None, self.shared.value())
    }

    fn doubt(&self) -> Option<&'static str> {
        (!self.several && self.shared.whole >= TELLING)
            .then_some("the original sees the same class everywhere in every sample")
    }
}

/// The class of point `i` of a sample, `[C, H, W]`.
fn class(v: &[f32], i: usize, classes: usize) -> usize {
    let points = v.len() / classes;
    match classes {
        1 => usize::from(v[i] > 0.5),
        _ => (1..classes).fold(0, |best, c| if v[c * points + i] > v[best * points + i] { c } else { best }),
    }
}

/// Of one sample, `[C, H, W]`.
fn iou(p: &[f32], q: &[f32], classes: usize) -> f64 {
    let points = p.len() / classes;
    // Class by class: points that either has, and that both have.
    let mut counts: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
    for i in 0..points {
        let (a, b) = (class(p, i, classes), class(q, i, classes));
        for c in BTreeSet::from([a, b]) {
            let [either, both] = counts.entry(c).or_default();
            *either += 1;
            *both += usize::from(a == b);
        }
    }
    // Where there is but one class, no object is an object too.
    if classes == 1 && counts.len() > 1 {
        counts.remove(&0);
    }
    let ious = counts.values().map(|[either, both]| *both as f64 / *either as f64);
    ious.sum::<f64>() / counts.len().max(1) as f64
}
