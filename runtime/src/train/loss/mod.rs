//! What training makes small: a weighted sum of terms, such as cross-entropy, distillation and the squared error of
//! features. A term is a file of this folder and a row in the list here.

mod distill;
mod labels;
mod squares;
#[cfg(test)]
mod tests;

use crate::{
    burn::tensor::{Float, Value},
    device::Device,
    metrics::next_tokens,
};
use compress_compiler::{
    choice::Choice,
    choice_with_facts,
    error::{Error, Result},
    ops::reduce::ReduceKind,
    tensor::Tensor,
};
use std::borrow::Cow;

choice_with_facts!(
    /// A part of a loss. Its name is the option for its weight, and what it means the help of that.
    Term, "loss", Facts,
    [
        /// Cross-entropy with the labels.
        Labels "labels" "cross-entropy with the labels, or the next tokens [default: where outputs are classes 1, beside a teacher 0.1]" labels::LABELS;
        /// Kullback-Leibler divergence from the teacher's distribution over classes (Hinton et al. 2015).
        Distill "distill" "the divergence from the teacher's classes [default: 0.9 where outputs are classes]" distill::DISTILL;
        /// Mean squared error between outputs and the teacher's.
        Mse "mse" "the squared error to the teacher's outputs [default: 1 where outputs are not classes]" squares::MSE;
        /// Mean squared error between features and the teacher's (Romero et al. 2015).
        Features "features" "the squared error of --match [default: 1]" squares::FEATURES;
    ]
);

impl Term {
    /// What of the target it needs.
    pub fn takes(self) -> Takes {
        self.facts().takes
    }
}

/// What the list of terms says of one.
struct Facts {
    takes: Takes,
    /// Its weight unless told otherwise.
    usual: fn(&Setting) -> f32,
    /// Its value for a forward pass: a mean over samples; of several outputs, a sum.
    of: fn(&Forward, &LossOptions) -> Result<Float>,
}

/// What of the target a term needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// The class of each sample.
    Labels,
    /// The teacher's scores for classes.
    Scores,
    /// All of the teacher's outputs.
    Outputs,
    /// Values inside the teacher.
    Features,
}

/// What there is to learn from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setting {
    /// Whether outputs are scores of classes.
    pub classes: bool,
    /// Whether outputs are scores of the next token, of each token of a sequence: the next tokens are the labels.
    pub sequences: Option<Sequences>,
    /// Whether samples have labels.
    pub labelled: bool,
    /// Whether there is a teacher.
    pub taught: bool,
    /// Whether values inside the models are matched.
    pub matched: bool,
}

/// Where a model that is trained on sequences of tokens has them among its inputs: the label of each token is the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequences {
    /// The place of the numbers of tokens.
    pub tokens: usize,
    /// The place of the attention mask, which says which tokens count.
    pub mask: Option<usize>,
}

/// The label of a row that has none: the last token of a sequence, and what fills one up.
const NO_LABEL: i64 = -1;

/// The weights of the terms, and what shapes them. A term of weight 0 is not computed.
#[derive(Debug, Clone, PartialEq)]
pub struct LossOptions {
    weights: [f32; Term::ALL.len()],
    /// What a label gives away to all classes alike (Szegedy et al. 2016).
    smoothing: f32,
    /// The temperature of both distributions in [`Term::Distill`].
    temperature: f32,
    /// Whether the squared error of each feature is in parts of the mean square of the teacher's.
    relative: bool,
    /// Of scores for each token of a sequence: where the tokens are.
    sequences: Option<Sequences>,
}

impl Default for LossOptions {
    /// No terms.
    fn default() -> Self {
        Self { weights: Default::default(), smoothing: 0.0, temperature: 4.0, relative: false, sequences: None }
    }
}

impl LossOptions {
    /// What is usual: cross-entropy with the labels, of which a tenth stays beside a teacher; the teacher's
    /// distribution where outputs are scores of classes, else its outputs; and what is matched. Scores of the next token are
    /// scores of classes for each token of a sequence, and the next tokens the labels.
    pub fn usual(setting: Setting) -> Self {
        let sequences = setting.sequences;
        let setting = Setting {
            classes: setting.classes || sequences.is_some(),
            labelled: setting.labelled || sequences.is_some(),
            ..setting
        };
        // A distribution over words says by itself which others would do.
        let temperature = if sequences.is_some() { 1.0 } else { Self::default().temperature };
        let none = Self { sequences, temperature, ..Self::default() };
        Term::ALL.iter().fold(none, |loss, term| loss.with(*term, (term.facts().usual)(&setting)))
    }

    /// The same with another weight for a term.
    pub fn with(mut self, term: Term, weight: f32) -> Self {
        self.weights[term as usize] = weight;
        self
    }

    /// The same with this much of each label given away to all classes alike.
    pub fn smoothed(mut self, smoothing: f32) -> Self {
        self.smoothing = smoothing;
        self
    }

    /// The same at another temperature.
    pub fn at(mut self, temperature: f32) -> Self {
        self.temperature = temperature;
        self
    }

