//! What the ranges of activations cut off, as the report tells it.

use schemars::JsonSchema;
use serde::Serialize;

/// The ranges that activations got for their codes, beside the values that calibration saw. Values inside of If, Loop and Scan
/// are not part of it.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Clipping {
    /// Activations that became codes, and of which a histogram was kept.
    pub values: usize,
    /// How many of them lose something: elements lie outside of the range, where some reader tells them apart.
    pub clipped: usize,
    /// Those that lose most, ten at most, the worst first.
    pub worst: Vec<ClippedValue>,
}

/// An activation of which elements lie outside of its range.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ClippedValue {
    /// Its name.
    pub name: String,
    /// The least element that calibration saw.
    pub low: f32,
    /// The largest.
    pub high: f32,
    /// What the least and the largest code stand for.
    pub range: [f32; 2],
    /// The share of elements that no code is near: they are outside of the range by more than half a step.
    pub share: f64,
    /// Signal to noise of clipping alone, without rounding, in decibels. Where no reader tells elements apart, as a Sigmoid does
    /// not far from zero, clipping them makes no noise.
    pub sqnr_db: f64,
    /// How the elements are distributed.
    pub histogram: Bins,
}

/// A histogram of bins of one width.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize)]
pub struct Bins {
    /// Where the first bin begins.
    pub from: f64,
    /// The width of a bin.
    pub width: f64,
    /// How many elements are in each: 64 bins at most.
    pub counts: Vec<u64>,
}
