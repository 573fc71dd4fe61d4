//! Times that were measured on this machine before: a cut, or a search, decides as it did the last time, and sooner.
//!
//! They are in a file for each machine, device, engine, number of threads and version, in the folder of caches of the user
//! (`COMPRESS_CACHE` names another; where it is empty, nothing is kept). A line holds what was timed and its milliseconds. Lines are only
//! added, and of two that are alike the first holds: so jobs that run at once may share the file.

use crate::{facts::sha256, measure::threads};
use compress_compiler::{error::Result, graph::Graph, words::counted};
use compress_runtime::session::Backend;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeSet, HashMap},
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The variable that names the folder.
const FOLDER: &str = "COMPRESS_CACHE";
/// A file that is larger is begun anew.
const MOST_BYTES: u64 = 16 << 20;

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    /// A digest of what was timed.
    timed: String,
    ms: Vec<f64>,
}

/// The times of a machine.
pub struct KeptTimes {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, Vec<f64>>,
    /// How often each was asked for: what is measured twice may differ.
    asked: HashMap<String, usize>,
    reused: usize,
}

impl KeptTimes {
    /// Those of models on `backend`, as far as the file can be read.
    pub fn of(backend: &Backend) -> Self {
        let file =
            folder().map(|folder| folder.join(format!("times-{}.jsonl", &sha256(machine(backend).as_bytes())[..16])));
        let known = file.as_deref().map(read).unwrap_or_default();
        Self { file, state: Mutex::new(State { known, ..State::default() }) }
    }

    /// The milliseconds of what `timed` describes: those that are kept, or else what `measure` finds.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn get_or(&self, timed: &str, measure: impl FnOnce() -> Result<Vec<f64>>) -> Result<Vec<f64>> {
        let key = {
            let mut state = self.state();
            let asked = state.asked.entry(timed.into()).or_default();
            *asked += 1;
            let key = sha256(format!("{timed}\n{asked}").as_bytes());
            if let Some(ms) = state.known.get(&key).cloned() {
                state.reused += 1;
                return Ok(ms);
            }
            key
        };
        let ms = measure()?;
        self.state().known.insert(key.clone(), ms.clone());
        // What can't be kept is measured anew the next time.
        let _ = self.file.as_deref().map(|file| append(file, &Line { timed: key, ms: ms.clone() }));
        Ok(ms)
    }

    /// How many were not measured anew, and the file that had them.
    fn reused(&self) -> Option<(usize, &Path)> {
        let reused = self.state().reused;
        self.file.as_deref().filter(|_| reused > 0).map(|file| (reused, file))
    }

    /// What is said where some were not measured anew.
    pub fn told(&self) -> Option<String> {
        let (times, file) = self.reused()?;
        Some(format!(
            "{} of graphs are those that were measured on this machine before: remove {} to measure them anew",
            counted(times, "time"),
            file.display()
        ))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A graph without what changes no time: the values of its constants, save for whole numbers, such as the sizes that a Reshape
/// reads, and for the share of zeros in large weights, which kernels may leave out.
pub fn structure(g: &Graph) -> String {
    let mut text = String::new();
    for line in g.to_string().lines() {
        let constant = line.trim_start().starts_with("const ");
        let cut = if constant { line.split_once(" = ").map(|(what, _)| what) } else { None };
        let is_whole = |what: &str| [": i64[", ": bool["].iter().any(|dtype| what.contains(dtype));
        text += cut.filter(|what| !is_whole(what)).unwrap_or(line);
        text.push('\n');
    }
    for g in g.and_bodies() {
        for t in g.ids().filter_map(|n| g.constant(n.into())).filter(|t| t.dtype().is_float() && t.len() >= LARGE) {
            let _ = writeln!(text, "{} of {TENTHS}", (t.len() - t.nonzero()) * TENTHS / t.len());
        }
    }
    text
}

/// Elements of a weight whose zeros may count, and the parts in which they are counted.
const LARGE: usize = 256;
const TENTHS: usize = 10;

/// What times depend on.
fn machine(backend: &Backend) -> String {
    let device = &backend.device;
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // x86 gives cores a name, ARM the number of their maker and of their part: several of these where cores differ.
    let of_cores = ["model name", "CPU implementer", "CPU part"];
    let names: BTreeSet<&str> = cpu.lines().filter(|line| of_cores.iter().any(|of| line.starts_with(of))).collect();
    let model = if names.is_empty() { env::consts::ARCH.into() } else { Vec::from_iter(names).join("; ") };
    let version = env!("CARGO_PKG_VERSION");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}; {cores} cores; {}; {}; {} threads; {version}", device.describe(), backend.engine, threads(device))
}

