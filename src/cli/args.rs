//! The command line, as clap sees it: the recipes of the library, and how the command shows what they make.

use crate::{
    Answers, Bench, Check, Compress, Distill, Draft, Error, Explain, Fractions, Inspect, Merge, Recipe, Report, Result,
    Search, Sensitivity, Shard, files,
    formats::{self, Mlflow, Run},
    options::ReadOptions,
};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use compress_compiler::onnx::write_atomic;
use std::path::{Path, PathBuf};

/// A model compression compiler: ONNX in, a smaller and faster ONNX out, and a report of what that cost.
#[derive(Parser)]
#[command(
    version,
    after_help = passes_help(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "compress MODEL [-o OUT] [--int8] [--prune F] [--data PATH] ...\n       compress inspect|sensitivity|check|bench|explain MODEL ...\n       compress distill STUDENT [--teacher T] --data D ...\n       compress search MODEL --data D --time 1h ...\n       compress merge PART ...\n       compress draft MODEL --data TEXT ...\n       compress run RECIPE.toml\n       compress devices"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub compress: Option<Compress>,
    #[command(flatten)]
    pub fractions: Fractions,
    /// Don't run the models to measure accuracy and speed (--check none).
    #[arg(long, conflicts_with = "check")]
    pub no_check: bool,
    /// Compress nothing: run the graph before and after every pass, and name the change that alters its outputs.
    #[arg(long, conflicts_with_all = ["sweep", "save_recipe"])]
    pub bisect: bool,
    /// Print the plan of the job, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub formats: FormatArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

impl Cli {
    /// Whether the work may be divided among ranks: a recipe says so only when it is read.
    pub fn is_divided(&self) -> bool {
        match &self.command {
            Some(Command::Distill(a)) => !a.dry_run && !a.ablate_data,
            Some(Command::Run(a)) => !a.dry_run,
            _ => false,
        }
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Show what a model is made of: inputs, outputs, operators, layers.
    Inspect(InspectArgs),
    /// Show how much each layer minds INT8, zeros and the loss of channels.
    Sensitivity(Box<SensitivityArgs>),
    /// Compare a model with the original it came from, and gate on the result.
    Check(Box<CheckArgs>),
    /// Time a model on our runtime.
    Bench(BenchArgs),
    /// Say where the time of a model goes, on our runtime and on ONNX Runtime: kernel by kernel, and why in floats.
    Explain(ExplainArgs),
    /// Train a model: by a teacher, by labels, or both.
    Distill(Box<DistillArgs>),
    /// Find what a teacher answers to data, once for all jobs that learn from it.
    Answers(AnswersArgs),
    /// Make the fastest draft of a decoder, a small model that guesses its tokens (speculative decoding).
    Draft(Box<DraftArgs>),
    /// Search for the best ways to compress a model, and take the one that limits and wish ask for.
    Search(Box<SearchArgs>),
    /// Put the parts of a sweep, a search or figures of layers together, which several machines did (--shard).
    Merge(MergeArgs),
    /// Run a job as a recipe says, or as the report of an earlier run does.
    Run(RunArgs),
    /// List what models can run on here: the CPU, and GPUs.
    Devices {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Print a script that completes the command line in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual: a page for the command and for each subcommand, in place of older ones.
    Man {
        /// The folder of the pages.
        folder: PathBuf,
    },
}

/// What of a result is shown, and how.
#[derive(Args, Clone, Default)]
pub struct ShowArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,
    /// Save these flags as a recipe: a file for `compress run`.
    #[arg(long, value_name = "FILE")]
    pub save_recipe: Option<PathBuf>,
}

/// A server in which others read reports.
#[derive(Args, Clone, Default)]
pub struct ServerArgs {
    /// Log the figures as a run to this tracking server of MLflow too; MLFLOW_EXPERIMENT_NAME names the experiment.
    #[arg(long, value_name = "URL")]
    pub mlflow: Option<String>,
}

/// A page for people.
#[derive(Args, Clone, Default)]
pub struct PageArgs {
    /// Write the report as one HTML file too, for people, in place of an older file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Files and servers in which others read a report.
#[derive(Args, Clone, Default)]
pub struct FormatArgs {
    #[command(flatten)]
    pub page: PageArgs,
    /// Write the report as Markdown too, for a summary or a comment, in place of an older file.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write the gates as tests in JUnit's XML too, in place of an older file.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write the figures as OpenMetrics too, in place of an older file.
    #[arg(long, value_name = "FILE")]
    pub openmetrics: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
}

impl FormatArgs {
    /// The files that are asked for.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let all = [&self.page.html, &self.markdown, &self.junit, &self.openmetrics];
        all.into_iter().flatten().map(PathBuf::as_path)
    }

    /// Whether there are files that only jobs on one model have.
    fn of_one(&self) -> bool {
        self.markdown.is_some() || self.junit.is_some() || self.openmetrics.is_some()
    }

    /// Finds out before any work whether they can be written for a job, whose recipe was `read`, and whether the server is there.
    ///
    /// # Errors
    /// Usage for a job without such a report, and for a file of the job; file when one can't be written, or the server does not
    /// answer.
    pub fn check(&self, recipe: &Recipe, has_report: bool, read: Option<&Path>) -> Result<()> {
        let one = has_report && matches!(recipe, Recipe::Compress(_) | Recipe::Check(_) | Recipe::Draft(_));
        let trains = has_report && matches!(recipe, Recipe::Distill(_));
        if self.of_one() && !one {
            let what =
                "--markdown, --junit and --openmetrics are for jobs that make one report: compress, check and draft";
            return Err(Error::usage(what));
        }
        let has_page = one || trains || has_report && has_page(recipe);
        if self.page.html.is_some() && !has_page {
            return Err(Error::usage(NO_PAGE));
        }
        if self.server.mlflow.is_some() && !one && !trains {
            return Err(Error::usage("--mlflow is for jobs that make one report: compress, check, draft and distill"));
        }
        let files = recipe.files();
        for (i, path) in self.files().enumerate() {
            if self.files().take(i).any(|other| files::same(other, path)) {
                return Err(Error::usage("two reports would be written here").in_file(path));
            }
            if files.iter().map(PathBuf::as_path).chain(read).any(|file| files::same(file, path)) {
                return Err(Error::usage("it would replace a file of the job").in_file(path));
            }
            files::replaceable(path)?;
            files::placed(path, "--html, --markdown, --junit or --openmetrics")?;
        }
        self.server.mlflow.iter().try_for_each(|url| Mlflow::open(url).map(drop))
    }

    /// Logs a job, which `passed` or did not, to the server.
    ///
    /// # Errors
    /// File when the server does not take it.
    pub fn log(&self, run: impl Fn() -> Result<Run>, passed: bool) -> Result<()> {
        let log = |url: &String| Mlflow::open(url)?.log(&run()?, passed);
        let logged = self.server.mlflow.iter().try_for_each(log);
        logged.map_err(|e| e.about("the job is done, but its run is not logged"))
    }

    /// Writes the files that are asked for.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn write(&self, report: &Report) -> Result<()> {
        let all = [
            (&self.page.html, formats::html as fn(&Report) -> String),
            (&self.markdown, formats::markdown),
            (&self.junit, formats::junit),
            (&self.openmetrics, formats::openmetrics),
        ];
        all.into_iter().try_for_each(|(path, form)| match path {
            Some(path) => write_atomic(path, form(report).as_bytes(), true),
            None => Ok(()),
        })
    }
}

/// Whether it makes figures of several models, which have a page.
fn has_page(recipe: &Recipe) -> bool {
    match recipe {
        Recipe::Sweep(_) | Recipe::Search(_) => true,
        // What is wrong with its parts the job says.
        Recipe::Merge(merge) => !matches!(merge.whole(), Some(Recipe::Sensitivity(_))),
        _ => false,
    }
}

const NO_PAGE: &str = "--html is for jobs that make a report: compress, check, draft, sweep, search and distill";

impl PageArgs {
    /// Writes the page that `make` makes, if it is asked for.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn write(&self, make: impl FnOnce() -> String) -> Result<()> {
        self.html.as_ref().map_or(Ok(()), |path| write_atomic(path, make().as_bytes(), true))
    }
}

