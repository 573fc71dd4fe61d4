//! Two models compared, batch by batch.

use super::{
    kinds::{Made, Pair, Tally},
    meaning::{Answer, Answers, Meaning},
    metric::{Measure, Metric},
    noise::Sqnr,
    parts::{APART, Mixture},
};
use crate::dataset::Batch;
use compress_compiler::{
    error::{Error, Kind, Result},
    tensor::Tensor,
};
use std::borrow::Cow;

/// How far an output is from what it was.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputNoise {
    /// Its name.
    pub name: String,
    /// Signal to noise of all its values.
    pub sqnr: Sqnr,
    /// The kinds of its values, if it may hold two.
    mixture: Option<Mixture>,
    /// The largest absolute difference.
    pub max_error: f64,
}

impl OutputNoise {
    /// [`Sqnr::db`] of its values; of two kinds (places in pixels, and scores below 1) that of the worse one.
    pub fn db(&self) -> Option<f64> {
        let of_kinds = self.mixture.as_ref().and_then(Mixture::noise);
        of_kinds.map_or(self.sqnr.db(), |kinds| kinds.iter().filter_map(Sqnr::db).reduce(f64::min))
    }

    /// Of two kinds of values, those of which [`OutputNoise::db`] is, in words.
    pub fn kind(&self) -> Option<String> {
        let mixture = self.mixture.as_ref()?;
        let [small, large] = mixture.noise()?.map(|noise| noise.db().unwrap_or(f64::INFINITY));
        let (axis, count, all) = mixture.parts().smaller().filter(|_| small.min(large).is_finite())?;
        let which = if small <= large { "smaller" } else { "larger" };
        Some(format!(
            "the {which} values: those at {count} of {all} indices of axis {axis} are over {APART} times smaller than the rest"
        ))
    }
}

/// Compares the outputs of a model before and after.
pub struct Comparison {
    blame: Kind,
    measure: Measure,
    mask: Option<usize>,
    tokens: Option<usize>,
    /// Of each output, of which axes the size may follow from what is computed.
    declared: Vec<Vec<Option<i64>>>,
    samples: usize,
    /// Samples for which an output has another number of elements, so that they can't be compared.
    unlike: usize,
    /// What the metric is made from, unless that is the noise.
    tally: Option<Box<dyn Tally>>,
    /// Of scores of classes that another kind of metric measures: which classes both choose.
    classes: Option<Box<dyn Tally>>,
    outputs: Vec<OutputNoise>,
}

impl Comparison {
    /// A comparison by `measure` of models with these outputs, that has found nothing yet. Outputs that can't be compared
    /// are an error of the kind `blame`: the data's where somebody else made the second model, a bug where nothing meant
    /// to change them.
    pub fn new(blame: Kind, answers: &Answers, measure: Measure) -> Self {
        let noise = |of: &Answer| OutputNoise {
            name: of.name.clone(),
            sqnr: Sqnr::default(),
            mixture: of.may_mix.then(Mixture::default),
            max_error: 0.0,
        };
        let tally = |metric: Metric| match metric.facts().made {
            Made::Tallied(new) => Some(new()),
            Made::OfNoise(_) | Made::Printed => None,
        };
        let apart = measure.meaning == Meaning::Classes && !measure.metric.facts().takes.contains(&Meaning::Classes);
        Self {
            blame,
            measure,
            mask: answers.mask,
            tokens: answers.tokens,
            declared: answers.outputs.iter().map(|o| o.declared.clone()).collect(),
            samples: 0,
            unlike: 0,
            tally: tally(measure.metric),
            classes: if apart { tally(Metric::Agreement) } else { None },
            outputs: answers.outputs.iter().map(noise).collect(),
        }
    }

