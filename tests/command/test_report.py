"""What a run reports, when it fails a gate, and that it can be run again to the same bytes."""

import hashlib
import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
import small
from support import TIMEOUT, binary, listing, read_report, run_onnx, started

FILE = {"path", "sha256", "bytes", "zstd_bytes", "data", "nodes", "parameters", "nonzero", "macs"}
SCHEMA = {
    "input": FILE,
    "output": FILE,
    "accuracy": {
        "metric",
        "output",
        "meaning",
        "reason",
        "samples",
        "unlike",
        "synthetic",
        "before",
        "after",
        "drop",
        "agreement",
        "beside",
        "sqnr_db",
        "worst_output",
        "outputs",
        "equal",
    },
    "speed": {
        "device",
        "engine",
        "threads",
        "batch",
        "inputs",
        "as_is",
        "before_ms",
        "after_ms",
        "speedup",
        "interval",
        "rounds",
        "p90",
        "slowest_clock",
    },
    "memory": {"before_bytes", "after_bytes"},
    "recipe": {"version", "flags", "seed", "data", "run"},
}
LISTS = {
    "passes": {"name", "seconds", "edits", "skipped"},
    "layers": {
        "node",
        "op",
        "precision",
        "sparsity",
        "live_bytes",
        "dead_bytes",
        "skips_zeros",
        "sqnr_db",
        "macs",
        "kernel",
    },
    "coverage": {"request", "layers", "of_layers", "macs", "left"},
    "gates": {"name", "limit", "limit_shown", "value", "shown", "passed", "verdict"},
}


@pytest.fixture
def cnn(tmp_path):
    """A small classifier with labelled data beside it."""
    path = small.save(small.cnn(), tmp_path)
    x = small.floats(11, 100, 3, 12, 12)
    np.savez(tmp_path / "data.npz", x=x, y=run_onnx(path, {"input": x})[0].argmax(1))
    return path


def test_schema(compress, cnn):
    result = compress(
        cnn,
        "--int8",
        "--prune",
        "0.5",
        "--data",
        cnn.parent / "data.npz",
        "--max-size",
        "1GB",
        "--max-drop",
        "100%",
        "--json",
    )
    report = result.json()
    assert result.err == ""
    assert report["schema"] == 1
    assert set(report) == {
        "schema",
        *SCHEMA,
        *LISTS,
        "saturation",
        "warnings",
        "undone",
        "unusable",
        "unknown_operators",
    }
    for name, fields in SCHEMA.items():
        assert set(report[name]) == fields, name
    for name, fields in LISTS.items():
        # What trained, searched or chose ranges says so besides.
        assert report[name] and all(
            set(entry) - {"trained", "tried", "clipping"} == fields for entry in report[name]
        ), name
    assert report == read_report(cnn.parent / "model.compressed.report.json")


def test_figures_are_those_of_the_files(compress, cnn):
    data = cnn.parent / "data.npz"
    report = compress(cnn, "--prune", "0.5", "--prune-ends", "--eval", data, "--json").json()
    output = cnn.parent / "model.compressed.onnx"
    for facts, path in ((report["input"], cnn), (report["output"], output)):
        assert facts["bytes"] == path.stat().st_size and facts["path"] == str(path)
        assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        weights = small.initializers(path).values()
        assert facts["parameters"] == sum(w.size for w in weights)
        assert facts["nonzero"] == sum(int(np.count_nonzero(w)) for w in weights)
        assert facts["nodes"] == len(small.ops(path))
    # conv1, conv2 and head: output positions times filters times taps.
    assert report["input"]["macs"] == 144 * 8 * 27 + 36 * 16 * 72 + 5 * 16
    samples = np.load(data)
    for key, path in (("before", cnn), ("after", output)):
        right = (run_onnx(path, {"input": samples["x"]})[0].argmax(1) == samples["y"]).mean()
        assert report["accuracy"][key] == pytest.approx(right)
    accuracy = report["accuracy"]
    assert accuracy["drop"] == pytest.approx(accuracy["before"] - accuracy["after"])
    before, after = (run_onnx(p, {"input": samples["x"]})[0].astype(np.float64) for p in (cnn, output))
    sqnr = 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum())
    assert accuracy["sqnr_db"] == pytest.approx(sqnr, abs=0.05)
    assert accuracy["agreement"] == pytest.approx((before.argmax(1) == after.argmax(1)).mean())


