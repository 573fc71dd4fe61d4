//! What is installed beside the command: scripts that complete it in a shell, and the pages of the manual.

use super::{args::Cli, terminal};
use crate::{Error, Result, files};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use compress_compiler::onnx::write_atomic;
use std::path::Path;

/// Prints the script for a shell.
///
/// # Errors
/// File when it can't be printed.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "compress", &mut script);
    terminal::write(&script)
}

/// Writes a page for the command, and one for each subcommand, into a folder, which it makes unless it is there.
///
/// # Errors
/// File when a page can't be written.
pub fn man(folder: &Path) -> Result<()> {
    files::made(folder)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    // Gives subcommands the names of their pages.
    command.build();
    page(&command, folder)?;
    command.get_subcommands().try_for_each(|one| page(one, folder))
}

fn page(command: &Command, folder: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_string();
    let path = folder.join(format!("{name}.1"));
    // The version stands where a date is usual: the same version has the same pages.
    let version = concat!("compress ", env!("CARGO_PKG_VERSION"));
    let mut page = vec![];
    let made = Man::new(command.clone()).title(name).date(version).source("").render(&mut page);
    made.map_err(|e| Error::bug(format!("a page of the manual: {e}")))?;
    write_atomic(&path, &page, true)
}
