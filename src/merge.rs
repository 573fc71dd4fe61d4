//! Parts of a job that several machines shared, put together.

use crate::{
    Recipe, Search, SearchReport, Sensitivity, SensitivityReport, Shard, Sweep,
    events::Events,
    facts::sha256,
    files,
    given::GIVEN,
    report::{SweepPoint, SweepReport},
    sensitivity::PartFile,
    sweep::Fractions,
};
use clap::Args;
use compress_compiler::{
    error::{Error, Kind, Result},
    words::{option, written},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// Makes the result of a job of which several machines did the parts (`--shard`): the report and the plot of a sweep, the model that a
/// search takes, or the figures of a sensitivity job.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Merge {
    /// The report of each part; of a part of a search, its folder.
    #[arg(required = true, value_name = "PART")]
    pub parts: Vec<PathBuf>,
    /// Overwrite what exists.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

/// What parts make together.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Merged {
    /// A sweep.
    Sweep(Box<SweepReport>),
    /// A search.
    Search(Box<SearchReport>),
    /// What layers mind.
    Sensitivity(Box<SensitivityReport>),
}

impl Merge {
    /// Puts the parts together. What is made goes where the job without parts would have put it.
    ///
    /// # Errors
    /// File for parts that can't be read, and for what can't be written or is there already; usage for parts that are not of one job, and
    /// for one that is missing; for a search also what its end can raise.
    pub fn run(&self, events: &mut dyn Events) -> Result<Merged> {
        let parts = self.parts.iter().map(|path| Part::read(path)).collect::<Result<Vec<_>>>()?;
        let first = parts.first().ok_or_else(|| Error::usage("there is nothing to merge"))?;
        for part in &parts {
            if let Some(differs) = part.differs_from(first)? {
                let what =
                    format!("is not a part of the same job as {}: they differ in {differs}", first.report.display());
                return Err(Error::usage(what).in_file(&part.report));
            }
        }
        for shard in Shard::all(first.shard.of) {
            match &parts.iter().filter(|part| part.shard == shard).collect::<Vec<_>>()[..] {
                [_] => {}
                [] => {
                    let given = parts.iter().map(|part| part.shard.to_string()).collect::<Vec<_>>().join(", ");
                    let what = format!("part {shard} is missing: given are {given}");
                    return Err(Error::usage(what).help(format!("{} {shard} does it", option::SHARD)));
                }
                [_, again, ..] => {
                    return Err(Error::usage(format!("part {shard} is given twice")).in_file(&again.report));
                }
            }
        }
        match first.whole.clone() {
            Recipe::Sweep(mut sweep) => {
                sweep.compress.force = self.force;
                let reports = parts.iter().map(Part::swept).collect::<Result<Vec<_>>>()?;
                sweep.merged(reports).map(|report| Merged::Sweep(Box::new(report)))
            }
            Recipe::Search(search) => {
                let folder = |part: &Part| Ok((files::folder(&part.report).to_path_buf(), part.tried()?));
                let folders = parts.iter().map(folder).collect::<Result<Vec<_>>>()?;
                let search = Search { force: self.force, ..search };
                search.merged(&folders, events).map(|report| Merged::Search(Box::new(report)))
            }
            Recipe::Sensitivity(job) => {
                let read = |part: &Part| Ok((part.report.clone(), PartFile::read(&part.report)?));
                let found = parts.iter().map(read).collect::<Result<Vec<_>>>()?;
                let whole = Sensitivity { force: self.force, ..job };
                whole.run_with(&found, events).map(|report| Merged::Sensitivity(Box::new(report)))
            }
            _ => Err(Error::bug("a job without parts has one").in_file(&first.report)),
        }
    }

    /// The job without parts, as far as the first of them tells.
    pub(crate) fn whole(&self) -> Option<Recipe> {
        Part::read(self.parts.first()?).ok().map(|part| part.whole)
    }
}

const NOT_A_PART: &str = "is not the report of a part of a sweep, a search or a sensitivity job";

/// A part of a job that was done.
struct Part {
    report: PathBuf,
    shard: Shard,
    /// The job of which it is a part.
    whole: Recipe,
}

