//! What happened, for tests: in the folder `CUDA_DOUBLE_RECORD` each module's PTX, and a line of JSON for each module, copy and
//! launch in `events.jsonl`.

use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os("CUDA_DOUBLE_RECORD").map(PathBuf::from));

static EVENTS: LazyLock<Option<Mutex<File>>> =
    LazyLock::new(|| FOLDER.as_ref().and_then(|f| File::create(f.join("events.jsonl")).ok()).map(Mutex::new));

static MODULES: AtomicUsize = AtomicUsize::new(0);

/// Adds a line.
pub fn record(line: &str) {
    if let Some(file) = EVENTS.as_ref() {
        let mut file = file.lock().unwrap_or_else(|e| e.into_inner());
        // A test that misses a line fails by itself.
        let _ = writeln!(file, "{line}");
    }
}

/// Keeps a module's text, and returns its number.
pub fn module(text: &str) -> usize {
    let n = MODULES.fetch_add(1, Relaxed) + 1;
    if let Some(folder) = FOLDER.as_ref() {
        // As above.
        let _ = std::fs::write(folder.join(format!("{n:04}.ptx")), text);
    }
    n
}
