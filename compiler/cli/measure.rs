//! Models in front of data: calibration, accuracy, layer by layer, speed.

use crate::{data::Samples, facts, interrupt, terminal::Progress};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::Port,
    pass::Calibrator,
    report::{Accuracy, LayerFacts, Speed},
    verify::{Verified, verify},
};
use compress_runtime::{
    bench,
    burn::exec::Executable,
    dataset::Batch,
    device::Device,
    metrics::{Comparison, Sqnr},
};
use std::collections::HashMap;

/// Samples on which layers are compared one by one.
const LAYER_SAMPLES: usize = 16;

/// Hands calibration samples to the passes that ask for them.
pub struct DataCalibrator<'a> {
    pub samples: &'a Samples,
    pub device: &'a Device,
    pub quiet: bool,
}

impl Calibrator for DataCalibrator<'_> {
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Port],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let exe = Executable::new(graph, self.device)?;
        let progress = Progress::new("calibrate", self.samples.indices.len(), self.quiet);
        for indices in self.samples.batches() {
            stop_if_asked()?;
            let batch = self.samples.set.batch(indices)?;
            exe.observe(&batch.inputs, watch, sink)?;
            progress.advance(batch.len);
        }
        Ok(())
    }
}

fn stop_if_asked() -> Result<()> {
    if interrupt::stopped() { Err(Error::interrupted()) } else { Ok(()) }
}

/// Runs both models on the samples and compares their outputs: all of them for the noise, the
/// first that holds a score for each class for the choice of class.
///
/// # Errors
/// Whatever running or reading can raise; interrupted.
pub fn accuracy(
    before: &Executable,
    after: &Executable,
    samples: &Samples,
    blame: Kind,
    quiet: bool,
) -> Result<Accuracy> {
    let mut compared = Comparison::blaming(blame);
    let progress = Progress::new("evaluate", samples.indices.len(), quiet);
    for indices in samples.batches() {
        stop_if_asked()?;
        let batch = samples.set.batch(indices)?;
        let (a, b) = (before.run(&batch.inputs)?, after.run(&batch.inputs)?);
        compared.add(&a, &b, batch.len, batch.labels.as_deref())?;
        progress.advance(batch.len);
    }
    let (before, after) = (compared.top1_before(), compared.top1_after());
    let agreement = compared.agreement();
    Ok(Accuracy {
        metric: match (before, agreement) {
            (Some(_), _) => "top1",
            (None, Some(_)) => "agreement",
            (None, None) => "sqnr",
        },
        samples: compared.samples(),
        synthetic: samples.synthetic,
        before,
        after,
        drop: before.zip(after).map(|(b, a)| b - a),
        agreement,
        sqnr_db: compared.sqnr_db().filter(|d| d.is_finite()),
    })
}

/// The layers of the model after, with how far the output of each is from the original's where
/// both have that value.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn layers(
    before: (&Graph, &Executable),
    after: (&Graph, &Executable),
    samples: &Samples,
) -> Result<Vec<LayerFacts>> {
    let layers: Vec<(Port, LayerFacts)> = facts::layers(after.0).into_iter().map(|(n, l)| (n.into(), l)).collect();
    let ports: HashMap<&str, Port> = before
        .0
        .operators()
        .flat_map(|n| {
            before.0.node(n).outputs.iter().enumerate().map(move |(slot, v)| (&v.name[..], Port { node: n, slot }))
        })
        .collect();
    let pairs: Vec<(usize, Port, Port)> = layers
        .iter()
        .enumerate()
        .filter_map(|(i, (port, _))| Some((i, *ports.get(&after.0.value(*port).name[..])?, *port)))
        .collect();
    let mut sqnr: Vec<Sqnr> = vec![Sqnr::default(); pairs.len()];
    for indices in samples.few(LAYER_SAMPLES) {
        stop_if_asked()?;
        let batch = samples.set.batch(indices)?;
        let mut original: Vec<Vec<f32>> = vec![vec![]; pairs.len()];
        let watch: Vec<Port> = pairs.iter().map(|p| p.1).collect();
        before.1.observe(&batch.inputs, &watch, &mut |i, v| {
            original[i] = v.to_vec();
            Ok(())
        })?;
        let watch: Vec<Port> = pairs.iter().map(|p| p.2).collect();
        after.1.observe(&batch.inputs, &watch, &mut |i, v| {
            sqnr[i].add(&original[i], v);
            Ok(())
        })?;
    }
    let mut out: Vec<LayerFacts> = layers.into_iter().map(|(_, l)| l).collect();
    for ((i, _, _), s) in pairs.iter().zip(&sqnr) {
        out[*i].sqnr_db = s.db().filter(|d| d.is_finite());
    }
    Ok(out)
}

/// Times both models on one batch, taking turns.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn speed(
    before: &Executable,
    after: &Executable,
    samples: &Samples,
    batch: usize,
    device: &Device,
) -> Result<Speed> {
    let inputs = timing_batch(samples, batch)?;
    let (a, b) = bench::interleaved(before, after, &inputs.inputs, 30, &interrupt::stopped)?;
    Ok(Speed {
        device: device.describe(),
        engine: "burn",
        threads: threads(device),
        batch: inputs.len,
        before_ms: a.median_ms,
        after_ms: b.median_ms,
        speedup: a.median_ms / b.median_ms,
        p90: [a.p90_ms, b.p90_ms],
    })
}

/// The batch to time on: `asked` samples, unless the model takes batches of one size only.
///
/// # Errors
/// Whatever reading the data can raise.
pub fn timing_batch(samples: &Samples, batch: usize) -> Result<Batch> {
    let n = samples.timed(batch);
    let indices: Vec<usize> = samples.indices.iter().cycle().take(n).copied().collect();
    samples.set.batch(&indices)
}

/// Threads the executor may use on `device`.
pub fn threads(device: &Device) -> usize {
    if device.is_cpu() { std::thread::available_parallelism().map_or(1, |n| n.get()) } else { 1 }
}

/// An executable that has run the first batch: what fails here is the model or the samples.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn probe(graph: &Graph, device: &Device, samples: &Samples) -> Result<Executable> {
    let exe = executable(graph, device)?;
    if let Some(indices) = samples.batches().next() {
        exe.run(&samples.set.batch(indices)?.inputs)?;
    }
    Ok(exe)
}

/// An executable for a whole graph.
///
/// # Errors
/// Malformed or unsupported, naming the node.
pub fn executable(graph: &Graph, device: &Device) -> Result<Executable> {
    Executable::new(&verify(graph)?, device)
}
