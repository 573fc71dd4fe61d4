//! Where the library of ONNX Runtime is, and loading it.

use compress_compiler::{
    error::{Error, Result},
    words::option,
};
use ort::environment::Environment;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

/// The environment variable that says where the library is, as other programs with ONNX Runtime in them read it.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// Where the library is inside of Python's package.
const INSIDE: &str = "onnxruntime/capi";

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// The library of this process.
pub(super) struct Loaded {
    path: PathBuf,
    pub(super) environment: Environment,
}

/// Where a program says that the library is.
static OFFERED: OnceLock<PathBuf> = OnceLock::new();

/// Takes note of the library at `path`, or in that folder, for when none is asked for: a Python program that uses this one knows
/// its own environment, which need not be active. The first call counts.
pub fn offer(path: &Path) {
    if let Some(library) = in_place(path) {
        OFFERED.get_or_init(|| library);
    }
}

/// The library that the environment variable names, that was offered, or of the active Python environment; nothing is started
/// to find it.
pub fn active() -> Option<PathBuf> {
    named().or_else(|| OFFERED.get().cloned()).or_else(in_environments)
}

/// What the environment variable names, whether it is there or not.
fn named() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn in_environments() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(folder).find_map(|folder| in_environment(&folder))
}

/// Loads the library: the one at `asked`, else what [`active`] finds, else that of the `python3` on the path.
///
/// # Errors
/// Device where there is none, or none that can be loaded.
pub fn load(asked: Option<&Path>) -> Result<()> {
    loaded(asked).map(drop)
}

/// The library, which is loaded the first time.
pub(super) fn loaded(asked: Option<&Path>) -> Result<&'static Loaded> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = |path: &Path| absent(&format!("there is no library at {}", path.display()));
    if let Some(loaded) = LOADED.get() {
        return match asked.map(|path| in_place(path).ok_or_else(|| missing(path))).transpose()? {
            Some(other) if other != loaded.path => Err(Error::device(format!(
                "ONNX Runtime is loaded already, from {}: a process has one",
                loaded.path.display()
            ))),
            _ => Ok(loaded),
        };
    }
    let path = match asked.map(Path::to_path_buf).or_else(named) {
        Some(path) => in_place(&path).ok_or_else(|| missing(&path))?,
        None => {
            let found = OFFERED.get().cloned().or_else(in_environments).or_else(of_python);
            found.ok_or_else(|| absent("it is in no Python environment that is active"))?
        }
    };
    let failed = |e: &dyn std::fmt::Display| absent(&format!("{} can't be loaded: {e}", path.display()));
    let builder = ort::init_from(&path).map_err(|e| failed(&e))?;
    let environment = builder.with_name("compress").with_telemetry(false).build().map_err(|e| failed(&e))?;
    Ok(LOADED.get_or_init(|| Loaded { path, environment }))
}

fn absent(why: &str) -> Error {
    Error::device(format!("ONNX Runtime is not here: {why}")).help(format!(
        "pip install onnxruntime, in an environment that is active; or say where its library is with {} or {VARIABLE}",
        option::ORT
    ))
}

/// The library at a path, which may be a folder that it is in.
fn in_place(path: &Path) -> Option<PathBuf> {
    if !path.is_dir() {
        // A bare name would be looked for in the folders of the system.
        return path.canonicalize().ok();
    }
    let is_library = |p: &PathBuf| {
        p.file_name().and_then(|n| n.to_str()).is_some_and(|n| {
            n.starts_with("libonnxruntime.so") || n.starts_with("libonnxruntime.") && n.ends_with(".dylib")
        })
    };
    let mut found: Vec<PathBuf> = path.read_dir().ok()?.flatten().map(|e| e.path()).filter(is_library).collect();
    found.sort();
    found.pop()?.canonicalize().ok()
}

/// The library in a Python environment.
fn in_environment(folder: &Path) -> Option<PathBuf> {
    let versions = folder.join("lib").read_dir().ok()?.flatten().map(|e| e.path());
    let mut packages: Vec<PathBuf> = versions.map(|version| version.join("site-packages").join(INSIDE)).collect();
    packages.sort();
    packages.iter().rev().find_map(|folder| in_place(folder))
}

/// The library of the Python on the path.
fn of_python() -> Option<PathBuf> {
    const FIND: &str =
        "import importlib.util as u; s = u.find_spec('onnxruntime'); print(s.submodule_search_locations[0])";
    let ran = Command::new("python3").args(["-c", FIND]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let folder = String::from_utf8(ran.stdout).ok()?;
    if !ran.status.success() || folder.trim().is_empty() {
        return None;
    }
    in_place(&Path::new(folder.trim()).join("capi"))
}
