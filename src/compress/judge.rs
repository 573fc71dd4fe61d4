//! How near compressed graphs come to the model, on samples that calibration does not see.

use crate::{
    data::Samples,
    events::Monitor,
    given::Scorer,
    measure::{self, timing_batch},
    model::Model,
};
use compress_compiler::{
    error::{Kind, Result},
    graph::Graph,
    judge::{Judge, Judges, Likeness, unsaturated},
    node::{Port, Use},
    op::Op,
    tensor::Tensor,
    verify::{Verified, verify},
};
use compress_runtime::{
    dataset::Batch,
    metrics::{Answers, Comparison, Measure, Mixture, Parts, Sqnr, Wanted},
    session::{Backend, Session},
};

/// Samples to judge by: for the noise, and for a share, which fewer tell nothing of.
pub const SAMPLES: usize = 48;
pub const SAMPLES_OF_SHARE: usize = 512;

/// Multiply-accumulates of judging once beyond which there are fewer: some seconds on two cores.
const MACS: u64 = 60_000_000_000;
const LEAST_SAMPLES: usize = 16;

/// Makes judges of the samples that a run holds out of its calibration.
pub struct HeldOut<'a> {
    pub samples: &'a Samples,
    /// How many of them, where they take no long time.
    pub most: usize,
    /// The metric that was asked for.
    pub metric: Option<&'a Wanted>,
    /// A function that scores models, where a drop of its score is what the search may not exceed.
    pub scorer: Option<&'a Scorer>,
    pub backend: &'a Backend,
    pub monitor: &'a Monitor<'a>,
}

impl Judges for HeldOut<'_> {
    fn beside(&self, original: &Verified) -> Result<Box<dyn Judge + '_>> {
        let answers = Answers::of(original);
        let measure = answers.measure(self.metric, self.samples.set.is_labelled())?;
        let (session, places) = self.session(original)?;
        let (mut kept, mut bytes) = (vec![], 0);
        let sized = self.sized(original)?;
        let macs: u64 = sized.operators().map(|n| sized.macs(n)).sum();
        let samples = ((MACS / macs.max(1)) as usize).clamp(LEAST_SAMPLES, self.most);
        for indices in self.telling_first(&session, samples)?.few(samples) {
            self.monitor.check()?;
            let batch = self.samples.set.batch(indices)?;
            let outputs = session.run(&batch.inputs)?;
            bytes += batch.inputs.iter().map(|t| t.bytes().len()).sum::<usize>();
            kept.push(Asked { indices: indices.to_vec(), batch: (bytes <= KEPT_BYTES).then_some(batch), outputs });
        }
        let outputs = kept.first().map_or(0, |asked: &Asked| asked.outputs.len());
        let parts = |i: usize| {
            let mut mixture = Mixture::default();
            for output in kept.iter().map(|asked: &Asked| &asked.outputs[i]) {
                let values = output.as_f32().unwrap_or_default();
                mixture.add(output.shape(), &values, &values);
            }
            mixture.parts()
        };
        let parts = (0..outputs).map(parts).collect();
        let score = self.score(original)?;
        Ok(Box::new(Beside { of: self, answers, measure, kept, parts, places, score }))
    }
}

