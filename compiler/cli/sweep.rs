//! `compress MODEL --sweep 0.5,0.7,0.9`: the whole command for each fraction, and the figures of all side by side.

use crate::{
    args::CompressArgs,
    compress::Opened,
    intent::{Intent, say},
    plan::{CompressPlan, replaceable},
    plot::{Plot, svg},
    terminal::{self, bytes, percent},
};
use compress_compiler::{
    error::{Error, Result},
    onnx,
    report::{Accuracy, Report, SweepPoint, SweepReport, counted},
};
use std::{
    fmt::Write,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Runs the command for each fraction. What a fraction made is written when it is done.
///
/// # Errors
/// Those of the command for one fraction; gate when no model passes.
pub fn run(args: CompressArgs) -> Result<()> {
    let files = Files::of(&args)?;
    let plans = plans(&args, &files)?;
    let (_, first) = plans.first().ok_or_else(|| Error::usage("--sweep needs a fraction"))?;
    if first.dry_run && first.run.json && !first.sensitivity {
        let opened = Opened::new(first, true)?;
        let intents: Vec<Intent> = plans.iter().map(|(_, plan)| Intent::of(&opened, plan)).collect::<Result<_>>()?;
        return terminal::print(&terminal::json(&intents)?);
    }
    if first.dry_run {
        say(first)?;
        let others: Vec<String> =
            plans.iter().skip(1).map(|(f, plan)| format!("{f} -> {}", plan.output.display())).collect();
        if !others.is_empty() && !first.sensitivity {
            terminal::print(&format!("  the same for {}\n", others.join(", ")))?;
        }
        return Ok(());
    }
    files.check(&args)?;
    let mut opened = Opened::new(first, true)?;
    let (mut points, mut reports) = (vec![], vec![]);
    for (fraction, plan) in &plans {
        if !plan.run.quiet && !plan.run.json {
            eprintln!("--prune {fraction} -> {}", plan.output.display());
        }
        let report = opened.compress(plan)?;
        points.push(point(*fraction, plan, &report)?);
        terminal::undone(&report);
        reports.push(report);
    }
    let plot = plotted(&args, &points).map(|plot| svg(&plot));
    match &plot {
        Some(plot) => onnx::write_atomic(&files.plot, plot.as_bytes(), args.force)?,
        None => files.remove_plot()?,
    }
    let report = summary(&plans, reports, points, plot.map(|_| files.plot.display().to_string()));
    onnx::write_atomic(&files.report, terminal::json(&report)?.as_bytes(), args.force)?;
    if first.run.json {
        terminal::print(&terminal::json(&report)?)?;
    } else if !first.run.quiet {
        terminal::print(&table(&report))?;
    }
    match report.sweep.iter().any(|p| p.passed) {
        true => Ok(()),
        false => Err(Error::gate(format!("none of the {} models passed the gates", report.sweep.len()))),
    }
}

/// What there is besides the models and their reports.
struct Files {
    /// The model that fractions are put into the name of.
    output: PathBuf,
    report: PathBuf,
    plot: PathBuf,
}

impl Files {
    fn of(args: &CompressArgs) -> Result<Self> {
        let model = args.model.as_ref().ok_or_else(|| Error::usage("no model given"))?;
        let output = args.output.clone().unwrap_or_else(|| model.with_extension("compressed.onnx"));
        let beside = |extension: &str| match &args.run.report {
            Some(folder) => folder.join(extension),
            None => output.with_extension(extension),
        };
        Ok(Self { report: beside("report.json"), plot: beside("sweep.svg"), output })
    }

    fn check(&self, args: &CompressArgs) -> Result<()> {
        for path in [&self.report, &self.plot] {
            replaceable(path)?;
            if path.exists() && !args.force {
                let help = "pass --force, or give another place with -o or --report";
                return Err(Error::file("exists already").in_file(path).help(help));
            }
        }
        Ok(())
    }

    /// A plot of an earlier sweep is not one of this.
    fn remove_plot(&self) -> Result<()> {
        match std::fs::remove_file(&self.plot) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::file(format!("cannot be removed: {e}")).in_file(&self.plot))
            }
            _ => Ok(()),
        }
    }
}

