//! The command `compress`: flags to plan to run to report, and exit codes.

mod advice;
mod args;
mod assess;
mod bench;
mod bisect;
mod calibrate;
mod check;
mod compress;
mod coverage;
mod data;
mod distill;
mod facts;
mod fit;
mod gates;
mod inspect;
mod intent;
mod interrupt;
mod measure;
mod needs;
mod numbers;
mod plan;
mod plot;
mod recover;
mod remarks;
mod score;
mod sensitivity;
mod sizes;
mod stdout;
mod sweep;
mod terminal;
mod train_args;
mod train_plan;
mod train_progress;
mod train_report;
mod train_score;

use args::{Cli, Command};
use clap::Parser;
use compress_compiler::error::Result;
use std::process::ExitCode;

// Graphs are many small allocations, which this serves faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lets the allocator keep what was freed: each step of a training takes and gives back the same memory, and a tenth
/// of its time went into getting it from the system anew.
fn keep_memory() {
    /// `mi_option_purge_delay`, which the bindings don't name.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: options may be set at any time, and this one takes any number; -1 is for ever.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_env("COMPRESS_LOG");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    interrupt::install();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.exit_code() as u8)
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        None => compress::run(cli.compress),
        Some(Command::Inspect(a)) => inspect::run(a),
        Some(Command::Check(a)) => check::run(*a),
        Some(Command::Bench(a)) => bench::run(a),
        Some(Command::Distill(a)) => distill::run(*a),
        Some(Command::Run(a)) => distill::run_recipe(a),
    }
}
