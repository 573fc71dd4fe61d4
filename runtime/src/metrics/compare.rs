//! Two models compared, batch by batch.

use super::{
    meaning::{Answers, Meaning},
    metric::{Measure, Metric},
    noise::Sqnr,
    vectors::Vectors,
};
use crate::dataset::Batch;
use compress_compiler::{
    error::{Error, Kind, Result},
    tensor::Tensor,
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// How far an output is from what it was.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputNoise {
    /// Its name.
    pub name: String,
    /// Signal to noise.
    pub sqnr: Sqnr,
    /// The largest absolute difference.
    pub max_error: f64,
}

/// Compares the outputs of a model before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    blame: Kind,
    measure: Measure,
    mask: Option<usize>,
    /// Of each output, of which axes the size may follow from what is computed.
    declared: Vec<Vec<Option<i64>>>,
    samples: usize,
    /// Samples for which an output has another number of elements, so that they can't be compared.
    unlike: usize,
    /// Labelled samples, and those of them that each model has right: by the largest score, by the five largest.
    labelled: usize,
    right: [[usize; 2]; 2],
    /// Rows, elements or samples, and what those that are equal count for.
    scored: usize,
    kept: f64,
    vectors: Vectors,
    /// The code of CTC for no character.
    blank: Option<usize>,
    chosen: Chosen,
    outputs: Vec<OutputNoise>,
}

/// What the original chose: classes differ from sample to sample, and their scores are in no order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Chosen {
    rows: usize,
    first: Option<usize>,
    several: bool,
    unsorted: bool,
}

impl Chosen {
    /// Takes note of the class of a row, and whether its scores are in no order.
    fn see(&mut self, class: usize, unsorted: bool) {
        self.rows += 1;
        self.several |= self.first.is_some_and(|first| first != class);
        self.first.get_or_insert(class);
        self.unsorted |= unsorted;
    }
}

/// Samples from which on one class for all of them is not a coincidence.
const TELLING: usize = 16;

impl Comparison {
    /// A comparison by `measure` of models with these outputs, that has found nothing yet. Outputs that can't be compared
    /// are an error of the kind `blame`: the data's where somebody else made the second model, a bug where nothing meant
    /// to change them.
    pub fn new(blame: Kind, answers: &Answers, measure: Measure) -> Self {
        let noise = |name: &String| OutputNoise { name: name.clone(), sqnr: Sqnr::default(), max_error: 0.0 };
        Self {
            blame,
            measure,
            mask: answers.mask,
            declared: answers.outputs.iter().map(|o| o.declared.clone()).collect(),
            samples: 0,
            unlike: 0,
            labelled: 0,
            right: [[0; 2]; 2],
            scored: 0,
            kept: 0.0,
            vectors: Vectors::default(),
            blank: None,
            chosen: Chosen::default(),
            outputs: answers.outputs.iter().map(|o| noise(&o.name)).collect(),
        }
    }

    /// Adds a batch: all outputs before, and the same outputs after.
    ///
    /// # Errors
    /// Of the kind to blame when number or shapes of the outputs differ, unless the shapes follow from what is computed; or when the outputs after have NaN or infinite
    /// values where those before have none; data when a label is not a class.
    pub fn add(&mut self, batch: &Batch, before: &[Tensor], after: &[Tensor]) -> Result<()> {
        if before.len() != after.len() || before.len() != self.outputs.len() {
            return Err(Error::new(self.blame, "the two models have a different number of outputs"));
        }
        let pairs = || before.iter().zip(after);
        if let Some((i, (a, b))) = pairs().enumerate().find(|(_, (a, b))| a.shape() != b.shape()) {
            // A detector may find another number of objects, and a file may declare a size that its model doesn't keep.
            let is_open = |axis: usize, a: usize| {
                self.declared[i].get(axis).is_none_or(|declared| declared.is_none_or(|n| n != a as i64))
            };
            let may = |(axis, (a, b)): (usize, (&usize, &usize))| a == b || is_open(axis, *a);
            let same_rank = a.shape().len() == b.shape().len();
            if same_rank && self.blame != Kind::Bug && a.shape().iter().zip(b.shape()).enumerate().all(may) {
                self.unlike += batch.len;
                return Ok(());
            }
            let name = &self.outputs[i].name;
            let what = format!("output `{name}` is {:?} in one model and {:?} in the other", a.shape(), b.shape());
            return Err(Error::new(self.blame, what));
        }
        self.samples += batch.len;
        for (out, (a, b)) in self.outputs.iter_mut().zip(pairs()) {
            let (a, b) = (numbers(a), numbers(b));
            out.sqnr.add(&a, &b);
            let far = a.iter().zip(b.iter()).map(|(a, b)| f64::from((a - b).abs())).filter(|d| d.is_finite());
            out.max_error = far.fold(out.max_error, f64::max);
            if out.sqnr.is_lost() {
                let what = "the new model's outputs have NaN or infinite values where the original's have none";
                return Err(Error::new(self.blame, format!("output `{}`: {what}", out.name)));
            }
        }
        let Some((a, b)) = pairs().nth(self.measure.output) else { return Ok(()) };
        self.compare(batch, a, b)
    }

