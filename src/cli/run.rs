//! A recipe is run, and what it made is shown.

use super::{
    args::{FormatArgs, RunArgs, ShowArgs},
    progress::Terminal,
    ranks, stdout, tables, terminal, training,
};
use crate::{
    Answers, Bench, Check, Compress, Distill, Draft, Error, Explain, Inspect, Inspected, Intent, Merge, Merged, Recipe,
    Report, Result, Search, Sensitivity, Sweep,
    formats::{self, Run},
    report::json,
};
use compress_runtime::train::ranks::Team;
use serde::Serialize;
use std::path::PathBuf;

/// How a job is run, which is not part of what it does.
#[derive(Default)]
pub struct How {
    pub json: bool,
    pub quiet: bool,
    pub save_recipe: Option<PathBuf>,
    /// The file that the recipe is from.
    pub read: Option<PathBuf>,
    pub dry_run: bool,
    pub ablate_data: bool,
    pub bisect: bool,
    pub strict: bool,
    pub formats: FormatArgs,
}

impl How {
    pub fn new(show: ShowArgs) -> Self {
        Self { json: show.json, quiet: show.quiet, save_recipe: show.save_recipe, ..Self::default() }
    }

    fn events(&self) -> Terminal {
        Terminal::new(self.quiet || self.json || !Team::get().leads())
    }

    /// Prints a result as asked for: as JSON, as text, or not at all.
    fn show(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        match () {
            () if self.json => terminal::print(&json(value)?),
            () if self.quiet => Ok(()),
            () => terminal::print(&text()),
        }
    }
}

/// A recipe with what the flags beside it say.
///
/// # Errors
/// Usage for flags that are for other jobs.
pub fn with_flags(mut recipe: Recipe, flags: &RunArgs) -> Result<Recipe> {
    recipe.set_resume(flags.resume);
    let (force, read) = match &mut recipe {
        Recipe::Compress(r) => (Some(&mut r.force), &mut r.read),
        Recipe::Sweep(r) => (Some(&mut r.compress.force), &mut r.compress.read),
        Recipe::Distill(r) => (Some(&mut r.force), &mut r.read),
        Recipe::Check(r) => (None, &mut r.read),
        Recipe::Bench(r) => (None, &mut r.read),
        Recipe::Explain(r) => (None, &mut r.read),
        Recipe::Inspect(r) => (None, &mut r.read),
        Recipe::Sensitivity(r) => (Some(&mut r.force), &mut r.read),
        Recipe::Draft(r) => (Some(&mut r.force), &mut r.read),
        Recipe::Search(r) => (Some(&mut r.force), &mut r.read),
        Recipe::Answers(r) => (Some(&mut r.force), &mut r.read),
        Recipe::Merge(_) => return Err(Error::usage("a merge has no recipe").in_file(&flags.recipe)),
    };
    read.allow_hardlinks |= flags.read.allow_hardlinks;
    read.keep_initializer_inputs |= flags.read.keep_initializer_inputs;
    force.into_iter().for_each(|force| *force = flags.force);
    match &mut recipe {
        Recipe::Compress(r) => r.gates.strict |= flags.strict,
        Recipe::Sweep(r) => r.compress.gates.strict |= flags.strict,
        Recipe::Check(r) => r.gates.strict |= flags.strict,
        Recipe::Distill(_)
        | Recipe::Draft(_)
        | Recipe::Search(_)
        | Recipe::Bench(_)
        | Recipe::Explain(_)
        | Recipe::Inspect(_)
        | Recipe::Answers(_)
        | Recipe::Merge(_)
        | Recipe::Sensitivity(_) => {}
    }
    let is_for = |what: &str| Err(Error::usage(what).in_file(&flags.recipe));
    if flags.shard.is_some() {
        *match &mut recipe {
            Recipe::Sweep(r) => &mut r.fractions.shard,
            Recipe::Search(r) => &mut r.shard,
            Recipe::Sensitivity(r) => &mut r.shard,
            Recipe::Answers(r) => &mut r.shard,
            _ => return is_for("--shard is for sweeps, searches, figures of layers and answers of teachers"),
        } = flags.shard;
    }
    match recipe {
        Recipe::Check(_) | Recipe::Bench(_) | Recipe::Explain(_) | Recipe::Inspect(_)
            if flags.dry_run || flags.force =>
        {
            is_for("--dry-run and --force are for jobs that write a model")
        }
        Recipe::Bench(_) | Recipe::Explain(_) | Recipe::Inspect(_) if flags.strict => {
            is_for("--strict is for jobs that write or check a model")
        }
        Recipe::Sensitivity(_) | Recipe::Draft(_) | Recipe::Search(_) | Recipe::Answers(_)
            if flags.dry_run || flags.strict =>
        {
            is_for("--dry-run and --strict are for jobs that write or check a model")
        }
        Recipe::Distill(_) | Recipe::Search(_) => Ok(recipe),
        _ if flags.resume => is_for("--resume is for training jobs and searches"),
        _ => Ok(recipe),
    }
}

