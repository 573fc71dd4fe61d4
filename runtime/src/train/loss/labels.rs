//! Cross-entropy with labels, smoothed (Szegedy et al. 2016) and mixed (Zhang et al. 2018) if asked.

use super::{Facts, Forward, LossOptions, NO_LABEL, Takes, scores, total};
use crate::burn::tensor::Float;
use compress_compiler::error::{Error, Result};

pub(super) const LABELS: Facts = Facts {
    takes: Takes::Labels,
    usual: |s| match s.labelled && s.classes {
        true if s.taught => 0.1,
        true => 1.0,
        false => 0.0,
    },
    of: labels,
};

fn labels(pass: &Forward, options: &LossOptions) -> Result<Float> {
    let labels = pass
        .target
        .labels
        .ok_or_else(|| Error::data("the data has no labels").help("give labels, or learn from a teacher alone"))?;
    let scores = scores(pass.outputs, options.sequences.is_some())?;
    let counted = labels.iter().filter(|l| **l != NO_LABEL).count();
    let wanted = classes(labels, pass.target.mix, scores.shape(), options.smoothing)?;
    let wanted = Float::from_vec(wanted, scores.shape(), pass.device)?;
    cross_entropy(scores, wanted, counted)
}

/// The distribution over `[N, C]` that the labels ask for, row after row; zeros for a row without a label.
fn classes(labels: &[i64], mix: Option<(&[i64], f32)>, shape: &[usize], smoothing: f32) -> Result<Vec<f32>> {
    let (rows, count) = (shape[0], shape[1]);
    if labels.len() != rows {
        return Err(Error::data(format!("{} labels for {rows} samples", labels.len())));
    }
    let all = labels.iter().chain(mix.into_iter().flat_map(|(others, _)| others)).filter(|l| **l != NO_LABEL);
    if let Some(label) = all.into_iter().find(|l| !(0..count as i64).contains(l)) {
        return Err(Error::data(format!(
            "label {label} is outside the model's {count} classes, which are numbered from 0"
        )));
    }
    let mut wanted = vec![smoothing / count as f32; rows * count];
    for (row, _) in labels.iter().enumerate().filter(|(_, l)| **l == NO_LABEL) {
        wanted[row * count..][..count].fill(0.0);
    }
    let mut put =
        |row: usize, label: i64, share: f32| wanted[row * count + label as usize] += share * (1.0 - smoothing);
    for (row, label) in labels.iter().enumerate().filter(|(_, l)| **l != NO_LABEL) {
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

/// The mean over `counted` rows of `-sum(wanted * log softmax(scores))`.
fn cross_entropy(scores: Float, wanted: Float, counted: usize) -> Result<Float> {
    total(wanted.mul(scores.softmax(1, true))?.neg(), counted)
}
