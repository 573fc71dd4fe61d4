//! How near compressed graphs come to the model, on samples that calibration does not see.

use crate::{
    data::Samples,
    events::Monitor,
    measure::{self, timing_batch},
};
use compress_compiler::{
    error::{Kind, Result},
    graph::Graph,
    node::Port,
    op::{Op, Operator, Quant},
    ops::unary::Unary,
    pass::{Judge, Judges, Likeness},
    tensor::Tensor,
    verify::{Verified, verify},
};
use compress_runtime::{
    dataset::Batch,
    metrics::{Answers, Comparison, Measure, Sqnr},
    session::{Backend, Session},
};

/// Samples to judge by.
const SAMPLES: usize = 48;

/// Makes judges of the samples that a run holds out of its calibration.
pub struct HeldOut<'a> {
    pub samples: &'a Samples,
    pub backend: &'a Backend,
    pub monitor: &'a Monitor<'a>,
}

impl Judges for HeldOut<'_> {
    fn beside(&self, original: &Verified) -> Result<Box<dyn Judge + '_>> {
        let answers = Answers::of(original);
        // Without a metric that was asked for nothing can be refused.
        let measure = answers.measure(None, false)?;
        let (session, _) = self.session(original)?;
        let mut kept = vec![];
        for indices in self.samples.first(SAMPLES).batches() {
            self.monitor.check()?;
            let batch = self.samples.set.batch(indices)?;
            let outputs = session.run(&batch.inputs)?;
            kept.push((batch, outputs));
        }
        let parts = kept.first().map_or(vec![], |(_, outputs)| outputs.iter().map(Parts::of).collect());
        Ok(Box::new(Beside { of: self, answers, measure, kept, parts }))
    }
}

impl HeldOut<'_> {
    /// A session that also shows what outputs are made of, where a Softmax or a Sigmoid makes them; and how many outputs the
    /// graph has itself. Such functions hide noise until an answer flips.
    fn session(&self, graph: &Graph) -> Result<(Session, usize)> {
        let mut shown = graph.clone();
        for output in graph.outputs() {
            if let Some(port) = unsaturated(graph, output.port) {
                let name = shown.fresh("before");
                shown.add_output(&name, port);
            }
        }
        Ok((Session::new(&verify(&shown)?, self.backend, &[])?, graph.outputs().len()))
    }
}

/// What an output is made of, if a function of a bounded range makes it, and other operators only move that.
fn unsaturated(graph: &Graph, mut port: Port) -> Option<Port> {
    loop {
        let before = graph.operand(port.node, 0)?;
        match graph.op(port.node) {
            Op::Softmax(_) | Op::Unary(Unary::Sigmoid) => return Some(before),
            op if op.quant() == Quant::Same => port = before,
            _ => return None,
        }
    }
}

/// A model's answers, beside which others are judged.
struct Beside<'a> {
    of: &'a HeldOut<'a>,
    answers: Answers,
    measure: Measure,
    kept: Vec<(Batch, Vec<Tensor>)>,
    parts: Vec<Parts>,
}

/// Which elements of an output are of one kind: a detector may have places in pixels and scores below 1 in one tensor, and
/// the noise of the ones would hide the others.
struct Parts {
    /// Elements behind each index of the axis that tells them apart, and its size.
    behind: usize,
    size: usize,
    /// For each index, whether it is of the larger kind.
    large: Vec<bool>,
}

/// Kinds are this far apart.
const APART: f64 = 20.0;

impl Parts {
    fn of(t: &Tensor) -> Self {
        let (shape, values) = (t.shape(), t.as_f32().unwrap_or_default());
        let mut found = Self { behind: 1, size: 1, large: vec![true] };
        let mut widest = APART;
        for axis in 1..shape.len() {
            let (size, behind) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
            if !(2..=1024).contains(&size) {
                continue;
            }
            let mut squares = vec![0f64; size];
            values.iter().enumerate().for_each(|(i, v)| squares[i / behind % size] += f64::from(*v).powi(2));
            let each = values.len() as f64 / size as f64;
            let rms: Vec<f64> = squares.iter().map(|s| (s / each).sqrt()).collect();
            let mut sorted = rms.clone();
            sorted.sort_by(f64::total_cmp);
            for pair in sorted.windows(2) {
                if pair[0] > 0.0 && pair[1] / pair[0] > widest {
                    widest = pair[1] / pair[0];
                    found = Self { behind, size, large: rms.iter().map(|r| *r >= pair[1]).collect() };
                }
            }
        }
        found
    }

    /// Adds elements before and after to the kinds that they are of.
    fn add(&self, [small, large]: &mut [Sqnr; 2], before: &[f32], after: &[f32]) {
        if self.size == 1 {
            return large.add(before, after);
        }
        for (i, (a, b)) in before.chunks(self.behind).zip(after.chunks(self.behind)).enumerate() {
            if self.large[i % self.size] { large.add(a, b) } else { small.add(a, b) }
        }
    }
}

impl Judge for Beside<'_> {
    fn samples(&self) -> usize {
        self.kept.iter().map(|(batch, _)| batch.len).sum()
    }

    fn judge(&self, graph: &Verified, samples: usize) -> Result<Likeness> {
        let (session, own) = self.of.session(graph)?;
        let mut kinds = vec![[Sqnr::default(); 2]; self.parts.len()];
        let mut compared = Comparison::new(Kind::Data, &self.answers, self.measure);
        for (batch, outputs) in &self.kept {
            if compared.samples() >= samples {
                break;
            }
            self.of.monitor.check()?;
            let made = session.run(&batch.inputs)?;
            compared.add(batch, &outputs[..own], &made[..own])?;
            for ((parts, kinds), (a, b)) in self.parts.iter().zip(&mut kinds).zip(outputs.iter().zip(&made)) {
                if let (Some(a), Some(b)) = (a.as_f32(), b.as_f32()) {
                    parts.add(kinds, &a, &b);
                }
            }
        }
        let noise = |sqnr: &Sqnr| sqnr.db().map(|db| 10f64.powf(-db / 10.0));
        let mean = |kinds: &[[Sqnr; 2]]| {
            let each: Vec<f64> = kinds.iter().flatten().filter_map(noise).collect();
            (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
        };
        let at_outputs = mean(&kinds[..own.min(kinds.len())]).unwrap_or(0.0);
        let (metric, _) = compared.metric();
        Ok(Likeness {
            noise: at_outputs,
            inner_noise: mean(&kinds[own.min(kinds.len())..]),
            agreement: compared.value().1.filter(|_| metric.is_share()),
        })
    }

    fn sized(&self, graph: &Graph) -> Result<Graph> {
        measure::sized(graph, &timing_batch(self.of.samples, 1)?.inputs)
    }
}
