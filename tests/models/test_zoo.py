"""Real models: they come through simplified, quantised, and as accurate as promised.

Skips without COMPRESS_ZOO. No other simplifier that we know leaves fewer nodes of the same files.
"""

import numpy as np
import onnx
import pytest
import small
from support import assert_close, run_onnx, session
from zoo import MNIST, feeds, mnist, points

pytestmark = pytest.mark.slow

# How many operators are left at most, where it matters; those in the branches of an If not counted.
NODES = {
    "lenet5_mnist": None,
    "bncnn_fashion": None,
    "tinyvit_fashion": 85,
    "resnet20_cifar10": 54,
    "squeezenet1_1_imagenet": None,
    "ultraface_rfb320": 122,
    "yunet_n_320": 109,
    "silero_vad_16k_op15": 42,
    "gtcrn": 261,
}
# Needs sequences of a certain length, so made-up inputs don't fit it; has Ifs.
STRANGE = {"silero_vad_16k_op15"}
LAYERS = {"squeezenet1_1_imagenet": 26, "resnet20_cifar10": 19, "bncnn_fashion": 3}


@pytest.fixture(scope="module")
def simplified(zoo, compress, tmp_path_factory):
    """Every model, simplified once."""
    folder = tmp_path_factory.mktemp("simplified")
    done = {}

    def one(name):
        if name not in done:
            path, output = zoo / "models" / f"{name}.onnx", folder / f"{name}.onnx"
            done[name] = path, output, compress(path, "-o", output, "--json").json()
        return done[name]

    return one


@pytest.mark.parametrize("name", NODES)
def test_simplified_models_are_valid_and_compute_the_same(simplified, name):
    path, output, report = simplified(name)
    onnx.checker.check_model(str(output), full_check=True)
    inputs = feeds(path)
    assert_close(run_onnx(output, inputs), run_onnx(path, inputs))
    # Its own optimisations round differently, which shows where a sigmoid is next to nothing.
    assert_close(run_onnx(output, inputs, optimise=True), run_onnx(path, inputs), 1e-4, atol=1e-6)
    # How the weights come one after the other makes a difference too.
    assert report["output"]["zstd_bytes"] <= 1.001 * report["input"]["zstd_bytes"] + 500
    if name not in STRANGE:
        assert report["output"]["bytes"] <= report["input"]["bytes"] + 500
        # Our runtime finds both as close as ONNX Runtime does.
        sqnr = report["accuracy"]["sqnr_db"]
        assert sqnr is None or sqnr > 90


@pytest.mark.parametrize("name", NODES)
def test_no_more_operators_than_peers_leave(simplified, name):
    path, output, report = simplified(name)
    after = len(small.ops(output))
    assert report["output"]["nodes"] == after or name in STRANGE
    assert after <= min(len(small.ops(path)), NODES[name] or 10**9)


@pytest.mark.parametrize("name", STRANGE)
def test_int8_needs_no_data_to_find_sizes(zoo, compress, tmp_path, name):
    """Made-up inputs of the right size run; recurrent layers stay float, and branches that they don't take."""
    report = compress(zoo / "models" / f"{name}.onnx", "--int8", "-o", tmp_path / "out.onnx", "--json").json()
    (covered,) = report["coverage"]
    assert 0 < covered["layers"] < covered["of_layers"]
    assert any("by codes" in left["reason"] for left in covered["left"])


@pytest.fixture(scope="module")
def quantised(zoo, compress, tmp_path_factory):
    """Every model that we can run as INT8, calibrated on noise."""
    folder = tmp_path_factory.mktemp("quantised")
    done = {}

    def one(name):
        if name not in done:
            path, output = zoo / "models" / f"{name}.onnx", folder / f"{name}.onnx"
            done[name] = path, output, compress(path, "-o", output, "--int8", "--json").json()
        return done[name]

    return one


@pytest.mark.parametrize("name", sorted(set(NODES) - STRANGE))
def test_int8_models_are_valid_and_close(quantised, name):
    path, output, report = quantised(name)
    onnx.checker.check_model(str(output), full_check=True)
    assert small.opset(output) >= 13
    # What is calibrated on noise is only good on noise; there it has to be good.
    inputs = feeds(path, batch=4)
    pairs = [(b.astype(np.float64), a) for b, a in zip(run_onnx(path, inputs), run_onnx(output, inputs))]
    error = np.sqrt(sum(((b - a) ** 2).sum() for b, a in pairs) / sum((b**2).sum() for b, _ in pairs))
    assert error < 0.25
    # A quarter for the weights; small layers also carry their scales and names.
    assert report["output"]["bytes"] < 0.65 * report["input"]["bytes"]