/// Runs a job.
///
/// # Errors
/// Those of the job; gate when its result fails one; file when it can't be shown.
pub fn run(recipe: Recipe, how: &How) -> Result<()> {
    let team = Team::get();
    if team.count() > 1 && !matches!(recipe, Recipe::Distill(_)) {
        return Err(ranks::undivided(team.count()));
    }
    if let Some(path) = how.save_recipe.as_ref().filter(|_| team.leads()) {
        recipe.save(path)?;
    }
    how.formats.check(&recipe, !how.dry_run && !how.bisect && !how.ablate_data, how.read.as_deref())?;
    terminal::prepare(&recipe)?;
    match recipe {
        Recipe::Compress(r) if how.dry_run => intent(&r, how),
        Recipe::Compress(r) if how.bisect => bisect(&r, how),
        Recipe::Compress(r) => compress(r, how),
        Recipe::Sweep(r) if how.dry_run => intents(&r, how),
        Recipe::Sweep(r) => sweep(&r, how),
        Recipe::Distill(r) if how.dry_run => training_intent(&r, how),
        Recipe::Distill(r) if how.ablate_data => ablation(&r, how),
        Recipe::Distill(r) => distill(&r, how),
        Recipe::Check(r) => check(&r, how),
        Recipe::Bench(r) => bench(&r, how),
        Recipe::Explain(r) => explain(&r, how),
        Recipe::Inspect(r) => inspect(&r, how),
        Recipe::Sensitivity(r) => sensitivity(&r, how),
        Recipe::Draft(r) => draft(&r, how),
        Recipe::Search(r) => search(&r, how),
        Recipe::Merge(r) => merge(&r, how),
        Recipe::Answers(r) => answers(&r, how),
    }
}

fn compress(mut recipe: Compress, how: &How) -> Result<()> {
    let folder = stdout::redirect(&mut recipe, how.json)?;
    let report = recipe.run(&mut how.events())?;
    how.formats.write(&report)?;
    if how.json {
        terminal::print(&json(&report)?)?;
    } else if !how.quiet {
        let to = if folder.is_some() { "standard output".into() } else { recipe.output().display().to_string() };
        let models = format!("{} -> {to}\n", recipe.model.display());
        let text = tables::headline(&report) + &models + &tables::report(&report);
        stdout::show(&text, folder.is_some())?;
    }
    if folder.is_some() {
        stdout::send(&report, &recipe.output())?;
    }
    conclude(&report, recipe.gates.strict, how)
}

/// Ends a job whose report is written and shown.
fn conclude(report: &Report, strict: bool, how: &How) -> Result<()> {
    terminal::undone(&report.undone);
    let verdict = report.verdict(strict);
    how.formats.log(|| Ok(Run::of_report(report)), verdict.is_ok())?;
    verdict
}

fn intent(recipe: &Compress, how: &How) -> Result<()> {
    let mut recipe = recipe.clone();
    let _folder = stdout::redirect(&mut recipe, how.json)?;
    show_intent(&recipe.intent(&mut how.events())?, how)
}

fn show_intent(intent: &Intent, how: &How) -> Result<()> {
    match how.json {
        true => terminal::print(&json(intent)?),
        false => terminal::print(&tables::intent(intent)),
    }
}

fn bisect(recipe: &Compress, how: &How) -> Result<()> {
    if how.json {
        return Err(Error::usage("--bisect compresses nothing, so --json has no effect: remove one of them"));
    }
    let found = recipe.bisect(&mut how.events())?;
    if !how.quiet {
        terminal::print(&tables::bisection(&found))?;
    }
    found.verdict().map_err(|e| e.in_file(&recipe.model))
}

fn sweep(recipe: &Sweep, how: &How) -> Result<()> {
    stdout::refuse(&recipe.compress)?;
    let report = recipe.run(&mut how.events())?;
    how.formats.page.write(|| formats::sweep_html(&report))?;
    how.show(&report, || tables::sweep(&report))?;
    report.verdict()
}