    /// Compares the output that is measured, as what it is taken for.
    fn compare(&mut self, batch: &Batch, a: &Tensor, b: &Tensor) -> Result<()> {
        let (x, y) = (numbers(a), numbers(b));
        match self.measure.meaning {
            Meaning::Classes => self.classes(batch, a.shape(), &x, &y)?,
            Meaning::Positions => {
                let width = a.shape().last().copied().unwrap_or(1).max(1);
                let mask = self.mask_of(batch, x.len() / width);
                self.rows(width, &x, &y, mask.as_deref());
            }
            Meaning::Flags => {
                x.iter().for_each(|x| self.chosen.see(usize::from(*x > 0.5), true));
                self.equal(x.iter().zip(y.iter()).map(|(x, y)| (*x > 0.5) == (*y > 0.5)));
            }
            Meaning::Labels => self.equal(x.iter().zip(y.iter()).map(|(x, y)| x == y)),
            Meaning::Text => self.text(batch.len, a.shape(), &x, &y),
            Meaning::Mask => self.masks(batch.len, a.shape(), &x, &y),
            Meaning::Embedding | Meaning::Tokens => self.embeddings(batch, a.shape(), &x, &y),
            Meaning::Values => {}
        }
        Ok(())
    }

    fn equal(&mut self, pairs: impl Iterator<Item = bool>) {
        for same in pairs {
            self.scored += 1;
            self.kept += f64::from(u8::from(same));
        }
    }

    /// The attention mask of a batch, if it has an entry for each of so many positions.
    fn mask_of(&self, batch: &Batch, positions: usize) -> Option<Vec<bool>> {
        let mask = batch.inputs.get(self.mask?)?.as_i64()?;
        (mask.len() == positions).then(|| mask.into_iter().map(|v| v != 0).collect())
    }

    fn classes(&mut self, batch: &Batch, shape: &[usize], x: &[f32], y: &[f32]) -> Result<()> {
        // `[N, C]`, or with more axes of size 1; any other shape is taken row by row.
        let per_sample = x.len() / batch.len.max(1);
        let one_row = shape.iter().skip(1).filter(|n| **n != 1).count() <= 1 && shape.first() == Some(&batch.len);
        let width = if one_row { per_sample } else { shape.last().copied().unwrap_or(1) }.max(1);
        self.rows(width, x, y, None);
        let Some(labels) = batch.labels.as_deref().filter(|_| one_row) else { return Ok(()) };
        if let Some(bad) = labels.iter().find(|l| usize::try_from(**l).map_or(true, |l| l >= width)) {
            return Err(Error::data(format!("label {bad}, where the model tells {width} classes apart, from 0")));
        }
        if labels.len() != batch.len {
            return Err(Error::data(format!("{} labels for {} samples", labels.len(), batch.len)));
        }
        self.labelled += batch.len;
        for (side, scores) in [x, y].into_iter().enumerate() {
            for (row, label) in scores.chunks_exact(width).zip(labels) {
                // The check above: labels are places in a row.
                let better = rank(row, *label as usize);
                self.right[side][0] += usize::from(better == Some(0));
                self.right[side][1] += usize::from(better.is_some_and(|n| n < 5));
            }
        }
        Ok(())
    }