@pytest.mark.parametrize("name", LAYERS)
def test_every_convolution_becomes_an_integer_kernel(quantised, tmp_path, name):
    """What decides the speed in ONNX Runtime."""
    session(quantised(name)[1], save=tmp_path / "optimised.onnx")
    assert small.convolutions(tmp_path / "optimised.onnx") == LAYERS[name]


def test_lenet_on_mnist(zoo, compress, tmp_path):
    """The whole road: calibrated on training pictures, measured on all test pictures, here and there."""
    path, output = zoo / "models/lenet5_mnist.onnx", tmp_path / "out.onnx"
    data = ["--data", zoo / "data/mnist-train", "--eval", zoo / "data/mnist-t10k", "--preprocess", MNIST]
    report = compress(path, "--int8", "-o", output, *data, "--max-drop", "0.2%", "--json").json()
    x, y = mnist(zoo, "t10k")
    before, after, fast = points(path, x, y), points(output, x, y), points(output, x, y, optimise=True)
    assert before == pytest.approx(98.79, abs=0.005)
    ours = report["accuracy"]
    assert ours["samples"] == 10_000 and ours["metric"] == "top1"
    assert 100 * ours["before"] == pytest.approx(before, abs=0.011)
    assert 100 * ours["after"] == pytest.approx(after, abs=0.1)
    for value in (100 * ours["after"], after, fast):
        assert before - value <= 0.2
    assert output.stat().st_size <= 0.30 * path.stat().st_size


def test_pruned_lenet_does_as_well_as_magnitude_pruning_can(zoo, compress, tmp_path):
    """One shot, without training: a third of the weights cost next to nothing, nearly all cost a lot."""
    path = zoo / "models/lenet5_mnist.onnx"
    data = ["--eval", zoo / "data/mnist-t10k", "--preprocess", MNIST, "--prune-ends", "--json"]
    few = compress(path, "--prune", "0.3", *data, "-o", tmp_path / "few.onnx", "--max-drop", "0.3%").json()
    many = compress(path, "--prune", "0.99", *data, "-o", tmp_path / "many.onnx", "--max-drop", "1%", code=9).json()
    x, y = mnist(zoo, "t10k")
    for report, name in ((few, "few"), (many, "many")):
        assert 100 * report["accuracy"]["after"] == pytest.approx(points(tmp_path / f"{name}.onnx", x, y), abs=0.1)
    nonzero = few["output"]["nonzero"] / few["input"]["nonzero"]
    assert 0.69 < nonzero < 0.72
    assert few["output"]["zstd_bytes"] < few["input"]["zstd_bytes"]


def test_batch_norm_network_on_fashion(zoo, compress, tmp_path):
    """Watched on a fifth of the training pictures that calibration never sees."""
    path, output = zoo / "models/bncnn_fashion.onnx", tmp_path / "out.onnx"
    args = ["--data", zoo / "data/fashion-train", "--preprocess", "scale=255,mean=0.286,std=0.353"]
    report = compress(path, "--int8", "-o", output, *args, "--check", "full", "--json").json()
    assert report["accuracy"]["samples"] == 12_000
    assert report["accuracy"]["before"] > 0.9 and abs(report["accuracy"]["drop"]) < 0.005
    assert "BatchNormalization" not in small.ops(output)


def test_inspect_real_models(zoo, compress):
    for name in NODES:
        facts = compress("inspect", zoo / "models" / f"{name}.onnx", "--json").json()
        assert facts["file"]["parameters"] > 0 and facts["layers"]
        assert not facts["opaque"]
    facts = compress("inspect", zoo / "models/squeezenet1_1_imagenet.onnx", "--json").json()
    # 0.35 G multiply-accumulates are what its paper and other counters give.
    assert 3.4e8 < facts["file"]["macs"] < 3.7e8 and facts["file"]["parameters"] == 1_235_496
