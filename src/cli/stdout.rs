//! `-o -`: the result on standard output, tables on stderr.

use super::terminal;
use crate::{Compress, Error, Report, Result};
use std::{
    fs::File,
    io::{IsTerminal, Write},
    path::Path,
};
use tempfile::TempDir;

fn is_asked(recipe: &Compress) -> bool {
    recipe.output.as_deref() == Some(Path::new("-"))
}

/// # Errors
/// Usage where several files are made.
pub fn refuse(recipe: &Compress) -> Result<()> {
    match is_asked(recipe) {
        true => {
            Err(Error::usage("-o - writes the model to standard output")
                .help("--sweep makes several files: give -o FILE"))
        }
        false => Ok(()),
    }
}

/// The folder in which the result is made before it goes to standard output, if it is to go there; the recipe then names a
/// file in it.
///
/// # Errors
/// Usage for what needs files or standard output for itself; file when there can be no folder.
pub fn redirect(recipe: &mut Compress, json: bool) -> Result<Option<TempDir>> {
    if !is_asked(recipe) {
        return Ok(None);
    }
    let conflict = [
        (json, "--json prints the report there: leave it away, and give --report FOLDER"),
        (recipe.external_data, "--external-data makes two files: give -o FILE"),
        (std::io::stdout().is_terminal(), "that is a terminal: redirect it, or give -o FILE"),
    ];
    if let Some((_, way)) = conflict.into_iter().find(|(conflicts, _)| *conflicts) {
        return Err(Error::usage("-o - writes the model to standard output").help(way));
    }
    let made = tempfile::Builder::new().prefix("compress-output-").tempdir();
    let folder = made.map_err(|e| Error::file(format!("no folder for the result before it is printed: {e}")))?;
    recipe.output = Some(folder.path().join("model.onnx"));
    recipe.shown_as = Some("-".into());
    Ok(Some(folder))
}

/// Prints the text of a table where the model isn't.
///
/// # Errors
/// As [`terminal::print`].
pub fn show(text: &str, redirected: bool) -> Result<()> {
    if redirected {
        terminal::say(text.trim_end());
        return Ok(());
    }
    terminal::print(text)
}

/// Copies the result to standard output.
///
/// # Errors
/// Unsupported for one in several files; file when it can't be written.
pub fn send(report: &Report, file: &Path) -> Result<()> {
    if report.output.as_ref().is_some_and(|o| !o.data.is_empty()) {
        return Err(Error::unsupported("the result is larger than 2 GB, and its weights are a file of their own")
            .help("give -o FILE"));
    }
    let mut stdout = std::io::stdout().lock();
    // A reader that goes away has half a model.
    let copied = File::open(file).and_then(|mut f| std::io::copy(&mut f, &mut stdout)).and_then(|_| stdout.flush());
    copied.map_err(|e| Error::file(format!("standard output: {e}")))
}