/// What is to be done for each fraction, the least first.
fn plans(args: &CompressArgs, files: &Files) -> Result<Vec<(f64, CompressPlan)>> {
    let mut fractions = args.sweep.clone();
    fractions.sort_by(f64::total_cmp);
    fractions.dedup();
    let plan = |fraction: f64| {
        let mut of_one = args.clone();
        of_one.sweep.clear();
        of_one.prune = Some(fraction);
        of_one.output = Some(named(&files.output, fraction));
        of_one.run.report = args.run.report.as_ref().map(|folder| folder.join(fraction.to_string()));
        Ok((fraction, CompressPlan::new(of_one)?))
    };
    fractions.into_iter().map(plan).collect()
}

/// `model.onnx` as `model-0.9.onnx`.
fn named(output: &Path, fraction: f64) -> PathBuf {
    let part = |p: Option<&std::ffi::OsStr>| p.unwrap_or_default().to_string_lossy().into_owned();
    let extension = output.extension().map_or("onnx".into(), |e| part(Some(e)));
    output.with_file_name(format!("{}-{fraction}.{extension}", part(output.file_stem())))
}

fn point(fraction: f64, plan: &CompressPlan, report: &Report) -> Result<SweepPoint> {
    let output = report.output.clone().ok_or_else(|| Error::bug("a model without facts"))?;
    Ok(SweepPoint {
        fraction,
        sparsity: 1.0 - output.nonzero as f64 / output.parameters.max(1) as f64,
        output,
        report: plan.report_path().display().to_string(),
        accuracy: report.accuracy.clone(),
        speed: report.speed.clone(),
        gates: report.gates.clone(),
        passed: report.gates.iter().all(|g| g.passed),
        trained: report.passes.iter().flat_map(|p| p.trained.clone()).collect(),
        warnings: report.warnings.clone(),
        unusable: report.unusable.clone(),
    })
}

fn summary(
    plans: &[(f64, CompressPlan)],
    reports: Vec<Report>,
    mut sweep: Vec<SweepPoint>,
    plot: Option<String>,
) -> SweepReport {
    let fractions: Vec<String> = plans.iter().map(|p| p.0.to_string()).collect();
    let mut warnings = reports.first().map(|r| r.warnings.clone()).unwrap_or_default();
    warnings.retain(|w| reports.iter().all(|r| r.warnings.contains(w)));
    sweep.iter_mut().for_each(|p| p.warnings.retain(|w| !warnings.contains(w)));
    if plot.is_none() {
        warnings.push("no plot was made: accuracy was not measured, or has no number for some fraction".into());
    }
    let first = reports.into_iter().next().map(|r| (r.input, r.sensitivity, r.recipe));
    // There is at least one fraction, as the plans were made.
    let (input, sensitivity, mut recipe) = first.expect("a report of each plan");
    let own = format!("--prune {}", fractions[0]);
    recipe.flags.iter_mut().filter(|f| **f == own).for_each(|f| *f = format!("--sweep {}", fractions.join(",")));
    SweepReport { schema: 1, input, sensitivity, sweep, plot, warnings, recipe }
}

/// What is plotted over the fractions: the metric if it is a share or a score, else noise.
fn plotted(args: &CompressArgs, points: &[SweepPoint]) -> Option<Plot> {
    let first = points.first()?.accuracy.as_ref()?;
    let (label, values, original) = match first.metric {
        "sqnr" | "max-error" => ("signal to noise of the outputs, dB".into(), of_all(points, |a| a.sqnr_db)?, None),
        "score" | "cosine" => (first.metric.into(), of_all(points, |a| a.after)?, first.before),
        metric => {
            let percents = of_all(points, |a| a.after.map(|v| v * 100.0))?;
            (format!("{metric}, %"), percents, first.before.map(|v| v * 100.0))
        }
    };
    let name = args.model.as_ref()?.file_name()?.to_string_lossy().into_owned();
    Some(Plot {
        title: format!("{name}: what pruning costs"),
        across: "weights asked to be zero, %".into(),
        up: label,
        points: points.iter().map(|p| p.fraction * 100.0).zip(values).collect(),
        original,
    })
}

