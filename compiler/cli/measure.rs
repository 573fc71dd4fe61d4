//! Models in front of data: calibration, accuracy, layer by layer, speed.

use crate::{data::Samples, facts, interrupt, terminal::Progress};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Operator,
    pass::{Calibrator, Stopwatch},
    report::{Accuracy, LayerFacts, Speed},
    tensor::Tensor,
    verify::{Verified, verify},
};
use compress_runtime::{
    bench,
    cpu::Spent,
    dataset::{Batch, Dataset},
    device::Device,
    metrics::{Comparison, Sqnr},
    session::{Backend, Session},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    io::{IsTerminal, stderr},
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
};

/// Samples on which layers are compared one by one.
const LAYER_SAMPLES: usize = 16;

/// The most sessions that calibrate at once, and the bytes of weights that they may have together:
/// memory does not grow with the machine.
const WORKERS: usize = 8;
const WORKERS_BYTES: usize = 256 << 20;

/// Hands calibration samples to the passes that ask for them.
pub struct DataCalibrator<'a> {
    pub samples: &'a Samples,
    pub backend: &'a Backend,
    pub quiet: bool,
}

/// Times graphs on a batch of samples.
pub struct Timer<'a> {
    pub samples: &'a Samples,
    pub batch: usize,
    pub backend: &'a Backend,
}

/// Milliseconds that each graph is timed for, in about so many runs, and by how many sessions: where the values of a session lie
/// in memory makes some of its steps slower.
const TIMED_MS: f64 = 200.0;
const TIMED_RUNS: (f64, f64) = (6.0, 2000.0);
const SESSIONS: usize = 5;

impl Stopwatch for Timer<'_> {
    fn compare(&self, graphs: [&Verified; 2]) -> Result<[f64; 2]> {
        let inputs = timing_batch(self.samples, self.batch)?.inputs;
        let mut least: [Vec<f64>; 2] = Default::default();
        let mut runs = 0;
        for _ in 0..SESSIONS {
            let [a, b] = graphs.map(|g| Session::new(g, self.backend, &[]));
            let (a, b) = (a?, b?);
            if runs == 0 {
                let first = bench::time(&a, &inputs, 1, &interrupt::stopped)?.median_ms;
                let all = (TIMED_MS / first.max(f64::MIN_POSITIVE)).clamp(TIMED_RUNS.0, TIMED_RUNS.1);
                runs = (all as usize).div_ceil(SESSIONS);
            }
            bench::steps([&a, &b], &inputs, runs, &mut least, &interrupt::stopped)?;
        }
        Ok(least.map(|steps| steps.iter().sum()))
    }
}

