//! What training makes small: cross-entropy, distillation, mean squared error, features.

use crate::{
    burn::tensor::{Float, Value},
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::reduce::ReduceKind,
    tensor::Tensor,
};

/// The parts of a loss and their weights. A part of weight 0 is not computed.
#[derive(Debug, Clone, PartialEq)]
pub struct LossOptions {
    /// Cross-entropy with the labels.
    pub labels: f32,
    /// What a label gives away to all classes alike (Szegedy et al. 2016).
    pub smoothing: f32,
    /// Kullback-Leibler divergence from the teacher (Hinton et al. 2015).
    pub distill: f32,
    /// The temperature of both distributions there.
    pub temperature: f32,
    /// Mean squared error between outputs and the teacher's.
    pub mse: f32,
    /// Mean squared error between features and the teacher's (Romero et al. 2015).
    pub features: f32,
}

impl Default for LossOptions {
    fn default() -> Self {
        Self { labels: 0.0, smoothing: 0.0, distill: 1.0, temperature: 4.0, mse: 0.0, features: 0.0 }
    }
}

impl LossOptions {
    /// What is usual: cross-entropy with the labels, of which a tenth stays beside a teacher; the teacher's
    /// distribution where outputs are scores of `classes`, else its outputs.
    pub fn usual(classes: bool, labelled: bool, taught: bool) -> Self {
        let when = |wanted: bool, v: f32| if wanted { v } else { 0.0 };
        Self {
            labels: when(labelled && classes, if taught { 0.1 } else { 1.0 }),
            distill: when(taught && classes, 0.9),
            mse: when(taught && !classes, 1.0),
            ..Self::default()
        }
    }

    /// Whether the teacher's outputs are needed.
    pub fn needs_teacher(&self) -> bool {
        self.distill > 0.0 || self.mse > 0.0 || self.features > 0.0
    }
}

/// What the outputs should have been.
#[derive(Default)]
pub struct Target<'a> {
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

impl LossOptions {
    /// The loss of a forward pass. Losses are means over samples; of several outputs, sums.
    ///
    /// # Errors
    /// Data when labels are missing or out of range, or the shapes of student and teacher differ.
    pub fn of(&self, outputs: &[Value], features: &[Value], target: &Target, device: &Device) -> Result<Loss> {
        let mut sum = Sum { whole: None, parts: vec![] };
        if self.labels > 0.0 {
            let labels = target.labels.ok_or_else(|| {
                Error::data("the data has no labels").help("give labels, or learn from a teacher alone")
            })?;
            let scores = scores(outputs)?;
            let wanted = classes(labels, target.mix, scores.shape(), self.smoothing)?;
            let wanted = Float::from_vec(wanted, scores.shape(), device)?;
            sum.add("labels", self.labels, cross_entropy(scores, wanted)?)?;
        }
        if self.distill > 0.0 {
            let scores = scores(outputs)?;
            let flat = |t: &Tensor| [t.shape().first().copied().unwrap_or(0), t.shape().iter().skip(1).product()];
            let teacher = target.outputs.iter().find(|t| flat(t) == scores.shape()).ok_or_else(|| {
                let theirs: Vec<_> = target.outputs.iter().map(|t| t.shape().to_vec()).collect();
                Error::data(format!("the student gives {:?}, the teacher {theirs:?}", scores.shape()))
                    .help("student and teacher must have the same classes")
            })?;
            let teacher = Float::upload(teacher, device)?.reshape(scores.shape())?;
            sum.add("distill", self.distill, divergence(scores, teacher, self.temperature)?)?;
        }
        if self.mse > 0.0 {
            sum.add("mse", self.mse, squares(outputs, target.outputs, device)?)?;
        }
        if self.features > 0.0 {
            sum.add("features", self.features, squares(features, target.features, device)?)?;
        }
        let whole = sum.whole.ok_or_else(|| Error::usage("no part of the loss has a weight above 0"))?;
        Ok(Loss { whole, parts: sum.parts })
    }
}