/// The folder of caches.
fn folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os(FOLDER) {
        return (!folder.is_empty()).then(|| folder.into());
    }
    let of = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = of("XDG_CACHE_HOME").or_else(|| of("LOCALAPPDATA")).or_else(|| Some(of("HOME")?.join(".cache")));
    caches.map(|folder| folder.join("compress"))
}

fn read(file: &Path) -> HashMap<String, Vec<f64>> {
    let is_small = fs::metadata(file).is_ok_and(|m| m.is_file() && m.len() <= MOST_BYTES);
    if !is_small {
        // It may not be there, or not be removed: either way nothing is known.
        let _ = fs::remove_file(file);
        return HashMap::new();
    }
    let text = fs::read(file).unwrap_or_default();
    let mut known = HashMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Ok(Line { timed, ms }) = serde_json::from_slice(line) else { continue };
        if ms.iter().all(|ms: &f64| ms.is_finite() && *ms >= 0.0) {
            known.entry(timed).or_insert(ms);
        }
    }
    known
}

fn append(file: &Path, line: &Line) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)?;
    let text = serde_json::to_string(line)? + "\n";
    // One write: lines of jobs that run at once don't mix.
    fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(file: &Path) -> KeptTimes {
        KeptTimes { file: Some(file.into()), state: Mutex::new(State { known: read(file), ..State::default() }) }
    }

    #[test]
    fn what_was_measured_before_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("caches/times.jsonl");
        let first = kept(&file);
        let measure = |times: &KeptTimes, ms: f64| times.get_or("a graph", || Ok(vec![ms])).unwrap()[0];
        assert_eq!([measure(&first, 1.0), measure(&first, 2.0)], [1.0, 2.0], "each time that it is asked is another");
        assert!(first.reused().is_none());
        let again = kept(&file);
        assert_eq!([measure(&again, 3.0), measure(&again, 4.0), measure(&again, 5.0)], [1.0, 2.0, 5.0]);
        assert_eq!(again.reused(), Some((2, file.as_path())));
    }

    #[test]
    fn values_that_change_no_time_are_left_out() {
        let graph = |weight: &str, scale: &str, shape: &str| {
            let text = format!(
                r#"graph "g" {{
                    input %x: f32[4,16]
                    const %w: f32[16,16] = {weight}
                    const %s: f32[] = [{scale}]
                    const %to: i64[2] = {shape}
                    %m = MatMul(%x, %w)
                    %y = Mul(%m, %s)
                    %r = Reshape(%y, %to)
                    output %r
                }}"#
            );
            structure(&compress_compiler::text::parse(&text).unwrap())
        };
        let first = graph("random(1)", "0.5", "[8, 8]");
        assert_eq!(first, graph("random(2)", "0.25", "[8, 8]"));
        assert_ne!(first, graph("random(1)", "0.5", "[2, 32]"), "sizes count");
        assert_ne!(first, graph("zeros", "0.5", "[8, 8]"), "zeros count");
    }

    #[test]
    fn a_file_that_is_damaged_is_read_as_far_as_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("times.jsonl");
        let key = sha256(b"a graph\n1");
        let lines = [
            r#"{"timed":"half"#.to_string(),
            format!(r#"{{"timed":"{key}","ms":[1.5]}}"#),
            format!(r#"{{"timed":"{key}","ms":[9.0]}}"#),
            "\u{0}\u{1}".into(),
        ];
        fs::write(&file, lines.join("\n")).unwrap();
        assert_eq!(kept(&file).get_or("a graph", || Ok(vec![7.0])).unwrap(), [1.5], "the first holds");
        assert_eq!(
            kept(folder.path()).get_or("a graph", || Ok(vec![7.0])).unwrap(),
            [7.0],
            "a folder is no file of times"
        );
        assert!(folder.path().exists());
    }
}
