//! The report of a search.

use super::front::Objectives;
use crate::{
    report::{FileFacts, Gate, Recorded},
    shown,
};
use compress_compiler::error::{Error, Result};
use compress_runtime::metrics::Metric;
use schemars::JsonSchema;
use serde::Serialize;

/// What a search found.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct SearchReport {
    /// The version of this layout.
    pub schema: u32,
    /// The model that came in.
    pub input: FileFacts,
    /// The model that went out; absent after a part of a search.
    pub output: Option<FileFacts>,
    /// Which of the points it is.
    pub picked: Option<usize>,
    /// What accuracy was measured by.
    pub metric: Metric,
    /// Whether what is lost are points of a share; else it is the error of the outputs, in parts of them.
    pub of_share: bool,
    /// Samples that chose between ways, and samples that none of them saw until the end.
    pub samples: SearchSamples,
    /// Ways that were tried, and how many of them came to nothing.
    pub tried: usize,
    /// See `tried`.
    pub failed: usize,
    /// Seconds of the search.
    pub seconds: f64,
    /// The ways that no other is better than, by rising time of a run, and those of flags alone.
    pub points: Vec<SearchPoint>,
    /// What was reached when, on the samples that chose: the hypervolume. What is learnt later may lower it; the last is that of the end.
    pub reached: Vec<Reached>,
    /// The same for the ways of flags alone.
    pub plain: f64,
    /// The limits that were asked for.
    pub gates: Vec<Gate>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
    /// Where the ways that were tried are.
    pub folder: String,
    /// Where this report is.
    pub file: String,
    /// What is needed to run it again.
    pub recipe: Recorded,
}

/// Samples of a search.
#[derive(Debug, Clone, Copy, JsonSchema, Serialize)]
pub struct SearchSamples {
    /// Those that chose.
    pub chose: usize,
    /// Those that were measured on at the end; none after a part of a search.
    pub measured: usize,
}

/// What was reached after a while.
#[derive(Debug, Clone, Copy, JsonSchema, Serialize)]
pub struct Reached {
    /// Seconds of the search.
    pub seconds: f64,
    /// Ways that were tried.
    pub tried: usize,
    /// The part of what lies between the original and nothing lost in no time and no bytes that the front dominates.
    pub hypervolume: f64,
}

/// A way, and what it costs and gains.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct SearchPoint {
    /// Its number among those that were tried.
    pub number: usize,
    /// It in words.
    pub way: String,
    /// Whether no other is better.
    pub front: bool,
    /// Whether flags alone ask for it.
    pub plain: bool,
    /// What counts, on the samples that chose.
    pub chosen_by: Objectives,
    /// The same at the end, on the samples that nothing saw before; absent for ways that are not on the front, and after a part of a
    /// search.
    pub measured: Option<Objectives>,
    /// The metric of the original and of the way there.
    pub before: Option<f64>,
    /// See `before`.
    pub after: Option<f64>,
    /// Milliseconds of a run there.
    pub ms: Option<f64>,
    /// The share of samples there with the same answer as the original's.
    pub agreement: Option<f64>,
    /// Signal to noise of the answers, in decibels, there or on the samples that chose; absent where they are equal.
    pub sqnr_db: Option<f64>,
    /// Bytes of the file.
    pub bytes: usize,
    /// Its model and its recipe, if they are kept.
    pub model: Option<String>,
    /// See `model`.
    pub recipe: Option<String>,
}

impl SearchReport {
    /// What the run amounts to.
    ///
    /// # Errors
    /// Gate when the result exceeds a limit.
    pub fn verdict(&self) -> Result<()> {
        let failed: Vec<String> = (self.gates.iter().filter(|g| !g.passed))
            .map(|g| format!("{} (limit {}, measured {})", g.name, g.limit_shown, g.shown))
            .collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::gate(failed.join("; "))),
        }
    }

    /// The point that became the result.
    pub fn taken(&self) -> Option<&SearchPoint> {
        self.points.iter().find(|p| Some(p.number) == self.picked)
    }
}

/// What is lost, for people.
pub fn lost(lost: f64, of_share: bool) -> String {
    match of_share {
        true => format!("{:+.2} points", 0.0 - 100.0 * lost),
        false => format!("error {}", shown::percent(lost)),
    }
}
