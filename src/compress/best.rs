//! The best result so far of a long search, in a file that stays if the search is cut off.

use crate::events::Monitor;
use compress_compiler::{
    error::Result,
    graph::Graph,
    onnx::{self, Model},
};
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Shorter searches keep nothing: doing them again takes less than finding the file.
const AFTER: Duration = Duration::from_secs(20);

/// Keeps the best result so far.
pub struct BestSoFar<'a> {
    path: PathBuf,
    model: &'a Model,
    last: Cell<Instant>,
    written: Cell<bool>,
}

impl<'a> BestSoFar<'a> {
    /// Nothing yet of a search for a result of `model` that goes to `output`.
    pub fn new(output: &Path, model: &'a Model) -> Self {
        let path = output.with_extension("best-so-far.onnx");
        Self { path, model, last: Cell::new(Instant::now()), written: Cell::new(false) }
    }

    /// Writes what `make` makes, if nothing was written in a while.
    ///
    /// # Errors
    /// Whatever making and writing it can raise.
    pub fn keep(&self, make: &dyn Fn() -> Result<Graph>, monitor: &Monitor) -> Result<()> {
        if self.last.get().elapsed() < AFTER {
            return Ok(());
        }
        let mut model = self.model.clone();
        model.graph = make()?;
        onnx::stage(&model, &self.path, false)?.commit(true)?;
        if !self.written.replace(true) {
            monitor.note(&format!("the best result so far is in {}", self.path.display()));
        }
        self.last.set(Instant::now());
        Ok(())
    }

    /// Removes the file, as there is a result.
    pub fn remove(&self) {
        if self.written.get() {
            // That it stays does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
