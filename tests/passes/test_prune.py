"""Pruning without training, on calibration data: layers answer as before, in patterns too."""

import hashlib

import numpy as np
import onnx
import pytest
import small
from support import run_onnx
from zoo import MNIST, mnist, points

# Inputs of which every other channel is the one before it again: half of the weights do all that all of them do.
TWINS = {
    "conv": ("Conv", (6, 4, 3, 3), (4, 9, 9), {"pads": [1, 1, 1, 1]}),
    "strided": ("Conv", (6, 4, 3, 2), (4, 9, 11), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "dilated": ("Conv", (6, 4, 2, 3), (4, 9, 9), {"dilations": [3, 2], "pads": [0, 2, 1, 1]}),
    "grouped": ("Conv", (6, 2, 3, 3), (4, 9, 9), {"group": 2}),
    "same": ("Conv", (6, 4, 4, 4), (4, 9, 9), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "conv1d": ("Conv", (6, 4, 3), (4, 30), {"pads": [2, 0]}),
    "gemm": ("Gemm", (8, 12), (12,), {"transB": 1}),
    "gemm as stored": ("Gemm", (12, 8), (12,), {}),
    "matmul": ("MatMul", (12, 8), (5, 12), {}),
}


def twins(seed, n, shape, axis):
    x = small.floats(seed, n, *shape) + np.float32(0.5)
    pairs = np.moveaxis(x, axis, 1)
    pairs[:, 1::2] = pairs[:, ::2]
    return x


@pytest.fixture(params=TWINS, ids=lambda name: name)
def layer(request, tmp_path):
    """A model of one layer, its data, and inputs that it has not seen."""
    op, weight, shape, attributes = TWINS[request.param]
    axis = 1 if op == "Conv" else len(shape)
    bias = {} if op == "MatMul" else {"b": small.floats(1, weight[1 if request.param == "gemm as stored" else 0])}
    made = small.model(
        [small.node(op, " ".join(["input", "w", *bias]), "output", "layer", **attributes)],
        [("input", ["batch", *shape])],
        [("output", None)],
        {"w": small.floats(2, *weight), **bias},
    )
    np.savez(tmp_path / "data.npz", input=twins(3, 200, shape, axis))
    return small.save(made, tmp_path), twins(4, 50, shape, axis)


def noise(path, other, x):
    """The energy of what differs, in parts of the whole."""
    a, b = (run_onnx(p, {"input": x})[0].astype(float) for p in (path, other))
    return ((a - b) ** 2).sum() / ((a - a.mean()) ** 2).sum()


@pytest.mark.parametrize("flags", [["--prune", "0.5"], ["--prune-pattern", "1:2"]], ids=" ".join)
def test_what_stays_makes_up_for_what_goes(compress, layer, flags):
    path, x = layer
    args = ["--prune-ends", "--epochs", "0", "--data", path.parent / "data.npz", "--quiet"]
    differ = {}
    for by in ("reconstruct", "magnitude"):
        output = path.parent / f"{by}.onnx"
        compress(path, *flags, *args, "--prune-by", by, "-o", output)
        w = small.initializers(output)["w"]
        assert (w == 0).mean() == 0.5
        differ[by] = noise(path, output, x)
    assert differ["reconstruct"] < 1e-3 < 0.05 < differ["magnitude"], differ


def test_zeros_of_a_pattern_lie_along_the_input_channels(compress, tmp_path):
    path = small.save(small.cnn(), tmp_path)
    np.savez(tmp_path / "data.npz", input=small.floats(11, 100, 3, 12, 12))
    args = [path, "--prune-pattern", "2:4", "--prune-ends", "--json"]
    for name, flags in (("data", ["--data", tmp_path / "data.npz"]), ("none", [])):
        output = tmp_path / f"{name}.onnx"
        report = compress(*args, *flags, "-o", output).json()
        weights = small.initializers(output)
        for w in (weights["w2"], weights["w3"][:, :, None, None]):
            groups = w.reshape(len(w), -1, 4, *w.shape[2:])
            assert ((groups == 0).sum(2) == 2).all()
        (skipped,) = [s for p in report["passes"] if p["name"] == "prune" for s in p["skipped"]]
        assert skipped["node"] == "conv1" and "3 input channels are not a multiple of 4" in skipped["reason"]
        layers = {layer["node"]: layer["sparsity"] for layer in report["layers"]}
        assert layers == {"conv1": 0, "conv2": 0.5, "head": 0.5}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prune-pattern", "4:4"], "--prune-pattern"),
        (["--prune-pattern", "0:4"], "--prune-pattern"),
        (["--prune-pattern", "2"], "not a pattern such as 2:4"),
        (["--prune-pattern", "2:1000"], "at most 64"),
        (["--prune-pattern", "2:4", "--prune", "0.5"], "cannot be used with"),
        (["--prune-by", "magnitude"], "--prune-by needs --prune"),
        (["--prune", "0.5", "--prune-by", "luck"], "luck"),
    ],
    ids=str,
)
def test_nonsense_is_refused(compress, tmp_path, flags, says):
    assert says in compress(small.save(small.mlp(), tmp_path), *flags, code=2).err


