//! Losses, and normalisations without learnt parameters.

use super::Args;
use crate::burn::tensor::{Float, Value};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        loss::{Loss, Reduction},
        normalize::{LpNorm, MeanVarianceNorm},
        reduce::ReduceKind,
    },
    value,
};

/// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.
pub(super) fn loss(op: &Loss, mut a: Args) -> Result<Vec<Value>> {
    let mut x = a.float(0)?;
    let target = a.take(1)?.into_ints()?;
    let (shape, dtype) = (x.shape().to_vec(), x.dtype());
    let [samples, classes, places @ ..] = &shape[..] else {
        return Err(Error::malformed(format!("scores of shape {shape:?} have no classes")));
    };
    if target.shape != [&[*samples], places].concat() {
        return Err(Error::malformed(format!("classes of shape {:?} for scores of {shape:?}", target.shape)));
    }
    let weights = a.opt_float(2)?.map(Float::into_f64s).transpose()?;
    if let Some(w) = weights.as_ref().filter(|w| w.len() != *classes) {
        return Err(Error::malformed(format!("{} weights for {classes} classes", w.len())));
    }
    if op.softmax {
        x = x.softmax(1, true);
    }
    let log_prob = op.softmax.then(|| x.clone());
    let places: usize = places.iter().product();
    let n = x.elements();
    // Where each loss is found, a zero behind the scores where there is none, and its weight.
    let one = |(i, class): (usize, &i64)| {
        if Some(*class) == op.ignore_index {
            return Ok((n as i64, 0.0));
        }
        let class = usize::try_from(*class).ok().filter(|c| c < classes);
        let class = class.ok_or_else(|| Error::malformed(format!("a class is outside 0 to {classes}")))?;
        let weight = weights.as_ref().map_or(1.0, |w| w[class]);
        let at = (i / places * classes + class) * places + i % places;
        Ok((at as i64, weight))
    };
    let found = target.data.iter().enumerate().map(one).collect::<Result<Vec<(i64, f64)>>>()?;
    let (from, weights): (Vec<i64>, Vec<f64>) = found.into_iter().unzip();
    let (count, total) = (from.len(), weights.iter().sum::<f64>());
    let weights = Float::from_f64s(weights, &[count], dtype, a.device)?;
    let losses = x.reshape(&[n])?.pad(&[(0, 1)], 0.0)?.select(0, from)?.mul(weights)?.neg();
    let sum = |losses: Float| losses.reduce(ReduceKind::Sum, &[0], false);
    let out = match op.reduction {
        Reduction::None => losses.reshape(&target.shape)?,
        Reduction::Sum => sum(losses)?,
        Reduction::Mean => sum(losses)?.div_scalar(total),
    };
    Ok([Some(out), log_prob].into_iter().flatten().map(Value::Float).collect())
}

/// LpNormalization.
pub(super) fn lp_norm(op: &LpNorm, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    let axis = value::axis(op.axis, x.shape().len())?;
    let kind = if op.p == 1 { ReduceKind::L1 } else { ReduceKind::L2 };
    // Where all are zero, so is the result.
    let norm = x.clone().reduce(kind, &[axis], true)?.replace_zero(1.0);
    x.div(norm).map(Value::Float)
}

/// MeanVarianceNormalization.
pub(super) fn mean_variance(op: &MeanVarianceNorm, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    let axes = op.axes(x.shape().len())?;
    let mean = x.clone().reduce(ReduceKind::Mean, &axes, true)?;
    let centred = x.sub(mean)?;
    let variance = centred.clone().mul(centred.clone())?.reduce(ReduceKind::Mean, &axes, true)?;
    // ONNX's own definition of the operator adds as much.
    centred.div(variance.norm().add_scalar(1e-9)).map(Value::Float)
}
