//! Files that are whole or not there at all.

use crate::{
    error::{Error, Result},
    words::option,
};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{File, TryLockError},
    io::{ErrorKind, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// What a file is called that is not whole yet, or about to replace another: a program that is killed leaves it.
const PREFIX: &str = ".compress-";
const SUFFIX: &str = ".partial";

/// A file without a name yet, in the folder where it is going to have one. Where the file
/// system can, it really has none until it is whole. It is locked as long as a program lives that
/// may give it its name; what is not was left by one that was killed, and goes when the next
/// file in its folder is begun.
pub(super) struct Scratch {
    folder: PathBuf,
    made: Made,
    flush: Option<Flush>,
}

enum Made {
    Nameless(File),
    Named(tempfile::NamedTempFile),
}

impl Scratch {
    /// A new file in the folder of `path`.
    ///
    /// # Errors
    /// What making it raises.
    pub(super) fn beside(path: &Path) -> std::io::Result<Self> {
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
            _ => PathBuf::from("."),
        };
        sweep(&folder);
        if let Some(file) = nameless(&folder) {
            return Ok(Self { folder, made: Made::Nameless(file), flush: None });
        }
        let made = Made::Named(named(&folder)?);
        Ok(Self { folder, made, flush: None })
    }

    /// The folder that it is in.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The open file.
    pub(super) fn file(&self) -> &File {
        match &self.made {
            Made::Nameless(file) => file,
            Made::Named(named) => named.as_file(),
        }
    }

    /// Begins to flush the file to disk while it is written.
    ///
    /// # Errors
    /// What copying the descriptor raises.
    pub(super) fn begin_flush(&mut self) -> std::io::Result<()> {
        self.flush = Some(Flush::new(self.file().try_clone()?));
        Ok(())
    }

    /// Says that all was written, so that the last of it can be flushed while other work goes on.
    pub(super) fn written(&self) {
        if let Some(flush) = &self.flush {
            flush.written.store(true, Relaxed);
        }
    }

    /// Flushes the file to disk and gives it its name.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken and `overwrite` is not set, and what flushing or
    /// linking raises; then the file is gone.
    pub(super) fn name(mut self, path: &Path, overwrite: bool) -> std::io::Result<()> {
        match self.flush.take() {
            Some(flush) => flush.wait()?,
            None => self.file().sync_all()?,
        }
        match self.made {
            Made::Named(named) if overwrite => drop(named.persist(path).map_err(|e| e.error)?),
            Made::Named(named) => drop(named.persist_noclobber(path).map_err(|e| e.error)?),
            Made::Nameless(file) => match link(&file, path) {
                // A link replaces nothing, a rename does.
                Err(Errno::EXIST) if overwrite => {
                    let linked = partial(&self.folder, |scratch| Ok(link(&file, scratch)?))?;
                    linked.into_temp_path().persist(path).map_err(|e| e.error)?;
                }
                done => done?,
            },
        }
        File::open(&self.folder)?.sync_all()
    }
}

/// As for any new file, the kernel takes from the mode what the user's mask says.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// What asks for a file without a name, where the system has any.
#[cfg(target_os = "linux")]
const NAMELESS: Option<OFlags> = Some(OFlags::TMPFILE);
#[cfg(not(target_os = "linux"))]
const NAMELESS: Option<OFlags> = None;

/// A file that has no name, where the file system can make one, and it can be given a name later.
fn nameless(folder: &Path) -> Option<File> {
    let flags = NAMELESS.filter(|_| Path::new(DESCRIPTORS).exists())? | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(CWD, folder, flags, MODE).ok()?);
    hold(&file);
    Some(file)
}

/// A file of a name that tells that it isn't whole.
fn named(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    partial(folder, |path| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(CWD, path, flags, MODE)?);
        match hold(&file) && file.metadata()?.nlink() > 0 {
            true => Ok(file),
            // Another program sweeps it away, as it was not locked at once: another name is tried.
            false => Err(ErrorKind::AlreadyExists.into()),
        }
    })
}

/// A file of the name that tells what is not whole.
fn partial<T>(
    folder: &Path,
    make: impl FnMut(&Path) -> std::io::Result<T>,
) -> std::io::Result<tempfile::NamedTempFile<T>> {
    tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).make_in(folder, make)
}

