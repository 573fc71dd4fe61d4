//! How gradients change parameters: SGD with momentum and AdamW from burn-optim, LARS on top of SGD.

use super::model::Parameter;
use crate::{burn::tensor::Float, device::Device};
use ::burn::{
    optim::{
        AdamW, AdamWConfig, Optimizer as Rule, RecordState, Sgd, SgdConfig, StateSink, StateSource,
        momentum::MomentumConfig,
    },
    tensor::TensorData,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use std::{
    collections::{BTreeMap, HashMap},
    str::FromStr,
};

/// Which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    #[default]
    AdamW,
    /// SGD whose steps are in proportion to each weight's norm, for large batches (You et al. 2017).
    Lars,
}

impl FromStr for Method {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "sgd" => Ok(Self::Sgd),
            "adamw" => Ok(Self::AdamW),
            "lars" => Ok(Self::Lars),
            other => Err(Error::usage(format!("optimiser `{other}`")).help("known: sgd, adamw, lars")),
        }
    }
}

/// How parameters are changed.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimiserOptions {
    /// Which rule.
    pub method: Method,
    /// SGD and LARS: the share of the last step that stays.
    pub momentum: f64,
    /// SGD and LARS: look ahead by the momentum (Nesterov).
    pub nesterov: bool,
    /// The pull of weights to zero; biases and scales feel none.
    pub weight_decay: f32,
    /// The largest norm of all gradients together; larger ones are scaled down to it.
    pub clip: Option<f32>,
}

impl Default for OptimiserOptions {
    fn default() -> Self {
        Self { method: Method::AdamW, momentum: 0.9, nesterov: false, weight_decay: 1e-2, clip: Some(5.0) }
    }
}

/// LARS: the share of a weight's norm that a gradient of its own size moves it.
const TRUST: f32 = 1e-3;

enum Rules {
    Sgd(Sgd, Vec<Option<<Sgd as Rule>::State<1>>>),
    AdamW { decaying: AdamW, free: AdamW, states: Vec<Option<<AdamW as Rule>::State<1>>> },
}

/// Changes parameters, and remembers what the rule needs.
pub struct Optimiser {
    options: OptimiserOptions,
    rules: Rules,
}

impl Optimiser {
    /// For a list of parameters of this length.
    pub fn new(options: &OptimiserOptions, parameters: usize) -> Self {
        let rules = match options.method {
            Method::Sgd | Method::Lars => {
                let momentum =
                    MomentumConfig { momentum: options.momentum, dampening: 0.0, nesterov: options.nesterov };
                let momentum = (options.momentum > 0.0).then_some(momentum);
                Rules::Sgd(SgdConfig::new().with_momentum(momentum).build(), vec![None; parameters])
            }
            Method::AdamW => {
                let config = |decay| AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(decay).build();
                Rules::AdamW {
                    decaying: config(options.weight_decay),
                    free: config(0.0),
                    states: vec![None; parameters],
                }
            }
        };
        Self { options: options.clone(), rules }
    }

    /// Changes all parameters by their gradients, at a learning rate. Gives the norm of all gradients together.
    ///
    /// # Errors
    /// Device, when reading from it fails.
    pub fn step(&mut self, rate: f64, parameters: &mut [Parameter], gradients: Vec<Option<Float>>) -> Result<f32> {
        let norm = norm(&gradients)?;
        let factor = self.options.clip.filter(|most| norm > *most).map(|most| most / norm);
        for (i, (parameter, gradient)) in parameters.iter_mut().zip(gradients).enumerate() {
            let Some(mut gradient) = gradient else { continue };
            if let Some(factor) = factor {
                gradient = gradient.mul_scalar(factor);
            }
            let value = parameter.value.clone();
            let decay = if parameter.decays() { self.options.weight_decay } else { 0.0 };
            parameter.value = match &mut self.rules {
                Rules::Sgd(rule, states) => {
                    let gradient = match (self.options.method, parameter.decays()) {
                        (Method::Lars, true) => lars(&value, gradient, decay)?,
                        _ if decay > 0.0 => gradient.add(value.clone().mul_scalar(decay))?,
                        _ => gradient,
                    };
                    stepped(rule, rate, value, gradient, &mut states[i])?
                }
                Rules::AdamW { decaying, free, states } => {
                    let rule = if parameter.decays() { decaying } else { free };
                    stepped(rule, rate, value, gradient, &mut states[i])?
                }
            };
        }
        Ok(norm)
    }

