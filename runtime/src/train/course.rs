//! What a job tells of its course, and why it ended.

use compress_compiler::error::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a job tells of its course.
#[derive(Debug, Clone, Serialize)]
pub struct Progress {
    /// Optimiser steps done.
    pub step: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Batches done in it.
    pub batch: u64,
    /// The mean loss of the epoch so far.
    pub loss: f64,
    /// The loss of the last batch, part by part.
    pub parts: Vec<(&'static str, f32)>,
    /// The learning rate.
    pub rate: f64,
    /// The norm of the gradients in the last step.
    pub norm: f32,
    /// By what the loss is multiplied in 16 bits.
    pub scale: Option<f32>,
    /// Samples a second since the job began or went on.
    pub samples_per_second: f64,
}

/// How good a model is: of two, the better is the greater.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Score {
    /// What counts: higher is better.
    rank: f64,
    /// What decides between models that are equal by that, as many are where few samples are counted: higher is better.
    tie: f64,
    /// What is told.
    pub value: f64,
}

impl Score {
    /// Worse than any.
    pub const NONE: Self = Self { rank: f64::MIN, tie: f64::MIN, value: f64::MIN };

    /// A score of `value`, which rises as models get better, or falls; `tie` rises.
    pub fn new(value: f64, rises: bool, tie: f64) -> Self {
        Self { rank: if rises { value } else { -value }, tie, value }
    }
}

/// A score, unless it is that of outputs without noise, or that are not numbers.
pub fn number(score: f64) -> Option<f64> {
    (score > f64::MIN && score < f64::MAX).then_some(score)
}

/// What follows the course of a job: by default, nothing of it.
pub trait Watcher {
    /// A batch is done.
    ///
    /// # Errors
    /// Whatever writing about it raises; the job ends with it.
    fn batch(&mut self, _: &Progress) -> Result<()> {
        Ok(())
    }
    /// An epoch is done, or the job is about to begin, and the model was scored; its score, and the best so far.
    ///
    /// # Errors
    /// As for [`Watcher::batch`].
    fn scored(&mut self, _: &Progress, _: f64, _: f64) -> Result<()> {
        Ok(())
    }
    /// Something that the user should know.
    fn warn(&mut self, _: &str) {}
    /// A checkpoint is about to be written: what was told so far should be safe.
    ///
    /// # Errors
    /// As for [`Watcher::batch`].
    fn saving(&mut self) -> Result<()> {
        Ok(())
    }
    /// Whether the user asked to stop.
    fn stopped(&self) -> bool {
        false
    }
}

/// Nobody follows.
pub struct Unwatched;

impl Watcher for Unwatched {}

/// Why a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All epochs are done.
    Finished,
    /// The score no longer rose.
    Patience,
    /// The time is up.
    Time,
    /// The user stopped it; it can go on.
    Stopped,
}

/// Where a job's time went.
#[derive(Debug, Clone, Copy, Default, JsonSchema, Serialize, Deserialize)]
pub struct Spent {
    /// Waiting for samples.
    pub data: f64,
    /// Running the teacher.
    pub teacher: f64,
    /// Forward, backward, and changing the weights.
    pub compute: f64,
    /// Scoring the model.
    pub scoring: f64,
    /// Writing checkpoints.
    pub saving: f64,
    /// Waiting for other ranks, once the own part of a batch was computed.
    #[serde(default)]
    pub exchange: f64,
}

impl Spent {
    /// Seconds of training alone, without scores and checkpoints.
    pub fn training(&self) -> f64 {
        self.data + self.teacher + self.compute + self.exchange
    }

    /// How fast so many samples were trained on.
    pub fn samples_per_second(&self, samples: u64) -> f64 {
        samples as f64 / self.training().max(1e-9)
    }
}
