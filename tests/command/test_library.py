"""The library, from a program outside the workspace."""

import itertools
import json
import os
import shutil
import subprocess

import pytest
from support import ROOT, TIMEOUT

pytestmark = pytest.mark.slow

DIGITS = ROOT / "models/digits"

PROGRAM = """
use compress::{Compress, Event, Events, options::DataOptions, values::Int8};
struct Mine(usize, Vec<String>);
impl Events for Mine {
    fn event(&mut self, event: Event) {
        if let Event::Began(step) = event { self.1.push(step.name.into()); }
    }
    fn stopped(&mut self) -> bool { self.1.len() >= self.0 }
}
fn main() {
    let [model, data, out, steps]: [String; 4] = std::env::args().skip(1).collect::<Vec<_>>().try_into().unwrap();
    let (data, mut mine) = (DataOptions { data: Some(data.into()), ..Default::default() }, Mine(steps.parse().unwrap(), vec![]));
    let job = Compress { model: model.into(), output: Some(out.into()), int8: Some(Int8::Static), data, ..Compress::default() };
    let result = job.run(&mut mine).map(|report| report.accuracy.unwrap().samples);
    println!("{:?} {:?}", result.map_err(|e| e.kind()), mine.1);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, built as a user's would be: a package with the library as its dependency."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    folder = tmp_path_factory.mktemp("outside")
    (folder / "src").mkdir()
    (folder / "src/main.rs").write_text(PROGRAM)
    manifest = (ROOT / "Cargo.toml").read_text()
    profile = manifest[manifest.index("[profile.dev]") : manifest.index("[profile.release]")]
    # Built like the workspace, so that what both depend on is built once.
    (folder / "Cargo.toml").write_text(
        f"""
[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[dependencies]
compress = {{ path = "{ROOT}" }}
# With the features that they have in the workspace, whose build is used again.
ciborium = "0.2"
either = {{ version = "1", features = ["use_std"] }}
mimalloc = {{ version = "0.1", default-features = false, features = ["local_dynamic_tls"] }}
rustix = {{ version = "1", features = ["mm", "time"] }}

[build-dependencies]
syn = {{ version = "3", features = ["visit-mut"] }}

[patch.crates-io]
cubecl-llvm = {{ path = "{ROOT}/runtime/cubecl-llvm" }}

{profile}"""
    )
    shutil.copy(ROOT / "Cargo.lock", folder)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    subprocess.run(
        ["cargo", "build", "--offline", "--quiet", "--target-dir", target], cwd=folder, check=True, timeout=3 * TIMEOUT
    )
    return folder, f"{target}/debug/outside"


def run(program, folder, steps):
    out = folder / "out.onnx"
    done = subprocess.run(
        [program[1], DIGITS / "digits.onnx", DIGITS / "train.npz", out, str(steps)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.strip(), sorted(p.name for p in folder.iterdir())


def test_a_program_of_fifteen_lines_compresses(program, tmp_path):
    said, files = run(program, tmp_path, 99)
    result, steps = said.split(" ", 1)
    # How often a step is taken depends on the search.
    steps = [step for step, _ in itertools.groupby(json.loads(steps))]
    assert result == "Ok(287)"
    assert steps == ["calibrate", "round weights", "calibrate", "values alone", "ranges of values", "evaluate", "time"]
    assert files == ["out.onnx", "out.report.json"]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_program_that_stops_half_way_leaves_nothing(program, tmp_path, steps):
    said, files = run(program, tmp_path, steps)
    assert said.startswith("Err(Interrupted)") and files == []
