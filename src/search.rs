//! A search for the best ways to compress a model: what accuracy, speed and size can be had of it together.

mod ending;
mod estimate;
mod front;
mod journal;
mod propose;
mod report;
mod trial;
mod tried;
mod way;

pub(crate) use ending::REPORT;
pub use front::Objectives;
pub(crate) use report::lost;
pub use report::{Reached, SearchPoint, SearchReport};
pub use tried::Outcome;

use crate::{
    events::{Events, Monitor, watched},
    files,
    options::{DataOptions, DeviceOptions, ReadOptions, choices, within},
    shard::Shard,
    values::{Bytes, Count, Filter, Milliseconds, Positive, Share, Time, Whole},
};
use clap::Args;
use compress_compiler::{
    choice,
    error::{Error, Kind, Result},
    onnx::Staged,
    words::option,
};
use compress_passes::{sensitivity::LayerAlone, target::Target};
use compress_runtime::metrics::Wanted;
use estimate::{Estimator, Known};
use journal::{Begun, Journal};
use propose::{Proposal, Proposer};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use trial::{Lab, Watch};
use tried::Tried;
use way::{Care, Form, Way};

/// How the next way is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// By what is expected of it.
    #[default]
    Guided,
    /// By chance.
    Random,
}

choice!(Strategy, "strategy", [
    Guided "guided" "flags alone first, then what is expected to add most for its time",
    Random "random" "by chance, to compare with",
]);

/// Which of the ways within the limits is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// The fastest.
    #[default]
    Fastest,
    /// The smallest.
    Smallest,
    /// The one that loses least.
    Nearest,
}

choice!(Wish, "wish", [
    Fastest "fastest" "the one that takes the least time",
    Smallest "smallest" "the one with the smallest file",
    Nearest "nearest" "the one that loses least",
]);

/// Searches for the best ways to compress a model: forms of single layers, zeros, channels, calibration and training. The result is the
/// one that the limits and the wish ask for; the folder of the search has all that no other is better than.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Search {
    /// The ONNX model, in floats.
    pub model: PathBuf,
    /// Where the result goes [default: MODEL with .compressed.onnx].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where the ways that were tried go, with models and recipes of the best [default: OUT with .search].
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// How long to search, e.g. 10m, 1h; measuring the best on the evaluation set and making the result come on top [default: 10m].
    #[arg(long, value_name = "TIME")]
    pub time: Option<Time>,
    /// Search alone for a part of those that search at once, e.g. 2/4: each tries ways of its own. `compress merge` makes the result, once
    /// all parts are done.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// End after so many ways were tried.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub trials: Option<Count>,
    /// Epochs of training at most, 0 for no training: 1, 4, 16 and so on are tried up to N, and N [default: 16].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub epochs: Option<Whole<0, 1_000_000>>,
    /// How the next way is chosen.
    #[arg(long, value_name = "HOW", default_value_t, value_parser = choices::<Strategy>())]
    pub strategy: Strategy,
    /// Which of the ways within the limits becomes the result.
    #[arg(long, value_name = "WHICH", default_value_t, value_parser = choices::<Wish>())]
    pub wish: Wish,
    /// How much accuracy the result may lose, e.g. 0.5%; fail (exit 9) where it loses more on the evaluation set [default: 1%].
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub max_drop: Option<Share>,
    /// How large the result may be, e.g. 2MB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub max_size: Option<Bytes>,
    /// How long a run of the result may take, e.g. 5ms.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub max_latency: Option<Milliseconds>,
    /// How many times as fast the result has to be.
    #[arg(long, value_name = "RATIO", allow_hyphen_values = true)]
    pub min_speedup: Option<Positive>,
    /// The metric of accuracy, and perhaps the output that it is computed on [default: what suits the outputs].
    #[arg(long, value_name = "METRIC[:OUTPUT]")]
    pub metric: Option<Wanted>,
    /// Leave layers unchanged whose node or weight has a matching name; may be repeated.
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<Filter>,
    /// The runtime that has to run the result.
    #[arg(long, value_name = "RUNTIME", default_value_t, value_parser = choices::<Target>())]
    pub target: Target,
    /// Where data comes from.
    #[command(flatten)]
    #[serde(flatten)]
    pub data: DataOptions,
    /// Where models run.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
    /// Go on with the search in the folder, if there is one.
    #[arg(long)]
    #[serde(skip)]
    pub resume: bool,
    /// Overwrite what exists.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