struct Sum {
    whole: Option<Float>,
    parts: Vec<(&'static str, f32)>,
}

impl Sum {
    fn add(&mut self, name: &'static str, weight: f32, part: Float) -> Result<()> {
        self.parts.push((name, part.clone().detached().scalar()? as f32));
        let part = part.mul_scalar(weight);
        self.whole = Some(match self.whole.take() {
            Some(whole) => whole.add(part)?,
            None => part,
        });
        Ok(())
    }
}

/// The first output that holds a score for each class: `[N, C]`, with axes of size 1 taken away.
fn scores(outputs: &[Value]) -> Result<Float> {
    let matrix = |shape: &[usize]| match shape {
        [n, rest @ ..] => rest.iter().product::<usize>() > 1 && rest.iter().filter(|d| **d > 1).count() == 1 && *n > 0,
        [] => false,
    };
    for value in outputs {
        if let Value::Float(x) = value
            && matrix(x.shape())
        {
            let shape = [x.shape()[0], x.shape()[1..].iter().product()];
            return x.clone().reshape(&shape);
        }
    }
    Err(Error::unsupported("no output holds a score for each class")
        .help("train with mse or features, which take outputs of any shape"))
}

/// The distribution over `[N, C]` that the labels ask for, row after row.
fn classes(labels: &[i64], mix: Option<(&[i64], f32)>, shape: &[usize], smoothing: f32) -> Result<Vec<f32>> {
    let (rows, count) = (shape[0], shape[1]);
    if labels.len() != rows {
        return Err(Error::data(format!("{} labels for {rows} samples", labels.len())));
    }
    let all = labels.iter().chain(mix.into_iter().flat_map(|(others, _)| others));
    if let Some(label) = all.into_iter().find(|l| !(0..count as i64).contains(l)) {
        return Err(Error::data(format!("label {label} is none of the model's {count} classes")));
    }
    let mut wanted = vec![smoothing / count as f32; rows * count];
    let mut put =
        |row: usize, label: i64, share: f32| wanted[row * count + label as usize] += share * (1.0 - smoothing);
    for (row, label) in labels.iter().enumerate() {
        match mix {
            Some((others, share)) => {
                put(row, *label, share);
                put(row, others[row], 1.0 - share);
            }
            None => put(row, *label, 1.0),
        }
    }
    Ok(wanted)
}

/// The mean over rows of `-sum(wanted * log softmax(scores))`.
fn cross_entropy(scores: Float, wanted: Float) -> Result<Float> {
    let rows = scores.shape()[0];
    total(wanted.mul(scores.softmax(1, true))?.neg(), rows)
}

/// The mean over rows of the divergence of the student's distribution from the teacher's, both at a temperature,
/// times its square, which keeps the size of gradients.
fn divergence(scores: Float, teacher: Float, temperature: f32) -> Result<Float> {
    let rows = scores.shape()[0];
    let ours = scores.div_scalar(temperature).softmax(1, true);
    let theirs = teacher.div_scalar(temperature);
    let (log, wanted) = (theirs.clone().softmax(1, true), theirs.softmax(1, false));
    Ok(total(wanted.mul(log.sub(ours)?)?, rows)?.mul_scalar(temperature * temperature))
}

/// The sum over pairs of the mean squared difference.
fn squares(ours: &[Value], theirs: &[Tensor], device: &Device) -> Result<Float> {
    let floats = ours.iter().filter_map(|v| if let Value::Float(x) = v { Some(x) } else { None });
    let ours: Vec<&Float> = floats.filter(|x| x.dtype().is_float()).collect();
    let theirs: Vec<&Tensor> = theirs.iter().filter(|t| t.dtype().is_float()).collect();
    let shapes = |a: Vec<&[usize]>, b: Vec<&[usize]>| format!("the student gives {a:?}, the teacher {b:?}");
    if ours.is_empty() || ours.len() != theirs.len() || ours.iter().zip(&theirs).any(|(a, b)| a.shape() != b.shape()) {
        let (a, b) = (ours.iter().map(|x| x.shape()).collect(), theirs.iter().map(|t| t.shape()).collect());
        return Err(Error::data(shapes(a, b)).help("what is compared must have the same shapes"));
    }
    let mut sum: Option<Float> = None;
    for (a, b) in ours.into_iter().zip(theirs) {
        let difference = a.clone().sub(Float::upload(b, device)?)?;
        let count = difference.elements();
        let mean = total(difference.clone().mul(difference)?, count)?;
        sum = Some(match sum {
            Some(s) => s.add(mean)?,
            None => mean,
        });
    }
    sum.ok_or_else(|| Error::bug("nothing was compared"))
}

/// The sum of all elements, divided by `count`.
fn total(x: Float, count: usize) -> Result<Float> {
    let n = x.elements();
    Ok(x.reshape(&[n])?.reduce(ReduceKind::Sum, &[0], false)?.mul_scalar(1.0 / count.max(1) as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 6] = [1.0, 2.0, 0.5, -1.0, 0.0, 3.0];

    fn float(v: &[f32], shape: &[usize]) -> Value {
        Value::Float(Float::from_vec(v.to_vec(), shape, &Device::cpu()).unwrap())
    }

    fn softmax(row: &[f32], temperature: f64) -> Vec<f64> {
        let e: Vec<f64> = row.iter().map(|v| (f64::from(*v) / temperature).exp()).collect();
        e.iter().map(|v| v / e.iter().sum::<f64>()).collect()
    }

    fn value(options: &LossOptions, target: &Target) -> Result<f64> {
        let outputs = [float(&SCORES, &[2, 3, 1, 1])];
        options.of(&outputs, &[float(&[1.0, 2.0], &[2])], target, &Device::cpu())?.whole.scalar()
    }

    fn nothing() -> LossOptions {
        LossOptions { distill: 0.0, ..LossOptions::default() }
    }

    #[test]
    fn cross_entropy_with_smoothing_and_mixing_by_hand() {
        let labels = [1, 2];
        let smooth = LossOptions { labels: 2.0, smoothing: 0.3, ..nothing() };
        let mixed = Target { labels: Some(&labels), mix: Some((&[2, 1], 0.75)), ..Target::default() };
        let mut expected = 0.0;
        for (row, label) in labels.iter().enumerate() {
            let p = softmax(&SCORES[row * 3..][..3], 1.0);
            for (class, p) in p.iter().enumerate() {
                let own = if class as i64 == *label { 0.75 } else { 0.0 };
                let other = if class as i64 == labels[1 - row] { 0.25 } else { 0.0 };
                expected -= (0.7 * (own + other) + 0.1) * p.ln() / 2.0;
            }
        }
        let got = value(&smooth, &mixed).unwrap();
        assert!((got - 2.0 * expected).abs() < 1e-5, "{got} {expected}");
    }

    #[test]
    fn divergence_and_squares_by_hand() {
        let theirs: Vec<f32> = SCORES.iter().rev().copied().collect();
        let outputs = |shape: &[usize]| [Tensor::f32(shape, &theirs)];
        let features = [Tensor::f32(&[2], &[0.0, 4.0])];
        let mut expected = 0.0;
        for row in 0..2 {
            let (p, q) = (softmax(&theirs[row * 3..][..3], 2.0), softmax(&SCORES[row * 3..][..3], 2.0));
            expected += p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>() / 2.0;
        }
        let options = LossOptions { distill: 1.0, temperature: 2.0, features: 10.0, ..nothing() };
        for outputs in [outputs(&[2, 3]), outputs(&[2, 3, 1, 1])] {
            let target = Target { outputs: &outputs, features: &features, ..Target::default() };
            let got = value(&options, &target).unwrap();
            // Features are 1 and 2 off: their mean square is 2.5.
            assert!((got - 4.0 * expected - 25.0).abs() < 1e-4, "{got} {expected}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let labels = LossOptions { labels: 1.0, ..nothing() };
        let kind = |options: &LossOptions, target: &Target| value(options, target).unwrap_err().exit_code();
        assert_eq!(kind(&labels, &Target::default()), 7);
        assert_eq!(kind(&labels, &Target { labels: Some(&[0, 3]), ..Target::default() }), 7);
        assert_eq!(kind(&labels, &Target { labels: Some(&[0]), ..Target::default() }), 7);
        let other = [Tensor::f32(&[2, 4], &[0.0; 8])];
        let distill = LossOptions { distill: 1.0, ..nothing() };
        assert_eq!(kind(&distill, &Target { outputs: &other, ..Target::default() }), 7);
        assert_eq!(kind(&nothing(), &Target::default()), 2);
    }
}
