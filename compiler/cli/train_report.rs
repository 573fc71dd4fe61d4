//! What a training job says at its end: the report beside the model, and its short form.

use crate::{args::JobArgs, facts, terminal, train_args::Recipe, train_plan::TrainPlan, train_progress::shown};
use compress_compiler::{
    error::{Error, Result},
    report::FileFacts,
};
use compress_runtime::train::job::{Ended, Spent};
use serde::Serialize;
use serde_json::Value;

/// What a job's report says.
#[derive(Serialize)]
pub struct TrainReport {
    pub schema: u32,
    /// The digest of all that the result follows from.
    pub job: String,
    pub input: FileFacts,
    pub teacher: Option<FileFacts>,
    pub output: FileFacts,
    pub training: Training,
    pub warnings: Vec<String>,
    /// What was asked for and not done.
    pub undone: Vec<String>,
    pub recipe: Recipe,
    pub data: String,
    pub version: &'static str,
}

/// What was trained, how well and how fast.
#[derive(Serialize)]
pub struct Training {
    pub metric: &'static str,
    /// Samples that the score is of.
    pub samples: usize,
    pub before: f64,
    pub after: f64,
    pub ended: Ended,
    pub steps: u64,
    pub parameters: usize,
    pub seconds: f64,
    pub samples_per_second: f64,
    pub spent: Spent,
    pub bound: String,
    pub batch: usize,
}

impl TrainReport {
    /// Shows it as asked for: as JSON, as a table, or not at all.
    ///
    /// # Errors
    /// File when it can't be printed; with --strict, gate for what was not done.
    pub fn show(&self, job: &JobArgs) -> Result<()> {
        if job.json {
            terminal::print(&terminal::json(self)?)?;
        } else if !job.quiet {
            terminal::print(&self.table())?;
        }
        self.undone.iter().for_each(|what| eprintln!("warning: {what}"));
        match self.undone.first() {
            Some(what) if job.strict => Err(Error::gate(what.clone())),
            _ => Ok(()),
        }
    }

    fn table(&self) -> String {
        let t = &self.training;
        let why = match t.ended {
            Ended::Finished => "all epochs done",
            Ended::Patience => "no better score for a while",
            Ended::Time => "the time was up",
            Ended::Stopped => "stopped",
        };
        let mut text = format!(
            "{} -> {}\n  {:<12} {} -> {} on {} samples held out\n  \
             {:<12} {} steps of {} samples, {:.1} s, {:.0} samples/s: {why}\n  {:<12} {}\n",
            self.input.path,
            self.output.path,
            t.metric,
            shown(t.metric, t.before),
            shown(t.metric, t.after),
            t.samples,
            "training",
            t.steps,
            t.batch,
            t.seconds,
            t.samples_per_second,
            "speed",
            t.bound,
        );
        self.warnings.iter().for_each(|w| text += &format!("  note: {w}\n"));
        text
    }
}

/// Says how the job of this digest ended, where it did: its model and the report are there. False when the model is not
/// there any more.
///
/// # Errors
/// File when another job left its model there.
pub fn show_finished(plan: &TrainPlan, digest: &str, job: &JobArgs) -> Result<bool> {
    let path = plan.report_path();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let report: Value = serde_json::from_str(&text).unwrap_or_default();
    let sha256 = std::fs::read(&plan.output).ok().map(|model| facts::sha256(&model));
    match sha256 {
        _ if job.force => Ok(false),
        Some(sha256) if report["job"] != digest || report["output"]["sha256"] != sha256 => {
            Err(Error::file("exists already, and is not what this job made")
                .in_file(&plan.output)
                .help("the recipe or a file changed: pass --force to begin anew, or give another place with -o"))
        }
        None if path.exists() && report["job"] != digest => Err(Error::file("is the report of another job")
            .in_file(&path)
            .help("pass --force to begin anew, or give another place with -o")),
        None => Ok(false),
        Some(_) => {
            let training = &report["training"];
            let score = |when: &str| {
                shown(training["metric"].as_str().unwrap_or_default(), training[when].as_f64().unwrap_or(f64::MIN))
            };
            if job.json {
                terminal::print(&text)?;
            } else if !job.quiet {
                terminal::print(&format!(
                    "{} is done already ({} -> {}); --force without --resume does it again\n",
                    plan.output.display(),
                    score("before"),
                    score("after"),
                ))?;
            }
            Ok(true)
        }
    }
}

/// What bounded the speed, and the share of each part of the time.
pub fn bound(s: &Spent) -> String {
    let share = |v: f64| 100.0 * v / (s.training() + s.scoring + s.saving).max(1e-9);
    let largest = [("computing", s.compute), ("running the teacher", s.teacher), ("waiting for data", s.data)]
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map_or("computing", |(name, _)| name);
    format!(
        "bound by {largest}: computing {:.0}%, teacher {:.0}%, waiting for data {:.0}%, scoring {:.0}%, checkpoints {:.0}%",
        share(s.compute),
        share(s.teacher),
        share(s.data),
        share(s.scoring),
        share(s.saving),
    )
}
