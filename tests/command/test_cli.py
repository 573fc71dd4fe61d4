"""The command's contract at a shell: usage, files, what it prints, and what it leaves behind."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
import small
from support import binary, listing


@pytest.fixture
def mlp(tmp_path):
    """A small classifier in a folder of its own."""
    return small.save(small.mlp(), tmp_path)


def test_version_and_help(compress):
    assert compress("--version").out.startswith("compress ")
    text = compress("--help").out
    for flag in ("--int8", "--prune", "--data", "--eval", "--max-drop", "--device", "--json", "--force"):
        assert flag in text
    assert "Exit codes" in text and "130 interrupted" in text
    for command in ("inspect", "check", "bench"):
        assert "Usage" in compress(command, "--help").out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Usage"),
        (["MODEL", "--frobnicate"], "--frobnicate"),
        (["MODEL", "--prune", "1.5"], "--prune"),
        (["MODEL", "--prune", "1"], "--prune"),
        (["MODEL", "--prune=-0.1"], "--prune"),
        (["MODEL", "--prune", "-0.1"], "not a fraction from 0 to below 1"),
        (["MODEL", "--prune", "--int8"], "not a fraction from 0 to below 1"),
        (["MODEL", "--max-drop", "-1%"], "not a share"),
        (["MODEL", "--max-size", "-5MB"], "not a size"),
        (["MODEL", "--min-speedup", "-1"], "not a positive number"),
        (["MODEL", "--batch", "-1"], "not a whole number from 1 to 65536"),
        (["MODEL", "--batch", "65537"], "not a whole number from 1 to 65536"),
        (["MODEL", "--seed", "-1"], "not a whole number"),
        (["MODEL", "--calibration-samples", "-1"], "--calibration-samples"),
        (["bench", "MODEL", "--runs", "-1"], "--runs"),
        (["MODEL", "--prune", "nan"], "--prune"),
        (["MODEL", "--prune", "inf"], "--prune"),
        (["MODEL", "--prune", "half"], "--prune"),
        (["MODEL", "--prune-ends"], "--prune-ends"),
        (["MODEL", "--prune", "0.5", "--epochs", "3"], "the model has no input of that kind"),
        (["MODEL", "--prune", "0.5", "--epochs", "-1"], "not a whole number from 0 to 1000000"),
        (["MODEL", "--prune", "0.5", "--epochs", "1000001"], "not a whole number from 0 to 1000000"),
        (["MODEL", "--prune", "0.5", "--epochs", "18446744073709551615"], "--epochs"),
        (["MODEL", "--prune", "0.5", "--lr", "0.1"], "--lr is for training: it needs --data"),
        (["MODEL", "--prune", "0.5", "--teacher", "MODEL"], "--teacher is for training: it needs --data"),
        (["MODEL", "--qat"], "--qat is for training: it needs --data"),
        (["MODEL", "--qat", "--epochs", "1"], "the model has no input of that kind"),
        (["MODEL", "--qat", "--epochs", "1", "--dry-run"], "the model has no input of that kind"),
        (["MODEL", "--bisect", "--json"], "--bisect compresses nothing"),
        (["MODEL", "--bisect", "--max-size", "1kB"], "--bisect compresses nothing"),
        (["MODEL", "--int8", "--calibration", "guess"], "guess"),
        (["MODEL", "--calibration-samples", "0"], "--calibration-samples"),
        (["MODEL", "--exclude", "("], "--exclude"),
        (["MODEL", "--stop-after", "lunch"], "int8"),
        (["MODEL", "--max-drop", "120%"], "120%"),
        (["MODEL", "--max-drop", "nan"], "nan"),
        (["MODEL", "--max-size", "5 apples"], "apples"),
        (["MODEL", "--min-speedup", "0"], "--min-speedup"),
        (["MODEL", "--min-speedup", "inf"], "--min-speedup"),
        (["MODEL", "--batch", "0"], "--batch"),
        (["MODEL", "--device", "abacus"], "abacus"),
        (["MODEL", "--data", "x.npz", "--preprocess", "mean=x"], "mean"),
        (["MODEL", "--data", "x.npz", "--preprocess", "scale=0"], "scale"),
        (["MODEL", "--seed=-1"], "seed"),
        (["MODEL", "-o", "MODEL"], "output would replace the input"),
        (["check", "MODEL"], "--against"),
        (["bench", "MODEL", "--runs", "0"], "--runs"),
        (["inspect", "MODEL", "--ir", "--json"], "--json"),
        (["MODEL", "--calibration", "mse"], "--calibration needs --int8 or --qat"),
        (["MODEL", "--int8", "--calibration-samples", "50"], "--calibration-samples needs --data"),
        (["MODEL", "--data", "x.npz", "--calibration-samples", "50"], "--calibration-samples needs --int8"),
        (["MODEL", "--effort", "best"], "--effort needs --int8 or --qat"),
        (["MODEL", "--int8", "--effort", "best"], "--effort best needs --data"),
        (["MODEL", "--int8", "--effort", "best", "--data", "x.npz", "--epochs", "0"], "--epochs other than 0"),
        (["MODEL", "--time", "9s"], "--time needs --int8 or --qat"),
        (["MODEL", "--int8", "--time", "9s"], "--time needs --data"),
        (["MODEL", "--int8", "--data", "x.npz", "--effort", "quick", "--time", "9s"], "--time needs a search"),
        (["MODEL", "--int8", "--data", "x.npz", "--epochs", "9"], "--epochs needs --prune"),
        (["MODEL", "--weight-bits", "4"], "--weight-bits needs --int8 or --qat"),
        (["MODEL", "--exclude", "conv"], "--exclude needs --int8"),
        (["MODEL", "--int8", "--preprocess", "imagenet"], "--preprocess needs --data or --eval"),
        (["MODEL", "--data", "x.npz", "--shape", "x=1x8"], "--shape needs inputs that are made up"),
        (["check", "MODEL", "--against", "MODEL", "--eval", "x.npz", "--shape", "x=1x8"], "--shape needs"),
        (["bench", "MODEL", "--data", "x.npz", "--shape", "x=1x8"], "--shape needs"),
        (["MODEL", "--no-check", "--metric", "sqnr"], "--metric needs a check"),
        (["MODEL", "--no-check", "--score", "true"], "--score needs a check"),
        (["MODEL", "--max-size", "30"], "30MB"),
        (["MODEL", "--max-drop", "3"], "3%"),
    ],
)
def test_usage_is_2_and_writes_nothing(compress, mlp, args, says):
    before = listing(mlp.parent)
    result = compress(*[mlp if a == "MODEL" else a for a in args], code=2)
    assert says in result.err
    assert result.out == ""
    assert listing(mlp.parent) == before


@pytest.mark.parametrize(
    "flags",
    [
        ["--prune", "2"],
        ["--max-drop", "2"],
        ["--max-size", "much"],
        ["--min-speedup", "0"],
        ["--batch", "0"],
        ["--calibration-samples", "0"],
        ["--exclude", "("],
        ["--calibration", "guess"],
        ["--target", "moon"],
        ["--preprocess", "mean=x"],
        ["--device", "abacus"],
        ["--stop-after", "lunch"],
        ["--no-check", "--max-drop", "1%"],
    ],
    ids=lambda flags: flags[-2],
)
def test_flags_come_before_files(compress, tmp_path, flags):
    """Neither a model that is missing nor an output in the way is found before a flag that is wrong."""
    (tmp_path / "out.onnx").write_text("in the way")
    compress(tmp_path / "missing.onnx", "-o", tmp_path / "out.onnx", *flags, code=2)


def test_output_is_the_input_by_other_names(compress, mlp):
    link = mlp.parent / "link.onnx"
    link.symlink_to(mlp)
    hard = mlp.parent / "hard.onnx"
    os.link(mlp, hard)
    before = listing(mlp.parent)
    for a, b in ((mlp, link), (link, mlp), (mlp, f"{mlp.parent}/./model.onnx")):
        compress(a, "-o", b, "--force", code=2)
    assert listing(mlp.parent) == before
    # A hard link is a file of its own once it is replaced, so that the input survives.
    compress(mlp, "-o", hard, "--force", code=(0, 2))
    assert listing(mlp.parent)[Path("model.onnx")] == before[Path("model.onnx")]


def test_default_output_is_beside_the_input(compress, mlp):
    compress(mlp)
    names = {p.name for p in mlp.parent.iterdir()}
    assert names == {"model.onnx", "model.compressed.onnx", "model.compressed.report.json"}


def test_existing_output_needs_force(compress, mlp):
    output = mlp.parent / "out.onnx"
    output.write_bytes(b"precious")
    before = listing(mlp.parent)
    result = compress(mlp, "-o", output, code=6)
    assert "out.onnx" in result.err and "--force" in result.err
    assert listing(mlp.parent) == before
    compress(mlp, "-o", output, "--force")
    onnx.checker.check_model(str(output))


def test_relative_paths(compress, mlp):
    compress("model.onnx", "-o", "out.onnx", cwd=mlp.parent)
    assert (mlp.parent / "out.onnx").exists() and (mlp.parent / "out.report.json").exists()


def test_odd_file_names(compress, mlp):
    for name in ("with space.onnx", "ünïcode.onnx", "-dash.onnx", "no_extension", "dots.v1.2.onnx"):
        mlp.rename(mlp.parent / name)
        compress("--", name, cwd=mlp.parent)
        (mlp.parent / name).rename(mlp)
    found = {p.name for p in mlp.parent.glob("*compressed.onnx")}
    assert len(found) == 5 and "dots.v1.2.compressed.onnx" in found


@pytest.mark.parametrize("name", ["missing.onnx", "no/such/folder.onnx", "."])
def test_unreadable_models_are_6(compress, tmp_path, name):
    path = tmp_path / name
    for args in ([path], ["inspect", path], ["bench", path], ["check", path, "--against", path]):
        result = compress(*args, code=6)
        assert str(tmp_path) in result.err
    assert listing(tmp_path) == {}


def test_unwritable_places_are_6(compress, mlp):
    before = listing(mlp.parent)
    # The tests may run as root, whom permissions don't stop: a file is not a folder for anybody.
    for output in (mlp / "out.onnx", "/proc/out.onnx", mlp.parent / "missing" / "out.onnx"):
        result = compress(mlp, "-o", output, code=6)
        assert result.out == ""
    for report in (mlp / "reports", "/proc/reports"):
        compress(mlp, "--report", report, code=6)
    assert listing(mlp.parent) == before


def test_a_missing_folder_is_named_as_the_user_did(compress, mlp):
    result = compress("model.onnx", "-o", "missing/out.onnx", cwd=mlp.parent, code=6)
    assert "file: missing/out.onnx: " in result.err and "make the folder missing" in result.err
    assert ".compress-" not in result.err
    # What can't be written is found before the models are looked at.
    for args in (["-o", "/proc/out.onnx"], ["--dump-ir", "/proc/ir"], ["--report", "/proc/reports"]):
        result = compress("absent.onnx", *args, cwd=mlp.parent, code=6)
        assert "/proc" in result.err and "absent" not in result.err and ".compress-" not in result.err
    result = compress("check", "absent.onnx", "--against", "absent.onnx", "--report", "/proc/reports", code=6)
    assert "/proc" in result.err


def test_a_folder_in_the_way_of_the_output(compress, mlp):
    (mlp.parent / "out.onnx").mkdir()
    before = listing(mlp.parent)
    compress(mlp, "-o", mlp.parent / "out.onnx", code=6)
    compress(mlp, "-o", mlp.parent / "out.onnx", "--force", code=6)
    assert listing(mlp.parent) == before


def test_disk_full_leaves_nothing(compress, tmp_path):
    """A limit on the size of files stands in for a full disk: writing fails half-way."""
    path = small.save(small.mlp(width=4000), tmp_path)
    before = listing(tmp_path)

    def cramped():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    result = compress(path, code=6, preexec_fn=cramped)
    assert "model.compressed.onnx" in result.err
    assert listing(tmp_path) == before


def test_dry_run_writes_nothing(compress, mlp):
    (mlp.parent / "model.compressed.onnx").write_bytes(b"precious")
    before = listing(mlp.parent)
    result = compress(
        mlp, "--int8", "--prune", "0.5", "--dry-run", "--report", mlp.parent / "r", "--dump-ir", mlp.parent / "ir"
    )
    assert "prune" in result.out and "int8" in result.out and "model.compressed.onnx" in result.out
    assert listing(mlp.parent) == before


def test_quiet_says_nothing(compress, mlp):
    result = compress(mlp, "--quiet", "--int8")
    assert (result.out, result.err) == ("", "")
    assert (mlp.parent / "model.compressed.onnx").exists()


def test_stop_after(compress, mlp):
    compress(mlp, "--prune", "0.5", "--int8", "--stop-after", "prune", "--prune-ends")
    output = mlp.parent / "model.compressed.onnx"
    assert "QuantizeLinear" not in small.ops(output)
    assert any((w == 0).mean() > 0.3 for w in small.initializers(output).values())


def test_dump_ir_has_the_graph_after_every_pass(compress, mlp):
    folder = mlp.parent / "deep" / "ir"
    report = compress(mlp, "--prune", "0.5", "--int8", "--dump-ir", folder, "--json").json()
    names = sorted(p.name for p in folder.iterdir())
    assert [n.split("-", 1)[1].removesuffix(".txt") for n in names] == [p["name"] for p in report["passes"]]
    last = (folder / names[-1]).read_text()
    assert "QuantizeLinear" in last and "Gemm" in last


def test_exclude_leaves_layers_alone(compress, mlp):
    report = compress(mlp, "--int8", "--prune", "0.9", "--prune-ends", "--exclude", "^first$", "--json").json()
    weights = small.initializers(mlp.parent / "model.compressed.onnx")
    original = small.initializers(mlp)
    assert np.array_equal(weights["w1"], original["w1"])
    reasons = [s for p in report["passes"] for s in p["skipped"] if s["node"] == "first"]
    assert {r["rule"] for r in reasons} >= {"prune", "int8"} and "--exclude" in reasons[0]["reason"]
    precision = {layer["node"]: layer["precision"] for layer in report["layers"]}
    assert precision == {"first": "f32", "second": "int8"}
    # The name of the weight works as well.
    report = compress(mlp, "--int8", "--exclude", "w2", "--force", "--json").json()
    assert {layer["node"]: layer["precision"] for layer in report["layers"]} == {"first": "int8", "second": "f32"}


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--ir"], ["--help"], ["bench", "--runs", "1"]])
def test_a_reader_that_goes_away_is_no_error(mlp, command):
    """`compress inspect model | head -1` ends without a panic, and without a failure."""
    args = [binary(), *command] if command == ["--help"] else [binary(), command[0], mlp, *command[1:]]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(args, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert (done.returncode, "panicked" in done.stderr) == (0, False), done.stderr


def test_device_that_is_not_there_is_8(compress, mlp):
    before = listing(mlp.parent)
    result = compress(mlp, "--device", "cuda:99", code=8)
    assert "help:" in result.err and "cpu" in result.err or "cuda:0" in result.err
    compress("bench", mlp, "--device", "cuda:99", code=8)
    compress("check", mlp, "--against", mlp, "--device", "cuda:99", code=8)
    assert listing(mlp.parent) == before
    compress(mlp, "--device", "auto")


def test_inspect(compress, mlp):
    text = compress("inspect", mlp).out
    for word in ("opset 17", "input", "[batch,8]", "output", "Gemm", "first", "second"):
        assert word in text
    facts = compress("inspect", mlp, "--json").json()
    assert facts["opset"] == 17 and facts["operators"] == {"Gemm": 2, "Relu": 1}
    assert facts["file"]["parameters"] == 16 * 8 + 16 + 4 * 16 + 4
    assert facts["file"]["macs"] == 16 * 8 + 4 * 16
    assert facts["file"]["bytes"] == mlp.stat().st_size
    assert "first" in compress("inspect", mlp, "--ir").out


def test_bench(compress, mlp):
    figures = compress("bench", mlp, "--runs", "3", "--batch", "7", "--json").json()
    assert (figures["batch"], figures["runs"]) == (7, 3) and figures["median_ms"] > 0
    assert "median" in compress("bench", mlp, "--runs", "2").out


def test_check_compares_two_files(compress, mlp):
    compress(mlp, "-o", mlp.parent / "pruned.onnx", "--prune", "0.95", "--prune-ends")
    gate = ["--allow-synthetic", "--max-drop"]
    same = compress("check", mlp, "--against", mlp, *gate, "0%", "--json").json()
    assert same["accuracy"]["sqnr_db"] is None and same["accuracy"]["agreement"] == 1
    shown = {"limit_shown": "0.00%", "shown": "0.00%"}
    assert same["gates"] == [
        {"name": "--max-drop", "limit": 0.0, "value": 0.0, "passed": True, "verdict": "passed", **shown}
    ]
    before = listing(mlp.parent)
    result = compress("check", mlp.parent / "pruned.onnx", "--against", mlp, *gate, "1%", code=9)
    assert "--max-drop" in result.err and "FAILED" in result.out
    assert listing(mlp.parent) == before


def test_outputs_that_are_no_numbers_are_not_equal(compress, mlp):
    nodes = [small.node("Relu", "input", "r"), small.node("Neg", "r", "n"), small.node("Log", "n", "output")]
    model = small.model(nodes, [("input", ["batch", 8])], [("output", ["batch", 8])])
    path = small.save(model, mlp.parent, "nan.onnx")
    # Where the input is negative this is the logarithm of -0, elsewhere NaN.
    for name, x, equal in (("some", small.floats(1, 10, 8), False), ("none", -np.ones((10, 8), np.float32), True)):
        np.savez(mlp.parent / f"{name}.npz", x=x)
        args = ["check", path, "--against", path, "--eval", mlp.parent / f"{name}.npz"]
        accuracy = compress(*args, "--json").json()["accuracy"]
        assert accuracy["sqnr_db"] is None and accuracy["equal"] is equal
        (line,) = [line for line in compress(*args).out.splitlines() if "output SQNR" in line]
        assert ("equal" in line) == equal and ("not a number" in line) != equal
    np.savez(mlp.parent / "all.npz", x=np.ones((10, 8), np.float32))
    accuracy = compress("check", path, "--against", path, "--eval", mlp.parent / "all.npz", "--json").json()["accuracy"]
    assert accuracy["agreement"] is None, "nothing is of any class"


def test_check_refuses_models_of_other_shapes(compress, mlp, tmp_path):
    other = small.save(small.mlp(classes=7), tmp_path, "other.onnx")
    said = compress("check", other, "--against", mlp, code=(3, 7)).err
    assert "output `output` is [64, 4] in one model and [64, 7] in the other" in said
    image = small.save(small.cnn(), tmp_path, "image.onnx")
    compress("check", image, "--against", mlp, code=(3, 7))


def test_nobody_reads_what_goes_wrong(tmp_path):
    """A closed stderr changes nothing: neither the exit code nor the work."""
    for args, code in [(["no-such-file.onnx"], 6), ([small.save(small.mlp(), tmp_path), "--int8"], 0)]:
        done = subprocess.run(["sh", "-c", 'exec "$0" "$@" 2>&-', binary(), *args], capture_output=True, timeout=120)
        assert done.returncode == code, done.stdout