#[derive(Args)]
pub struct InspectArgs {
    #[command(flatten)]
    pub recipe: Inspect,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct SensitivityArgs {
    #[command(flatten)]
    pub recipe: Sensitivity,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
#[command(
    mut_arg("data", |arg| arg.help("Data to compare the models on, all of it; labels count if there are any")),
    mut_arg("eval", |arg| arg.help("The same as --data, which it replaces")),
    mut_arg("strict", |arg| arg.help("Fail (exit 9) when something that was asked for was not done")),
)]
pub struct CheckArgs {
    #[command(flatten)]
    pub recipe: Check,
    #[command(flatten)]
    pub formats: FormatArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

// It would have no effect: texts are continued one at a time.
#[derive(Args)]
#[command(mut_arg("batch", |arg| arg.hide(true)))]
pub struct DraftArgs {
    #[command(flatten)]
    pub recipe: Draft,
    #[command(flatten)]
    pub formats: FormatArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct AnswersArgs {
    #[command(flatten)]
    pub recipe: Answers,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct SearchArgs {
    #[command(flatten)]
    pub recipe: Search,
    #[command(flatten)]
    pub page: PageArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct MergeArgs {
    #[command(flatten)]
    pub recipe: Merge,
    #[command(flatten)]
    pub page: PageArgs,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub recipe: Bench,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub recipe: Explain,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct DistillArgs {
    #[command(flatten)]
    pub recipe: Distill,
    /// Print the plan of the job, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Train for ten seconds (or --time) by turns as asked and on one batch that stays where it is trained on: whether loading limits
    /// the speed. No model is written.
    #[arg(long, conflicts_with_all = ["dry_run", "resume", "force", "strict", "html", "mlflow"])]
    pub ablate_data: bool,
    /// Fail (exit 9) when no epoch is better than the model that the job began with.
    #[arg(long)]
    pub strict: bool,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub page: PageArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Args)]
pub struct RunArgs {
    /// The recipe, as --save-recipe writes it, or the report.json of an earlier run.
    pub recipe: PathBuf,
    /// Go on from the last checkpoint of a training job, if there is one.
    #[arg(long)]
    pub resume: bool,
    /// Overwrite what exists, checkpoints too.
    #[arg(long)]
    pub force: bool,
    /// Print the plan of the job, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Fail (exit 9) when something that was asked for was not done.
    #[arg(long)]
    pub strict: bool,
    /// Do a part of the job alone, e.g. 2/4, of a sweep, a search, figures of layers or answers of a teacher.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    #[command(flatten)]
    pub read: ReadOptions,
    #[command(flatten)]
    pub formats: FormatArgs,
    #[command(flatten)]
    pub show: ShowArgs,
}

fn passes_help() -> String {
    let mut text = String::from("Passes, in order:\n");
    for stage in compress_passes::STAGES {
        let by = stage.asked_by.iter().map(|option| format!("--{}", option.0)).collect::<Vec<_>>().join(", ");
        let by = if by.is_empty() { by } else { format!(" ({by})") };
        text += &format!("  {:<9} {}{by}\n", stage.name, stage.does);
    }
    text += "\nExit codes: 0 fine, 1 our bug, 2 usage, 3 malformed model, 4 a limit, 5 unsupported,\n\
             6 file access, 7 data, 8 device, 9 a gate failed (the model is still written), 130 interrupted.";
    text
}

#[cfg(test)]
mod tests;
