//! Which samples a run calibrates on and which it measures on.

mod samples;

pub use samples::{Samples, unsuited};

use crate::{
    evaluator::classes, events::Monitor, facts, given::DataSource, measure, options::DataOptions, sizes,
    values::InputShape,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx,
    op::Op,
    ops::source::fed,
    pass::{Context, Pass},
    tensor::{DType, Tensor},
    value::Dim,
    words::option::{DATA, EPOCHS, EVAL, VALIDATION_SAMPLES},
};
use compress_passes::clean::Clean;
use compress_runtime::{
    burn::BurnInterpreter,
    dataset::{Dataset, Encoder, InputSpec, hold_out, sample},
    session::Backend,
    train::matched::{MatchOptions, Matcher},
};
use samples::{batch_size, is_guesswork};
use std::{collections::HashSet, path::Path, sync::Arc};

/// Samples made up when there is no data.
const SYNTHETIC: usize = 64;
/// Made-up pictures of an epoch, forward multiply-accumulates of one beyond which there are fewer, and pictures that choose the
/// best epoch.
const MOST_LEARNT: usize = 4096;
const LEARNT_MACS: u64 = 2_000_000_000_000;
const LEAST_LEARNT: usize = 512;
const JUDGED: usize = 128;
/// Samples that are matched to statistics, of which one in so many is measured on; and the steps of that. Of large
/// models fewer: what a step keeps of activations and what all of them compute have bounds.
const MATCHED: usize = 128;
const MEASURED: usize = 4;
const FEWEST_MATCHED: usize = 8;
const STEPS: usize = 200;
const USUAL_STEPS: usize = 100;
const FEWEST_STEPS: usize = 50;
const MATCHING_BYTES: usize = 2 << 30;
const MATCHING_MACS: f64 = 2e11;
/// One in so many samples validates, up to so many. A few there should be, but no more than one in five.
const VALIDATED: usize = 20;
const MOST_VALIDATED: usize = 5000;
const FEW: usize = 64;
const FIFTH: usize = 5;
/// What a run calibrates on and what it measures on: never the same samples, unless made up.
pub struct Sets {
    pub calibration: Samples,
    pub evaluation: Samples,
    /// What is trained on: the calibration's set, or made-up pictures.
    pub trained_on: Arc<Dataset>,
    /// The samples of it that may be trained on.
    pub training: Vec<usize>,
    /// Samples of it that choose between what training makes: they are neither trained on, nor evaluated on, which would
    /// flatter the choice.
    pub validation: Samples,
    /// How near made-up samples came to the statistics of the model, if they were matched to those.
    pub matched: Option<[f64; 2]>,
    /// Made-up inputs and their sizes.
    pub sizes: String,
    /// Whether samples would change each other's outputs in a batch, so that they are run one by one.
    pub mixed: bool,
}

impl Sets {
    /// Opens the data for a model with `graph`'s inputs; `count` samples are for calibration. Where there is none, inputs of
    /// sizes that the model takes are made up: the first of several guesses that run on `backend`. `singly` says that it is
    /// measured on one sample at a time.
    ///
    /// # Errors
    /// Data or file when a set can't be used; what running raised for the first guess, if all fail.
    pub fn open_running(
        plan: &DataOptions,
        shapes: &[InputShape],
        graph: &Graph,
        count: usize,
        seed: u64,
        (singly, backend): (bool, &Backend),
    ) -> Result<Self> {
        let specs = specs(graph)?;
        let of = |specs| {
            let mut sets = Self::of(plan, graph, specs, count, seed)?;
            if singly && !sets.evaluation.fixed {
                sets.evaluation.batch = 1;
            }
            Ok(sets)
        };
        if plan.any() {
            let sets = of(specs)?;
            if sets.evaluation.batch == 1 || sets.evaluation.fixed {
                return Ok(sets);
            }
            // A batch takes a branch, and ends a loop, as a whole.
            let decides = |g: &&Graph| g.operators().any(|n| matches!(g.op(n), Op::If(_) | Op::Loop(_)));
            if graph.and_bodies().iter().any(decides) {
                return Ok(sets.one_by_one());
            }
            // Some models that leave the batch open take only one sample at a time all the same.
            if measure::probe(graph, backend, &sets.evaluation).is_err() {
                return Ok(sets.one_by_one());
            }
            let mixed = measure::mixes(graph, backend, &sets.evaluation)?;
            return Ok(if mixed { Self { mixed, ..sets.one_by_one() } } else { sets });
        }
        let mut first = None;
        let guesses = sizes::guesses(graph, specs, shapes)?;
        let only = guesses.len() == 1;
        for specs in guesses {
            let sets = of(specs);
            if only {
                return sets;
            }
            let tried = sets.and_then(|sets| measure::probe(graph, backend, &sets.evaluation).map(|_| sets));
            match tried {
                Err(e) if matches!(e.kind(), Kind::Malformed | Kind::Data | Kind::Unsupported) => {
                    first.get_or_insert(e);
                }
                done => return done,
            }
        }
        Err(first.unwrap_or_else(|| Error::bug("no sizes were tried")))
    }

