//! What a training job shows: a bar on a terminal, plain lines elsewhere, metrics.jsonl and TensorBoard events.

use crate::interrupt;
use compress_compiler::error::Result;
use compress_runtime::train::{
    job::{Progress, Watcher},
    log::{MetricsLog, Place},
    tensorboard::EventFile,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{
    io::IsTerminal,
    path::Path,
    time::{Duration, Instant},
};

/// Records of an epoch in the logs, its score aside.
const RECORDS: u64 = 20;
/// How often a plain line tells of a long epoch.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Follows a job.
pub struct Follower {
    bar: ProgressBar,
    plain: bool,
    quiet: bool,
    epochs: u64,
    batches: u64,
    /// The name of the score.
    metric: &'static str,
    last_score: Option<f64>,
    log: MetricsLog,
    events: EventFile,
    last_line: Instant,
    /// What the user should know, for the report.
    pub warnings: Vec<String>,
}

impl Follower {
    /// Logs go to `folder`; a job that goes on after `resumed` continues them.
    ///
    /// # Errors
    /// File when they can't be written.
    pub fn new(
        folder: &Path,
        resumed: Option<Place>,
        (epochs, batches): (u64, u64),
        metric: &'static str,
        quiet: bool,
    ) -> Result<Self> {
        let terminal = std::io::stderr().is_terminal();
        let bar = if quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new(epochs * batches) };
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent}% {msg} {eta} left") {
            bar.set_style(style);
        }
        Ok(Self {
            bar,
            plain: !quiet && !terminal,
            quiet,
            epochs,
            batches,
            metric,
            last_score: None,
            log: MetricsLog::open(&folder.join("metrics.jsonl"), resumed)?,
            events: EventFile::create(folder, resumed.map(|(step, ..)| step))?,
            last_line: Instant::now(),
            warnings: vec![],
        })
    }

    fn line(&self, p: &Progress) -> String {
        let score = self.last_score.map(|s| format!(" {} {}", self.metric, shown(self.metric, s))).unwrap_or_default();
        let epoch = (p.epoch + 1).min(self.epochs);
        format!("epoch {epoch}/{} loss {:.4}{score} {:.0} samples/s", self.epochs, p.loss, p.samples_per_second)
    }
}

/// A score for people.
pub fn shown(metric: &str, score: f64) -> String {
    match metric {
        // What a job gives models whose outputs are no numbers.
        _ if score == f64::MIN => "no number".into(),
        "sqnr" => format!("{score:.1} dB"),
        _ => format!("{:.2}%", score * 100.0),
    }
}

impl Watcher for Follower {
    fn batch(&mut self, p: &Progress) -> Result<()> {
        self.bar.set_position(p.epoch * self.batches + p.batch);
        self.bar.set_message(self.line(p));
        if self.plain && self.last_line.elapsed() >= LINE_EVERY {
            eprintln!("{} ({} of {} batches)", self.line(p), p.batch, self.batches);
            self.last_line = Instant::now();
        }
        if p.batch.is_multiple_of(self.batches.div_ceil(RECORDS).max(1)) {
            let mut record = json!({
                "step": p.step, "epoch": p.epoch, "batch": p.batch, "loss": p.loss, "rate": p.rate, "norm": p.norm,
                "samples_per_second": p.samples_per_second,
            });
            if let Some(scale) = p.scale {
                record["scale"] = json!(scale);
            }
            for (name, v) in &p.parts {
                record[format!("loss_{name}")] = json!(v);
                self.events.scalar(&format!("loss/{name}"), p.step, *v)?;
            }
            self.log.record(&record)?;
            self.events.scalar("loss/mean", p.step, p.loss as f32)?;
            self.events.scalar("rate", p.step, p.rate as f32)?;
        }
        Ok(())
    }

    fn scored(&mut self, p: &Progress, score: f64, best: f64) -> Result<()> {
        self.last_score = Some(score);
        let metric = self.metric;
        self.log
            .record(&json!({ "step": p.step, "epoch": p.epoch, "score": score, "best": best, "metric": metric }))?;
        self.events.scalar(&format!("score/{metric}"), p.step, score as f32)?;
        if p.step == 0 {
            if self.plain {
                eprintln!("before training: {metric} {}", shown(metric, score));
            }
            return Ok(());
        }
        // The score is that of the epoch before the one that begins.
        let done = Progress { epoch: p.epoch.saturating_sub(1), ..p.clone() };
        if self.plain {
            eprintln!("{}", self.line(&done));
        } else if !self.quiet {
            self.bar.println(self.line(&done));
        }
        self.last_line = Instant::now();
        Ok(())
    }

    fn warn(&mut self, what: &str) {
        if !self.quiet {
            self.bar.suspend(|| eprintln!("note: {what}"));
        }
        self.warnings.push(what.into());
    }

    fn saving(&mut self) -> Result<()> {
        self.log.sync()
    }

    fn stopped(&self) -> bool {
        interrupt::stopped()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
