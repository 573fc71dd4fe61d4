"""Pruning under training, from the command to ONNX Runtime: budgets, sensitivity, sweeps, and what zeros are worth."""

import hashlib
import json
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import onnx
import pytest
import small
from support import ROOT, TIMEOUT, binary, listing, run_onnx

DIGITS = ROOT / "models/digits"
MODEL, TRAIN = DIGITS / "digits.onnx", DIGITS / "train.npz"
# Between the first and the last layer: what --prune prunes.
INNER = 55_296


def points(path):
    """Test pictures in their right class, in percent, in ONNX Runtime."""
    test = np.load(DIGITS / "test.npz")
    return 100 * (run_onnx(path, {"input": test["x"]}, optimise=True)[0].argmax(1) == test["y"]).mean()


def inner(path):
    """The weights of the second and the third convolution, by size."""
    sizes = (64 * 32 * 9, 64 * 64 * 9)
    return {w.size: w for w in small.initializers(path).values() if w.size in sizes}


def zeros(path):
    return sum(int((w == 0).sum()) for w in inner(path).values())


def trained(report):
    return [t["name"] for p in report["passes"] for t in p.get("trained", [])]


@pytest.fixture(scope="module")
def digits(compress, tmp_path_factory):
    """Makes a model of the shipped one, once for all tests: its path and its report."""
    folder, made = tmp_path_factory.mktemp("digits"), {}

    def make(*flags, again=""):
        key = f"{' '.join(map(str, flags))} {again}".strip()
        if key not in made:
            output = folder / f"{len(made)}.onnx"
            made[key] = output, compress(MODEL, "--data", TRAIN, *flags, "--json", "-o", output).json()
        return made[key]

    return make


# Quicker than to solve for what stays first.
GRADUAL = ["--prune-by", "magnitude"]
PRUNED = ["--prune", "0.97", "--epochs", "4", *GRADUAL]


def test_training_keeps_what_pruning_at_once_loses(digits):
    output, report = digits(*PRUNED)
    at_once, _ = digits("--prune", "0.97", "--epochs", "0", *GRADUAL)
    assert zeros(output) == zeros(at_once) == round(0.97 * INNER)
    # At 90% the shipped model hardly minds, trained or not.
    assert points(output) >= max(points(at_once) + 20, 96), (points(output), points(at_once))
    assert trained(report) == ["recover"]
    # Neither end was touched.
    assert all((w != 0).all() for w in small.initializers(output).values() if w.size in (32 * 9, 256 * 10))
    onnx.checker.check_model(output)


def test_the_plain_command_trains(digits):
    output, report = digits("--prune", "0.9", "--epochs", "1")
    at_once, _ = digits("--prune", "0.9", "--epochs", "0", *GRADUAL)
    assert trained(report) == ["recover"] and abs(zeros(output) - 0.9 * INNER) <= 2
    assert points(output) >= points(at_once) - 0.3, (points(output), points(at_once))


def test_the_bytes_do_not_depend_on_run_or_threads(digits):
    runs = [digits(*PRUNED)[0]]
    runs += [digits(*PRUNED, "--threads", n, again="once more")[0] for n in (1, 2)]
    assert len({hashlib.sha256(p.read_bytes()).digest() for p in runs}) == 1


def test_qat_keeps_the_zeros(digits):
    flags = ["--prune", "0.9", "--epochs", "2", *GRADUAL]
    (floats, _), (codes, report) = digits(*flags), digits(*flags, "--qat")
    assert trained(report) == ["recover", "qat"]
    assert zeros(floats) == round(0.9 * INNER)
    assert {w.dtype for w in inner(codes).values()} == {np.dtype(np.int8)}
    for size, c in inner(codes).items():
        # The same mask in both; a code may be zero besides.
        assert (c[inner(floats)[size] == 0] == 0).all()
    assert points(codes) >= 98