    /// Opens the data for a model with `graph`'s inputs that can't be run as a whole; `count` samples are for calibration.
    /// Made-up inputs have the first sizes that suit the graph.
    ///
    /// # Errors
    /// Data or file when a set can't be used.
    pub fn open(plan: &DataOptions, shapes: &[InputShape], graph: &Graph, count: usize, seed: u64) -> Result<Self> {
        let specs = match plan.any() {
            true => specs(graph)?,
            false => {
                let guesses = sizes::guesses(graph, specs(graph)?, shapes)?;
                guesses.into_iter().next().ok_or_else(|| Error::bug("no sizes to try"))?
            }
        };
        Self::of(plan, graph, specs, count, seed)
    }

    fn of(plan: &DataOptions, graph: &Graph, specs: Vec<InputSpec>, count: usize, seed: u64) -> Result<Self> {
        let reading = plan.reading();
        let encoder = plan.encoder.as_ref().map(|path| opened_encoder(path, &specs)).transpose()?;
        let open = |source: &DataSource| match &encoder {
            Some(encoder) => Ok(Arc::new(encoder.encoded(source.open(encoder.data(), &reading)?, &specs))),
            None => source.open(&specs, &reading).map(Arc::new),
        };
        let data = plan.data.as_ref().map(open).transpose()?;
        let eval = plan.eval.as_ref().map(open).transpose()?;
        let all = |set: &Dataset| (0..set.len()).collect::<Vec<_>>();
        let synthetic = data.is_none();
        let source = match data {
            Some(set) => set,
            None => Arc::new(Dataset::synthetic(&sized_as(&specs, eval.as_deref())?, SYNTHETIC, seed)?),
        };
        let (training, held) = match &eval {
            _ if synthetic => (all(&source), all(&source)),
            Some(_) => (all(&source), vec![]),
            None => split(&source, seed)?,
        };
        let calibrate = if synthetic { training.clone() } else { sample(&training, count, seed) };
        let some = (training.len() / VALIDATED).max(FEW.min(training.len() / FIFTH)).min(MOST_VALIDATED);
        // Too few to tell anything, or to fill a batch.
        let validation = if some < source.fixed_batch().unwrap_or(1).max(1) {
            training.clone()
        } else {
            sample(&training, some, !seed)
        };
        let mut chosen = vec![false; source.len()];
        validation.iter().for_each(|i| chosen[*i] = validation.len() < training.len());
        let training = training.into_iter().filter(|i| !chosen[*i]).collect();
        let samples = |set, indices, synthetic| Samples::of(graph, set, indices, synthetic);
        Ok(Self {
            trained_on: source.clone(),
            calibration: samples(source.clone(), calibrate, synthetic)?,
            validation: samples(source.clone(), validation, synthetic)?,
            evaluation: match eval {
                Some(set) => {
                    let indices = all(&set);
                    samples(set, indices, false)?
                }
                None => samples(source, held, synthetic)?,
            },
            training,
            matched: None,
            sizes: described(&specs),
            mixed: false,
        })
    }

    /// Calibrates on samples that do not validate, which then judge what is chosen on the others.
    pub fn keep_apart(&mut self, seed: u64) {
        if !self.calibration.synthetic {
            self.calibration.indices = sample(&self.training, self.calibration.indices.len(), seed);
        }
    }

    /// How many samples may be calibrated, trained, or chosen on.
    pub fn to_choose_on(&self) -> usize {
        let apart = !self.training.iter().any(|i| self.validation.indices.contains(i));
        self.training.len() + if apart { self.validation.indices.len() } else { 0 }
    }

    /// The same, where the samples that choose are measured on.
    pub fn for_choosing(self) -> Self {
        let evaluation = self.validation.first(self.validation.indices.len());
        Self { evaluation, ..self }
    }