/// Time to search where none was given.
const TIME: Duration = Duration::from_secs(600);

impl Search {
    /// Searches, measures the best on the evaluation set, and makes the result of the one that the limits and the wish ask for. What was
    /// tried stays in the folder, from try to try; a limit that the result exceeds is not an error: [`SearchReport::verdict`] has it.
    /// A part of a search ends with its folder: nothing is measured on the evaluation set.
    ///
    /// # Errors
    /// Usage for contradictions; file for what can't be written, or is there already; data for too few samples; whatever compressing
    /// the model as it is can raise; interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<SearchReport> {
        self.check()?;
        watched(events, |monitor| within(self.on.threads, true, || self.search(monitor)))
    }

    /// The result of a search of which others did the parts, in these folders, of so many ways each.
    ///
    /// # Errors
    /// As for [`Search::run`]; usage for parts of another search; file for a part that is not done, or can't be read.
    pub(crate) fn merged(&self, parts: &[(PathBuf, usize)], events: &mut dyn Events) -> Result<SearchReport> {
        self.check()?;
        watched(events, |monitor| {
            within(self.on.threads, true, || {
                let mut lab = Lab::new(self, monitor)?;
                let journal = Journal::gathered(self, parts, &lab)?;
                ending::end(self, &mut lab, &journal, monitor)
            })
        })
    }

    /// Where the result goes.
    pub fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.model.with_extension("compressed.onnx"))
    }

    /// Where the ways that were tried go.
    pub fn folder(&self) -> PathBuf {
        match (&self.folder, self.shard) {
            (Some(folder), Some(shard)) => shard.of_path(&folder.join("part"), "search"),
            (Some(folder), None) => folder.clone(),
            (None, Some(shard)) => shard.of_path(&self.output(), "search"),
            (None, None) => self.output().with_extension("search"),
        }
    }

    /// What of it shapes what is tried.
    pub(crate) fn essence(&self) -> Self {
        let Self { model, epochs, strategy, metric, exclude, target, data, on, read, .. } = self.clone();
        Self { model, epochs, strategy, metric, exclude, target, data, on, read, ..Self::default() }
    }

    fn check(&self) -> Result<()> {
        if self.data.data.is_none() {
            return Err(Error::usage(format!("a search needs {}", option::DATA)));
        }
        self.data.check()?;
        let output = self.output();
        if output.as_os_str() == "-" {
            return Err(Error::usage(format!("{} -: a search writes a folder beside its result", option::OUTPUT)));
        }
        if files::same(&self.model, &output) {
            let help = format!("give another name with {}", option::OUTPUT);
            return Err(Error::usage("the output would replace the input").in_file(&output).help(help));
        }
        for path in [&output, &output.with_extension("report.json")].into_iter().filter(|_| self.shard.is_none()) {
            files::free(path, self.force || self.resume, &option::OUTPUT.to_string())?;
        }
        files::placed(&output, &option::OUTPUT.to_string())
    }

    fn search(&self, monitor: &Monitor) -> Result<SearchReport> {
        let mut lab = Lab::new(self, monitor)?;
        let mut journal = Journal::open(self, &lab)?;
        let before = journal.tried().len();
        let clock = Clock::new(self.time.map_or(TIME, Time::get), journal.spent());
        let begun = match journal.begun() {
            Some(begun) => begun.clone(),
            None => self.begin(&mut lab, &mut journal, &clock, monitor)?,
        };
        let (bytes, of_share) = (lab.bytes as f64, lab.of_share);
        let Begun { table, times, seconds, .. } = &begun;
        let known = Known { table, times, seconds: *seconds, bytes, of_share, before };
        let mut proposer = Proposer::new(self, &known, lab.worst());
        let plain = proposer.plain();
        let progress = monitor.step("search", clock.all.as_secs() as usize);
        let mut seconds = 0;
        while !clock.left().is_zero() && self.trials.is_none_or(|n| journal.tried().len() < n.get()) {
            monitor.check()?;
            let now = clock.spent().as_secs() as usize;
            progress.advance(now.saturating_sub(seconds));
            seconds = now;
            let estimator = Estimator::new(&known, journal.tried());
            let untried = |way: &&Way| !journal.tried().iter().any(|t| t.way == **way);
            let left = clock.left().as_secs_f64();
            let share = |way: &Way| if way.is_int8() { INT8_SHARE } else { PLAIN_SHARE };
            let affordable = |way: &Way| left.min(share(way) * clock.all.as_secs_f64());
            let is_cheap = |way: &&Way| way.care == Care::Quick || estimator.seconds(way) <= affordable(way);
            let next = plain.iter().filter(untried).find(is_cheap).map(|way| Proposal::from(way.clone()));
            let Some(Proposal { way, promised, curious }) =
                next.or_else(|| proposer.next(journal.tried(), &journal.standings(), left))
            else {
                monitor.note("no other way was found that fits the time");
                break;
            };
            let (number, is_plain) = (journal.tried().len() + 1, plain.contains(&way));
            let noise = |tried: &Tried| tried.outcome.as_ref().map_or(0.0, |o| o.noise);
            let front = journal.standings().front();
            let front: Vec<_> = front.into_iter().map(|(tried, reached)| (reached, noise(tried))).collect();
            let (place, until) = (journal.model(number), (&clock, clock.ends()));
            let attempted = self.attempt(&mut lab, (way, &begun.table), (&place, &front), until, monitor);
            if !matches!(attempted, Ok(Some(_))) {
                journal.spend(clock.spent())?;
            }
            let Some((tried, staged)) = attempted? else { break };
            let line = line(&tried, lab.of_share);
            let tried = Tried { number, plain: is_plain, promised, curious, ..tried };
            let is_best = journal.add(tried, made(staged), &begun.table)?;
            let best = if is_best { ", on the front" } else { "" };
            let reached = journal.tried().last().map_or(0.0, |t| 100.0 * t.reached);
            monitor.note(&format!("{number:>4} {line}{best} ({reached:.1}% reached)"));
        }
        drop(progress);
        match self.shard {
            Some(_) => ending::part(self, &lab, &journal),
            None => ending::end(self, &mut lab, &journal, monitor),
        }
    }

    /// Finds out what layers cost alone. Floats are tried at once, with which nothing is lost, and then INT8 by one rule, which shows
    /// the times of layers in codes.
    fn begin(&self, lab: &mut Lab, journal: &mut Journal, clock: &Clock, monitor: &Monitor) -> Result<Begun> {
        let start = Instant::now();
        let table = lab.layers(monitor)?;
        let seconds = start.elapsed().as_secs_f64();
        let floats = lab.layer_times(&table, None)?;
        let mut codes: Vec<f64> = floats.iter().map(|time| time * CODES).collect();
        let has_codes = table.iter().any(|layer| layer.int8.is_some());
        let ways = [Some(Form::Float), has_codes.then_some(Form::Int8)].into_iter().flatten().map(Way::plain);
        let mut done = vec![];
        for (i, way) in ways.enumerate().take(self.trials.map_or(usize::MAX, |n| n.get())) {
            let path = journal.model(i + 1);
            // Floats have the time that they take: without any way there is no result.
            let ends = clock.ends().filter(|_| i > 0);
            done.extend(self.attempt(lab, (way, &table), (&path, &[]), (clock, ends), monitor)?);
        }
        if let Some((_, Some(staged))) = done.get(1) {
            let measured = lab.layer_times(&table, Some(&staged.read_back()?))?;
            codes.iter_mut().zip(measured).filter(|(_, time)| *time > 0.0).for_each(|(own, time)| *own = time);
        }
        let times = floats.into_iter().zip(codes).map(|(float, codes)| [float, codes]).collect();
        let begun = journal.begin(table, times, seconds)?;
        for (tried, staged) in done {
            let number = journal.tried().len() + 1;
            let line = line(&tried, lab.of_share);
            journal.add(Tried { number, plain: true, ..tried }, made(staged), &begun.table)?;
            monitor.note(&format!("{number:>4} {line}"));
        }
        Ok(begun)
    }

    /// Tries a way: what came of it, and the file that it made. Nothing where the time was over first.
    fn attempt(
        &self,
        lab: &mut Lab,
        (way, table): (Way, &[LayerAlone]),
        (path, front): (&Path, &[(Objectives, f64)]),
        (clock, ends): (&Clock, Option<Instant>),
        monitor: &Monitor,
    ) -> Result<Option<(Tried, Option<Staged>)>> {
        let watch = Watch::new(*monitor, ends);
        let start = Instant::now();
        let made = lab.try_out((&way, table), path, front, &Monitor(&watch));
        let (at, seconds) = (clock.spent().as_secs_f64(), start.elapsed().as_secs_f64());
        let tried = Tried { way, at, seconds, ..Tried::default() };
        match made {
            Ok(made) => {
                let tried = Tried { outcome: Some(made.outcome), beginning: made.beginning, ..tried };
                Ok(Some((tried, Some(made.staged))))
            }
            Err(e) if e.kind() == Kind::Interrupted => {
                // What a search of INT8 had found so far; that it stays does no harm.
                let _ = std::fs::remove_file(path.with_extension("best-so-far.onnx"));
                monitor.check().map(|()| None)
            }
            // What the machine refuses it will refuse the next time too.
            Err(e) if matches!(e.kind(), Kind::Bug | Kind::File | Kind::Device) => Err(e),
            Err(e) => Ok(Some((Tried { failed: Some(e.to_string()), ..tried }, None))),
        }
    }
}