    /// The same with the squared error of each feature in parts of the mean square of the teacher's: noise beside signal.
    pub fn relative(mut self) -> Self {
        self.relative = true;
        self
    }

    /// The labels of these inputs: of sequences the next tokens, else `given`.
    ///
    /// # Errors
    /// Data when the inputs have no sequences.
    pub fn labels<'a>(&self, inputs: &[Tensor], given: Option<&'a [i64]>) -> Result<Option<Cow<'a, [i64]>>> {
        let Some(places) = self.sequences else { return Ok(given.map(Cow::Borrowed)) };
        let none = || Error::data("there are no numbers of tokens to learn from");
        let tokens = inputs.get(places.tokens).ok_or_else(none)?;
        let ids = tokens.as_i64().ok_or_else(none)?;
        let mask = places.mask.and_then(|place| inputs.get(place)?.as_i64());
        let mask: Option<Vec<bool>> = mask.map(|mask| mask.iter().map(|v| *v != 0).collect());
        let length = tokens.shape().last().copied().unwrap_or(1);
        if let Some(id) = ids.iter().find(|id| **id < 0) {
            return Err(Error::data(format!("token {id} is less than 0")));
        }
        let next = next_tokens(&ids, mask.as_deref(), length).map(|next| next.unwrap_or(NO_LABEL));
        let labels: Vec<i64> = next.collect();
        if labels.iter().all(|label| *label == NO_LABEL) {
            return Err(Error::data("no token has a next one to learn").help("give longer sequences"));
        }
        Ok(Some(labels.into()))
    }

    /// Whether a term of any weight needs this.
    pub fn takes(&self, what: Takes) -> bool {
        self.terms().any(|(term, _)| term.takes() == what)
    }

    /// Whether the teacher's outputs are needed.
    pub fn needs_teacher(&self) -> bool {
        self.terms().any(|(term, _)| term.takes() != Takes::Labels)
    }

    /// The terms of any weight.
    fn terms(&self) -> impl Iterator<Item = (Term, f32)> {
        Term::ALL.iter().map(|term| (*term, self.weights[*term as usize])).filter(|(_, weight)| *weight > 0.0)
    }

    /// The loss of a forward pass. Losses are means over samples; of several outputs, sums.
    ///
    /// # Errors
    /// Data when labels are missing or out of range, or the shapes of student and teacher differ.
    pub fn of(&self, outputs: &[Value], features: &[Value], target: &Supervision, device: &Device) -> Result<Loss> {
        let pass = Forward { outputs, features, target, device };
        let (mut whole, mut parts): (Option<Float>, _) = (None, vec![]);
        for (term, weight) in self.terms() {
            let part = (term.facts().of)(&pass, self)?;
            parts.push((term.name(), part.clone().detached().scalar()? as f32));
            let part = part.mul_scalar(weight);
            whole = Some(match whole.take() {
                Some(whole) => whole.add(part)?,
                None => part,
            });
        }
        let whole = whole.ok_or_else(|| Error::usage("no part of the loss has a weight above 0"))?;
        Ok(Loss { whole, parts })
    }
}

/// What the outputs should have been.
#[derive(Default)]
pub struct Supervision<'a> {
    /// The class of each sample.
    pub labels: Option<&'a [i64]>,
    /// The class of the sample mixed into each, and the share that it kept.
    pub mix: Option<(&'a [i64], f32)>,
    /// The teacher's outputs.
    pub outputs: &'a [Tensor],
    /// The teacher's features.
    pub features: &'a [Tensor],
}

/// A loss: the whole, still on the tape, and its parts by name.
pub struct Loss {
    /// What is made small.
    pub whole: Float,
    /// Each part before its weight.
    pub parts: Vec<(&'static str, f32)>,
}

/// A forward pass, and what it should have been.
struct Forward<'a> {
    outputs: &'a [Value],
    features: &'a [Value],
    target: &'a Supervision<'a>,
    device: &'a Device,
}

/// The rows of classes that a value of this shape has: `[N, C]`, with axes of size 1 taken away; of sequences `[N * T, C]`.
fn rows(shape: &[usize], sequences: bool) -> Option<[usize; 2]> {
    match shape {
        [n, t, c] if sequences => Some([n * t, *c]).filter(|[rows, c]| *rows > 0 && *c > 1),
        _ if sequences => None,
        [n, rest @ ..] if *n > 0 && rest.iter().filter(|d| **d > 1).count() == 1 => Some([*n, rest.iter().product()]),
        _ => None,
    }
}

/// The first output that holds a score for each class.
fn scores(outputs: &[Value], sequences: bool) -> Result<Float> {
    for value in outputs {
        if let Value::Float(x) = value
            && let Some(shape) = rows(x.shape(), sequences)
        {
            return x.clone().reshape(&shape);
        }
    }
    Err(Error::unsupported("no output holds a score for each class")
        .help("train with mse or features, which take outputs of any shape"))
}

/// The sum of all elements, divided by `count`.
fn total(x: Float, count: usize) -> Result<Float> {
    let n = x.elements();
    Ok(x.reshape(&[n])?.reduce(ReduceKind::Sum, &[0], false)?.mul_scalar(1.0 / count.max(1) as f32))
}