    /// Validates on `count` samples of those that validate or are trained on, and trains on the others.
    ///
    /// # Errors
    /// Data when none would be left.
    pub fn validate_on(&mut self, count: usize, seed: u64) -> Result<()> {
        let mut all: Vec<usize> = self.training.iter().chain(&self.validation.indices).copied().collect();
        all.sort_unstable();
        all.dedup();
        let (n, batch) = (all.len(), if self.validation.fixed { self.validation.batch } else { 1 });
        if count < batch {
            let what =
                format!("the model takes {batch} samples at once, and {VALIDATION_SAMPLES} {count} fills no batch");
            return Err(Error::data(what).help(format!("give {batch} or more")));
        }
        if n.saturating_sub(count) < batch {
            let left = n.saturating_sub(count);
            let fewer = if batch > 1 { format!(", and the model takes {batch} at once") } else { String::new() };
            let what = format!(
                "{VALIDATION_SAMPLES} {count} leaves {left} of the {n} samples to calibrate or train on{fewer}"
            );
            return Err(Error::data(what).help(format!("give more {DATA}, or a lower number")));
        }
        self.validation.indices = sample(&all, count, !seed);
        let kept: HashSet<usize> = self.validation.indices.iter().copied().collect();
        self.training = all.into_iter().filter(|i| !kept.contains(i)).collect();
        Ok(())
    }

    /// Calibrates on `count` samples, or fewer.
    pub fn calibrate_on(&mut self, count: usize, seed: u64) {
        if count < self.calibration.indices.len() {
            self.calibration.indices = sample(&self.calibration.indices, count, seed);
        }
    }

    /// Whether it is noise that layers are calibrated on.
    pub fn is_noise(&self) -> bool {
        let set = &self.calibration;
        set.synthetic && self.matched.is_none() && !set.set.has_made_up_pictures()
    }

    /// The same samples, one a batch.
    fn one_by_one(mut self) -> Self {
        for samples in [&mut self.calibration, &mut self.validation, &mut self.evaluation] {
            samples.batch = 1;
        }
        self
    }

    /// Matches made-up samples to the statistics that the BatchNormalizations of `graph` have, where it has any and can
    /// be followed backwards; says why not, if it can't.
    ///
    /// # Errors
    /// Interrupted; limit; device.
    pub fn match_statistics(
        &mut self,
        graph: &Graph,
        seed: u64,
        backend: &Backend,
        monitor: &Monitor,
    ) -> Result<Option<String>> {
        match self.matching(graph, seed, backend, monitor) {
            Ok(()) => Ok(None),
            Err(e) if matches!(e.kind(), Kind::Unsupported | Kind::Data | Kind::Malformed) => Ok(Some(e.to_string())),
            Err(e) => Err(e),
        }
    }

    /// Has `graph` learn from made-up pictures: as many as some minutes allow.
    ///
    /// # Errors
    /// Usage when none of its inputs is a picture.
    pub fn learn_from_pictures(&mut self, graph: &Graph, seed: u64) -> Result<()> {
        let sized = self.calibration.set.batch(&[0]).and_then(|b| measure::sized(graph, &b.inputs))?;
        let macs: u64 = sized.operators().map(|n| sized.macs(n)).sum();
        let learnt = ((LEARNT_MACS / macs.max(1)) as usize).clamp(LEAST_LEARNT, MOST_LEARNT);
        // Others than those that are calibrated on.
        let set = Arc::new(Dataset::synthetic(self.calibration.set.inputs(), learnt + JUDGED, !seed)?);
        if !set.has_made_up_pictures() {
            return Err(no_pictures());
        }
        let batch = batch_size(graph, &set);
        let indices = (learnt..learnt + JUDGED).collect();
        self.validation =
            Samples { set: set.clone(), indices, synthetic: true, batch, fixed: set.fixed_batch().is_some() };
        (self.trained_on, self.training) = (set, (0..learnt).collect());
        Ok(())
    }

    fn matching(&mut self, graph: &Graph, seed: u64, backend: &Backend, monitor: &Monitor) -> Result<()> {
        // Weights that are nearly zero make each of many steps slow.
        let mut clean = graph.clone();
        Clean.run(&mut clean, &Context::new(&BurnInterpreter::cpu()))?;
        let graph = &clean;
        let Some(matcher) = Matcher::new(graph, &backend.device)?.filter(|_| !is_guesswork(graph)) else {
            return Ok(());
        };
        let fixed = self.calibration.set.fixed_batch();
        let (samples, steps) = matching_size(graph, fixed.unwrap_or(1));
        let noise = Dataset::noise(self.calibration.set.inputs(), samples, seed)?;
        let progress = monitor.step("make inputs", steps);
        let classes = classes(graph).and_then(|k| usize::try_from(k).ok());
        let options = MatchOptions { steps, classes, seed };
        let mut distance = None;
        let made = noise.changed(fixed.unwrap_or(samples), |batches| {
            let made = matcher.run(batches, &options, &mut || {
                progress.advance(1);
                monitor.check()
            })?;
            distance = Some(made.distance);
            Ok(made.batches)
        })?;
        let Some(set) = made.map(Arc::new) else { return Ok(()) };
        let batches = samples / fixed.unwrap_or(1);
        let measured = batches / MEASURED * fixed.unwrap_or(1);
        let (calibrate, measure): (Vec<_>, Vec<_>) = (0..samples).partition(|i| *i < samples - measured);
        let batch = batch_size(graph, &set);
        let of = |indices| Samples { set: set.clone(), indices, synthetic: true, batch, fixed: fixed.is_some() };
        if self.evaluation.synthetic {
            self.evaluation = of(if measure.is_empty() { calibrate.clone() } else { measure });
        }
        (self.trained_on, self.training) = (set.clone(), calibrate.clone());
        self.validation = of(calibrate.clone());
        self.calibration = of(calibrate);
        self.matched = distance;
        Ok(())
    }
}

