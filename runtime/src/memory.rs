//! Whether memory is there, asked before it is taken: a failed allocation ends the process, and
//! one that only seems to succeed may end it later.

use compress_compiler::error::{Error, Result};
use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use sysinfo::{MemoryRefreshKind, Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};

/// Values up to this size are taken without asking.
const SMALL: usize = 256 << 20;

/// How often memory is looked at where the system knows no peak.
const LOOK: Duration = Duration::from_millis(2);

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
    let Some(before) = field("VmRSS:").filter(|_| reset) else { return watched(f) };
    let made = f()?;
    Ok((made, peak().map(|after| after.saturating_sub(before))))
}

/// As [`peak_of`], where the system knows no peak or can't forget it: another thread looks again and again.
///
/// # Errors
/// What `f` returns.
pub fn watched<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, Option<usize>)> {
    let mut process = OwnProcess::new();
    let before = process.as_mut().and_then(OwnProcess::memory);
    let ended = &AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = process.zip(before).and_then(|(mut process, before)| {
            let look = move || {
                let mut most = before;
                while !ended.load(Relaxed) {
                    most = most.max(process.memory().unwrap_or(0));
                    thread::sleep(LOOK);
                }
                most - before
            };
            thread::Builder::new().spawn_scoped(scope, look).ok()
        });
        let end = End(ended);
        let made = f()?;
        drop(end);
        let more = watch.and_then(|watch| watch.join().ok());
        Ok((made, more.and_then(|more| usize::try_from(more).ok())))
    })
}

/// Ends the thread that looks, also where work fails or panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What the system says of this process.
struct OwnProcess {
    system: System,
    id: Pid,
}

impl OwnProcess {
    fn new() -> Option<Self> {
        Some(Self { system: System::new().ok()?, id: sysinfo::get_current_pid().ok()? })
    }

    fn read(&mut self, what: ProcessRefreshKind) -> Option<&Process> {
        // Its threads are of no interest.
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&[self.id]), false, what.without_tasks());
        self.system.process(self.id)
    }

    /// Bytes of memory that it has.
    fn memory(&mut self) -> Option<u64> {
        self.read(ProcessRefreshKind::nothing().with_memory()).map(Process::memory)
    }
}

/// The most memory that this process has had, in bytes, where the system says so: Linux does.
pub fn peak() -> Option<usize> {
    field("VmHWM:")
}

/// What Linux says of this process, in bytes.
fn field(name: &str) -> Option<usize> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

/// The memory that this process can get without swapping, in bytes, where the system says so: what is free, or what its control group
/// (a container's, say) may have beyond what it has. Pages of files make room, and count as free; what other groups have under a limit
/// above both is not known.
pub fn available() -> Option<usize> {
    let mut process = OwnProcess::new()?;
    let group = process.read(ProcessRefreshKind::nothing()).and_then(Process::cgroup_limits);
    let allowed = group.map(|group| group.total_memory.saturating_sub(group.rss));
    process.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let free = Some(process.system.available_memory()).filter(|free| *free > 0);
    free.into_iter().chain(allowed).min().and_then(|bytes| usize::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_known_and_no_more_than_there_is() {
        let mut system = System::new().unwrap();
        system.refresh_memory();
        let free = available().unwrap() as u64;
        assert!(free > 0 && free <= system.total_memory());
    }

    #[test]
    fn what_nobody_has_is_refused() {
        check(1000, || unreachable!()).unwrap();
        let e = check(1 << 50, || "a value".into()).unwrap_err();
        assert!(e.to_string().contains("a value needs 1125899.9 GB"), "{e}");
    }
}
