"""Sums of two products of codes that processors without VNNI cut off at 16 bits, beside a model of them in numpy."""

import numpy as np
import pytest
import small
from small import floats, node


def pixels(size=8, channels=8, outputs=4, largest=127):
    """A convolution of one pixel by codes, whose weights are of one sign for the first output; and its parts."""
    w = np.random.default_rng(3).integers(-40, 41, (outputs, channels, 1, 1)).astype(np.int8)
    w[0] = largest
    weights = {
        "w": w,
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "s": np.float32(1 / 255),
        "z": np.uint8(0),
        "ys": np.float32(0.05),
        "yz": np.uint8(128),
    }
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "w ws wz", "wd"),
        node("Conv", "xd wd", "c", "conv"),
        node("QuantizeLinear", "c ys yz", "cq"),
        node("DequantizeLinear", "cq ys yz", "y"),
    ]
    shape = [1, channels, size, size]
    return small.model(nodes, [("x", shape)], [("y", [1, outputs, size, size])], weights), w


def cut_off(x, w):
    """The share of values that change by more than a step, and the most steps, when pairs of products are cut off."""
    codes = np.clip(np.rint(x * 255), 0, 255).astype(np.int64)
    products = codes[:, None] * w.astype(np.int64)[None, :, :, 0, 0, None, None]
    pairs = products.reshape(products.shape[0], products.shape[1], -1, 2, *products.shape[3:]).sum(3)
    lost = (pairs - np.clip(pairs, -32768, 32767)).sum(2) * (1 / 255) * 0.01
    steps = np.abs(lost) / 0.05
    return float(np.mean(steps > 1)), float(steps.max())


@pytest.fixture
def bright(tmp_path):
    """Samples in which many codes are large."""
    x = np.random.default_rng(5).uniform(0.4, 1, (4, 8, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return x, tmp_path / "x.npy"


def test_a_check_finds_the_layers(compress, tmp_path, bright):
    x, data = bright
    made, w = pixels()
    path = small.save(made, tmp_path)
    report = compress("check", path, "--against", path, "--data", data, "--json").json()
    found = report["saturation"]
    share, most = cut_off(x, w)
    assert [layer["node"] for layer in found["layers"]] == ["conv"] and found["samples"] == 4
    assert abs(found["layers"][0]["share"] - share) < 1e-9 and share > 0.1
    assert abs(found["layers"][0]["most_steps"] - most) < 1e-3 * most
    assert found["sqnr_db"] < 60
    warned = [w for w in report["warnings"] if "VNNI" in w]
    assert len(warned) == 1 and "`conv`" in warned[0] and "--reduce-range auto" in warned[0]


def test_what_fits_is_no_concern(compress, tmp_path, bright):
    for largest, asked in ((64, False), (66, True)):
        path = small.save(pixels(largest=largest)[0], tmp_path)
        dim = tmp_path / "dim.npy"
        np.save(dim, bright[0] * 0.2)
        report = compress("check", path, "--against", path, "--data", dim, "--json").json()
        # Smaller weights than 65 can't exceed it; of others it depends on the data.
        assert ("saturation" in report) == asked
        assert not asked or (report["saturation"]["layers"] == [] and report["saturation"]["sqnr_db"] is None)
        assert not [w for w in report["warnings"] if "VNNI" in w]


def test_range_reduction_leaves_nothing_to_cut_off(compress, tmp_path):
    net = small.model(
        [node("Conv", "x w1", "a", "c1"), node("Relu", "a", "r"), node("Conv", "r w2", "y", "c2")],
        [("x", ["n", 8, 6, 6])],
        [("y", ["n", 4, 6, 6])],
        {"w1": np.abs(floats(1, 16, 8, 1, 1)), "w2": np.abs(floats(2, 4, 16, 1, 1))},
    )
    path = small.save(net, tmp_path)
    np.save(tmp_path / "x.npy", np.abs(floats(3, 64, 8, 6, 6)))
    out = tmp_path / "out.onnx"
    args = (path, "--int8", "--data", tmp_path / "x.npy", "-o", out, "--force", "--json", "--effort", "quick")
    never = compress(*args, "--reduce-range", "never").json()
    assert never["saturation"]["layers"], "weights of one sign exceed 16 bits"
    auto = compress(*args).json()
    assert not auto.get("saturation") or not auto["saturation"]["layers"]


def test_the_engine_computes_as_they_do(compress, tmp_path, bright):
    made, _ = pixels()
    path = small.save(made, tmp_path)
    ran = compress("bench", path, "--data", bright[1], "--engine", "saturating", "--runs", "2", "--json").json()
    assert ran["engine"] == "saturating"
