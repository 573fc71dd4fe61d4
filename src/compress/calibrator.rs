//! What passes ask of data: calibration samples, run and observed, and the time that graphs take.

use crate::{
    data::Samples,
    events::Monitor,
    kept::{KeptTimes, structure},
    measure::{self, threads, timing_batch},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::Site,
    part::runnable,
    pass::{Calibrator, Stopwatch},
    tensor::Tensor,
    verify::{Verified, verify},
};
use compress_runtime::{
    bench,
    dataset::Dataset,
    session::{Backend, Session},
};
use std::{
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
};

/// The most sessions that calibrate at once, and the bytes of weights that they may have together:
/// memory does not grow with the machine.
const WORKERS: usize = 8;
const WORKERS_BYTES: usize = 256 << 20;

/// Hands calibration samples to the passes that ask for them.
pub struct DataCalibrator<'a> {
    pub samples: &'a Samples,
    pub backend: &'a Backend,
    pub monitor: &'a Monitor<'a>,
}

/// Times graphs on a batch of samples.
pub struct Timer<'a> {
    pub samples: &'a Samples,
    pub batch: usize,
    pub backend: &'a Backend,
    /// What was measured before.
    pub kept: &'a KeptTimes,
    pub monitor: &'a Monitor<'a>,
}

/// Milliseconds that each graph is timed for, in about so many runs, and by how many sessions: where the values of a session lie
/// in memory makes some of its steps slower.
const TIMED_MS: f64 = 200.0;
const TIMED_RUNS: (f64, f64) = (6.0, 2000.0);
const SESSIONS: usize = 5;

impl Stopwatch for Timer<'_> {
    fn compare(&self, graphs: [&Verified; 2]) -> Result<[f64; 2]> {
        let inputs = timing_batch(self.samples, self.batch)?.inputs;
        let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
        let timed =
            format!("steps of two graphs by turns on {shapes:?}\n{}\n{}", structure(graphs[0]), structure(graphs[1]));
        let ms = self.kept.get_or(&timed, || self.measure(graphs, &inputs).map(Vec::from))?;
        <[f64; 2]>::try_from(ms).map_err(|_| Error::bug("two graphs without two times"))
    }
}

impl Timer<'_> {
    fn measure(&self, graphs: [&Verified; 2], inputs: &[Tensor]) -> Result<[f64; 2]> {
        let mut least: [Vec<f64>; 2] = Default::default();
        let mut runs = 0;
        for _ in 0..SESSIONS {
            let [a, b] = graphs.map(|g| Session::new(g, self.backend, &[]));
            let (a, b) = (a?, b?);
            if runs == 0 {
                let first = bench::time(&a, inputs, 1, &|| self.monitor.stopped())?.median_ms;
                let all = (TIMED_MS / first.max(f64::MIN_POSITIVE)).clamp(TIMED_RUNS.0, TIMED_RUNS.1);
                runs = (all as usize).div_ceil(SESSIONS);
            }
            bench::steps([&a, &b], inputs, runs, &mut least, &|| self.monitor.stopped())?;
        }
        Ok(least.map(|steps| steps.iter().sum()))
    }
}

impl Calibrator for DataCalibrator<'_> {
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &(dyn Fn(usize, &[f32]) -> Result<()> + Sync),
    ) -> Result<()> {
        let (part, places, watch) = self.shown(graph, watch)?;
        let (graph, watch) = (&verify(&part)?, &watch[..]);
        let set: &Dataset = &self.samples.set;
        let progress = self.monitor.step("calibrate", self.samples.indices.len());
        // None are open once something went wrong.
        let open = Mutex::new(Some(self.samples.batches().enumerate()));
        let open = || open.lock().unwrap_or_else(PoisonError::into_inner);
        let next = || open().as_mut().and_then(Iterator::next);
        let run = |session: &Session, indices: &[usize]| -> Result<()> {
            self.monitor.check()?;
            let batch = set.batch(indices)?;
            session.observe(&batch.inputs, &mut |i, values| sink(places[i], values))?;
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

    fn observe_in_turn(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let (part, places, watch) = self.shown(graph, watch)?;
        let session = Session::new(&verify(&part)?, self.backend, &watch)?;
        let progress = self.monitor.minor_step("calibrate", self.samples.indices.len());
        for indices in self.samples.batches() {
            self.monitor.check()?;
            let batch = self.samples.set.batch(indices)?;
            session.observe(&batch.inputs, &mut |i, values| sink(places[i], values))?;
            progress.advance(batch.len);
        }
        Ok(())
    }

    fn run(
        &self,
        graphs: &[&Verified],
        samples: usize,
        sink: &mut dyn FnMut(&[Vec<Tensor>]) -> Result<()>,
    ) -> Result<()> {
        let samples = self.samples.first(samples);
        let progress = self.monitor.minor_step("calibrate", samples.indices.len());
        let sessions = graphs.iter().map(|g| Session::new(g, self.backend, &[])).collect::<Result<Vec<_>>>()?;
        for indices in samples.batches() {
            self.monitor.check()?;
            let batch = self.samples.set.batch(indices)?;
            sink(&sessions.iter().map(|s| s.run(&batch.inputs)).collect::<Result<Vec<_>>>()?)?;
            progress.advance(batch.len);
        }
        Ok(())
    }

    fn samples(&self) -> usize {
        self.samples.indices.len()
    }

    fn sized(&self, graph: &Graph) -> Result<Graph> {
        measure::sized(graph, &timing_batch(self.samples, 1)?.inputs)
    }
}

impl DataCalibrator<'_> {
    /// The part of a graph that can be run, which of the values in `watch` it has, and these: what depends on operators that are not
    /// known here is left out, and not shown.
    fn shown(&self, graph: &Verified, watch: &[Site]) -> Result<(Graph, Vec<usize>, Vec<Site>)> {
        let part = if self.backend.runs_any_operator() { Graph::clone(graph) } else { runnable(graph)? };
        let here = watch.iter().enumerate().filter(|(_, site)| part.contains(site.outermost()));
        let (places, watch) = here.map(|(i, site)| (i, site.clone())).unzip();
        Ok((part, places, watch))
    }

    /// How many sessions run batches at once: threads with batches of their own never wait for each
    /// other, but each session has the weights once more.
    fn workers(&self, graph: &Graph, threads: usize) -> usize {
        let weights: usize = graph.ids().filter_map(|n| graph.constant(n.into())).map(|t| t.bytes().len()).sum();
        let spare = WORKERS_BYTES / weights.max(1);
        threads.min(WORKERS).min(spare).min(self.samples.batches().count()).max(1)
    }
}