def test_no_epochs_no_training(digits):
    _, report = digits("--prune", "0.97", "--epochs", "0", *GRADUAL)
    assert trained(report) == [] and "--epochs 0" in report["recipe"]["flags"]


def test_a_layer_budget_is_the_same_for_each(digits):
    flags = ["--prune", "0.8", "--epochs", "1", *GRADUAL]
    output, _ = digits(*flags, "--prune-budget", "layer")
    assert [(w == 0).sum() for w in inner(output).values()] == [round(0.8 * w.size) for w in inner(output).values()]
    together, _ = digits(*flags)
    assert len({round((w == 0).mean(), 3) for w in inner(together).values()}) == 2
    at_once, _ = digits("--prune", "0.8", "--epochs", "0", *GRADUAL, "--prune-budget", "layer")
    assert [(w == 0).sum() for w in inner(at_once).values()] == [round(0.8 * w.size) for w in inner(at_once).values()]


def test_a_pattern_is_trained_under_and_holds(digits):
    output, report = digits("--prune-pattern", "2:4", "--epochs", "2", *GRADUAL)
    assert trained(report) == ["recover"]
    for w in inner(output).values():
        assert ((w.reshape(len(w), -1, 4, 3, 3) == 0).sum(2) == 2).all()
    assert points(output) >= 98


def test_what_the_loss_feels_chooses_others(digits):
    flags = ["--prune", "0.9", "--epochs", "2"]
    (by_magnitude, _), (felt, _) = digits(*flags, *GRADUAL), digits(*flags, "--prune-by", "taylor")
    assert zeros(felt) == round(0.9 * INNER)
    masks = [np.concatenate([(w == 0).ravel() for _, w in sorted(inner(p).items())]) for p in (by_magnitude, felt)]
    assert (masks[0] != masks[1]).mean() > 0.001
    assert points(felt) >= 97


def untrainable(tmp_path):
    """A model that runs, of which the gradient is not known."""
    nodes = [
        small.node("Gemm", "input w1 b1", "h", "first", transB=1),
        small.node("Gemm", "h w2 b1", "i", "middle", transB=1),
        small.node("Reshape", "i shape", "square"),
        small.node("Det", "square", "d"),
        small.node("Unsqueeze", "d one", "column"),
        small.node("Mul", "i column", "scaled"),
        small.node("Gemm", "scaled w3 b1", "output", "last", transB=1),
    ]
    weights = {
        **{f"w{i}": small.floats(i, 4, 8 if i == 1 else 4) for i in (1, 2, 3)},
        "b1": small.floats(9, 4),
        "shape": np.int64([-1, 2, 2]),
        "one": np.int64([1]),
    }
    path = small.save(small.model(nodes, [("input", ["batch", 8])], [("output", ["batch", 4])], weights), tmp_path)
    np.savez(tmp_path / "data.npz", input=small.floats(5, 100, 8))
    return path


def test_a_model_that_cannot_be_trained_is_pruned_all_the_same(compress, tmp_path):
    path = untrainable(tmp_path)
    args = [path, "--prune", "0.5", *GRADUAL, "--data", tmp_path / "data.npz", "--json"]
    report = compress(*args).json()
    assert trained(report) == []
    assert any("no training won accuracy back" in w for w in report["warnings"])
    assert (small.initializers(tmp_path / "model.compressed.onnx")["w2"] == 0).sum() == 8
    before = listing(tmp_path)
    assert "Det" in compress(*args, "--epochs", "1", "--force", code=5).err
    assert listing(tmp_path) == before


