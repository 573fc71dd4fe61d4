//! Fuzzing on a bare stable toolchain: what goes in, changed at random, must never panic, hang, or
//! break what the targets promise. README.md says how to run it for long, and why it is made so.
//!
//!   COMPRESS_FUZZ_SECONDS=600   so long for each target, instead of a fixed number of runs
//!   COMPRESS_FUZZ_SEED=7        another sequence
//!   COMPRESS_FUZZ_CORPUS=DIR    more models to start from, anywhere below DIR
//!   COMPRESS_FUZZ_INPUT=FILE    that input alone, without change

mod coverage;
mod mutate;
mod targets;
mod wire;

use mutate::Mutator;
use std::{
    collections::hash_map::DefaultHasher,
    env, fs,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Runs of each target when no time is given.
const RUNS: u64 = 2000;
/// An input that takes longer hangs.
const PATIENCE: u64 = 30;
/// What the process may allocate: an input that needs more ends it.
const MEMORY: u64 = 4 << 30;
/// Larger inputs are slow and rarely better.
const LARGEST: usize = 64 << 10;

/// The targets take turns: coverage is counted for the whole process.
static TURN: Mutex<()> = Mutex::new(());

/// Bytes without any order: the wire walker and the parser behind it.
#[test]
fn bytes() {
    fuzz("bytes", &models(), Mutator::bytes, targets::read);
}

/// Messages that are well-formed and mean nonsense: the importer.
#[test]
fn models_changed() {
    fuzz("models", &models(), Mutator::model, targets::read);
}

/// What is read goes through the passes and out and in again, and runs before and after.
#[test]
fn pipeline() {
    fuzz("pipeline", &models(), Mutator::model, targets::pipeline);
}

/// The text form.
#[test]
fn text() {
    fuzz("text", &texts(), Mutator::text, targets::text);
}

fn fuzz(name: &'static str, corpus: &[Vec<u8>], mutate: fn(&mut Mutator) -> Vec<u8>, target: fn(&[u8])) {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(file) = env::var_os("COMPRESS_FUZZ_INPUT") {
        return target(&fs::read(file).unwrap());
    }
    limit_memory();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    fs::create_dir_all(&folder).unwrap();
    // Written before each run, so that it is known what ended the process.
    let current = folder.join(format!("{name}.current"));
    watch(&current);
    let number = |key: &str| env::var(key).ok().map(|v| v.parse::<u64>().expect("a number"));
    let seconds = number("COMPRESS_FUZZ_SECONDS").map(Duration::from_secs);
    let mut mutator = Mutator::new(number("COMPRESS_FUZZ_SEED").unwrap_or(0), corpus);
    let mut found: Vec<(String, PathBuf)> = vec![];
    let (mut runs, started, mut slowest) = (0, Instant::now(), Duration::ZERO);
    while seconds.map_or(runs < RUNS, |s| started.elapsed() < s) {
        // The corpus itself comes first.
        let input = corpus.get(runs as usize).cloned().unwrap_or_else(|| mutate(&mut mutator));
        runs += 1;
        if input.len() > LARGEST {
            continue;
        }
        fs::write(&current, &input).unwrap();
        BEGAN.store(now(), Ordering::Relaxed);
        coverage::reset();
        let run = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| target(&input)));
        if run.elapsed() > slowest {
            slowest = run.elapsed();
            fs::write(folder.join(format!("{name}.slowest")), &input).unwrap();
        }
        BEGAN.store(0, Ordering::Relaxed);
        match ended {
            Ok(()) if coverage::is_new() => mutator.keep(input),
            Ok(()) => {}
            Err(panic) => {
                let message = panic.downcast_ref::<String>().cloned();
                let message = message.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
                let message = message.unwrap_or_default();
                // One input for one defect: messages differ in numbers only.
                let kind: String = message.chars().filter(|c| !c.is_ascii_digit()).take(80).collect();
                if !found.iter().any(|(k, _)| *k == kind) {
                    let mut hash = DefaultHasher::new();
                    input.hash(&mut hash);
                    let file = folder.join(format!("{name}-{:016x}", hash.finish()));
                    fs::write(&file, &input).unwrap();
                    found.push((kind, file));
                }
            }
        }
    }
    let _ = fs::remove_file(current);
    let time = started.elapsed();
    println!("{name}: {runs} runs in {time:.1?}, the slowest {slowest:.1?}; {} inputs kept", mutator.len());
    assert!(found.is_empty(), "{} defects, each run again by COMPRESS_FUZZ_INPUT=FILE:\n{found:#?}", found.len());
}

/// When the run in progress began, in seconds; 0 between runs.
static BEGAN: AtomicU64 = AtomicU64::new(0);

fn now() -> u64 {
    static START: Mutex<Option<Instant>> = Mutex::new(None);
    let mut start = START.lock().unwrap_or_else(|e| e.into_inner());
    start.get_or_insert_with(Instant::now).elapsed().as_secs() + 1
}

/// Ends the process when a run takes too long: a thread cannot be ended.
fn watch(current: &Path) {
    let current = current.to_owned();
    thread::spawn(move || {
        while current.parent().is_some_and(Path::exists) {
            thread::sleep(Duration::from_secs(1));
            let began = BEGAN.load(Ordering::Relaxed);
            if began > 0 && now() > began + PATIENCE {
                eprintln!("an input takes more than {PATIENCE} s: {}", current.display());
                std::process::abort();
            }
        }
    });
}

fn limit_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Data);
    // Where it can't be limited, the machine's own limit holds.
    let _ = setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), maximum });
}

/// The models to start from.
fn models() -> Vec<Vec<u8>> {
    let more = env::var_os("COMPRESS_FUZZ_CORPUS").map(PathBuf::from);
    let folders = [Some(Path::new(ROOT).join("fuzz/corpus")), more];
    let files = folders.into_iter().flatten().flat_map(|f| files(&f, "onnx"));
    files.map(|f| fs::read(f).unwrap()).filter(|m| m.len() <= LARGEST).collect()
}

/// The graphs of the golden tests.
fn texts() -> Vec<Vec<u8>> {
    let files =
        files(&Path::new(ROOT).join("tests/passes/golden"), "txt").into_iter().map(|f| fs::read_to_string(f).unwrap());
    let cases: Vec<String> = files.flat_map(|t| t.split("===\n").map(str::to_owned).collect::<Vec<_>>()).collect();
    cases.iter().flat_map(|c| c.split("---\n")).map(|g| g.as_bytes().to_vec()).collect()
}

/// The files below a folder, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let all = paths.into_iter().flat_map(|p| if p.is_dir() { files(&p, extension) } else { vec![p] });
    all.filter(|p| p.extension().is_some_and(|e| e == extension)).collect()
}