def test_pruning_zeroes_the_fraction_asked_for(compress, cnn):
    for fraction in (0.3, 0.9):
        report = compress(cnn, "--prune", fraction, "--prune-ends", "--force", "--json").json()
        weights = [w for w in small.initializers(cnn.parent / "model.compressed.onnx").values() if w.ndim > 1]
        share = sum((w == 0).sum() for w in weights) / sum(w.size for w in weights)
        assert share == pytest.approx(fraction, abs=0.001)
        for layer in report["layers"]:
            assert 0 <= layer["sparsity"] <= 1
    # Without --prune-ends the first and the last layer are whole.
    compress(cnn, "--prune", "0.9", "--force")
    zeros = {
        n: (w == 0).mean() for n, w in small.initializers(cnn.parent / "model.compressed.onnx").items() if w.ndim > 1
    }
    assert sorted(z > 0.5 for z in zeros.values()) == [False, False, True], zeros


def test_zeros_are_no_promise(compress, cnn):
    """The report says that zeros alone make nothing smaller or faster."""
    report = compress(cnn, "--prune", "0.5", "--json").json()
    assert any("zeros" in w for w in report["warnings"])


@pytest.mark.parametrize(
    "gate", [("--max-drop", "0%"), ("--max-size", "1kB"), ("--min-speedup", "1000000")], ids=lambda g: g[0].strip("-")
)
def test_a_failed_gate_is_9_and_the_model_is_written(compress, cnn, gate):
    args = [cnn, "--prune", "0.95", "--prune-ends", "--prune-by", "magnitude", "--eval", cnn.parent / "data.npz", *gate]
    result = compress(*args, code=9)
    assert gate[0] in result.err and "FAILED" in result.out
    onnx.checker.check_model(str(cnn.parent / "model.compressed.onnx"), full_check=True)
    report = read_report(cnn.parent / "model.compressed.report.json")
    assert [(g["name"], g["passed"]) for g in report["gates"]] == [(gate[0], False)]
    result = compress(*args, "--force", "--json", code=9)
    assert result.json()["gates"][0]["passed"] is False


def test_gates_that_hold(compress, cnn):
    gates = ["--max-drop", "100%", "--max-size", "30MB", "--min-speedup", "0.000001"]
    report = compress(cnn, "--eval", cnn.parent / "data.npz", *gates, "--json").json()
    assert [g["passed"] for g in report["gates"]] == [True] * 3
    assert {g["name"]: g["limit"] for g in report["gates"]} == {
        "--max-drop": 1,
        "--max-size": 30e6,
        "--min-speedup": 1e-6,
    }


def test_made_up_data_is_said_loudly(compress, cnn):
    result = compress(cnn, "--int8")
    assert "NO DATA" in result.out and "--data" in result.out
    report = compress(cnn, "--int8", "--force", "--json").json()
    assert any("NO DATA" in w for w in report["warnings"])
    assert report["accuracy"]["synthetic"] and report["recipe"]["data"].startswith("synthetic:")
    # Accuracy on noise means nothing, so none is claimed.
    assert report["accuracy"]["before"] is None and report["accuracy"]["metric"] != "top1"
    report = compress(cnn, "--int8", "--data", cnn.parent / "data.npz", "--force", "--json").json()
    assert not any("NO DATA" in w for w in report["warnings"]) and not report["accuracy"]["synthetic"]


def test_same_input_same_bytes(compress, cnn):
    flags = [cnn, "--int8", "--prune", "0.5", "--data", cnn.parent / "data.npz", "--calibration-samples", "20"]
    outputs = []
    for i, extra in enumerate([[], [], ["--seed", "1"]]):
        output = cnn.parent / f"out{i}.onnx"
        compress(*flags, *extra, "-o", output)
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2], "another seed calibrates on other samples"


@pytest.mark.parametrize("how", ["minmax", "percentile", "mse"])
def test_calibrations_are_deterministic_and_differ(compress, cnn, how):
    data = cnn.parent / "data.npz"
    for name, threads in (("a", 1), ("b", 3)):
        flags = ["--calibration", how, "--threads", threads]
        compress(cnn, "--int8", "--data", data, *flags, "-o", cnn.parent / f"{name}.onnx")
    assert (cnn.parent / "a.onnx").read_bytes() == (cnn.parent / "b.onnx").read_bytes()
    other = "minmax" if how != "minmax" else "percentile"
    compress(cnn, "--int8", "--data", data, "--calibration", other, "-o", cnn.parent / "c.onnx")
    assert (cnn.parent / "a.onnx").read_bytes() != (cnn.parent / "c.onnx").read_bytes()