impl Part {
    fn read(path: &Path) -> Result<Self> {
        let report = if path.is_dir() { path.join(crate::search::REPORT) } else { path.to_path_buf() };
        if report != path && !report.exists() {
            return Err(Error::file("its part of the search is not done: it has no report").in_file(path));
        }
        let recipe = Recipe::read_as(&report, without_given).map_err(|e| match e.kind() {
            Kind::Usage => e.about(NOT_A_PART),
            _ => e,
        })?;
        let (shard, whole) = match recipe {
            Recipe::Sweep(job) => {
                let Fractions { sweep, shard } = job.fractions;
                (shard, Recipe::Sweep(Sweep { fractions: Fractions { sweep, shard: None }, ..job }))
            }
            Recipe::Search(job) => (job.shard, Recipe::Search(Search { shard: None, ..job })),
            Recipe::Sensitivity(job) => (job.shard, Recipe::Sensitivity(Sensitivity { shard: None, ..job })),
            other => (None, other),
        };
        let not = || Error::usage(NOT_A_PART).in_file(&report);
        let shard = shard.ok_or_else(|| not().help(format!("parts are done with {}", option::SHARD)))?;
        Ok(Self { report, shard, whole })
    }

    /// The first option in which its job differs from that of `other`, if one does. Parts of a search may end at other times.
    fn differs_from(&self, other: &Self) -> Result<Option<String>> {
        if self.shard.of != other.shard.of {
            return Ok(Some(option::SHARD.to_string()));
        }
        let shape = |whole: &Recipe| match whole {
            Recipe::Search(search) => {
                let Search { wish, max_drop, max_size, max_latency, min_speedup, .. } = search.clone();
                let limits = Search { wish, max_drop, max_size, max_latency, min_speedup, ..search.essence() };
                Recipe::Search(limits).table()
            }
            whole => whole.table(),
        };
        let (a, b) = (shape(&self.whole)?, shape(&other.whole)?);
        let differs = |name: &&String| a.get(*name) != b.get(*name);
        Ok(a.keys().chain(b.keys()).find(differs).map(|name| written(name)))
    }

    /// How many ways a part of a search tried.
    fn tried(&self) -> Result<usize> {
        #[derive(Deserialize)]
        struct Told {
            tried: usize,
        }
        let fail = |what: String| Error::file(what).in_file(&self.report);
        let text = fs::read_to_string(&self.report).map_err(|e| fail(format!("cannot be read: {e}")))?;
        let told: Told = serde_json::from_str(&text).map_err(|e| fail(format!("is not a whole report: {e}")))?;
        Ok(told.tried)
    }

    /// What a part of a sweep found, whose models are where it says.
    fn swept(&self) -> Result<SweepReport> {
        let fail = |what: String| Error::file(what).in_file(&self.report);
        let text = fs::read_to_string(&self.report).map_err(|e| fail(format!("cannot be read: {e}")))?;
        let report: SweepReport =
            serde_json::from_str(&text).map_err(|e| fail(format!("is not a whole report of this version: {e}")))?;
        report.sweep.iter().try_for_each(in_place)?;
        Ok(report)
    }
}

/// Who puts a sweep together needs no data: those of a program are not asked for.
fn without_given(recipe: &mut Table) {
    if recipe.get("job").and_then(Value::as_str) == Some("sweep") {
        recipe.retain(|_, value| value.as_str() != Some(GIVEN));
    }
}

/// # Errors
/// File where a model is not there, or is another.
fn in_place(point: &SweepPoint) -> Result<()> {
    let path = Path::new(&point.output.path);
    let help = format!("merge where the parts ran, or run its part again, with the same {}", option::OUTPUT);
    let fail = |what: String| Error::file(what).in_file(path).help(help.clone());
    let bytes = fs::read(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
    match sha256(&bytes) == point.output.sha256 {
        true => Ok(()),
        false => Err(fail("is not the model that the report of its part tells of".into())),
    }
}

impl Merged {
    /// What the job amounts to.
    ///
    /// # Errors
    /// Those of the job: gate where a limit is exceeded.
    pub fn verdict(&self) -> Result<()> {
        match self {
            Self::Sweep(report) => report.verdict(),
            Self::Search(report) => report.verdict(),
            Self::Sensitivity(_) => Ok(()),
        }
    }
}
