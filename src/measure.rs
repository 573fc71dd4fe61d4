//! Models in front of data: calibration, accuracy, layer by layer, speed.

use crate::{
    assess::Compared,
    data::Samples,
    events::Monitor,
    facts,
    report::{Accuracy, Figure, LayerFacts, Memory, OutputFacts, Speed},
};
use compress_compiler::{
    bound,
    error::{Kind, Result},
    forms::decoder::Decoder,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::source::fed,
    pass::Context,
    tensor::Tensor,
    value::{Dim, Fact},
    verify::verify,
};
use compress_passes::simplify;
use compress_runtime::{
    bench,
    burn::BurnInterpreter,
    cpu::Spent,
    dataset::Batch,
    device::Device,
    metrics::{Comparison, Metric, OutputNoise, Sqnr, meaning::Answer},
    session::{Backend, Session},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, Instant},
};

/// Samples on which layers are compared one by one.
const LAYER_SAMPLES: usize = 16;

/// The model that others are compared with.
pub struct Reference {
    /// None where all that it is asked for is known.
    session: Option<Session>,
    /// Its answers to batches, by the samples of each, if it is going to be asked for them again.
    kept: Option<RefCell<HashMap<Vec<usize>, Vec<Tensor>>>>,
}

/// Bytes of answers that are kept.
const KEPT_BYTES: usize = 64 << 20;

impl Reference {
    /// A reference for one comparison, or for several on the same samples.
    pub fn new(session: Session, again: bool) -> Self {
        Self { session: Some(session), kept: again.then(RefCell::default) }
    }

    /// What `session` answers to as many batches as there is `time` for: it is not in memory any more when the other
    /// model is.
    ///
    /// # Errors
    /// Whatever running or reading can raise; interrupted.
    pub fn recorded(session: Session, samples: &Samples, time: Duration, monitor: &Monitor) -> Result<Self> {
        let began = Instant::now();
        let this = Self::new(session, true);
        for indices in samples.batches() {
            monitor.check()?;
            this.answers(indices, &samples.set.batch(indices)?.inputs)?;
            if began.elapsed() >= time {
                break;
            }
        }
        Ok(Self { session: None, kept: this.kept })
    }

    /// Runs it, where it still can.
    ///
    /// # Errors
    /// Whatever running can raise.
    pub fn run(&self, inputs: &[Tensor]) -> Result<()> {
        self.session.iter().try_for_each(|s| s.run(inputs).map(drop))
    }

    /// What it answers to a batch of these samples; `None` if that was not recorded.
    ///
    /// # Errors
    /// Whatever running can raise.
    pub fn answers(&self, samples: &[usize], inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        let known = self.kept.as_ref().and_then(|kept| kept.borrow().get(samples).cloned());
        let (None, Some(session)) = (&known, &self.session) else { return Ok(known) };
        let answers = session.run(inputs)?;
        if let Some(kept) = &self.kept {
            let mut kept = kept.borrow_mut();
            let bytes: usize = kept.values().flatten().chain(&answers).map(|t| t.bytes().len()).sum();
            if bytes <= KEPT_BYTES {
                kept.insert(samples.to_vec(), answers.clone());
            }
        }
        Ok(Some(answers))
    }
}