impl Calibrator for DataCalibrator<'_> {
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Port],
        sink: &(dyn Fn(usize, &[f32]) -> Result<()> + Sync),
    ) -> Result<()> {
        let set: &Dataset = &self.samples.set;
        let progress = Progress::new("calibrate", self.samples.indices.len(), self.quiet);
        // None are open once something went wrong.
        let open = Mutex::new(Some(self.samples.batches().enumerate()));
        let open = || open.lock().unwrap_or_else(PoisonError::into_inner);
        let next = || open().as_mut().and_then(Iterator::next);
        let run = |session: &Session, indices: &[usize]| -> Result<()> {
            stop_if_asked()?;
            let batch = set.batch(indices)?;
            session.observe(&batch.inputs, &mut |i, values| sink(i, values))?;
            progress.advance(batch.len);
            Ok(())
        };
        let work = || -> Result<(), (usize, Error)> {
            let session = Session::new(graph, self.backend, watch).map_err(|e| (0, e))?;
            while let Some((i, indices)) = next() {
                run(&session, indices).map_err(|e| {
                    *open() = None;
                    (i, e)
                })?;
            }
            Ok(())
        };
        let threads = threads(&self.backend.device);
        let workers = self.workers(graph, threads);
        if workers == 1 {
            return work().map_err(|(_, e)| e);
        }
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(threads / workers).build();
        let pools: Vec<_> = (0..workers)
            .map(|_| pool().map_err(|e| Error::limit(format!("no more threads: {e}"))))
            .collect::<Result<_>>()?;
        let done: Vec<Result<(), (usize, Error)>> = thread::scope(|s| {
            let started: Vec<_> = pools.iter().map(|p| s.spawn(|| p.install(work))).collect();
            started.into_iter().map(|w| w.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        // The same error whichever thread met one first: all batches before it were run.
        match done.into_iter().filter_map(Result::err).min_by_key(|(i, _)| *i) {
            Some((_, e)) => Err(e),
            None => Ok(()),
        }
    }

    fn run(&self, graphs: &[&Verified], sink: &mut dyn FnMut(&[Vec<Tensor>]) -> Result<()>) -> Result<()> {
        // One of many such runs: a line for each would be noise.
        let progress = Progress::new("calibrate", self.samples(), self.quiet || !stderr().is_terminal());
        let sessions = graphs.iter().map(|g| Session::new(g, self.backend, &[])).collect::<Result<Vec<_>>>()?;
        for indices in self.samples.batches() {
            stop_if_asked()?;
            let batch = self.samples.set.batch(indices)?;
            sink(&sessions.iter().map(|s| s.run(&batch.inputs)).collect::<Result<Vec<_>>>()?)?;
            progress.advance(batch.len);
        }
        Ok(())
    }

    fn samples(&self) -> usize {
        self.samples.indices.len()
    }
}

impl DataCalibrator<'_> {
    /// How many sessions run batches at once: threads with batches of their own never wait for each
    /// other, but each session has the weights once more.
    fn workers(&self, graph: &Graph, threads: usize) -> usize {
        let weights: usize = graph.ids().filter_map(|n| graph.constant(n.into())).map(|t| t.bytes().len()).sum();
        let spare = WORKERS_BYTES / weights.max(1);
        threads.min(WORKERS).min(spare).min(self.samples.batches().count()).max(1)
    }
}

fn stop_if_asked() -> Result<()> {
    if interrupt::stopped() { Err(Error::interrupted()) } else { Ok(()) }
}

/// The model that others are compared with.
pub struct Reference {
    pub session: Session,
    /// Its answers, batch by batch, if it is going to be asked for them again.
    kept: Option<RefCell<Vec<Vec<Tensor>>>>,
}

/// Bytes of answers that are kept.
const KEPT_BYTES: usize = 64 << 20;

impl Reference {
    /// A reference for one comparison, or for several on the same samples.
    pub fn new(session: Session, again: bool) -> Self {
        Self { session, kept: again.then(RefCell::default) }
    }

    /// What it answers to batch `i`.
    fn answers(&self, i: usize, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(kept) = &self.kept else { return self.session.run(inputs) };
        if let Some(answers) = kept.borrow().get(i) {
            return Ok(answers.clone());
        }
        let answers = self.session.run(inputs)?;
        let mut kept = kept.borrow_mut();
        let bytes: usize = kept.iter().flatten().chain(&answers).map(|t| t.bytes().len()).sum();
        if i == kept.len() && bytes <= KEPT_BYTES {
            kept.push(answers.clone());
        }
        Ok(answers)
    }
}

/// Runs both models on the samples and compares their outputs: all of them for the noise, the
/// first that holds a score for each class for the choice of class.
///
/// # Errors
/// Whatever running or reading can raise; interrupted.
pub fn accuracy(before: &Reference, after: &Session, samples: &Samples, blame: Kind, quiet: bool) -> Result<Accuracy> {
    let mut compared = Comparison::blaming(blame);
    let progress = Progress::new("evaluate", samples.indices.len(), quiet);
    for (i, indices) in samples.batches().enumerate() {
        stop_if_asked()?;
        let batch = samples.set.batch(indices)?;
        let (a, b) = (before.answers(i, &batch.inputs)?, after.run(&batch.inputs)?);
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
        equal: compared.is_equal(),
    })
}

