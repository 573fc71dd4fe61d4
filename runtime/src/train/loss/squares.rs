//! Mean squared error to the teacher: of outputs, or of features inside the models (Romero et al. 2015).

use super::{Facts, Forward, Takes, total};
use crate::{
    burn::tensor::{Float, Value},
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};

pub(super) const MSE: Facts = Facts {
    takes: Takes::Outputs,
    usual: |s| if s.taught && !s.classes { 1.0 } else { 0.0 },
    of: |pass: &Forward, _| squares(pass.outputs, pass.target.outputs, false, pass.device),
};

pub(super) const FEATURES: Facts = Facts {
    takes: Takes::Features,
    usual: |s| if s.matched { 1.0 } else { 0.0 },
    of: |pass: &Forward, options| squares(pass.features, pass.target.features, options.relative, pass.device),
};

/// The sum over pairs of the mean squared difference; `relative`, in parts of the mean square of `theirs`.
fn squares(ours: &[Value], theirs: &[Tensor], relative: bool, device: &Device) -> Result<Float> {
    let floats = ours.iter().filter_map(|v| if let Value::Float(x) = v { Some(x) } else { None });
    let ours: Vec<&Float> = floats.filter(|x| x.dtype().is_float()).collect();
    let theirs: Vec<&Tensor> = theirs.iter().filter(|t| t.dtype().is_float()).collect();
    let shapes = |a: Vec<&[usize]>, b: Vec<&[usize]>| format!("the student gives {a:?}, the teacher {b:?}");
    if ours.is_empty() || ours.len() != theirs.len() || ours.iter().zip(&theirs).any(|(a, b)| a.shape() != b.shape()) {
        let (a, b) = (ours.iter().map(|x| x.shape()).collect(), theirs.iter().map(|t| t.shape()).collect());
        return Err(Error::data(shapes(a, b)).help("the values that are compared must have the same shapes"));
    }
    let mut sum: Option<Float> = None;
    for (a, b) in ours.into_iter().zip(theirs) {
        let difference = a.clone().sub(Float::upload(b, device)?)?;
        let count = difference.elements();
        let mut mean = total(difference.clone().mul(difference)?, count)?;
        if relative {
            mean = mean.mul_scalar(1.0 / power(b).max(LEAST_POWER));
        }
        sum = Some(match sum {
            Some(s) => s.add(mean)?,
            None => mean,
        });
    }
    sum.ok_or_else(|| Error::bug("nothing was compared"))
}

/// Less is a value that says nothing.
const LEAST_POWER: f32 = 1e-12;

/// The mean square of a tensor.
fn power(t: &Tensor) -> f32 {
    let values = t.as_f32().unwrap_or_default();
    let sum: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    (sum / values.len().max(1) as f64) as f32
}
