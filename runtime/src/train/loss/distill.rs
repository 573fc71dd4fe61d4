//! Distillation: the teacher's distribution over classes as the target (Hinton et al. 2015).

use super::{Facts, Forward, LossOptions, NO_LABEL, Takes, rows, scores, total};
use crate::burn::tensor::Float;
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};

pub(super) const DISTILL: Facts =
    Facts { takes: Takes::Scores, usual: |s| if s.taught && s.classes { 0.9 } else { 0.0 }, of: distill };

fn distill(pass: &Forward, options: &LossOptions) -> Result<Float> {
    let sequences = options.sequences.is_some();
    let scores = scores(pass.outputs, sequences)?;
    let fits = |t: &&Tensor| rows(t.shape(), sequences).is_some_and(|shape| shape == scores.shape());
    let teacher = pass.target.outputs.iter().find(fits).ok_or_else(|| {
        let theirs: Vec<_> = pass.target.outputs.iter().map(|t| t.shape().to_vec()).collect();
        Error::data(format!("the student gives {:?}, the teacher {theirs:?}", scores.shape()))
            .help("student and teacher must have the same classes")
    })?;
    let mut teacher = Float::upload(teacher, pass.device)?.reshape(scores.shape())?;
    let mut scores = scores;
    let mut counted = scores.shape()[0];
    if sequences && let Some(labels) = pass.target.labels {
        // Where both give zeros there is no divergence.
        let counts = labels.iter().map(|l| f32::from(u8::from(*l != NO_LABEL))).collect();
        let counts = Float::from_vec(counts, &[counted, 1], pass.device)?;
        counted = labels.iter().filter(|l| **l != NO_LABEL).count();
        (scores, teacher) = (scores.mul(counts.clone())?, teacher.mul(counts)?);
    }
    divergence(scores, teacher, options.temperature, counted)
}

/// The mean over `counted` rows of the divergence of the student's distribution from the teacher's, both at a temperature,
/// times its square, which keeps the size of gradients.
fn divergence(scores: Float, teacher: Float, temperature: f32, counted: usize) -> Result<Float> {
    let ours = scores.div_scalar(temperature).softmax(1, true);
    let theirs = teacher.div_scalar(temperature);
    let (log, wanted) = (theirs.clone().softmax(1, true), theirs.softmax(1, false));
    Ok(total(wanted.mul(log.sub(ours)?)?, counted)?.mul_scalar(temperature * temperature))
}