/// Why a model can't learn from made-up pictures.
pub fn no_pictures() -> Error {
    Error::usage(format!(
        "training without {DATA} uses made-up pictures (1 or 3 channels, at least 16x16), but the model has no input of that kind"
    ))
    .help(format!("give {DATA}, or leave {EPOCHS} out"))
}

/// How many samples are matched, whole batches of `batch`, in how many steps. It follows from the model alone, so that
/// the samples do too.
fn matching_size(g: &Graph, batch: usize) -> (usize, usize) {
    let elements = |dims: &[Dim]| dims.iter().skip(1).map(|d| d.known().unwrap_or(1).max(1) as f64).product::<f64>();
    let kept: f64 = g.operators().flat_map(|n| &g.node(n).outputs).filter_map(|v| v.fact.dims()).map(elements).sum();
    let macs: u64 = g.operators().map(|n| g.macs(n)).sum();
    // A step goes forward and, by the inputs alone, back.
    let affordable = MATCHING_MACS / (2.0 * (macs as f64).max(1.0));
    let fit = f64::min(MATCHING_BYTES as f64 / (4.0 * kept).max(1.0), affordable / USUAL_STEPS as f64);
    let samples = (fit as usize).clamp(FEWEST_MATCHED, MATCHED).next_multiple_of(batch.max(1));
    (samples, ((affordable / samples as f64) as usize).clamp(FEWEST_STEPS, STEPS))
}

/// The samples of a set without a fifth of them, and that fifth.
fn split(set: &Dataset, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
    let (rest, held) = hold_out(set.len(), seed);
    if held.is_empty() || rest.is_empty() {
        return Err(Error::data(format!("{}: the set is too small to hold out a fifth of it", set.describe()))
            .help(format!("give more {DATA}, or labelled {EVAL} as well")));
    }
    Ok((rest, held))
}

/// The encoder in the file at `path`, for a decoder with these inputs.
fn opened_encoder(path: &Path, decoder: &[InputSpec]) -> Result<Arc<Encoder>> {
    let model = onnx::read(path)?;
    Encoder::new(path, &model.graph, &facts::file(path, &model).sha256, decoder).map(Arc::new)
}

/// What the model wants of its inputs. Those with a default need no data.
fn specs(g: &Graph) -> Result<Vec<InputSpec>> {
    let mut specs = vec![];
    for n in fed(g) {
        let value = g.value(n.into());
        let unknown = || Error::unsupported(format!("input `{}` has no declared type and rank", value.name));
        let shape = value.fact.dims().ok_or_else(unknown)?;
        let dtype = value.fact.dtype.unwrap_or(DType::F32);
        let spec = InputSpec::new(&value.name, dtype, shape.to_vec());
        specs.push(InputSpec { whole: sizes::whole(g, n), ..spec });
    }
    Ok(specs)
}

/// The inputs with the sizes that they have in `set`, where the model leaves them open.
fn sized_as(specs: &[InputSpec], set: Option<&Dataset>) -> Result<Vec<InputSpec>> {
    let Some(set) = set else { return Ok(specs.to_vec()) };
    let sample = set.batch(&[0])?.inputs;
    let of = |(spec, tensor): (&InputSpec, &Tensor)| {
        let mut spec = spec.clone();
        let behind = spec.shape.iter_mut().zip(tensor.shape()).skip(1);
        behind.filter(|(d, _)| d.known().is_none()).for_each(|(d, n)| *d = Dim::from(*n));
        spec
    };
    Ok(specs.iter().zip(&sample).map(of).collect())
}

/// The inputs and their sizes, `N` for samples: `image Nx3x224x224`.
fn described(specs: &[InputSpec]) -> String {
    let size = |d: &Dim| d.known().map_or("N".into(), |n| n.to_string());
    let shape = |s: &InputSpec| s.shape.iter().map(size).collect::<Vec<_>>().join("x");
    specs.iter().map(|s| format!("{} {}", s.name, shape(s))).collect::<Vec<_>>().join(", ")
}
