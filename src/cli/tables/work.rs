//! What a job would do, and what was found out on the way.

use compress::{
    Bisection, Expected, Intent, Shares,
    report::{PrunedAlone, Sensitivity},
    shown::percent,
};
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

/// What pruning each layer alone does, for people.
pub fn sensitivity(layers: &[Sensitivity]) -> String {
    if layers.is_empty() {
        return "no layer may be pruned\n".into();
    }
    let wide = layers.iter().map(|l| l.node.chars().count()).max().unwrap_or(0).clamp(5, 40);
    let mut t = String::from(
        "outputs when one layer alone is pruned: signal to noise, and the share of samples in the same class\n",
    );
    let head = |p: &PrunedAlone| format!("{:>18}", format!("{:.0}% zero", p.fraction * 100.0));
    let heads: String = layers.iter().take(1).flat_map(|l| &l.pruned).map(head).collect();
    let _ = writeln!(t, "  {:wide$}{:>10}{heads}", "layer", "weights");
    for l in layers {
        let cell = |p: &PrunedAlone| {
            let db = p.sqnr_db.map_or("equal".into(), |db| format!("{db:.1} dB"));
            format!("{:>18}", [Some(db), p.agreement.map(percent)].into_iter().flatten().collect::<Vec<_>>().join(" "))
        };
        let cells: String = l.pruned.iter().map(cell).collect();
        let _ = writeln!(t, "  {:wide$}{:>10}{cells}", l.node, l.weights);
    }
    t
}