fn intents(recipe: &Sweep, how: &How) -> Result<()> {
    stdout::refuse(&recipe.compress)?;
    let intents = recipe.intents(&mut how.events())?;
    let [first, others @ ..] = &intents[..] else { return Ok(()) };
    if how.json {
        return terminal::print(&json(&intents)?);
    }
    show_intent(first, how)?;
    if others.is_empty() {
        return Ok(());
    }
    let outputs: Vec<String> =
        recipe.own().iter().zip(&intents).skip(1).map(|(f, intent)| format!("{f} -> {}", intent.output)).collect();
    terminal::print(&format!("  the same for {}\n", outputs.join(", ")))
}

fn check(recipe: &Check, how: &How) -> Result<()> {
    let report = recipe.run(&mut how.events())?;
    how.formats.write(&report)?;
    let models = || {
        let other = recipe
            .against
            .as_ref()
            .map(|path| ("against", path))
            .or(recipe.drafts_for.as_ref().map(|path| ("drafts for", path)));
        other.map_or(String::new(), |(is, path)| format!("{} {is} {}\n", recipe.model.display(), path.display()))
    };
    how.show(&report, || tables::headline(&report) + &models() + &tables::report(&report))?;
    conclude(&report, recipe.gates.strict, how)
}

fn draft(recipe: &Draft, how: &How) -> Result<()> {
    let report = recipe.run(&mut how.events())?;
    how.formats.write(&report)?;
    let models = || format!("{} -> {}\n", recipe.model.display(), recipe.output().display());
    how.show(&report, || tables::headline(&report) + &models() + &tables::report(&report))?;
    conclude(&report, false, how)
}

fn sensitivity(recipe: &Sensitivity, how: &How) -> Result<()> {
    let report = recipe.run(&mut how.events())?;
    how.show(&report, || tables::sensitivity(&report))
}

fn search(recipe: &Search, how: &How) -> Result<()> {
    let report = recipe.run(&mut how.events())?;
    how.formats.page.write(|| formats::search_html(&report))?;
    how.show(&report, || tables::search(&report))?;
    report.verdict()
}

fn answers(recipe: &Answers, how: &How) -> Result<()> {
    let report = recipe.run(&mut how.events())?;
    how.show(&report, || tables::answers(&report))
}

fn merge(recipe: &Merge, how: &How) -> Result<()> {
    let merged = recipe.run(&mut how.events())?;
    match &merged {
        Merged::Sweep(report) => how.formats.page.write(|| formats::sweep_html(report))?,
        Merged::Search(report) => how.formats.page.write(|| formats::search_html(report))?,
        // It has a plot.
        Merged::Sensitivity(_) => {}
    }
    how.show(&merged, || tables::merged(&merged))?;
    merged.verdict()
}

fn bench(recipe: &Bench, how: &How) -> Result<()> {
    let figures = recipe.run(&mut how.events())?;
    how.show(&figures, || tables::figures(&figures))
}

fn explain(recipe: &Explain, how: &How) -> Result<()> {
    let explained = recipe.run(&mut how.events())?;
    how.show(&explained, || tables::explained(&explained))
}

fn inspect(recipe: &Inspect, how: &How) -> Result<()> {
    let found = recipe.run(&mut how.events())?;
    how.show(&found, || match &found {
        Inspected::Whole(i) => tables::inspection(i),
        Inspected::Text(text) => text.clone(),
        Inspected::Groups(groups) => tables::groups(groups),
    })
}

fn distill(recipe: &Distill, how: &How) -> Result<()> {
    let report = recipe.run(&mut how.events())?;
    // One rank tells.
    if !Team::get().leads() {
        return report.verdict(how.strict);
    }
    how.formats.page.write(|| formats::training_html(&report))?;
    how.show(&report, || training::table(&report))?;
    let verdict = report.verdict(how.strict);
    if !report.done_before {
        terminal::undone(&report.undone);
        how.formats.log(|| Run::of_training(&report, &recipe.folder()), verdict.is_ok())?;
    }
    verdict
}

fn ablation(recipe: &Distill, how: &How) -> Result<()> {
    let found = recipe.ablate_data(&mut how.events())?;
    how.show(&found, || training::ablation(&found))
}

fn training_intent(recipe: &Distill, how: &How) -> Result<()> {
    let intent = recipe.intent(&mut how.events())?;
    let text = if how.json { json(&intent)? } else { training::intent(&intent) };
    terminal::print(&text)?;
    intent.warnings.iter().for_each(|note| terminal::say(&format!("note: {note}")));
    Ok(())
}
