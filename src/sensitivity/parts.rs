//! Layers that several machines judge, each a part of them.
//!
//! All of them make the same graphs in the same order, and judge every so many of them. Who puts the parts together makes the graphs once
//! more, and finds in the parts how each was judged.

use crate::{compress::judged::Judged, report::Recorded};
use compress_compiler::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// The file of a part.
#[derive(Debug, Serialize, Deserialize)]
pub struct PartFile {
    /// SHA-256 of the files of the model.
    pub model: Vec<String>,
    pub judged: Judged,
    pub recipe: Recorded,
}

impl PartFile {
    /// # Errors
    /// File when it can't be read, or is another file.
    pub fn read(path: &Path) -> Result<Self> {
        let fail = |what: String| Error::file(what).in_file(path);
        let text = fs::read_to_string(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
        serde_json::from_str(&text).map_err(|e| fail(format!("is not a whole part of this version: {e}")))
    }

    /// # Errors
    /// Usage for what was judged by another version, of another model, or on other data.
    pub fn check(&self, path: &Path, model: &[String], data: &str) -> Result<()> {
        let other = match () {
            () if self.recipe.version != env!("CARGO_PKG_VERSION") => "by another version",
            () if self.model != model => "of another model",
            () if self.recipe.data.as_deref() != Some(data) => "on other data",
            () => return Ok(()),
        };
        Err(Error::usage(format!("was judged {other}: it is not a part of this job")).in_file(path))
    }
}