/// Runs both models on the samples, or on those for which there is time, and compares their outputs: all of them for the
/// noise, one as `measure` says.
///
/// # Errors
/// Whatever running or reading can raise; interrupted.
pub fn accuracy(
    before: &Reference,
    after: &Session,
    samples: &Samples,
    compared: &Compared,
    (blame, time): (Kind, Option<Duration>),
    monitor: &Monitor,
) -> Result<Accuracy> {
    let began = Instant::now();
    let Compared { answers, measure, .. } = compared;
    let mut comparison = Comparison::new(blame, answers, *measure);
    let progress = monitor.step("evaluate", samples.indices.len());
    for (i, indices) in samples.batches().enumerate() {
        monitor.check()?;
        if i > 0 && time.is_some_and(|time| began.elapsed() >= time) {
            break;
        }
        let batch = samples.set.batch(indices)?;
        let Some(a) = before.answers(indices, &batch.inputs)? else { break };
        let b = after.run(&batch.inputs)?;
        comparison.add(&batch, &compared.answers_in(0, &a), &compared.answers_in(1, &b))?;
        progress.advance(batch.len);
    }
    let (metric, reason) = comparison.metric();
    let (before, after) = comparison.value();
    let finite = |db: Option<f64>| db.filter(|d| d.is_finite());
    let facts = |(o, answer): (&OutputNoise, &Answer)| OutputFacts {
        name: o.name.clone(),
        meaning: answer.meaning.to_string(),
        sqnr_db: finite(o.db()),
        kind: o.kind(),
        max_error: o.max_error,
    };
    Ok(Accuracy {
        metric,
        output: answers.outputs.get(measure.output).map(|o| o.name.clone()),
        meaning: measure.meaning.to_string(),
        reason: reason.map(Into::into),
        samples: comparison.samples(),
        scored_apart: false,
        unlike: comparison.unlike(),
        synthetic: samples.synthetic,
        before,
        after: finite(after),
        drop: match (before, after) {
            (Some(before), Some(after)) if metric.rises() => Some(before - after),
            (Some(before), Some(after)) => Some(after - before),
            (None, Some(after)) if metric.is_share() => Some(1.0 - after),
            _ => None,
        },
        agreement: comparison.agreement(),
        // That made-up tokens follow each other says nothing of the model.
        beside: (comparison.beside().into_iter())
            .filter(|(m, _, value)| value.is_finite() && !(samples.synthetic && *m == Metric::Perplexity))
            .map(|(m, before, value)| Figure { metric: m, before: finite(before), value })
            .collect(),
        sqnr_db: finite(comparison.sqnr_db()),
        worst_output: comparison.worst().map(|o| o.name.clone()),
        outputs: comparison.outputs().iter().zip(&answers.outputs).map(facts).collect(),
        equal: comparison.is_equal(),
        silent: comparison.is_silent(),
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
    backends: &[Backend; 2],
    monitor: &Monitor,
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
    let mut out: Vec<LayerFacts> = layers.into_iter().map(|(_, l)| l).collect();
    out.extend(facts::layers_inside(after));
    if pairs.is_empty() {
        return Ok(out);
    }
    let watching = |graph: &Graph, backend: &Backend, of: &dyn Fn(&(usize, Port, Port)) -> Port| {
        Session::new(&verify(graph)?, backend, &pairs.iter().map(|p| of(p).into()).collect::<Vec<_>>())
    };
    let (before, after) = (watching(before, &backends[0], &|p| p.1)?, watching(after, &backends[1], &|p| p.2)?);
    let mut sqnr: Vec<Sqnr> = vec![Sqnr::default(); pairs.len()];
    for indices in samples.few(LAYER_SAMPLES) {
        monitor.check()?;
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
    for ((i, _, _), s) in pairs.iter().zip(&sqnr) {
        out[*i].sqnr_db = s.db().filter(|d| d.is_finite());
    }
    Ok(out)
}

/// Whether the step that computed a layer left its zeros out; `None` if it is not known which that was.
fn skips_zeros(graph: &Graph, layer: NodeId, spent: &[Spent]) -> Option<bool> {
    step_of(graph, layer, spent).map(|step| step.kernel.skips_zeros)
}

/// Milliseconds that the layer of this name took, as far as it is known which step computed it.
pub fn spent_on(graph: &Graph, layer: &str, spent: &[Spent]) -> Option<f64> {
    let node = graph.operators().find(|n| graph.node(*n).display_name() == layer)?;
    step_of(graph, node, spent).map(|step| step.ms)
}

/// The step that computed a layer.
fn step_of<'a>(graph: &Graph, layer: NodeId, spent: &'a [Spent]) -> Option<&'a Spent> {
    // A step is called after the last of the nodes that it computes together.
    let mut node = layer;
    loop {
        let label = graph.node(node).label();
        if let Some(step) = spent.iter().find(|s| s.node == label) {
            return Some(step);
        }
        node = graph.only_use(node.into())?.node;
        if graph.op(node).weight().is_some() {
            return None;
        }
    }
}

/// A graph as deployment engines have it, which simplify what they load.
///
/// # Errors
/// Those of [`simplify`].
pub fn simplified(graph: &Graph, monitor: &Monitor) -> Result<Graph> {
    let mut graph = graph.clone();
    simplify(&mut graph, &Context { stopped: &|| monitor.stopped(), ..Context::new(&BurnInterpreter::cpu()) })?;
    Ok(graph)
}

/// How both models are timed.
pub struct Pace {
    /// Samples a batch.
    pub batch: usize,
    /// For how long, about.
    pub time: Duration,
    /// Whether the models are as their files have them.
    pub as_is: bool,
    /// Whether only one of them may be in memory at a time.
    pub one_at_a_time: bool,
}

/// Times two models on one batch, by turns: `make` makes the session of the first or of the second, which have the inputs of
/// `signature`.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn speed(
    make: &dyn Fn(usize) -> Result<Session>,
    signature: &Graph,
    samples: &Samples,
    pace: &Pace,
    backend: &Backend,
    monitor: &Monitor,
) -> Result<Speed> {
    let inputs = timing_batch(samples, pace.batch)?;
    let progress = monitor.step("time", bench::MOST_ROUNDS);
    let race = bench::Race {
        make,
        one_at_a_time: pace.one_at_a_time,
        time: pace.time,
        stopped: &|| monitor.stopped(),
        progress: &|_| progress.advance(1),
    };
    let timed = bench::compare(&race, &inputs.inputs)?;
    Ok(Speed {
        device: backend.device.describe(),
        engine: backend.engine.to_string(),
        threads: threads(&backend.device),
        batch: inputs.len,
        inputs: shapes(signature, &inputs.inputs),
        as_is: pace.as_is,
        before_ms: timed.before.median_ms,
        after_ms: timed.after.median_ms,
        speedup: timed.ratio.middle,
        interval: [timed.ratio.low, timed.ratio.high],
        rounds: timed.rounds,
        p90: [timed.before.p90_ms, timed.after.p90_ms],
        slowest_clock: backend.device.is_cpu().then_some(timed.slowest_clock),
    })
}

