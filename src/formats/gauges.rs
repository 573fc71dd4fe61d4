//! The figures of a report that are followed from run to run: the one list of them.

use crate::Report;

/// A figure of a report.
pub struct Gauge {
    /// Its name, which ends in its unit if it has one.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Its value.
    pub value: f64,
}

/// The figures that the report has.
pub fn gauges(r: &Report) -> Vec<Gauge> {
    let (a, s) = (r.accuracy.as_ref(), r.speed.as_ref());
    let all = [
        ("size_bytes", "Size of the model", r.output.as_ref().map(|o| o.bytes as f64)),
        ("size_ratio", "Size in parts of the original's", ratio(r)),
        ("accuracy", "Accuracy by the metric that the report names", a.and_then(|a| a.after)),
        ("accuracy_drop", "Accuracy lost to the original", a.and_then(|a| a.drop)),
        ("sqnr_decibels", "Signal to noise of the worst output", a.and_then(|a| a.sqnr_db)),
        ("speedup_ratio", "How many times as fast as the original", s.map(|s| s.speedup)),
        ("latency_seconds", "Time of a run", s.map(|s| s.after_ms / 1e3)),
        ("memory_bytes", "Weights and live activations of a run", r.memory.as_ref().map(|m| m.after_bytes as f64)),
        ("gates_failed", "Gates that failed", Some(r.gates.iter().filter(|g| !g.passed).count() as f64)),
    ];
    all.into_iter().filter_map(|(name, help, value)| Some(Gauge { name, help, value: value? })).collect()
}

fn ratio(r: &Report) -> Option<f64> {
    let output = r.output.as_ref()?;
    (r.input.bytes > 0).then(|| output.bytes as f64 / r.input.bytes as f64)
}
