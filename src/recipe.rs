//! Any job, in a file or in a report.

mod reading;

use crate::{
    Answers, Bench, Check, Compress, DataSource, Distill, Draft, Explain, Inspect, Merge, Scorer, Search, Sensitivity,
    Sweep, files,
};
use compress_compiler::{
    choice,
    error::{Error, Result},
    onnx,
    words::option,
};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A job, as recipes in TOML have it: the kind under `job`, and its options under the names that they have on the command
/// line. Paths are taken from the folder in which the command runs, as on the command line.
///
/// ```
/// # fn main() -> compress::Result<()> {
/// let recipe: compress::Recipe = "job = 'compress'\nmodel = 'model.onnx'\nprune = 0.5".parse()?;
/// let compress::Recipe::Compress(job) = recipe else { panic!() };
/// assert_eq!(job.prune.map(|f| f.get()), Some(0.5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Recipe {
    /// Compress a model.
    Compress(Compress),
    /// Compress a model several times.
    Sweep(Sweep),
    /// Compare two models.
    Check(Check),
    /// Time a model.
    Bench(Bench),
    /// Explain where the time of a model goes.
    Explain(Explain),
    /// Look at a model.
    Inspect(Inspect),
    /// Measure its layers.
    Sensitivity(Sensitivity),
    /// Train a model.
    Distill(Distill),
    /// Make a draft of a decoder.
    Draft(Draft),
    /// Search for the best ways to compress a model.
    Search(Search),
    /// Put the parts of a job together.
    Merge(Merge),
    /// Find the answers of a teacher.
    Answers(Answers),
}

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Compress,
    Sweep,
    Check,
    Bench,
    Explain,
    Inspect,
    Sensitivity,
    Distill,
    Draft,
    Search,
    Merge,
    Answers,
}

choice!(Job, "job", [
    Compress "compress" "compress a model",
    Sweep "sweep" "compress a model by several fractions",
    Check "check" "compare two models",
    Bench "bench" "time a model",
    Explain "explain" "explain where the time of a model goes",
    Inspect "inspect" "look at a model",
    Sensitivity "sensitivity" "measure the layers of a model",
    Distill "distill" "train a model",
    Draft "draft" "make a draft of a decoder",
    Search "search" "search for the best ways to compress a model",
    Merge "merge" "put the parts of a sweep, a search or a sensitivity job together",
    Answers "answers" "find the answers of a teacher",
]);

impl Recipe {
    /// Has the job take its data from `source`. A job that takes none is left alone.
    pub fn give_data(&mut self, source: DataSource) {
        match self {
            Self::Compress(job) | Self::Sweep(Sweep { compress: job, .. }) => job.data.data = Some(source),
            Self::Check(job) => job.data.data = Some(source),
            Self::Bench(job) => job.data = Some(source),
            Self::Explain(job) => job.data = Some(source),
            Self::Distill(job) => job.data = Some(source),
            Self::Sensitivity(job) => job.data = source,
            Self::Draft(job) => job.data = source,
            Self::Search(job) => job.data.data = Some(source),
            Self::Answers(job) => job.data = source,
            Self::Inspect(_) | Self::Merge(_) => {}
        }
    }

    /// Has the job measure on `source`.
    ///
    /// # Errors
    /// Usage for a job that has no such option.
    pub fn give_eval(&mut self, source: DataSource) -> Result<()> {
        *match self {
            Self::Compress(job) | Self::Sweep(Sweep { compress: job, .. }) => &mut job.data.eval,
            Self::Check(job) => &mut job.data.eval,
            Self::Distill(job) => &mut job.eval,
            Self::Draft(job) => &mut job.eval,
            Self::Search(job) => &mut job.data.eval,
            Self::Bench(_)
            | Self::Explain(_)
            | Self::Sensitivity(_)
            | Self::Inspect(_)
            | Self::Merge(_)
            | Self::Answers(_) => {
                return Err(Error::usage(format!("the job has no {}", option::EVAL)));
            }
        } = Some(source);
        Ok(())
    }