/// The layers of the model after, with how far the output of each is from the original's where
/// both have that value, and whether the session that runs it leaves their zeros out.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn layers(
    before: &Graph,
    (after, session): (&Graph, &Session),
    samples: &Samples,
    backend: &Backend,
) -> Result<Vec<LayerFacts>> {
    let spent = session.profile(&timing_batch(samples, 1)?.inputs)?;
    let layer =
        |(n, l): (NodeId, LayerFacts)| (Port::from(n), LayerFacts { skips_zeros: skips_zeros(after, n, &spent), ..l });
    let layers: Vec<(Port, LayerFacts)> = facts::layers(after).into_iter().map(layer).collect();
    let ports: HashMap<&str, Port> = before
        .operators()
        .flat_map(|n| {
            before.node(n).outputs.iter().enumerate().map(move |(slot, v)| (&v.name[..], Port { node: n, slot }))
        })
        .collect();
    let pairs: Vec<(usize, Port, Port)> = layers
        .iter()
        .enumerate()
        .filter_map(|(i, (port, _))| Some((i, *ports.get(&after.value(*port).name[..])?, *port)))
        .collect();
    if pairs.is_empty() {
        return Ok(layers.into_iter().map(|(_, l)| l).collect());
    }
    let watching = |graph: &Graph, of: &dyn Fn(&(usize, Port, Port)) -> Port| {
        Session::new(&verify(graph)?, backend, &pairs.iter().map(of).collect::<Vec<_>>())
    };
    let (before, after) = (watching(before, &|p| p.1)?, watching(after, &|p| p.2)?);
    let mut sqnr: Vec<Sqnr> = vec![Sqnr::default(); pairs.len()];
    for indices in samples.few(LAYER_SAMPLES) {
        stop_if_asked()?;
        let batch = samples.set.batch(indices)?;
        let mut original: Vec<Vec<f32>> = vec![vec![]; pairs.len()];
        before.observe(&batch.inputs, &mut |i, v| {
            original[i] = v.to_vec();
            Ok(())
        })?;
        after.observe(&batch.inputs, &mut |i, v| {
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

/// Whether the step that computed a layer left its zeros out; `None` if it is not known which that was.
fn skips_zeros(graph: &Graph, layer: NodeId, spent: &[Spent]) -> Option<bool> {
    // A step is called after the last of the nodes that it computes together.
    let mut node = layer;
    loop {
        let label = graph.node(node).label();
        if let Some(step) = spent.iter().find(|s| s.node == label) {
            return Some(step.skips_zeros());
        }
        node = graph.only_use(node.into())?.node;
        if graph.op(node).weight().is_some() {
            return None;
        }
    }
}

/// Times both models on one batch, taking turns.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn speed(before: &Session, after: &Session, samples: &Samples, batch: usize, backend: &Backend) -> Result<Speed> {
    let inputs = timing_batch(samples, batch)?;
    let (a, b) = bench::interleaved(before, after, &inputs.inputs, 30, &interrupt::stopped)?;
    Ok(Speed {
        device: backend.device.describe(),
        engine: backend.engine.to_string(),
        threads: threads(&backend.device),
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

/// Threads that may be used on `device`.
pub fn threads(device: &Device) -> usize {
    if device.is_cpu() { rayon::current_num_threads() } else { 1 }
}

/// A session that has run the first batch: what fails here is the model or the samples.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn probe(graph: &Graph, backend: &Backend, samples: &Samples) -> Result<Session> {
    let session = session(graph, backend)?;
    if let Some(indices) = samples.batches().next() {
        session.run(&samples.set.batch(indices)?.inputs)?;
    }
    Ok(session)
}

/// A whole graph made ready to run.
///
/// # Errors
/// Malformed or unsupported, naming the node.
pub fn session(graph: &Graph, backend: &Backend) -> Result<Session> {
    Session::new(&verify(graph)?, backend, &[])
}