def test_the_recipe_travels_with_the_model(compress, cnn):
    version = compress("--version").out.split()[1]
    digests = []
    for seed in (1, 2):
        report = compress(cnn, "--int8", "--exclude", "head", "--seed", seed, "--force", "--json").json()
        assert report["recipe"]["version"] == version and report["recipe"]["seed"] == seed
        assert "--int8" in report["recipe"]["flags"] and "--exclude head" in report["recipe"]["flags"]
        props = {p.key: p.value for p in onnx.load(cnn.parent / "model.compressed.onnx").metadata_props}
        assert props["compress.version"] == version and len(props["compress.recipe"]) == 64
        digests.append(props["compress.recipe"])
    assert digests[0] != digests[1]


def test_metadata_of_the_input_is_kept(compress, tmp_path):
    made = small.mlp()
    made.producer_name, made.doc_string = "somebody", "a note"
    made.metadata_props.add(key="license", value="none")
    compress(small.save(made, tmp_path))
    kept = onnx.load(tmp_path / "model.compressed.onnx")
    assert (kept.producer_name, kept.doc_string) == ("somebody", "a note")
    assert {p.key: p.value for p in kept.metadata_props}["license"] == "none"


def test_report_folder(compress, cnn):
    folder = cnn.parent / "reports" / "today"
    compress(cnn, "--report", folder)
    assert read_report(folder / "report.json")["schema"] == 1
    assert not (cnn.parent / "model.compressed.report.json").exists()
    compress("check", cnn, "--against", cnn, "--report", cnn.parent / "checked")
    assert (cnn.parent / "checked" / "report.json").exists()


def test_plain_lines_when_nobody_watches(compress, cnn):
    """Without a terminal there are no control characters."""
    result = compress(cnn, "--int8", "--data", cnn.parent / "data.npz")
    assert "\x1b" not in result.out + result.err and "\r" not in result.out + result.err
    assert "calibrate" in result.err and "before" in result.out


def start_long_run(folder):
    """A calibration that takes minutes, begun: the graphs it dumps show that it is under way."""
    nodes = [small.node("Conv", f"x{i} w{i}", f"x{i + 1}", pads=[1, 1, 1, 1]) for i in range(6)]
    weights = {f"w{i}": small.floats(i, 32, 32 if i else 3, 3, 3, scale=0.1) for i in range(6)}
    made = small.model(nodes, [("x0", ["n", 3, 64, 64])], [("x6", ["n", 32, 64, 64])], weights)
    path = small.save(made, folder, "long.onnx")
    data = folder / "data.npy"
    # A hole in a file reads as zeros and takes no room.
    with open(data, "wb") as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "<f4", "fortran_order": False, "shape": (3000, 3, 64, 64)})
        f.truncate(f.tell() + 3000 * 3 * 64 * 64 * 4)
    ir = folder / "ir"
    ir.mkdir()
    before = {p for p in folder.iterdir()}
    args = [binary(), path, "--int8", "--data", data, "--calibration-samples", "3000", "--dump-ir", ir]
    process = started(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any("simplify" in p.name for p in ir.iterdir()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    return process, before


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_130_and_leaves_nothing(tmp_path, which):
    process, before = start_long_run(tmp_path)
    process.send_signal(which)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, err
    assert "interrupted" in err and "panicked" not in err and out == ""
    assert {p for p in tmp_path.iterdir()} == before
    assert not list(tmp_path.rglob(".compress-*"))


def test_a_killed_run_leaves_no_output(tmp_path):
    """Not even a kill leaves half a model under the output's name."""
    process, before = start_long_run(tmp_path)
    process.kill()
    process.communicate(timeout=TIMEOUT)
    assert {p for p in tmp_path.iterdir()} == before


def test_two_runs_at_once_do_not_mix(cnn):
    """Both write the same output: one wins as a whole, or is told that it exists."""
    args = [binary(), cnn, "--int8", "--quiet"]
    runs = [started(args, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    codes = sorted(run.wait(timeout=TIMEOUT) for run in runs)
    assert codes[0] == 0 and set(codes) <= {0, 6}, [run.stderr.read() for run in runs]
    onnx.checker.check_model(str(cnn.parent / "model.compressed.onnx"), full_check=True)
    names = set(map(str, listing(cnn.parent)))
    assert names == {"model.onnx", "data.npz", "model.compressed.onnx", "model.compressed.report.json"}
