//! The command: flags in, a job, tables out. All that prints is here; what jobs do is in the rest of the library.
//!
//! It is a part of the library so that a program can carry the command, as the Python package does.

mod args;
mod install;
mod interrupt;
mod progress;
mod ranks;
mod run;
mod stdout;
pub mod tables;
mod terminal;
pub mod training;

use crate::{Devices, Kind, Recipe, Result, Sweep, options::Effort};
use args::{Cli, Command, FormatArgs};
use clap::{CommandFactory, Parser, error::ErrorKind};
use ranks::Membership;
use run::{How, run};
use std::ffi::OsString;

/// Runs the command line `args`, whose first is the name of the program, as the only thing that this process does: it takes
/// over Ctrl-C, and usage errors end the process. Returns the exit code, which is a contract with scripts.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    // Where no display is, looking for GPUs makes their library complain.
    let filter = tracing_subscriber::EnvFilter::builder();
    let filter = match std::env::var("COMPRESS_LOG") {
        Ok(directives) => filter.parse_lossy(directives),
        Err(_) => filter.parse_lossy("error,wgpu_hal=off"),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    crate::write_options(|option| match option {
        "output" => "-o".into(),
        name => format!("--{name}"),
    });
    interrupt::install();
    let cli = Cli::parse_from(args);
    match Membership::join(&cli) {
        Ok(membership) => membership.end(start(cli)),
        Err(e) => {
            if ranks::is_first() {
                terminal::say(&format!("error: {}: {e}", e.kind()));
            }
            e.exit_code()
        }
    }
}

fn start(cli: Cli) -> Result<()> {
    match cli.command {
        None => main_job(cli),
        Some(Command::Inspect(a)) => run(Recipe::Inspect(a.recipe), &How::new(a.show)),
        Some(Command::Sensitivity(a)) => run(Recipe::Sensitivity(a.recipe), &How::new(a.show)),
        Some(Command::Check(a)) => run(Recipe::Check(a.recipe), &How { formats: a.formats, ..How::new(a.show) }),
        Some(Command::Draft(a)) => run(Recipe::Draft(a.recipe), &How { formats: a.formats, ..How::new(a.show) }),
        Some(Command::Search(a)) => {
            let formats = FormatArgs { page: a.page, ..FormatArgs::default() };
            run(Recipe::Search(a.recipe), &How { formats, ..How::new(a.show) })
        }
        Some(Command::Answers(a)) => run(Recipe::Answers(a.recipe), &How::new(a.show)),
        Some(Command::Merge(a)) => {
            let formats = FormatArgs { page: a.page, ..FormatArgs::default() };
            run(Recipe::Merge(a.recipe), &How { formats, json: a.json, quiet: a.quiet, ..How::default() })
        }
        Some(Command::Bench(a)) => run(Recipe::Bench(a.recipe), &How::new(a.show)),
        Some(Command::Explain(a)) => run(Recipe::Explain(a.recipe), &How::new(a.show)),
        Some(Command::Distill(a)) => {
            let formats = FormatArgs { server: a.server, page: a.page, ..FormatArgs::default() };
            let ablate_data = a.ablate_data;
            let how = How { dry_run: a.dry_run, ablate_data, strict: a.strict, formats, ..How::new(a.show) };
            run(Recipe::Distill(a.recipe), &how)
        }
        Some(Command::Devices { json }) => {
            let found = Devices::find();
            terminal::print(&if json { crate::report::json(&found)? } else { tables::devices(&found) })
        }
        Some(Command::Completions { shell }) => install::completions(shell),
        Some(Command::Man { folder }) => install::man(&folder),
        Some(Command::Run(a)) => {
            let recipe = run::with_flags(Recipe::read(&a.recipe)?, &a)?;
            let read = Some(a.recipe.clone());
            let how =
                How { dry_run: a.dry_run, strict: a.strict, formats: a.formats.clone(), read, ..How::new(a.show) };
            // What contradicts itself stands in the recipe.
            run(recipe, &how).map_err(|e| if e.kind() == Kind::Usage { e.in_file(&a.recipe) } else { e })
        }
    }
}

fn main_job(cli: Cli) -> Result<()> {
    let Some(mut compress) = cli.compress else {
        let what = "no model is given: say compress MODEL, or a subcommand";
        Cli::command().error(ErrorKind::MissingRequiredArgument, what).exit();
    };
    if cli.no_check {
        compress.measures.check = Effort::None;
    }
    let how = How { dry_run: cli.dry_run, bisect: cli.bisect, formats: cli.formats, ..How::new(cli.show) };
    let recipe = match cli.fractions.sweep[..] {
        [] => Recipe::Compress(compress),
        _ => Recipe::Sweep(Sweep { fractions: cli.fractions, compress }),
    };
    run(recipe, &how)
}