    /// Has models scored by `scorer`.
    ///
    /// # Errors
    /// Usage for a job that has no such option.
    pub fn give_scorer(&mut self, scorer: Scorer) -> Result<()> {
        *match self {
            Self::Compress(job) | Self::Sweep(Sweep { compress: job, .. }) => &mut job.measures.score,
            Self::Check(job) => &mut job.measures.score,
            Self::Distill(_)
            | Self::Draft(_)
            | Self::Search(_)
            | Self::Bench(_)
            | Self::Explain(_)
            | Self::Sensitivity(_)
            | Self::Inspect(_)
            | Self::Merge(_)
            | Self::Answers(_) => {
                return Err(Error::usage(format!("the job has no {}", option::SCORE)));
            }
        } = Some(scorer);
        Ok(())
    }

    /// What the recipe says, option by option; options that are not given are left out.
    ///
    /// # Errors
    /// Usage for paths that are not Unicode, which a recipe can't hold.
    pub fn table(&self) -> Result<Table> {
        let (job, table) = match self {
            Self::Compress(job) => (Job::Compress, Table::try_from(job)),
            Self::Sweep(job) => (Job::Sweep, Table::try_from(job)),
            Self::Check(job) => (Job::Check, Table::try_from(job)),
            Self::Bench(job) => (Job::Bench, Table::try_from(job)),
            Self::Explain(job) => (Job::Explain, Table::try_from(job)),
            Self::Inspect(job) => (Job::Inspect, Table::try_from(job)),
            Self::Sensitivity(job) => (Job::Sensitivity, Table::try_from(job)),
            Self::Distill(job) => (Job::Distill, Table::try_from(job)),
            Self::Draft(job) => (Job::Draft, Table::try_from(job)),
            Self::Search(job) => (Job::Search, Table::try_from(job)),
            Self::Merge(job) => (Job::Merge, Table::try_from(job)),
            Self::Answers(job) => (Job::Answers, Table::try_from(job)),
        };
        let mut table = table.map_err(|e| Error::usage(format!("the recipe can't be written: {e}")))?;
        table.retain(|_, v| *v != Value::Boolean(false) && v.as_array().is_none_or(|many| !many.is_empty()));
        table.insert("job".into(), job.name().into());
        Ok(table)
    }

    /// The same without options that have their default.
    ///
    /// # Errors
    /// As for [`Recipe::table`].
    pub(crate) fn asked(&self) -> Result<Table> {
        let (mut table, usual) = (self.table()?, self.usual().table()?);
        table.retain(|name, value| name == "job" || usual.get(name) != Some(value));
        Ok(table)
    }

    /// The recipe as a TOML file.
    ///
    /// # Errors
    /// Usage for paths that are not Unicode, which a recipe can't hold.
    pub fn text(&self) -> Result<String> {
        let table = self.asked()?;
        let text = toml::to_string(&table).map_err(|e| Error::bug(e.to_string()))?;
        Ok(format!("# Run it with: compress run THIS_FILE\n{text}"))
    }

