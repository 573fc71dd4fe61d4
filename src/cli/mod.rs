//! The command: flags in, a job, tables out. What jobs do is in the library.

mod args;
mod interrupt;
mod progress;
mod run;
mod stdout;
mod tables;
mod terminal;
mod training;

use args::{Cli, Command};
use clap::{CommandFactory, Parser, error::ErrorKind};
use compress::{Error, Kind, Recipe, Result, Sweep, options::Effort};
use run::{How, run};
use std::process::ExitCode;

/// Runs the command.
pub fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_env("COMPRESS_LOG");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    compress::write_options(|option| match option {
        "output" => "-o".into(),
        name => format!("--{name}"),
    });
    interrupt::install();
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            terminal::say(&format!("error: {}: {e}", e.kind()));
            exit_code(&e)
        }
    }
}

/// The contract with scripts.
fn exit_code(e: &Error) -> ExitCode {
    ExitCode::from(match e.kind() {
        Kind::Bug => 1,
        Kind::Usage => 2,
        Kind::Malformed => 3,
        Kind::Limit => 4,
        Kind::Unsupported => 5,
        Kind::File => 6,
        Kind::Data => 7,
        Kind::Device => 8,
        Kind::Gate => 9,
        Kind::Interrupted => 130,
    })
}

fn start(cli: Cli) -> Result<()> {
    match cli.command {
        None => main_job(cli),
        Some(Command::Inspect(a)) => run(Recipe::Inspect(a.recipe), &How::new(a.show)),
        Some(Command::Sensitivity(a)) => run(Recipe::Sensitivity(a.recipe), &How::new(a.show)),
        Some(Command::Check(a)) => run(Recipe::Check(a.recipe), &How::new(a.show)),
        Some(Command::Bench(a)) => run(Recipe::Bench(a.recipe), &How::new(a.show)),
        Some(Command::Distill(a)) => {
            run(Recipe::Distill(a.recipe), &How { dry_run: a.dry_run, strict: a.strict, ..How::new(a.show) })
        }
        Some(Command::Run(a)) => {
            let recipe = run::with_flags(Recipe::read(&a.recipe)?, &a)?;
            let how = How { dry_run: a.dry_run, strict: a.strict, ..How::new(a.show) };
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
    let how = How { dry_run: cli.dry_run, bisect: cli.bisect, ..How::new(cli.show) };
    let recipe = match cli.fractions.sweep[..] {
        [] => Recipe::Compress(compress),
        _ => Recipe::Sweep(Sweep { fractions: cli.fractions, compress }),
    };
    run(recipe, &how)
}