/// The inputs and their sizes: `image 1x3x224x224`.
fn shapes(graph: &Graph, inputs: &[Tensor]) -> String {
    let shape = |t: &Tensor| t.shape().iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let named = fed(graph).zip(inputs).map(|(n, t)| {
        let size = if t.shape().is_empty() { "scalar".into() } else { shape(t) };
        format!("{} {size}", graph.value(n.into()).name)
    });
    named.collect::<Vec<_>>().join(", ")
}

/// `graph` with the sizes that a batch has.
///
/// # Errors
/// As [`bound::bound`].
pub fn sized(graph: &Graph, inputs: &[Tensor]) -> Result<Graph> {
    let mut facts: Vec<(NodeId, Fact)> =
        fed(graph).zip(inputs.iter().map(|t| Fact::new(Some(t.dtype()), Fact::of(t).shape))).collect();
    facts.extend(Decoder::facts_beside(graph, &facts));
    bound::bound(graph, &facts)
}

/// What a run of each model on one batch needs in memory.
///
/// # Errors
/// Whatever reading the data can raise.
pub fn memory(graphs: [&Graph; 2], samples: &Samples, batch: usize) -> Result<Memory> {
    let inputs = timing_batch(samples, batch)?.inputs;
    let need =
        |graph: &Graph| -> Result<u64> { Ok(bound::weight_bytes(graph) + bound::live_bytes(&sized(graph, &inputs)?)?) };
    Ok(Memory { before_bytes: need(graphs[0])?, after_bytes: need(graphs[1])? })
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
    probed(session(graph, backend)?, samples)
}

/// A session, once it has run the first batch.
///
/// # Errors
/// As for [`probe`].
pub fn probed(session: Session, samples: &Samples) -> Result<Session> {
    if let Some(indices) = samples.batches().next() {
        let ran = session.run(&samples.set.batch(indices)?.inputs);
        ran.map_err(|e| samples.unfit_if_given(e))?;
    }
    Ok(session)
}

/// Adds to `graph` what a run shows of the values that operators make that are not known here: their types, and how many axes
/// they have. Inference knows nothing of them.
///
/// # Errors
/// Whatever running or reading can raise.
pub fn see_unknown(graph: &mut Graph, backend: &Backend, samples: &Samples) -> Result<()> {
    let made = |n: NodeId| (0..graph.node(n).outputs.len()).map(move |slot| Port { node: n, slot });
    let unknown = graph.operators().filter(|n| matches!(graph.op(*n), Op::Opaque(_)));
    let ports: Vec<Port> = unknown.flat_map(made).filter(|port| graph.is_read(*port)).collect();
    if ports.is_empty() {
        return Ok(());
    }
    let shown = compress_compiler::part::only(graph, &ports);
    let outputs = session(&shown, backend)?.run(&timing_batch(samples, 1)?.inputs)?;
    for (port, tensor) in ports.into_iter().zip(&outputs) {
        let seen = Fact::new(Some(tensor.dtype()), Some(vec![Dim::Unknown; tensor.shape().len()]));
        let fact = graph.fact(port).clone().refined(&seen)?;
        graph.set_fact(port, fact);
    }
    graph.infer_all()
}

/// A sample depends on the others of its batch if that changes its outputs by more noise than this. Operators that round by
/// the range of a batch make less.
const MIXED_DB: f64 = 15.0;

/// Whether samples of a batch change each other's outputs, as steps of one sequence do.
///
/// # Errors
/// Data when the model can't take one alone; whatever running or reading can raise.
pub fn mixes(graph: &Graph, backend: &Backend, samples: &Samples) -> Result<bool> {
    let [first, second, ..] = samples.indices[..] else { return Ok(false) };
    let session = session(graph, backend)?;
    let run =
        |indices: &[usize]| session.run(&samples.set.batch(indices)?.inputs).map_err(|e| samples.unfit_if_given(e));
    // Of a sequence the first step may not know of the second.
    let (both, alone) = (run(&[first, second])?, run(&[second])?);
    let differs = |(both, alone): (&Tensor, &Tensor)| {
        let ([2, a @ ..], [1, b @ ..]) = (both.shape(), alone.shape()) else { return false };
        let (Some(x), Some(y)) = (both.as_f32(), alone.as_f32()) else { return false };
        let mut sqnr = Sqnr::default();
        sqnr.add(&y, x.get(y.len()..).unwrap_or_default());
        a == b && sqnr.db().is_some_and(|db| db < MIXED_DB)
    };
    Ok(both.iter().zip(&alone).any(differs))
}

/// A whole graph made ready to run.
///
/// # Errors
/// Malformed or unsupported, naming the node.
pub fn session(graph: &Graph, backend: &Backend) -> Result<Session> {
    Session::new(&verify(graph)?, backend, &[])
}