    /// Writes the recipe as a TOML file, unless it would replace a file that the job reads or makes. What exists is replaced
    /// where the job may replace files.
    ///
    /// # Errors
    /// Usage when it would; file when the file exists, or can't be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let give = format!("give another {}", option::SAVE_RECIPE);
        if self.files().iter().any(|file| files::same(file, path)) {
            return Err(Error::usage("the recipe would replace a file of the job").in_file(path).help(give));
        }
        // The recipe of a job that can't begin would stand in the way of the next try.
        if !self.model().exists() {
            return Err(Error::file("no such file").in_file(self.model()));
        }
        if path.exists() && !self.force() {
            return Err(Error::file("exists already").in_file(path).help(give));
        }
        onnx::write_atomic(path, self.text()?.as_bytes(), true)
    }

    /// The model that the job begins with.
    pub fn model(&self) -> &Path {
        match self {
            Self::Compress(job) => &job.model,
            Self::Sweep(job) => &job.compress.model,
            Self::Check(job) => &job.model,
            Self::Bench(job) => &job.model,
            Self::Explain(job) => &job.model,
            Self::Inspect(job) => &job.model,
            Self::Sensitivity(job) => &job.model,
            Self::Distill(job) => &job.student,
            Self::Draft(job) => &job.model,
            Self::Search(job) => &job.model,
            Self::Answers(job) => &job.teacher,
            Self::Merge(job) => job.parts.first().map_or(Path::new(""), PathBuf::as_path),
        }
    }

    /// The files that the job reads, and those that it makes under names of its own.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let (made, other, data) = match self {
            Self::Compress(job) | Self::Sweep(Sweep { compress: job, .. }) => {
                (Some(job.output()), &job.teacher, [&job.data.data, &job.data.eval])
            }
            Self::Distill(job) => (Some(job.output()), &job.teacher, [&job.data, &job.eval]),
            Self::Search(job) => (Some(job.output()), &None, [&job.data.data, &job.data.eval]),
            Self::Check(job) => {
                (job.against.clone().or(job.drafts_for.clone()), &job.baseline, [&job.data.data, &job.data.eval])
            }
            Self::Bench(job) => (None, &None, [&job.data, &None]),
            Self::Explain(job) => (None, &job.against, [&job.data, &None]),
            Self::Inspect(_) => (None, &None, [&None, &None]),
            Self::Draft(job) => {
                let data = [Some(&job.data), job.eval.as_ref()].into_iter().flatten();
                let data = data.filter_map(|data| data.path().map(Path::to_path_buf));
                let output = job.output();
                let weights = onnx::weight_files(&job.model);
                return data
                    .chain(weights)
                    .chain([output.with_extension("report.json"), output, job.model.clone()])
                    .collect();
            }
            Self::Merge(job) => {
                let whole = job.whole().map_or(vec![], |whole| whole.files());
                return job.parts.iter().cloned().chain(whole).collect();
            }
            Self::Answers(job) => {
                let data = job.data.path().map(Path::to_path_buf);
                return data.into_iter().chain([job.file(), job.teacher.clone()]).collect();
            }
            Self::Sensitivity(job) => {
                let data = job.data.path().map(Path::to_path_buf);
                let weights = onnx::weight_files(&job.model);
                return data.into_iter().chain(weights).chain([job.output(), job.model.clone()]).collect();
            }
        };
        let folder = match self {
            Self::Compress(job) | Self::Sweep(Sweep { compress: job, .. }) => job.report.as_ref(),
            Self::Check(job) => job.report.as_ref(),
            _ => None,
        };
        let beside = made.as_ref().map(|made| made.with_extension("report.json"));
        let report = folder.map(|folder| folder.join("report.json")).or(beside);
        let trace = if let Self::Bench(job) = self { job.trace.clone() } else { None };
        // The weights of a model may be in files of their own.
        let models = [Some(self.model().to_path_buf()), other.clone(), made.clone().filter(|m| m.exists())];
        let weights: Vec<PathBuf> = models.into_iter().flatten().flat_map(|m| onnx::weight_files(&m)).collect();
        let data = data.into_iter().flatten().filter_map(|source| source.path().map(Path::to_path_buf));
        let swept = if let Self::Sweep(job) = self { job.outputs() } else { vec![] };
        let all = data.chain(other.clone()).chain(made).chain(report).chain(trace).chain(weights).chain(swept);
        all.chain([self.model().to_path_buf()]).collect()
    }

    /// Whether the job may replace files.
    fn force(&self) -> bool {
        match self {
            Self::Compress(job) => job.force,
            Self::Sweep(job) => job.compress.force,
            Self::Distill(job) => job.force,
            Self::Sensitivity(job) => job.force,
            Self::Draft(job) => job.force,
            Self::Search(job) => job.force,
            Self::Merge(job) => job.force,
            Self::Answers(job) => job.force,
            Self::Check(_) | Self::Bench(_) | Self::Explain(_) | Self::Inspect(_) => false,
        }
    }

    /// Lets the job replace files, where it makes any.
    pub fn set_force(&mut self, force: bool) {
        *match self {
            Self::Compress(job) => &mut job.force,
            Self::Sweep(job) => &mut job.compress.force,
            Self::Distill(job) => &mut job.force,
            Self::Sensitivity(job) => &mut job.force,
            Self::Draft(job) => &mut job.force,
            Self::Search(job) => &mut job.force,
            Self::Merge(job) => &mut job.force,
            Self::Answers(job) => &mut job.force,
            Self::Check(_) | Self::Bench(_) | Self::Explain(_) | Self::Inspect(_) => return,
        } = force;
    }

    /// Has a training job go on from its last checkpoint, and a search with what it tried.
    pub fn set_resume(&mut self, resume: bool) {
        match self {
            Self::Distill(job) => job.resume = resume,
            Self::Search(job) => job.resume = resume,
            _ => {}
        }
    }

    /// The seed of every random choice.
    pub fn seed(&self) -> u64 {
        match self {
            Self::Compress(job) => job.on.seed.0,
            Self::Sweep(job) => job.compress.on.seed.0,
            Self::Check(job) => job.on.seed.0,
            Self::Bench(job) => job.on.seed.0,
            Self::Explain(job) => job.on.seed.0,
            Self::Inspect(_) | Self::Merge(_) | Self::Answers(_) => 0,
            Self::Sensitivity(job) => job.on.seed.0,
            Self::Draft(job) => job.on.seed.0,
            Self::Search(job) => job.on.seed.0,
            Self::Distill(job) => job.seed.unwrap_or_default().0,
        }
    }

    /// Threads that it asks for.
    pub fn threads(&self) -> Option<usize> {
        let threads = match self {
            Self::Compress(job) => job.on.threads,
            Self::Sweep(job) => job.compress.on.threads,
            Self::Check(job) => job.on.threads,
            Self::Bench(job) => job.on.threads,
            Self::Explain(job) => job.on.threads,
            Self::Inspect(_) | Self::Merge(_) => None,
            Self::Answers(job) => job.threads,
            Self::Sensitivity(job) => job.on.threads,
            Self::Draft(job) => job.on.threads,
            Self::Search(job) => job.on.threads,
            Self::Distill(job) => job.threads,
        };
        threads.map(|n| n.get())
    }

    /// Whether its work has many short steps, as training has.
    pub fn takes_many_steps(&self) -> bool {
        match self {
            Self::Compress(job) => job.takes_many_steps(),
            Self::Sweep(job) => job.first().takes_many_steps(),
            Self::Distill(_) | Self::Draft(_) | Self::Search(_) => true,
            Self::Check(_)
            | Self::Bench(_)
            | Self::Explain(_)
            | Self::Inspect(_)
            | Self::Sensitivity(_)
            | Self::Merge(_)
            | Self::Answers(_) => false,
        }
    }

    /// What of the recipe shapes the result: neither where files are, nor how the result is measured, nor what has its
    /// default.
    ///
    /// # Errors
    /// Usage for paths that are not Unicode, which a recipe can't hold.
    pub fn essence(&self) -> Result<Table> {
        let essence = match self {
            Self::Compress(job) => Self::Compress(job.essence()),
            Self::Sweep(job) => Self::Sweep(job.essence()),
            Self::Distill(job) => Self::Distill(job.essence()),
            Self::Draft(job) => Self::Draft(job.essence()),
            Self::Search(job) => Self::Search(job.essence()),
            // They make nothing, or nothing of their own.
            Self::Check(_)
            | Self::Bench(_)
            | Self::Explain(_)
            | Self::Inspect(_)
            | Self::Sensitivity(_)
            | Self::Merge(_)
            | Self::Answers(_) => {
                return Ok(Table::new());
            }
        };
        let (mut essence, usual) = (essence.table()?, self.usual().table()?);
        essence.retain(|name, value| usual.get(name) != Some(value));
        Ok(essence)
    }

    /// A job of this kind for which nothing was asked.
    fn usual(&self) -> Self {
        match self {
            Self::Compress(_) => Self::Compress(Compress::default()),
            Self::Sweep(_) => Self::Sweep(Sweep::default()),
            Self::Check(_) => Self::Check(Check::default()),
            Self::Bench(_) => Self::Bench(Bench::default()),
            Self::Explain(_) => Self::Explain(Explain::default()),
            Self::Inspect(_) => Self::Inspect(Inspect::default()),
            Self::Sensitivity(_) => Self::Sensitivity(Sensitivity::default()),
            Self::Distill(_) => Self::Distill(Distill::default()),
            Self::Draft(_) => Self::Draft(Draft::default()),
            Self::Search(_) => Self::Search(Search::default()),
            Self::Merge(_) => Self::Merge(Merge::default()),
            Self::Answers(_) => Self::Answers(Answers::default()),
        }
    }
}
