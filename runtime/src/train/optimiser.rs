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
    choice,
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};

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

choice!(Method, "optimiser", [
    Sgd "sgd" "stochastic gradient descent with momentum",
    AdamW "adamw" "Adam with decoupled weight decay",
    Lars "lars" "SGD with steps in proportion to each weight's norm",
]);

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

/// The share of what a scale was at first below which it does not fall.
const LEAST: f32 = 0.01;

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
        // The gradient of a scale is the sum over all that it scales: beside it weights would seem to stand still.
        let weights =
            parameters.iter().zip(&gradients).filter(|(p, _)| p.scale.is_none()).filter_map(|(_, g)| g.as_ref());
        let norm = norm(weights)?;
        let factor = self.options.clip.filter(|most| norm > *most).map(|most| most / norm);
        let (method, weight_decay) = (self.options.method, self.options.weight_decay);
        let decay = |p: &Parameter| if p.decays() { weight_decay } else { 0.0 };
        let rate = |p: &Parameter| rate * f64::from(p.scale.unwrap_or(p.unit));
        let clipped = |gradient: Float| match factor {
            Some(factor) => gradient.mul_scalar(factor),
            None => gradient,
        };
        match &mut self.rules {
            Rules::Sgd(rule, states) => each(parameters, gradients, states, |p, gradient, state| {
                let (value, gradient, decay) = (p.value.clone(), clipped(gradient), decay(p));
                let gradient = match (method, p.decays()) {
                    (Method::Lars, true) => lars(&value, gradient, decay)?,
                    _ if decay > 0.0 => gradient.add(value.clone().mul_scalar(decay))?,
                    _ => gradient,
                };
                stepped(&*rule, rate(p), value, gradient, state)
            }),
            Rules::AdamW { decaying, free, states } => each(parameters, gradients, states, |p, gradient, state| {
                let rule: &AdamW = if p.decays() { decaying } else { free };
                stepped(rule, rate(p), p.value.clone(), clipped(gradient), state)
            }),
        }?;
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
    pub(crate) fn set_state(&mut self, parameters: &[Parameter], state: &HashMap<&str, &Tensor>, device: &Device) {
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

/// Changes each parameter that has a gradient, and keeps scales above the least. On a CPU several at once: what Burn does with one
/// has one thread there.
fn each<S: Send>(
    parameters: &mut [Parameter],
    gradients: Vec<Option<Float>>,
    states: &mut [Option<S>],
    change: impl Fn(&Parameter, Float, &mut Option<S>) -> Result<Float> + Sync,
) -> Result<()> {
    let all = parameters.iter_mut().zip(gradients).zip(states);
    let mut all: Vec<_> = all.filter_map(|((p, gradient), state)| Some((p, gradient?, state))).collect();
    let one = |(p, gradient, state): (&mut Parameter, Float, &mut Option<S>)| {
        p.value = change(p, gradient, state)?;
        if let Some(first) = p.scale {
            p.value = p.value.clone().clamp_min(first * LEAST);
        }
        Ok(())
    };
    if all.iter().all(|(p, ..)| p.value.has_kernels()) {
        // The largest first: the last to end should be small.
        all.sort_by_key(|(p, ..)| std::cmp::Reverse(p.value.elements()));
        return all.into_par_iter().with_max_len(1).try_for_each(one);
    }
    all.into_iter().try_for_each(one)
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

/// The sum of squares: in parts of a size, so that it is the same for any number of threads.
fn squares(v: &[f32]) -> f64 {
    let part = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    v.par_chunks(1 << 16).map(part).collect::<Vec<_>>().into_iter().sum()
}

/// The norm of gradients together.
fn norm<'a>(gradients: impl Iterator<Item = &'a Float>) -> Result<f32> {
    let mut sum = 0.0;
    for g in gradients {
        sum += g.view(|v| Ok(squares(v)))?;
    }
    Ok(sum.sqrt() as f32)
}

/// The gradient with weight decay, scaled to the weight's norm.
fn lars(value: &Float, gradient: Float, decay: f32) -> Result<Float> {
    let length = |x: &Float| x.view(|v| Ok(squares(v).sqrt() as f32));
    let (w, g) = (length(value)?, length(&gradient)?);
    let scale = if w > 0.0 && g > 0.0 { TRUST * w / (g + decay * w) } else { 1.0 };
    Ok(gradient.add(value.clone().mul_scalar(decay))?.mul_scalar(scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::model::{ModelOptions, Trainable};
    use compress_compiler::text;

    /// A model with a matrix of two weights, 1 and -2, and a bias, 3.
    fn model() -> Trainable {
        let graph = text::parse(
            r#"graph "g" {
                input %x: f32[N,2]
                const %w: f32[2,1] = [1, -2]
                const %b: f32[1] = [3]
                %y = Gemm(%x, %w, %b)
                output %y
            }"#,
        )
        .unwrap();
        Trainable::new(&graph, &ModelOptions::default(), &Device::of_tests()).unwrap()
    }

    /// The weights and the bias after steps of these gradients, by the name of the parameter.
    fn after(options: &OptimiserOptions, steps: &[([f32; 2], f32)]) -> (Vec<f32>, Vec<f32>) {
        let mut model = model();
        let mut optimiser = Optimiser::new(options, 2);
        for (i, (w, b)) in steps.iter().enumerate() {
            let float = |v: &[f32], shape: &[usize]| Float::from_vec(v.to_vec(), shape, &Device::of_tests()).ok();
            let gradients = model.parameters().iter().map(|p| match &p.name[..] {
                "w" => float(w, &[2, 1]),
                _ => float(&[*b], &[1]),
            });
            let gradients = gradients.collect();
            optimiser.step(0.1, model.parameters_mut(), gradients).unwrap();
            if i == 0 {
                // What a checkpoint keeps is all that the rule remembers.
                let state = optimiser.state(model.parameters()).unwrap();
                optimiser = Optimiser::new(options, 2);
                let state = state.iter().map(|(name, t)| (&name[..], t)).collect();
                optimiser.set_state(model.parameters(), &state, &Device::of_tests());
            }
        }
        let value = |name: &str| model.parameters().iter().find(|p| p.name == name).unwrap().value.clone();
        (value("w").into_vec().unwrap(), value("b").into_vec().unwrap())
    }

    fn close(got: &[f32], expected: &[f64]) {
        let near = |(g, e): (&f32, &f64)| (f64::from(*g) - e).abs() < 1e-5;
        assert!(got.iter().zip(expected).all(near), "{got:?}, not {expected:?}");
    }

    const STEPS: &[([f32; 2], f32)] = &[([0.5, 1.0], 2.0), ([-1.0, 0.25], 1.0)];

    #[test]
    fn momentum_and_decay_by_hand() {
        let options =
            OptimiserOptions { method: Method::Sgd, momentum: 0.9, nesterov: false, weight_decay: 0.01, clip: None };
        let (w, b) = after(&options, STEPS);
        let (mut expected, mut velocity) = ([1.0, -2.0], [0.0; 2]);
        for (g, _) in STEPS {
            for i in 0..2 {
                velocity[i] = 0.9 * velocity[i] + f64::from(g[i]) + 0.01 * expected[i];
                expected[i] -= 0.1 * velocity[i];
            }
        }
        close(&w, &expected);
        // The bias does not decay.
        close(&b, &[3.0 - 0.1 * 2.0 - 0.1 * (0.9 * 2.0 + 1.0)]);
    }

    #[test]
    fn adam_by_hand() {
        let options = OptimiserOptions { weight_decay: 0.5, clip: None, ..OptimiserOptions::default() };
        let (w, _) = after(&options, STEPS);
        let (mut expected, mut first, mut second) = ([1.0, -2.0], [0.0; 2], [0.0; 2]);
        for (t, (g, _)) in (1..).zip(STEPS) {
            for i in 0..2 {
                let g = f64::from(g[i]);
                first[i] = 0.9 * first[i] + 0.1 * g;
                second[i] = 0.999 * second[i] + 0.001 * g * g;
                let (m, v) = (first[i] / (1.0 - 0.9f64.powi(t)), second[i] / (1.0 - 0.999f64.powi(t)));
                expected[i] = expected[i] * (1.0 - 0.1 * 0.5) - 0.1 * m / (v.sqrt() + 1e-8);
            }
        }
        close(&w, &expected);
    }

    #[test]
    fn lars_steps_by_the_norm_of_the_weight() {
        let options =
            OptimiserOptions { method: Method::Lars, momentum: 0.0, nesterov: false, weight_decay: 0.0, clip: None };
        let (w, b) = after(&options, &STEPS[..1]);
        let scale = 1e-3 * 5f64.sqrt() / 1.25f64.sqrt();
        close(&w, &[1.0 - 0.1 * scale * 0.5, -2.0 - 0.1 * scale]);
        close(&b, &[3.0 - 0.1 * 2.0]);
    }

    #[test]
    fn large_gradients_are_scaled_down_together() {
        let options = OptimiserOptions {
            method: Method::Sgd,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            clip: Some(1.0),
        };
        let (w, b) = after(&options, &[([3.0, 0.0], 4.0)]);
        close(&w, &[1.0 - 0.1 * 0.6, -2.0]);
        close(&b, &[3.0 - 0.1 * 0.8]);
    }
}