    fn rows(&mut self, width: usize, x: &[f32], y: &[f32], mask: Option<&[bool]>) {
        for (i, (p, q)) in x.chunks_exact(width).zip(y.chunks_exact(width)).enumerate() {
            if mask.is_some_and(|m| !m[i]) {
                continue;
            }
            let Some(best) = largest(p) else { continue };
            self.scored += 1;
            self.kept += f64::from(u8::from(largest(q) == Some(best)));
            self.chosen.see(best, width < 3 || !(p.is_sorted() || p.is_sorted_by(|a, b| a >= b)));
        }
    }

    /// `[N, T, C]`, or `[T, 1, C]` of one sample.
    fn text(&mut self, samples: usize, shape: &[usize], x: &[f32], y: &[f32]) {
        let width = shape.last().copied().unwrap_or(1).max(1);
        let best = |v: &[f32]| -> Vec<usize> { v.chunks_exact(width).map(|row| largest(row).unwrap_or(0)).collect() };
        let (p, q) = (best(x), best(y));
        let blank = *self.blank.get_or_insert_with(|| {
            let count = |code: usize| p.iter().filter(|c| **c == code).count();
            if count(width - 1) > count(0) { width - 1 } else { 0 }
        });
        let steps = (p.len() / samples.max(1)).max(1);
        let pairs = p.chunks(steps).zip(q.chunks(steps)).map(|(p, q)| read(p, blank) == read(q, blank));
        let same: Vec<bool> = pairs.collect();
        self.equal(same.into_iter());
    }