def test_an_interrupt_while_training_leaves_nothing(tmp_path):
    args = ["--prune", "0.9", *GRADUAL, "--epochs", "100000", "--data", TRAIN, "-o", tmp_path / "out.onnx"]
    process = subprocess.Popen([binary(), MODEL, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "recover" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and out == "" and "interrupted" in err, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prune", "0.5", "--prune-by", "taylor", "--epochs", "0"], "taylor is for training"),
        (["--prune-budget", "layer"], "needs --prune"),
        (["--prune-pattern", "2:4", "--prune-budget", "layer"], "cannot be used with"),
        (["--sweep", "0.5", "--prune", "0.5"], "cannot be used with"),
        (["--sweep", "0.5,1.5"], "not a fraction"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_nonsense_is_refused(compress, tmp_path, flags, says):
    assert says in compress(MODEL, "--data", TRAIN, "-o", tmp_path / "out.onnx", *flags, code=2).err


def test_sensitivity_needs_data(compress, tmp_path):
    assert "needs --data" in compress(MODEL, "--sensitivity", "-o", tmp_path / "out.onnx", code=2).err


def test_sensitivity_is_what_pruning_one_layer_does(compress, tmp_path):
    output = tmp_path / "out.onnx"
    args = [MODEL, "--data", TRAIN, "--sensitivity", "--dry-run", "-o", output]
    layers = compress(*args, "--json").json()["sensitivity"]
    assert [x["weights"] for x in layers] == [64 * 32 * 9, 64 * 64 * 9]
    for layer in layers:
        assert [p["fraction"] for p in layer["pruned"]] == [0.5, 0.8, 0.9, 0.95]
        noise = [p["sqnr_db"] for p in layer["pruned"]]
        assert noise == sorted(noise, reverse=True) and all(0 <= p["agreement"] <= 1 for p in layer["pruned"])
    table = compress(*args).out
    assert all(layer["node"] in table for layer in layers) and "95% zero" in table
    assert list(tmp_path.iterdir()) == []

    # Beside ONNX Runtime, on all of the data instead of what validates.
    compress(MODEL, "--no-check", "-q", "-o", output)
    made = onnx.load(output)
    x = np.load(TRAIN)["x"]
    before = run_onnx(made, {"input": x})[0].astype(float)
    (third,) = [t for t in made.graph.initializer if onnx.numpy_helper.to_array(t).size == 64 * 64 * 9]
    w = onnx.numpy_helper.to_array(third).copy()
    w[np.abs(w) <= np.sort(np.abs(w).ravel())[round(0.9 * w.size) - 1]] = 0
    third.CopyFrom(onnx.numpy_helper.from_array(w, third.name))
    noise = before - run_onnx(made, {"input": x})[0]
    db = 10 * np.log10((before**2).sum() / (noise**2).sum())
    assert layers[1]["pruned"][2]["sqnr_db"] == pytest.approx(db, abs=1.5)


def test_a_report_has_the_sensitivity_that_was_asked_for(compress, tmp_path):
    args = [MODEL, "--prune", "0.5", "--epochs", "0", *GRADUAL, "--data", TRAIN, "-o", tmp_path / "out.onnx"]
    report = compress(*args, "--sensitivity", "--json").json()
    assert len(report["sensitivity"]) == 2
    assert "sensitivity" not in compress(*args, "--json", "--force").json()


@pytest.fixture(scope="module")
def swept(compress, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    args = ["--sweep", "0.9,0.5,0.98", "--epochs", "0", "--prune-by", "magnitude", "--data", TRAIN]
    result = compress(MODEL, *args, "--max-drop", "5%", "--json", "-o", folder / "out.onnx")
    return folder, args, result.json()


def test_a_sweep_is_the_command_for_each_fraction(compress, swept, tmp_path):
    folder, args, report = swept
    assert {p.name for p in folder.iterdir()} == {
        "out.report.json", "out.sweep.svg",
        *(f"out-{f}.{e}" for f in ("0.5", "0.9", "0.98") for e in ("onnx", "report.json")),
    }  # fmt: skip
    assert json.loads((folder / "out.report.json").read_text()) == report
    assert report["schema"] == 1 and [p["fraction"] for p in report["sweep"]] == [0.5, 0.9, 0.98]
    assert "--sweep 0.5,0.9,0.98" in report["recipe"]["flags"]
    for point in report["sweep"]:
        own = json.loads((folder / f"out-{point['fraction']}.report.json").read_text())
        for key in ("output", "accuracy", "speed", "gates"):
            assert point[key] == own[key]
        assert own["accuracy"]["before"] == report["sweep"][0]["accuracy"]["before"]
        assert point["sparsity"] == pytest.approx(point["fraction"] * INNER / 58_474, abs=0.01)
        assert point["output"]["bytes"] == (folder / f"out-{point['fraction']}.onnx").stat().st_size
    alone = tmp_path / "alone.onnx"
    compress(MODEL, "--prune", "0.9", *args[2:], "-q", "-o", alone)
    assert alone.read_bytes() == (folder / "out-0.9.onnx").read_bytes()


def test_a_sweep_is_plotted(swept):
    folder, _, report = swept
    svg = ElementTree.fromstring((folder / "out.sweep.svg").read_text())
    name = "{http://www.w3.org/2000/svg}"
    texts = [t.text for t in svg.iter(f"{name}text")]
    assert "accuracy, %" in texts and "original" in texts and "weights asked to be zero, %" in texts
    dots = [(float(c.get("cx")), float(c.get("cy"))) for c in svg.iter(f"{name}circle")]
    assert len(dots) == 3 and dots == sorted(dots)
    accuracy = [p["accuracy"]["after"] for p in report["sweep"]]
    # Down is more in SVG.
    assert sorted(range(3), key=lambda i: -dots[i][1]) == sorted(range(3), key=lambda i: accuracy[i])
    assert "href" not in (folder / "out.sweep.svg").read_text()


def test_gates_of_a_sweep(compress, swept, tmp_path):
    _, args, report = swept
    # 98% falls through, the others don't: that is a sweep that found something.
    assert [p["passed"] for p in report["sweep"]] == [True, True, False]
    result = compress(MODEL, *args, "--max-size", "1kB", "-o", tmp_path / "out.onnx", code=9)
    assert "none of the 3 models passed" in result.err and result.out.count("FAILED") == 3
    assert re.search(r"^  0\.98 ", result.out, re.M) and "out.sweep.svg" in result.out
    assert len(list(tmp_path.iterdir())) == 8
    before = listing(tmp_path)
    assert "--force" in compress(MODEL, *args, "-o", tmp_path / "out.onnx", code=6).err
    assert listing(tmp_path) == before


def test_zeros_are_told_as_they_are(compress, tmp_path):
    """A product by a matrix of mostly zeros is faster on our runtime; a 3x3 convolution is not."""
    nodes = [
        small.node("Conv", "input w1", "c", "conv", pads=[1, 1, 1, 1]),
        small.node("Relu", "c", "r"),
        small.node("Conv", "r w2", "d", "pixel"),
        small.node("Relu", "d", "output", "rectified"),
    ]
    weights = {"w1": small.floats(1, 64, 4, 3, 3), "w2": small.floats(2, 64, 64, 1, 1)}
    for w in weights.values():
        w[np.abs(w) < 1.645] = 0
    path = small.save(small.model(nodes, [("input", ["batch", 4, 16, 16])], [("output", None)], weights), tmp_path)
    report = compress(path, "--prune", "0.5", "--prune-ends", "--json").json()
    layers = {x["node"]: x for x in report["layers"]}
    assert layers["conv"]["skips_zeros"] is False and layers["pixel"]["skips_zeros"] is True
    for name, w in (("conv", weights["w1"]), ("pixel", weights["w2"])):
        assert layers[name]["live_bytes"] == 4 * np.count_nonzero(w)
        assert layers[name]["dead_bytes"] == 4 * (w == 0).sum()
    (said,) = [w for w in report["warnings"] if "dead" in w]
    assert "leaves them out of 1 (pixel) of the 2 layers" in said
