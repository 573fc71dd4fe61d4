//! Whether memory is there, asked before it is taken: a failed allocation ends the process, and
//! one that only seems to succeed may end it later.

use compress_compiler::error::{Error, Result};
use std::fs;

/// Values up to this size are taken without asking.
const SMALL: usize = 256 << 20;

/// Checks that `bytes` more for `what` can be had.
///
/// # Errors
/// Limit, with the figure, when they can't.
pub fn check(bytes: usize, what: impl FnOnce() -> String) -> Result<()> {
    if bytes <= SMALL {
        return Ok(());
    }
    // The system promises more than it has, and a process may be allowed less than there is.
    let free = available().is_none_or(|free| bytes <= free);
    if free && Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
        return Ok(());
    }
    Err(Error::limit(format!("{} needs {:.1} GB of memory, more than is free", what(), bytes as f64 / 1e9)))
}

/// Runs `f`, and says how much more memory the process had at most while it ran than before, where the system says so.
///
/// # Errors
/// What `f` returns.
pub fn peak_of<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, Option<usize>)> {
    // Linux forgets the peak so far when this is written (proc(5)).
    let reset = fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = field("/proc/self/status", "VmRSS:").filter(|_| reset);
    let made = f()?;
    let after = field("/proc/self/status", "VmHWM:");
    Ok((made, before.zip(after).map(|(before, after)| after.saturating_sub(before))))
}

/// A figure in kB of a file of the system, in bytes.
fn field(path: &str, name: &str) -> Option<usize> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

/// The memory that the system can give without swapping, where it says so.
pub fn available() -> Option<usize> {
    field("/proc/meminfo", "MemAvailable:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_is_refused() {
        check(1000, || unreachable!()).unwrap();
        let e = check(1 << 50, || "a value".into()).unwrap_err();
        assert!(e.to_string().contains("a value needs 1125899.9 GB"), "{e}");
    }
}