impl HeldOut<'_> {
    /// What the function that scores models gives for a graph, where there is one.
    fn score(&self, graph: &Graph) -> Result<Option<f64>> {
        let Some(scorer @ Scorer::Given(_)) = self.scorer else { return Ok(None) };
        self.monitor.check()?;
        scorer.evaluated(&Model::of(graph, self.backend)?)
    }

    fn sized(&self, graph: &Graph) -> Result<Graph> {
        measure::sized(graph, &timing_batch(self.samples, 1)?.inputs)
    }

    /// So many samples, of which the first tell most: in turns one of those with the strongest answers (pictures that
    /// show something to a detector), and one of the others.
    fn telling_first(&self, session: &Session, count: usize) -> Result<Samples> {
        let first = self.samples.first(count);
        let mut power: Vec<Vec<f64>> = vec![];
        let mut order = vec![];
        for indices in first.few(count) {
            self.monitor.check()?;
            let outputs = session.run(&self.samples.set.batch(indices)?.inputs)?;
            let of_output = |t: &Tensor| -> Vec<f64> {
                let values = t.as_f32().unwrap_or_default();
                let each = (values.len() / indices.len()).max(1);
                let finite = |v: &&f32| v.is_finite();
                let sum = |part: &[f32]| part.iter().filter(finite).map(|v| f64::from(*v).powi(2)).sum();
                values.chunks(each).take(indices.len()).map(sum).collect()
            };
            let made: Vec<Vec<f64>> = outputs.iter().map(of_output).collect();
            let of_sample = |i: usize| made.iter().map(|output| output.get(i).copied().unwrap_or(0.0)).collect();
            power.extend((0..indices.len()).map(of_sample));
            order.extend_from_slice(indices);
        }
        let strengths = strengths(power.iter().map(|sample| &sample[..]));
        let mut ranked: Vec<(f64, usize)> = strengths.into_iter().zip(order).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (strong, others) = ranked.split_at(ranked.len().div_ceil(2));
        let turns = strong.iter().zip(others.iter().map(Some).chain(std::iter::repeat(None)));
        let indices = turns.flat_map(|(a, b)| std::iter::once(a).chain(b)).map(|(_, i)| *i).collect();
        Ok(first.with(indices))
    }

    /// A session that also shows the values before a Softmax or a Sigmoid that makes an output; and for each output of the graph,
    /// the place of that value, or its own. Such functions hide noise until an answer flips.
    fn session(&self, graph: &Graph) -> Result<(Session, Vec<Place>)> {
        let mut shown = graph.clone();
        let mut places = vec![];
        for (i, output) in graph.outputs().iter().enumerate() {
            places.push(match unsaturated(graph, output.port) {
                Some(port) => {
                    let (name, at) = (shown.fresh(&format!("before_{i}")), shown.outputs().len());
                    shown.add_output(&name, port);
                    Place { at, is_softmax: is_softmax(graph, port) }
                }
                None => Place { at: i, is_softmax: false },
            });
        }
        Ok((Session::new(&verify(&shown)?, self.backend, &[])?, places))
    }
}

/// A place among what a session shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    at: usize,
    /// Whether a Softmax over the last axis reads the value.
    is_softmax: bool,
}

/// Whether a Softmax over the last axis reads `port`.
fn is_softmax(g: &Graph, port: Port) -> bool {
    let rank = g.fact(port).rank().unwrap_or(0) as i64;
    let over_last = |u: &Use| matches!(g.op(u.node), Op::Softmax(op) if op.axis == -1 || op.axis == rank - 1);
    g.uses(port).iter().any(over_last)
}

/// Inputs of a Softmax so far below the largest make nothing of its output. Masks put numbers there that would hide all others.
const HEEDED: f32 = 50.0;

/// What a Softmax heeds of rows: the differences from the mean of those elements that count `before`; the others become 0.
fn centre(before: &mut [f32], after: &mut [f32], size: usize) {
    for (a, b) in before.chunks_mut(size.max(1)).zip(after.chunks_mut(size.max(1))) {
        let least = a.iter().copied().fold(f32::NEG_INFINITY, f32::max) - HEEDED;
        let counts: Vec<bool> = a.iter().map(|v| *v >= least).collect();
        for row in [a, b] {
            let heeded = || row.iter().zip(&counts).filter(|(_, counts)| **counts).map(|(v, _)| f64::from(*v));
            let mean = heeded().sum::<f64>() / heeded().count().max(1) as f64;
            row.iter_mut().zip(&counts).for_each(|(v, counts)| *v = if *counts { *v - mean as f32 } else { 0.0 });
        }
    }
}

