//! Whether files can be written where they are to be, found out before any work.

use compress_compiler::{
    error::{Error, Result},
    words::option,
};
use std::path::Path;

/// Whether two paths lead to one file.
pub fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// The folder of a file.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// # Errors
/// File when there is something at `path` that is not a file: a device, a pipe or a folder would be gone.
pub fn replaceable(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => {
            Err(Error::file("is not a regular file, and the output would replace it").in_file(path))
        }
        _ => Ok(()),
    }
}

/// # Errors
/// File when there is no folder for `path`, or nothing can be written into it; `by` names its option.
pub fn placed(path: &Path, by: &str) -> Result<()> {
    let folder = folder(path);
    if !folder.exists() {
        let help = format!("make the folder {}, or give another place with {by}", folder.display());
        return Err(Error::file("its folder is not there").in_file(path).help(help));
    }
    writable(folder)
}

/// # Errors
/// File when there is something at `path` that may not be replaced; `by` says which options give another place.
pub fn free(path: &Path, overwrite: bool, by: &str) -> Result<()> {
    replaceable(path)?;
    if overwrite || !path.exists() {
        return Ok(());
    }
    let help = format!("pass {}, or give another place with {by}", option::FORCE);
    Err(Error::file("exists already").in_file(path).help(help))
}

/// Makes a folder, unless it is there, to which files can be written.
///
/// # Errors
/// File when that can't be.
pub fn made(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::file(format!("cannot be made: {e}")).in_file(folder))?;
    writable(folder)
}

/// Finds out before hours of work whether files can be written to `folder`.
///
/// # Errors
/// File when they can't.
pub fn writable(folder: &Path) -> Result<()> {
    // The kind alone: the message names a file that the user never heard of.
    let fail = |e: std::io::Error| Error::file(format!("cannot write here: {}", e.kind())).in_file(folder);
    tempfile::tempfile_in(folder).map(drop).map_err(fail)
}
