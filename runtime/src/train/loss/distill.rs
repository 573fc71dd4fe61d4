//! Distillation: the teacher's distribution over classes as the target (Hinton et al. 2015).

use super::{Facts, Forward, LossOptions, Takes, scores, total};
use crate::burn::tensor::Float;
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};

pub(super) const DISTILL: Facts =
    Facts { takes: Takes::Scores, usual: |s| if s.taught && s.classes { 0.9 } else { 0.0 }, of: distill };

fn distill(pass: &Forward, options: &LossOptions) -> Result<Float> {
    let scores = scores(pass.outputs)?;
    let flat = |t: &Tensor| [t.shape().first().copied().unwrap_or(0), t.shape().iter().skip(1).product()];
    let teacher = pass.target.outputs.iter().find(|t| flat(t) == scores.shape()).ok_or_else(|| {
        let theirs: Vec<_> = pass.target.outputs.iter().map(|t| t.shape().to_vec()).collect();
        Error::data(format!("the student gives {:?}, the teacher {theirs:?}", scores.shape()))
            .help("student and teacher must have the same classes")
    })?;
    let teacher = Float::upload(teacher, pass.device)?.reshape(scores.shape())?;
    divergence(scores, teacher, options.temperature)
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