/// Bytes of inputs that are kept; others are read each time.
const KEPT_BYTES: usize = 32 << 20;

/// A batch, and what the model answers to it.
struct Asked {
    indices: Vec<usize>,
    batch: Option<Batch>,
    outputs: Vec<Tensor>,
}

/// A model's answers, beside which others are judged.
struct Beside<'a> {
    of: &'a HeldOut<'a>,
    answers: Answers,
    measure: Measure,
    kept: Vec<Asked>,
    parts: Vec<Parts>,
    /// For each output, the place of the value on which its noise is measured.
    places: Vec<Place>,
    /// What the function that scores models gave, where there is one.
    score: Option<f64>,
}

/// What the answers to a sample are like.
#[derive(Debug, Clone, Default)]
struct Sample {
    /// The noise of each kind of values of each output, in parts of the signal.
    noise: Vec<f64>,
    /// The signal of each output.
    signals: Vec<f64>,
}

impl Sample {
    /// The logarithm of the noise.
    fn log_noise(&self) -> f64 {
        let mean = self.noise.iter().sum::<f64>() / self.noise.len().max(1) as f64;
        mean.clamp(Likeness::LEAST, Likeness::MOST).ln()
    }
}

/// How strong the answers to each of some samples are: the sum over the outputs of its part of the signal of all of them.
fn strengths<'a>(signals: impl Iterator<Item = &'a [f64]> + Clone) -> Vec<f64> {
    let of = |s: &[f64], output: usize| s.get(output).copied().unwrap_or(0.0);
    let all = |output: usize| signals.clone().map(|s| of(s, output)).sum::<f64>().max(f64::MIN_POSITIVE);
    let totals: Vec<f64> = (0..signals.clone().next().map_or(0, <[f64]>::len)).map(all).collect();
    signals.map(|s| s.iter().zip(&totals).map(|(part, all)| part / all).sum()).collect()
}

