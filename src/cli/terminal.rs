//! Standard output, stderr, and the threads and memory of this process.

use crate::{Error, Recipe, Result};
use std::io::{ErrorKind, Write as _};

/// Prints to stdout. A reader that went away (`| head`) is not an error.
///
/// # Errors
/// File when nothing can be written there, as on a full disk.
pub fn print(text: &str) -> Result<()> {
    write(text.as_bytes())
}

/// Writes bytes to stdout, as [`print`].
///
/// # Errors
/// As [`print`].
pub fn write(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::file(format!("standard output: {e}"))),
        _ => Ok(()),
    }
}

/// Prints a line to stderr. Where nobody can read it, nobody misses it.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Tells on stderr, whatever is quiet, what was asked for and not done.
pub fn undone(undone: &[String]) {
    undone.iter().for_each(|what| say(&format!("warning: {what}")));
}

/// Prepares this process for a job: as many threads as it asks for. If it has many short steps, this thread is one of
/// them, and what the allocator freed stays.
///
/// # Errors
/// Limit when the threads can't be started.
pub fn prepare(recipe: &Recipe) -> Result<()> {
    let (threads, many_steps) = (recipe.threads(), recipe.takes_many_steps());
    if many_steps {
        keep_memory();
    }
    if threads.is_none() && !many_steps {
        return Ok(());
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0));
    let pool = if many_steps { pool.use_current_thread() } else { pool };
    pool.build_global().map_err(|e| Error::limit(format!("the threads could not be started: {e}")))
}

/// Lets the allocator keep what was freed: each step of a training takes and gives back the same memory, and a tenth
/// of its time went into getting it from the system anew.
fn keep_memory() {
    /// `mi_option_purge_delay`, which the bindings don't name.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: this option takes any number; -1 is for ever. `prepare` sets it before it starts threads. The one that
    // waits for Ctrl-C has no memory to purge, and so does not read it meanwhile.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}