/// The time of a search, with what earlier runs of it took.
struct Clock {
    all: Duration,
    before: Duration,
    began: Instant,
}

impl Clock {
    fn new(all: Duration, before: Duration) -> Self {
        Self { all, before, began: Instant::now() }
    }

    fn spent(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    fn left(&self) -> Duration {
        self.all.saturating_sub(self.spent())
    }

    /// When it is over; never where no clock goes so far.
    fn ends(&self) -> Option<Instant> {
        self.began.checked_add(self.all.saturating_sub(self.before))
    }
}

/// What puts a model where it stays.
fn made(staged: Option<Staged>) -> Option<impl FnOnce(&Path) -> Result<()>> {
    staged.map(|staged| move |_: &Path| staged.commit(true))
}

/// A line about a way that was tried.
fn line(tried: &Tried, of_share: bool) -> String {
    let (says, at) = (tried.way.says(), tried.at as u64);
    let at = format!("{}:{:02}", at / 60, at % 60);
    match (&tried.outcome, &tried.failed) {
        (Some(o), _) => {
            let Objectives { lost, time, size } = o.objectives;
            let lost = report::lost(lost, of_share);
            let unfit = o.unusable.as_ref().map_or(String::new(), |why| format!(" (not fit for use: {why})"));
            format!("{at:>8} {says}: {lost}, {:.2}x, {size:.3} of the size{unfit}", 1.0 / time)
        }
        (None, why) => format!("{at:>8} {says}: {}", why.as_deref().unwrap_or("nothing came of it")),
    }
}

/// Flags alone that take longer than a quick try are tried first where one takes no larger part of the time. `--int8` may take more: a
/// search that ends with less than that flag finds has failed.
const PLAIN_SHARE: f64 = 0.1;
const INT8_SHARE: f64 = 0.5;

/// The part of the time of floats that a layer takes in codes, as long as it was not measured.
const CODES: f64 = 0.5;