impl Judge for Beside<'_> {
    fn samples(&self) -> usize {
        self.kept.iter().map(|asked| asked.indices.len()).sum()
    }

    fn judge(&self, graph: &Verified, samples: usize) -> Result<Likeness> {
        let (session, places) = self.of.session(graph)?;
        let own = places.len();
        let as_they_are = || (0..own).map(|at| Place { at, is_softmax: false }).collect();
        let places: Vec<Place> = if places == self.places { places } else { as_they_are() };
        let noise = |sqnr: &Sqnr| sqnr.db().map(|db| 10f64.powf(-db / 10.0));
        let mut kinds = vec![[Sqnr::default(); 2]; self.parts.len()];
        let mut told: Vec<Sample> = vec![];
        let mut compared = Comparison::new(Kind::Data, &self.answers, self.measure);
        for Asked { indices, batch, outputs } in &self.kept {
            if compared.samples() >= samples {
                break;
            }
            self.of.monitor.check()?;
            let read;
            let batch = match batch {
                Some(batch) => batch,
                None => {
                    read = self.of.samples.set.batch(indices)?;
                    &read
                }
            };
            let made = session.run(&batch.inputs)?;
            match compared.add(batch, &outputs[..own], &made[..own]) {
                // Answers that are not numbers, or of other shapes: this graph is no good, but others may be.
                Err(e) if e.kind() == Kind::Data => return Ok(Likeness::LOST),
                done => done?,
            }
            // Where a Softmax or a Sigmoid makes an output, the value before it shows more.
            let mut each = vec![Sample::default(); indices.len()];
            for (i, (before, after)) in outputs.iter().zip(&made).enumerate() {
                let (Some(mut a), Some(mut b)) = (before.as_f32(), after.as_f32()) else { continue };
                let place = places.iter().find(|place| place.at == i);
                if place.is_some_and(|place| place.is_softmax) {
                    centre(a.to_mut(), b.to_mut(), before.shape().last().copied().unwrap_or(1));
                }
                self.parts[i].add(&mut kinds[i], before.shape(), &a, &b);
                let size = a.len() / indices.len();
                if place.is_some() && size * indices.len() == a.len() && a.len() == b.len() {
                    for (sample, (a, b)) in each.iter_mut().zip(a.chunks(size.max(1)).zip(b.chunks(size.max(1)))) {
                        let mut kinds = [Sqnr::default(); 2];
                        self.parts[i].add(&mut kinds, before.shape(), a, b);
                        sample.noise.extend(kinds.iter().filter_map(noise));
                        sample.signals.resize(outputs.len(), 0.0);
                        sample.signals[i] = kinds.iter().map(Sqnr::signal).sum();
                    }
                }
            }
            told.extend(each.into_iter().filter(|sample| !sample.noise.is_empty()));
        }
        let worst =
            |all: &mut dyn Iterator<Item = f64>| all.fold(None, |a: Option<f64>, b| Some(a.map_or(b, |a| a.max(b))));
        let of_places = |places: &mut dyn Iterator<Item = usize>| -> Vec<f64> {
            places.filter_map(|i| worst(&mut kinds[i].iter().filter_map(noise))).collect()
        };
        let mean = |each: &[f64]| each.iter().sum::<f64>() / each.len().max(1) as f64;
        let (each, inner) = (of_places(&mut (0..own)), mean(&of_places(&mut places.iter().map(|place| place.at))));
        let likely = |weights: &[f64]| {
            let all: f64 = weights.iter().sum();
            let sum: f64 = told.iter().zip(weights).map(|(sample, w)| w * sample.log_noise()).sum();
            (all > 0.0).then(|| (sum / all).exp())
        };
        let typical = likely(&vec![1.0; told.len()]).unwrap_or(inner);
        let (metric, _) = compared.metric();
        // A function runs the model on samples of its own choice, and so takes the same time for few samples.
        let scored = if samples >= self.samples() { self.score } else { None };
        let drop = match (scored, compared.value()) {
            (Some(before), _) => self.of.score(graph)?.map(|after| before - after),
            (None, (Some(before), Some(after))) => Some(before - after).filter(|_| metric.is_share()),
            (None, (None, Some(after))) => Some(1.0 - after).filter(|_| metric.is_share()),
            _ => None,
        };
        Ok(Likeness {
            noise: mean(&each),
            worst: worst(&mut each.into_iter()).unwrap_or_default(),
            inner,
            strong: likely(&strengths(told.iter().map(|sample| &sample.signals[..]))).unwrap_or(typical),
            typical,
            drop,
        })
    }

    fn sized(&self, graph: &Graph) -> Result<Graph> {
        self.of.sized(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_answers_count_by_their_part_of_each_output() {
        let signals: [&[f64]; 3] = [&[3.0, 0.0], &[1.0, 8.0], &[0.0, 0.0]];
        assert_eq!(strengths(signals.into_iter()), [0.75, 1.25, 0.0]);
        let silent: [&[f64]; 2] = [&[0.0], &[]];
        assert_eq!(strengths(silent.into_iter()), [0.0, 0.0]);
    }

    #[test]
    fn masks_and_shifts_of_a_softmax_hide_no_noise() {
        for mask in [f32::NEG_INFINITY, f32::MIN, -1e4] {
            let mut before = [mask, 1.0, 3.0, mask, mask, mask, 900.0, 902.0, mask, mask];
            let mut after = [mask, 1.5, 3.0, mask, mask, mask, 1000.5, 1002.0, mask, mask];
            centre(&mut before, &mut after, 5);
            assert_eq!(before, [0.0, -1.0, 1.0, 0.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.0]);
            assert_eq!(after, [0.0, -0.75, 0.75, 0.0, 0.0, 0.0, -0.75, 0.75, 0.0, 0.0]);
        }
    }
}
