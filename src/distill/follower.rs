//! Follows a training job: metrics.jsonl, TensorBoard events, and what the job tells.

use crate::events::{Event, Monitor, TrainProgress};
use compress_compiler::error::Result;
use compress_runtime::{
    device::{Device, GpuLoad, Load, Watch},
    metrics::Metric,
    train::{
        job::{Progress, Watcher},
        log::{LogPosition, MetricsLog},
        tensorboard::EventFile,
    },
};
use serde_json::json;
use std::path::Path;

/// Records of an epoch in the logs, its score aside.
const RECORDS: u64 = 20;

/// Follows a job.
pub struct Follower<'a> {
    monitor: &'a Monitor<'a>,
    epochs: u64,
    batches: u64,
    metric: Metric,
    last_score: Option<f64>,
    log: MetricsLog,
    events: EventFile,
    /// The GPU that trains, where a driver says something of it.
    watch: Option<Watch>,
    /// What the user should know, for the report.
    pub warnings: Vec<String>,
}

impl<'a> Follower<'a> {
    /// Logs go to `folder`; a job that goes on after `resumed` continues them.
    ///
    /// # Errors
    /// File when they can't be written.
    pub fn new(
        folder: &Path,
        resumed: Option<LogPosition>,
        (epochs, batches): (u64, u64),
        metric: Metric,
        device: &Device,
        monitor: &'a Monitor<'a>,
    ) -> Result<Self> {
        Ok(Self {
            monitor,
            epochs,
            batches,
            metric,
            last_score: None,
            log: MetricsLog::open(&folder.join("metrics.jsonl"), resumed)?,
            events: EventFile::create(folder, resumed.map(|(step, ..)| step))?,
            watch: Watch::begin(device),
            warnings: vec![],
        })
    }

    /// What the GPU did, and the thread that asked for it ends.
    pub fn gpu(&mut self) -> Option<GpuLoad> {
        let load = self.watch.take()?.so_far();
        load.slowed().iter().for_each(|why| self.warn(why));
        Some(load)
    }

    fn training(&self, p: &Progress) -> TrainProgress {
        TrainProgress {
            epoch: p.epoch,
            epochs: self.epochs,
            batch: p.batch,
            batches: self.batches,
            step: p.step,
            loss: p.loss,
            samples_per_second: p.samples_per_second,
            metric: self.metric,
            score: self.last_score,
        }
    }
}

/// Follows the job of another rank, which tells of it.
pub struct Untold<'a>(pub &'a Monitor<'a>);

impl Watcher for Untold<'_> {
    fn stopped(&self) -> bool {
        self.0.stopped()
    }
}

/// What the logs have of a GPU.
fn figures(load: Load) -> impl Iterator<Item = (&'static str, f64)> {
    let all = [
        ("busy", load.busy),
        ("memory_bytes", load.used_bytes.map(|bytes| bytes as f64)),
        ("watts", load.watts),
        ("celsius", load.celsius.map(f64::from)),
        ("clock_mhz", load.clock_mhz.map(f64::from)),
    ];
    all.into_iter().filter_map(|(name, v)| Some((name, v?)))
}

impl Watcher for Follower<'_> {
    fn batch(&mut self, p: &Progress) -> Result<()> {
        self.monitor.tell(Event::Batch(&self.training(p)));
        if p.batch.is_multiple_of(self.batches.div_ceil(RECORDS).max(1)) {
            let mut record = json!({
                "step": p.step, "epoch": p.epoch, "batch": p.batch, "loss": p.loss, "rate": p.rate, "norm": p.norm,
                "samples_per_second": p.samples_per_second,
            });
            if let Some(scale) = p.scale {
                record["scale"] = json!(scale);
            }
            for (name, v) in self.watch.iter().filter_map(Watch::latest).flat_map(figures) {
                record[format!("gpu_{name}")] = json!(v);
                self.events.scalar(&format!("gpu/{name}"), p.step, v as f32)?;
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
        // The score is that of the epoch before the one that begins.
        let done = Progress { epoch: p.epoch.saturating_sub(1), ..p.clone() };
        self.monitor.tell(Event::Scored(&self.training(&done)));
        Ok(())
    }

    fn warn(&mut self, what: &str) {
        self.monitor.note(&format!("note: {what}"));
        self.warnings.push(what.into());
    }

    fn saving(&mut self) -> Result<()> {
        self.log.sync()
    }

    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }
}