    /// What the rule remembers, by the parameter's name: tensors, and counts as tensors of one `i64`.
    ///
    /// # Errors
    /// Device, when reading fails; a bug for anything else that a rule remembers.
    pub fn state(&self, parameters: &[Parameter]) -> Result<Vec<(String, Tensor)>> {
        let mut sink = StateSink::default();
        for (i, p) in parameters.iter().enumerate() {
            match &self.rules {
                Rules::Sgd(_, states) => states[i].iter().for_each(|s| s.state_flatten(&p.name, &mut sink)),
                Rules::AdamW { states, .. } => states[i].iter().for_each(|s| s.state_flatten(&p.name, &mut sink)),
            }
        }
        let strange =
            |name: &str| Error::bug(format!("the optimiser remembers `{name}` in a way that cannot be saved"));
        let mut out = vec![];
        for (name, data) in sink.tensors {
            let values = data.as_slice::<f32>().map_err(|_| strange(&name))?;
            let saved = Tensor::f32(&[values.len()], values);
            out.push((name, saved));
        }
        for (name, number) in sink.scalars {
            let count = i64::try_from(number).map_err(|_| strange(&name))?;
            out.push((name, Tensor::ints(DType::I64, &[1], &[count])));
        }
        Ok(out)
    }

    /// Takes over what [`Optimiser::state`] gave. A parameter of which nothing is known starts anew.
    pub fn set_state(&mut self, parameters: &[Parameter], state: &HashMap<&str, &Tensor>, device: &Device) {
        let mut counts = BTreeMap::new();
        let mut tensors = vec![];
        for (name, t) in state {
            match (t.as_i64().as_deref(), t.as_f32()) {
                (Some([count]), _) if t.dtype() == DType::I64 => {
                    counts.insert(name.to_string(), (*count as u64).into());
                }
                (_, Some(values)) => tensors.push((name.to_string(), TensorData::new(values.into_owned(), [t.len()]))),
                _ => {}
            }
        }
        let mut source = StateSource::new(counts);
        tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
        let device = device.tensors();
        for (i, p) in parameters.iter().enumerate() {
            match &mut self.rules {
                Rules::Sgd(_, states) => states[i] = RecordState::state_unflatten(&p.name, &mut source, &device),
                Rules::AdamW { states, .. } => states[i] = RecordState::state_unflatten(&p.name, &mut source, &device),
            }
        }
    }
}

/// One step of a rule, which takes a weight as a list of numbers.
fn stepped<R: Rule>(
    rule: &R,
    rate: f64,
    value: Float,
    gradient: Float,
    state: &mut Option<R::State<1>>,
) -> Result<Float> {
    let (shape, dtype) = (value.shape().to_vec(), value.dtype());
    let (value, remembered) = rule.step(rate, value.into_list()?, gradient.into_list()?, state.take());
    *state = remembered;
    Float::from_list(value, dtype).reshape(&shape)
}

/// The norm of all gradients together.
fn norm(gradients: &[Option<Float>]) -> Result<f32> {
    let mut sum = 0.0;
    for g in gradients.iter().flatten() {
        sum += g.view(|v| Ok(v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>()))?;
    }
    Ok(sum.sqrt() as f32)
}

/// The gradient with weight decay, scaled to the weight's norm.
fn lars(value: &Float, gradient: Float, decay: f32) -> Result<Float> {
    let length = |x: &Float| x.view(|v| Ok(v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32));
    let (w, g) = (length(value)?, length(&gradient)?);
    let scale = if w > 0.0 && g > 0.0 { TRUST * w / (g + decay * w) } else { 1.0 };
    Ok(gradient.add(value.clone().mul_scalar(decay))?.mul_scalar(scale))
}