    /// Adds a batch: all outputs before, and the same outputs after.
    ///
    /// # Errors
    /// Of the kind to blame when number or shapes of the outputs differ, unless the shapes follow from what is computed; or
    /// when the outputs after have NaN or infinite values where those before have none; data when a label is not a class.
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
            let shape = a.shape();
            let (a, b) = (numbers(a), numbers(b));
            out.mixture.iter_mut().for_each(|mixture| mixture.add(shape, &a, &b));
            out.sqnr.add(&a, &b);
            let far = a.iter().zip(b.iter()).map(|(a, b)| f64::from((a - b).abs())).filter(|d| d.is_finite());
            out.max_error = far.fold(out.max_error, f64::max);
            if out.sqnr.is_lost() {
                let is_new = a.iter().zip(b.iter()).any(|(a, b)| a.is_finite() && !b.is_finite());
                let what = match is_new {
                    true => "the new model's outputs have NaN or infinite values where the original's have none",
                    false => "the original's outputs have infinite values where the new model's have numbers",
                };
                return Err(Error::new(self.blame, format!("output `{}`: {what}", out.name)));
            }
        }
        let Some((a, b)) = pairs().nth(self.measure.output) else { return Ok(()) };
        let (before, after) = (&*numbers(a), &*numbers(b));
        let Self { mask, tokens, measure, .. } = *self;
        let pair = Pair { batch, meaning: measure.meaning, shape: a.shape(), before, after, mask, tokens };
        self.tally.iter_mut().chain(&mut self.classes).try_for_each(|tally| tally.add(&pair))
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
        let asked = self.measure.metric;
        let doubt = self.tally.as_ref().filter(|_| !asked.needs_labels()).and_then(|t| t.doubt());
        (if doubt.is_some() { Metric::Sqnr } else { asked }, doubt)
    }

    /// The metric of the model after; of labels, of the model before as well.
    pub fn value(&self) -> (Option<f64>, Option<f64>) {
        self.value_of(self.metric().0)
    }

    /// The same of the metric that was asked for, even where the answers of the original cast doubt on it.
    pub fn value_as_asked(&self) -> (Option<f64>, Option<f64>) {
        self.value_of(self.measure.metric)
    }

    fn value_of(&self, metric: Metric) -> (Option<f64>, Option<f64>) {
        match (metric.facts().made, &self.tally) {
            (Made::Tallied(_), Some(tally)) => tally.value(metric),
            (Made::OfNoise(of), _) => (None, of(self)),
            (Made::Printed | Made::Tallied(_), _) => (None, None),
        }
    }

    /// The share of samples to which both give the same class, of those to which the first gives any.
    pub fn agreement(&self) -> Option<f64> {
        if self.measure.meaning != Meaning::Classes || self.metric().1.is_some() {
            return None;
        }
        self.classes.as_ref().or(self.tally.as_ref())?.value(Metric::Agreement).1
    }

    /// Other figures of the same output, where it has any: of the model before, where it has one by itself, and after.
    pub fn beside(&self) -> Vec<(Metric, Option<f64>, f64)> {
        let figure = |metric: &Metric| {
            let (before, after) = self.value_of(*metric);
            Some((*metric, before, after?))
        };
        self.metric().0.facts().beside.iter().filter_map(figure).collect()
    }

    /// The output that the metric looks at.
    pub(super) fn measured(&self) -> Option<&OutputNoise> {
        self.outputs.get(self.measure.output)
    }

    /// Each output.
    pub fn outputs(&self) -> &[OutputNoise] {
        &self.outputs
    }

    /// The output that is farthest from what it was, of those that differ; else the first.
    pub fn worst(&self) -> Option<&OutputNoise> {
        let db = |o: &OutputNoise| o.db().unwrap_or(f64::INFINITY);
        self.outputs.iter().min_by(|a, b| db(a).total_cmp(&db(b)))
    }

    /// [`OutputNoise::db`] of the worst output.
    pub fn sqnr_db(&self) -> Option<f64> {
        self.worst()?.db()
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

/// The elements as numbers, whatever their type.
fn numbers(t: &Tensor) -> Cow<'_, [f32]> {
    t.as_f32().unwrap_or_else(|| t.as_i64().unwrap_or_default().into_iter().map(|v| v as f32).collect())
}

#[cfg(test)]
mod tests;
