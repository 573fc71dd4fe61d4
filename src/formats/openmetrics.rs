//! OpenMetrics' text, which GitLab shows beside those of the target branch in a merge request.

use crate::Report;
use std::fmt::Write as _;

/// The figures of a report as gauges (OpenMetrics 1.0), with the model as a label.
pub fn openmetrics(r: &Report) -> String {
    let model = r.output.as_ref().map_or(&r.input.path, |o| &o.path);
    let label = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let (a, s) = (r.accuracy.as_ref(), r.speed.as_ref());
    let gauges = [
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
    let mut t = String::new();
    for (name, help, value) in gauges {
        if let Some(value) = value {
            let unit = name.rsplit_once('_').map(|(_, unit)| unit);
            let unit = unit.filter(|u| ["bytes", "ratio", "decibels", "seconds"].contains(u));
            let _ = writeln!(t, "# TYPE compress_{name} gauge");
            unit.into_iter().for_each(|unit| t += &format!("# UNIT compress_{name} {unit}\n"));
            let _ = writeln!(t, "# HELP compress_{name} {help}.\ncompress_{name}{{model=\"{label}\"}} {value}");
        }
    }
    t + "# EOF\n"
}

fn ratio(r: &Report) -> Option<f64> {
    let output = r.output.as_ref()?;
    (r.input.bytes > 0).then(|| output.bytes as f64 / r.input.bytes as f64)
}