/// Locks a file until it is closed; false when another has it locked. Where the file system has no locks, nothing is
/// ever swept.
fn hold(file: &File) -> bool {
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Deletes what programs left that were killed: nobody has it locked. What can't be deleted stays.
fn sweep(folder: &Path) {
    let partial = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(partial)
            && entry.file_type().is_ok_and(|t| t.is_file())
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A thread that flushes a file, again and again until all was written.
struct Flush {
    written: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Flush {
    fn new(file: File) -> Self {
        let written = Arc::new(AtomicBool::new(false));
        let seen = written.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                file.sync_data()?;
            }
            file.sync_all()
        });
        Self { written, thread: Some(thread) }
    }

    fn wait(mut self) -> std::io::Result<()> {
        self.written.store(true, Relaxed);
        let done = self.thread.take().map(JoinHandle::join);
        done.unwrap_or(Ok(Ok(()))).map_err(|_| std::io::Error::other("flushing failed"))?
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        // Writing failed: the thread must not wait for it.
        self.written.store(true, Relaxed);
    }
}

const DESCRIPTORS: &str = "/proc/self/fd";

fn link(file: &File, path: &Path) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let nameless = format!("{DESCRIPTORS}/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// What went wrong when `path` was written.
pub(super) fn failure(path: &Path, e: std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::AlreadyExists => Error::file("exists already").in_file(path).help(format!(
            "give another name with {}, or pass {}",
            option::OUTPUT,
            option::FORCE
        )),
        // The kernel found nothing where a weight was mapped.
        _ if Errno::from_io_error(&e) == Some(Errno::FAULT) => {
            Error::file("a file of the model was cut short while it was read")
        }
        _ => Error::file(format!("cannot write: {e}")).in_file(path),
    }
}

/// Writes `bytes` to `path` so that it holds them all or is not there: a scratch file in the
/// same folder, flushed to disk, renamed.
///
/// # Errors
/// File, naming the path.
pub fn write_atomic(path: &Path, bytes: &[u8], overwrite: bool) -> Result<()> {
    let write = || {
        let scratch = Scratch::beside(path)?;
        scratch.file().write_all(bytes)?;
        scratch.name(path, overwrite)
    };
    write().map_err(|e| failure(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn replaces_only_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomic(&path, b"one", false).unwrap();
        let refused = write_atomic(&path, b"two", false).unwrap_err();
        assert_eq!(refused.kind(), Kind::File);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        write_atomic(&path, b"three", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        drop(Scratch::beside(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    #[test]
    fn what_a_killed_program_left_goes_and_what_a_living_one_makes_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [".compress-a1B2c3.partial", ".compress-config", "a.partial"] {
            std::fs::write(path(name), b"half").unwrap();
        }
        std::fs::create_dir(path(".compress-folder.partial")).unwrap();
        // As another process would hold it: the lock belongs to the open file, not to the process.
        let living = partial(folder.path(), |path| {
            let file = File::create_new(path)?;
            hold(&file);
            Ok(file)
        })
        .unwrap();
        write_atomic(&path("new"), b"whole", false).unwrap();
        let mut left: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| !living.path().ends_with(name))
            .collect();
        left.sort();
        assert_eq!(left, [".compress-config", ".compress-folder.partial", "a.partial", "new"]);
        assert!(living.path().exists());
    }

    /// Where files have names from the beginning, as on systems that make none without.
    #[test]
    fn a_file_with_a_name_takes_another_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        for (text, overwrite) in [("one", false), ("two", false), ("three", true)] {
            let made = Made::Named(named(folder.path()).unwrap());
            let scratch = Scratch { folder: folder.path().into(), made, flush: None };
            assert_eq!(names(), if text == "one" { 1 } else { 2 });
            scratch.file().write_all(text.as_bytes()).unwrap();
            let done = scratch.name(&path, overwrite);
            assert_eq!(done.err().map(|e| e.kind()), (text == "two").then_some(ErrorKind::AlreadyExists));
            assert_eq!(names(), 1);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
    }

    #[test]
    fn a_nameless_file_is_locked_before_it_has_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::beside(&folder.path().join("a")).unwrap();
        let name = folder.path().join(".compress-a1B2c3.partial");
        match &scratch.made {
            Made::Nameless(file) => link(file, &name).unwrap(),
            Made::Named(named) => std::fs::hard_link(named.path(), &name).unwrap(),
        }
        sweep(folder.path());
        assert!(name.exists());
        drop(scratch);
        sweep(folder.path());
        assert!(!name.exists());
    }
}