def test_what_cannot_be_reconstructed_is_pruned_by_magnitude(compress, tmp_path):
    """Too many inputs, inputs that are all zero, a weight that two layers share, an input that is transposed."""
    nodes = [
        small.node("Gemm", "input wide b", "h", "wide"),
        small.node("Sub", "h h", "nothing"),
        small.node("Gemm", "nothing dead", "d", "dead"),
        small.node("Gemm", "h shared", "s1", "once"),
        small.node("Relu", "s1", "r"),
        small.node("Gemm", "r shared", "s2", "twice"),
        small.node("Transpose", "h", "t", perm=[1, 0]),
        small.node("Reshape", "t shape", "back"),
        small.node("Add", "s2 d", "output"),
        small.node("Gemm", "back turned", "other", "turned", transA=1),
    ]
    weights = {
        "wide": small.floats(1, 2400, 8, scale=0.02),
        "b": small.floats(2, 8),
        "dead": small.floats(3, 8, 8),
        "shared": small.floats(4, 8, 8),
        "turned": small.floats(5, 8, 8),
        "shape": np.int64([8, -1]),
    }
    made = small.model(nodes, [("input", ["batch", 2400])], [("output", None), ("other", None)], weights)
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", input=small.floats(6, 40, 2400))
    args = ["--prune", "0.8", "--prune-ends", "--epochs", "0", "--data", tmp_path / "data.npz", "--json"]
    report = compress(path, *args).json()
    wide = [w for w in report["warnings"] if "by magnitude" in w]
    assert any("2400 inputs" in w for w in wide), report["warnings"]
    (said,) = [w for w in report["warnings"] if w.startswith("--prune 0.8 zeroed")]
    assert "shared" in said and "wide" not in said and "turned" not in said, "only what was solved for"
    made = small.initializers(tmp_path / "model.compressed.onnx")
    zeros = sum((made[n] == 0).sum() for n in ("wide", "dead", "shared", "turned") if n in made)
    assert zeros == round(0.8 * sum(made[n].size for n in ("wide", "dead", "shared", "turned") if n in made))
    assert all(np.isfinite(w).all() and w.any() for n, w in made.items() if n != "shape")


def test_threads_do_not_change_the_result(compress, tmp_path):
    path = small.save(small.cnn(), tmp_path)
    np.savez(tmp_path / "data.npz", input=small.floats(11, 100, 3, 12, 12))
    digests = set()
    for threads in (1, 2, 3):
        output = tmp_path / f"{threads}.onnx"
        args = ["--prune", "0.7", "--prune-ends", "--epochs", "0", "--data", tmp_path / "data.npz", "--quiet"]
        compress(path, *args, "--threads", threads, "-o", output)
        digests.add(hashlib.sha256(output.read_bytes()).digest())
    assert len(digests) == 1


def test_lenet_needs_no_training_for_nine_zeros_in_ten(zoo, compress, tmp_path):
    """Magnitude alone leaves 91.0."""
    x, y = mnist(zoo, "t10k")
    output = tmp_path / "out.onnx"
    args = [
        "--prune",
        "0.9",
        "--prune-ends",
        "--epochs",
        "0",
        "--data",
        zoo / "data/mnist-train",
        "--preprocess",
        MNIST,
    ]
    compress(zoo / "models/lenet5_mnist.onnx", *args, "--calibration-samples", "200", "--no-check", "-q", "-o", output)
    weights = [w for w in small.initializers(output).values() if w.ndim > 1]
    assert sum((w == 0).sum() for w in weights) == round(0.9 * sum(w.size for w in weights))
    assert points(output, x, y) >= 97.5
    onnx.checker.check_model(output)