    /// `[N, C, H, W]` with scores for each of C classes, or anything else with one number a point.
    fn masks(&mut self, samples: usize, shape: &[usize], x: &[f32], y: &[f32]) {
        let classes = if shape.len() == 4 { shape[1].max(1) } else { 1 };
        let each = (x.len() / samples.max(1)).max(1);
        for (p, q) in x.chunks(each).zip(y.chunks(each)) {
            let points = p.len() / classes;
            let class = |v: &[f32], i: usize| match classes {
                1 => usize::from(v[i] > 0.5),
                _ => (1..classes).fold(0, |best, c| if v[c * points + i] > v[best * points + i] { c } else { best }),
            };
            // Class by class: points that either has, and that both have.
            let mut counts: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
            for i in 0..points {
                let (a, b) = (class(p, i), class(q, i));
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
            self.scored += 1;
            self.kept += ious.sum::<f64>() / counts.len().max(1) as f64;
        }
    }

    fn embeddings(&mut self, batch: &Batch, shape: &[usize], x: &[f32], y: &[f32]) {
        let each = (x.len() / batch.len.max(1)).max(1);
        if self.measure.meaning == Meaning::Embedding {
            x.chunks(each).zip(y.chunks(each)).for_each(|(x, y)| self.vectors.add(x, y));
            return;
        }
        let width = shape.last().copied().unwrap_or(1).max(1);
        let mask = self.mask_of(batch, x.len() / width);
        let tokens = each / width;
        for (i, (x, y)) in x.chunks(each).zip(y.chunks(each)).enumerate() {
            let counts = |t: usize| mask.as_ref().is_none_or(|m| m[i * tokens + t]);
            let [x, y] = [x, y].map(|v| {
                let mut sum = vec![0f32; width];
                for (_, row) in v.chunks_exact(width).enumerate().filter(|(t, _)| counts(*t)) {
                    sum.iter_mut().zip(row).for_each(|(s, v)| *s += v);
                }
                sum
            });
            self.vectors.add(&x, &y);
        }
    }

    /// How many samples were compared.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// For how many samples an output has another number of elements in one model than in the other.
    pub fn unlike(&self) -> usize {
        self.unlike
    }

    /// What the models are compared by: what was asked for, or SQNR where the answers of the original show that they are
    /// not what they seem to be, with the reason.
    pub fn metric(&self) -> (Metric, Option<&'static str>) {
        let Chosen { rows, several, unsorted, .. } = self.chosen;
        match self.measure.metric {
            Metric::Agreement if rows >= TELLING && !several => {
                (Metric::Sqnr, Some("the original chooses the same in every sample"))
            }
            Metric::Agreement if rows >= TELLING && !unsorted => {
                (Metric::Sqnr, Some("its values are sorted, so they are not scores of classes"))
            }
            metric => (metric, None),
        }
    }

    /// The metric of the model after; of labels, of the model before as well.
    pub fn value(&self) -> (Option<f64>, Option<f64>) {
        self.value_of(self.metric().0)
    }

    /// The same of a metric that looks at what this comparison looks at.
    pub fn value_of(&self, metric: Metric) -> (Option<f64>, Option<f64>) {
        let kept = || share(self.kept, self.scored);
        match metric {
            Metric::Top1 => (self.right(0, 0), self.right(1, 0)),
            Metric::Top5 => (self.right(0, 1), self.right(1, 1)),
            Metric::Agreement | Metric::Iou | Metric::Text => (None, kept()),
            Metric::Cosine => (None, self.vectors.cosine()),
            Metric::Recall10 => (None, self.vectors.recall()),
            Metric::Sqnr => (None, self.sqnr_db()),
            Metric::MaxError => (None, self.outputs.get(self.measure.output).map(|o| o.max_error)),
            // A program has it.
            Metric::Score => (None, None),
        }
    }

    fn right(&self, side: usize, of: usize) -> Option<f64> {
        share(self.right[side][of] as f64, self.labelled)
    }

    /// The share of samples to which both give the same class, of those to which the first gives any.
    pub fn agreement(&self) -> Option<f64> {
        let classes = matches!(self.measure.meaning, Meaning::Classes) && self.metric().1.is_none();
        share(self.kept, self.scored).filter(|_| classes)
    }

    /// Other figures of the same output, where it has any.
    pub fn beside(&self) -> Vec<(Metric, f64)> {
        let (metric, all) = (self.metric().0, &self.vectors);
        let found = match metric {
            Metric::Top1 => vec![(Metric::Agreement, self.agreement())],
            Metric::Top5 => vec![(Metric::Top1, self.right(1, 0)), (Metric::Agreement, self.agreement())],
            Metric::Cosine => vec![(Metric::Recall10, all.recall())],
            Metric::Recall10 => vec![(Metric::Cosine, all.cosine())],
            _ => vec![],
        };
        found.into_iter().filter_map(|(m, v)| Some((m, v?))).collect()
    }

    /// Each output.
    pub fn outputs(&self) -> &[OutputNoise] {
        &self.outputs
    }

    /// The output that is farthest from what it was, of those that differ; else the first.
    pub fn worst(&self) -> Option<&OutputNoise> {
        let db = |o: &OutputNoise| o.sqnr.db().unwrap_or(f64::INFINITY);
        self.outputs.iter().min_by(|a, b| db(a).total_cmp(&db(b)))
    }

    /// [`Sqnr::db`] of the worst output.
    pub fn sqnr_db(&self) -> Option<f64> {
        self.worst()?.sqnr.db()
    }

    /// Whether all outputs before are zero throughout, so that they measure nothing.
    pub fn is_silent(&self) -> bool {
        self.samples > 0 && self.outputs.iter().all(|o| o.sqnr.is_silent())
    }

    /// Whether all outputs are equal, and numbers.
    pub fn is_equal(&self) -> bool {
        self.samples > 0 && self.unlike == 0 && self.outputs.iter().all(|o| o.sqnr.is_equal())
    }
}

/// The characters that CTC's codes stand for: repetitions are one, and blanks none.
fn read(codes: &[usize], blank: usize) -> Vec<usize> {
    let mut codes = codes.to_vec();
    codes.dedup();
    codes.retain(|c| *c != blank);
    codes
}

/// The place of the largest score; NaN never is, and a row of nothing else has none.
fn largest(scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, v) in scores.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
        if best.is_none_or(|(_, b)| *v > b) {
            best = Some((i, *v));
        }
    }
    best.map(|(i, _)| i)
}

/// How many scores come before that at `place`: larger ones, and equal ones that stand before it.
fn rank(scores: &[f32], place: usize) -> Option<usize> {
    let own = *scores.get(place).filter(|v| !v.is_nan())?;
    Some(scores.iter().enumerate().filter(|(i, v)| **v > own || (**v == own && *i < place)).count())
}

/// The elements as numbers, whatever their type.
fn numbers(t: &Tensor) -> Cow<'_, [f32]> {
    t.as_f32().unwrap_or_else(|| t.as_i64().unwrap_or_default().into_iter().map(|v| v as f32).collect())
}

fn share(part: f64, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

#[cfg(test)]
mod tests;
