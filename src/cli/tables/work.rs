//! What a job would do, and what was found out on the way.

use crate::{Bisection, Expected, Intent, Shares};
use compress_compiler::words::counted;
use std::fmt::Write as _;

/// What a run would do, for people.
pub fn intent(i: &Intent) -> String {
    let mut t = format!("{} ({}) -> {}\n", i.model, counted(i.operators, "operator"), i.output);
    if let Some(Shares { calibrate, measure, sizes }) = &i.samples {
        let _ = writeln!(t, "  {} to calibrate on, {measure} to measure on: {sizes}", counted(*calibrate, "sample"));
    }
    i.passes.iter().for_each(|p| t += &format!("  {:<10}{}\n", p.name, p.does));
    if let Some(Expected { run_s, batch, calibrate_s, trains }) = &i.time {
        let _ = write!(t, "  time: {run_s:.3} s for a run of {}", counted(*batch, "sample"));
        calibrate_s.iter().for_each(|s| t += &format!(", about {s:.0} s to calibrate"));
        let training = "; the training says how long it takes after its first steps";
        let _ = writeln!(t, "{}", if *trains { training } else { "" });
    }
    i.warnings.iter().for_each(|w| t += &format!("  note: {w}\n"));
    t
}

/// What each pass did to the outputs, for people.
pub fn bisection(b: &Bisection) -> String {
    let mut t = String::new();
    for step in &b.passes {
        let what = match step.difference {
            Some(d) => format!("outputs differ by {d:.1e} of their largest element at most"),
            None => "means to change the outputs: not judged".into(),
        };
        let _ = writeln!(t, "{:<9} {:>6} changes   {what}", step.pass, step.edits);
    }
    t
}