fn of_all(points: &[SweepPoint], of: fn(&Accuracy) -> Option<f64>) -> Option<Vec<f64>> {
    points.iter().map(|p| p.accuracy.as_ref().and_then(of)).collect()
}

fn table(r: &SweepReport) -> String {
    let mut t = String::new();
    let mut line = |cells: [String; 8]| {
        let [first, rest @ ..] = cells;
        let rest: String = rest.iter().map(|c| format!("{c:>13}")).collect();
        let _ = writeln!(t, "{}", format!("  {first:<9}{rest}").trim_end());
    };
    let metric = r.sweep.first().and_then(|p| p.accuracy.as_ref()).map_or("accuracy", |a| a.metric);
    line(["--prune", "zeros", metric, "agreement", "SQNR", "size", "size, zstd", "latency"].map(String::from));
    let time = |ms: f64| format!("{ms:.3} ms");
    let shown = |v: Option<f64>| v.map_or("-".into(), percent);
    let zstd = |b: Option<usize>| b.map_or("-".into(), bytes);
    let of_first = r.sweep.first();
    line([
        "original".into(),
        percent(1.0 - r.input.nonzero as f64 / r.input.parameters.max(1) as f64),
        of_first.and_then(|p| p.accuracy.as_ref()?.before).map_or("-".into(), |v| terminal::metric(metric, v)),
        "-".into(),
        "-".into(),
        bytes(r.input.bytes),
        zstd(r.input.zstd_bytes),
        of_first.and_then(|p| p.speed.as_ref()).map_or("-".into(), |s| time(s.before_ms)),
    ]);
    for p in &r.sweep {
        let a = p.accuracy.as_ref();
        line([
            p.fraction.to_string(),
            percent(p.sparsity),
            a.and_then(|a| a.after).map_or("-".into(), |v| terminal::metric(metric, v)),
            shown(a.and_then(|a| a.agreement)),
            a.map_or("-".into(), terminal::sqnr),
            bytes(p.output.bytes),
            zstd(p.output.zstd_bytes),
            p.speed.as_ref().map_or("-".into(), |s| time(s.after_ms)),
        ]);
    }
    if let Some(a) = of_first.and_then(|p| p.accuracy.as_ref()) {
        let made_up = if a.synthetic { ", made-up inputs" } else { "" };
        let _ = writeln!(t, "  measured on {}{made_up}", counted(a.samples, "sample"));
    }
    for p in &r.sweep {
        for g in p.gates.iter().filter(|g| !g.passed) {
            let _ = writeln!(
                t,
                "  --prune {}: gate {} FAILED (limit {}, measured {})",
                p.fraction, g.name, g.limit_shown, g.shown
            );
        }
        if let Some(why) = &p.unusable {
            let _ = writeln!(t, "  --prune {}: UNUSABLE: {why}", p.fraction);
        }
    }
    for w in &r.warnings {
        let _ = writeln!(t, "  note: {w}");
    }
    for p in &r.sweep {
        let _ = writeln!(t, "  --prune {}:", p.fraction);
        for done in &p.trained {
            let [before, after, course] = terminal::training(done);
            let _ = writeln!(t, "    {}: {before} -> {after}, {course}", done.name);
        }
        for w in &p.warnings {
            let _ = writeln!(t, "    note: {w}");
        }
    }
    let files: Vec<&str> = r.sweep.iter().map(|p| &p.output.path[..]).chain(r.plot.as_deref()).collect();
    let _ = writeln!(t, "  written: {}", files.join(", "));
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_part_of_the_name() {
        assert_eq!(named(Path::new("a/b.c.onnx"), 0.95), Path::new("a/b.c-0.95.onnx"));
        assert_eq!(named(Path::new("out"), 0.5), Path::new("out-0.5.onnx"));
    }
}
