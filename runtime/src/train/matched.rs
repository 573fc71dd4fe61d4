//! Inputs made from a model alone, where there is no data: such that what each BatchNormalization reads has the mean
//! and the variance that it saw in training (DeepInversion, Yin et al. 2020; ZeroQ, Cai et al. 2020).
//!
//! The inputs are leaves of Burn's tape, the weights are not. The network runs as it is deployed: the statistics are
//! those of all inputs together, beside the running ones.

use super::{
    loss::{LossOptions, Supervision, Term},
    random::{Purpose, Random},
};
use crate::{
    burn::{
        Executable,
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::reduce::ReduceKind,
    ops::source::fed,
    tensor::{DType, Tensor},
    verify::verify,
};
use rayon::prelude::*;

/// How inputs are matched.
#[derive(Debug, Clone, Copy)]
pub struct MatchOptions {
    /// Changes of the inputs.
    pub steps: usize,
    /// The classes that the model tells apart, if it does: inputs are spread over them.
    pub classes: Option<usize>,
    /// Decides which classes are drawn.
    pub seed: u64,
}

/// The length of a step at first, in standard deviations of what the inputs begin as; it falls as a cosine.
const RATE: f64 = 0.1;
/// The weight of being of the drawn class, beside statistics.
const CLASS: f32 = 0.1;
/// Adam's (Kingma and Ba 2015) two averages.
const AVERAGES: [f32; 2] = [0.9, 0.999];
/// Added under square roots, whose slope at 0 has no end.
const LEAST: f32 = 1e-4;

/// A BatchNormalization: where its input is, and what that is to be like.
struct Norm {
    reads: Port,
    /// By channel: the running mean, and the inverse of the standard deviation with epsilon.
    mean: Vec<f32>,
    inverse: Vec<f32>,
    /// The running standard deviation times that inverse.
    wanted: Vec<f32>,
}

/// A model whose statistics inputs can be matched to.
pub struct Matcher {
    exe: Executable,
    norms: Vec<Norm>,
    outputs: usize,
    device: Device,
}

/// What matching made.
pub struct Matched {
    /// The inputs, batch by batch.
    pub batches: Vec<Vec<Tensor>>,
    /// How far their statistics were at first and are now: the mean over layers and channels of the squared errors of
    /// mean and standard deviation, in running standard deviations.
    pub distance: [f64; 2],
}

impl Matcher {
    /// Makes `graph` ready; `None` where no BatchNormalization says what inputs were like.
    ///
    /// # Errors
    /// Unsupported when an operator has no kernel.
    pub fn new(graph: &Graph, device: &Device) -> Result<Option<Self>> {
        let norms: Vec<Norm> = graph.operators().filter_map(|n| norm(graph, n)).collect();
        if norms.is_empty() {
            return Ok(None);
        }
        let inputs: Vec<Port> = fed(graph).map(Port::from).collect();
        let ends: Vec<Port> = graph.outputs().iter().map(|o| o.port).collect();
        let outputs: Vec<Port> = ends.iter().copied().chain(norms.iter().map(|n| n.reads)).collect();
        let place = verify(graph)?.order().iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let exe = Executable::part(graph, &place, &inputs, &outputs, device)?;
        Ok(Some(Self { exe, norms, outputs: ends.len(), device: device.clone() }))
    }

    /// Changes `batches` of inputs; those that are not f32 stay as they are. What comes out depends on the arguments
    /// alone. `step` is called after each step, and its error ends the work.
    ///
    /// # Errors
    /// Those of running; unsupported, naming the node, where there is no gradient; data when numbers overflow.
    pub fn run(
        &self,
        batches: Vec<Vec<Tensor>>,
        options: &MatchOptions,
        step: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Matched> {
        let mut batches: Vec<Vec<Input>> =
            batches.into_iter().map(|b| b.into_iter().map(Input::new).collect()).collect();
        let mut draw = Random::new(options.seed, Purpose::Mix, 0, 0);
        let rows = |b: &[Input]| b.first().and_then(|x| x.tensor.shape().first().copied()).unwrap_or(0);
        let labels: Vec<Vec<i64>> = match options.classes {
            Some(k) => batches.iter().map(|b| (0..rows(b)).map(|_| draw.below(k) as i64).collect()).collect(),
            None => vec![],
        };
        let mut distance = [f64::NAN; 2];
        for i in 0..options.steps {
            let leaves = batches
                .iter()
                .map(|b| b.iter().map(|x| x.leaf(&self.device)).collect())
                .collect::<Result<Vec<Vec<_>>>>()?;
            let (loss, now) = self.loss(&leaves, &labels)?;
            if !now.is_finite() {
                return Err(Error::data("the statistics of what layers read are not numbers"));
            }
            distance = [if i == 0 { now } else { distance[0] }, now];
            let mut gradients = loss.backward()?;
            let rate = RATE * 0.5 * (1.0 + (std::f64::consts::PI * i as f64 / options.steps as f64).cos());
            for (x, leaf) in batches.iter_mut().flatten().zip(leaves.iter().flatten()) {
                let Value::Float(leaf) = leaf else { continue };
                if let Some(gradient) = gradients.take(leaf) {
                    x.change(&gradient.into_vec()?, rate as f32, i as i32 + 1);
                }
            }
            step()?;
        }
        let batches = batches.into_iter().map(|b| b.into_iter().map(Input::tensor).collect()).collect();
        Ok(Matched { batches, distance })
    }

    /// What is made small, and the part of it that statistics are.
    fn loss(&self, leaves: &[Vec<Value>], labels: &[Vec<i64>]) -> Result<(Float, f64)> {
        let mut moments: Vec<Option<[Float; 2]>> = vec![None; self.norms.len()];
        let mut classes: Option<Float> = None;
        let share = 1.0 / leaves.len() as f64;
        for (i, inputs) in leaves.iter().enumerate() {
            let mut made = self.exe.run_values(inputs.clone())?;
            let read = made.split_off(self.outputs);
            for ((norm, value), sum) in self.norms.iter().zip(read).zip(&mut moments) {
                let Value::Float(x) = value else { continue };
                let [mean, square] = norm.moments(x, &self.device)?.map(|m| m.mul_scalar(share));
                *sum = Some(match sum.take() {
                    Some([a, b]) => [a.add(mean)?, b.add(square)?],
                    None => [mean, square],
                });
            }
            if let Some(labels) = labels.get(i) {
                let options = LossOptions::default().with(Term::Labels, CLASS);
                let target = Supervision { labels: Some(labels), ..Supervision::default() };
                let part = options.of(&made, &[], &target, &self.device)?.whole.mul_scalar(share);
                classes = Some(if let Some(sum) = classes { sum.add(part)? } else { part });
            }
        }
        let mut distance: Option<Float> = None;
        for (norm, moments) in self.norms.iter().zip(moments) {
            let Some(moments) = moments else { continue };
            let part = norm.distance(moments, &self.device)?.div_scalar(self.norms.len() as f64);
            distance = Some(if let Some(sum) = distance { sum.add(part)? } else { part });
        }
        let distance = distance.ok_or_else(|| Error::bug("no layer was reached"))?;
        let now = distance.clone().detached().scalar()?;
        Ok((if let Some(part) = classes { distance.add(part)? } else { distance }, now))
    }
}

/// What is known of the statistics of `node`, if it is a BatchNormalization whose input is computed.
fn norm(graph: &Graph, node: NodeId) -> Option<Norm> {
    let Op::BatchNorm(op) = graph.op(node) else { return None };
    let constant = |slot| {
        graph.operand(node, slot).and_then(|p| graph.constant(p)).and_then(|t| t.as_f32().map(|v| v.into_owned()))
    };
    let (mean, variance) = (constant(3)?, constant(4)?);
    let told =
        !op.training && variance.iter().chain(&mean).all(|v| v.is_finite()) && variance.iter().all(|v| *v >= 0.0);
    let inverse: Vec<f32> = variance.iter().map(|v| 1.0 / (v + op.epsilon).max(f32::MIN_POSITIVE).sqrt()).collect();
    let wanted = variance.iter().zip(&inverse).map(|(v, i)| v.sqrt() * i).collect();
    told.then_some(Norm { reads: graph.operand(node, 0)?, mean, inverse, wanted })
}

impl Norm {
    /// The means of what `x` is normalised to, and of its squares, by channel.
    fn moments(&self, x: Float, device: &Device) -> Result<[Float; 2]> {
        let shape = x.shape().to_vec();
        let mut along = vec![1; shape.len()];
        match along.get_mut(1) {
            Some(channels) if shape[1] == self.mean.len() => *channels = self.mean.len(),
            _ => return Err(Error::malformed(format!("a BatchNormalization reads {shape:?}"))),
        }
        let vector = |v: &[f32]| Float::from_vec(v.to_vec(), &along, device);
        let normal = x.sub(vector(&self.mean)?)?.mul(vector(&self.inverse)?)?;
        let inner: Vec<usize> = (2..shape.len()).collect();
        let mean = |x: Float| x.reduce(ReduceKind::Mean, &inner, false)?.reduce(ReduceKind::Mean, &[0], false);
        Ok([mean(normal.clone())?, mean(normal.clone().mul(normal)?)?])
    }

    /// The mean squared errors of mean and standard deviation.
    fn distance(&self, [mean, square]: [Float; 2], device: &Device) -> Result<Float> {
        let off = mean.clone().mul(mean)?;
        let variance = square.sub(off.clone())?.clamp_min(0.0);
        let wanted: Vec<f32> = self.wanted.iter().map(|w| (w * w + LEAST).sqrt()).collect();
        let wanted = Float::from_vec(wanted, variance.shape(), device)?;
        let spread = variance.add_scalar(LEAST).sqrt().sub(wanted)?;
        off.add(spread.clone().mul(spread)?)?.reduce(ReduceKind::Mean, &[0], false)
    }
}

/// An input, and what Adam remembers of it; of one that is not f32, nothing.
struct Input {
    tensor: Tensor,
    values: Vec<f32>,
    averages: Vec<[f32; 2]>,
}

impl Input {
    fn new(tensor: Tensor) -> Self {
        let values = if tensor.dtype() == DType::F32 { tensor.as_f32() } else { None };
        let values = values.map(|v| v.into_owned()).unwrap_or_default();
        Self { averages: vec![[0.0; 2]; values.len()], values, tensor }
    }

    fn leaf(&self, device: &Device) -> Result<Value> {
        if self.values.is_empty() {
            return Value::input(&self.tensor, device);
        }
        Ok(Value::Float(Float::from_vec(self.values.clone(), self.tensor.shape(), device)?.leaf(false)))
    }

    /// A step of Adam, the `nth`.
    fn change(&mut self, gradient: &[f32], rate: f32, nth: i32) {
        let [a, b] = AVERAGES;
        let whole = [1.0 - a.powi(nth), 1.0 - b.powi(nth)];
        self.values.par_iter_mut().zip(&mut self.averages).zip(gradient).for_each(|((x, m), g)| {
            *m = [a * m[0] + (1.0 - a) * g, b * m[1] + (1.0 - b) * g * g];
            *x -= rate * (m[0] / whole[0]) / ((m[1] / whole[1]).sqrt() + f32::MIN_POSITIVE);
        });
    }

    fn tensor(self) -> Tensor {
        if self.values.is_empty() { self.tensor } else { Tensor::f32(self.tensor.shape(), &self.values) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Dataset, InputSpec};
    use compress_compiler::{error::Kind, text, value::Dim};

    const MODEL: &str = r#"graph "g" {
        input %x: f32[N,2,4]
        const %one: f32[2] = [1, 1]
        const %zero: f32[2] = [0, 0]
        const %mean: f32[2] = [3, -1]
        const %var: f32[2] = [4, 0.25]
        %y = BatchNormalization(%x, %one, %zero, %mean, %var) "norm"
        output %y
    }"#;

    fn noise(batch: usize) -> Vec<Vec<Tensor>> {
        let shape = vec![Dim::Unknown, Dim::Known(2), Dim::Known(4)];
        let specs = [InputSpec::new("x", DType::F32, shape)];
        let set = Dataset::synthetic(&specs, 32, 1).unwrap();
        (0..32).collect::<Vec<_>>().chunks(batch).map(|rows| set.batch(rows).unwrap().inputs).collect()
    }

    #[test]
    fn inputs_get_the_statistics_that_the_model_knows() {
        let matcher = Matcher::new(&text::parse(MODEL).unwrap(), &Device::of_tests()).unwrap().unwrap();
        let options = MatchOptions { steps: 200, classes: None, seed: 0 };
        // Those of all batches together count.
        for batch in [32, 4] {
            let made = matcher.run(noise(batch), &options, &mut || Ok(())).unwrap();
            assert!(made.distance[0] > 1.0 && made.distance[1] < 1e-3, "{:?}", made.distance);
            let values: Vec<f32> = made.batches.iter().flat_map(|b| b[0].as_f32().unwrap().into_owned()).collect();
            for (channel, (mean, deviation)) in [(3.0, 2.0), (-1.0, 0.5)].into_iter().enumerate() {
                let own: Vec<f32> = values.chunks(4).skip(channel).step_by(2).flatten().copied().collect();
                let m = own.iter().sum::<f32>() / own.len() as f32;
                let d = (own.iter().map(|v| (v - m).powi(2)).sum::<f32>() / own.len() as f32).sqrt();
                assert!((m - mean).abs() < 0.05 && (d - deviation).abs() < 0.05, "{m} {d}");
            }
        }
        let stopped = matcher.run(noise(32), &options, &mut || Err(Error::interrupted()));
        assert_eq!(stopped.err().unwrap().kind(), Kind::Interrupted);
    }

    #[test]
    fn a_model_without_statistics_has_none_to_match() {
        let none = MODEL.replace("BatchNormalization(%x, %one, %zero, %mean, %var)", "Relu(%x)");
        assert!(Matcher::new(&text::parse(&none).unwrap(), &Device::of_tests()).unwrap().is_none());
    }
}
