//! OpenMetrics' text, which GitLab shows beside those of the target branch in a merge request.

use super::gauges::{Gauge, gauges};
use crate::Report;
use std::fmt::Write as _;

/// The figures of a report as gauges (OpenMetrics 1.0), with the model as a label.
pub fn openmetrics(r: &Report) -> String {
    let model = r.output.as_ref().map_or(&r.input.path, |o| &o.path);
    let label = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut t = String::new();
    for Gauge { name, help, value } in gauges(r) {
        let unit = name.rsplit_once('_').map(|(_, unit)| unit);
        let unit = unit.filter(|u| ["bytes", "ratio", "decibels", "seconds"].contains(u));
        let _ = writeln!(t, "# TYPE compress_{name} gauge");
        unit.into_iter().for_each(|unit| t += &format!("# UNIT compress_{name} {unit}\n"));
        let _ = writeln!(t, "# HELP compress_{name} {help}.\ncompress_{name}{{model=\"{label}\"}} {value}");
    }
    t + "# EOF\n"
}
