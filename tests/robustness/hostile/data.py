"""Rows 58 to 66: numbers that don't do. tests/test_data.py has the formats."""

import numpy as np
import small
from onnx import numpy_helper
from small import node

from hostile import Case, bad

RNG = np.random.default_rng(3)
PICTURES = RNG.standard_normal((20, 3, 12, 12)).astype(np.float32)


def with_weight(change):
    """The small network with one element of its first weight changed."""

    def make():
        made = small.cnn()
        t = next(t for t in made.graph.initializer if t.name == "w1")
        w = np.frombuffer(t.raw_data, np.float32).copy().reshape(8, 3, 3, 3)
        change(w)
        t.raw_data = w.tobytes()
        return made

    return make


def spot(value):
    def change(w):
        w[2, 1, 0, 0] = value

    return change


def clipped():
    """The infinity becomes a number before anybody sees it."""
    made = with_weight(spot(np.inf))()
    made.graph.node[1].CopyFrom(node("Clip", "c1 low high", "n1", "bn1"))
    made.graph.initializer.extend([numpy_helper.from_array(np.float32(v), n) for n, v in (("low", -6), ("high", 6))])
    return made


def silent(w):
    w[3] = 0


def finite_scales(folder, _report):
    for name, t in small.initializers(folder / "bad.compressed.onnx").items():
        if "scale" in name:
            assert np.isfinite(t).all() and (t > 0).all(), name


def first_left_in_floats(_folder, report):
    (left,) = report["coverage"][0]["left"]
    assert "infinite" in left["reason"], left


def pair(scale, zero=0):
    """QuantizeLinear and DequantizeLinear with that scale."""
    nodes = [
        node("QuantizeLinear", "x s z", "q", "the_quantize"),
        node("DequantizeLinear", "q s z", "y", "the_dequantize"),
    ]
    weights = {"s": np.float32(scale), "z": np.uint8(zero)}
    return small.model(nodes, [("x", [2, 3])], [("y", [2, 3])], weights)


def quantised():
    """A model that is INT8 already."""
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w s wz", "v"),
        node("MatMul", "d v", "y"),
    ]
    weights = {"s": np.float32(0.1), "z": np.uint8(3), "wz": np.int8(0), "w": np.ones((3, 4), np.int8)}
    return small.model(nodes, [("x", ["n", 3])], [("y", ["n", 4])], weights)


def data(row, name, says, *flags, code=7, suffix=".npz", **arrays):
    """A case: the network, and `data.npz` with the arrays."""

    def make(folder):
        path = folder / f"data{suffix}"
        np.savez(path, **arrays)
        return [small.save(small.cnn(), folder), *(path if f is None else f for f in flags)]

    return Case(row, name, make, code, says)


CALIBRATE = ("--int8", "--data", None)
JUDGE = ("--eval", None)


def spoilt(value):
    x = PICTURES.copy()
    x[3, 0, 2, 2] = value
    return x


LABELS = np.arange(20) % 5

CASES = [
    bad(58, "nan", with_weight(spot(np.nan)), 7, "NaN", "--int8"),
    bad(58, "infinity", with_weight(spot(-np.inf)), 7, "infinite", "--int8"),
    bad(58, "infinity_that_a_clip_hides", clipped, 0, "", "--int8", check=first_left_in_floats),
    bad(58, "infinity_excluded", with_weight(spot(-np.inf)), (0, 7), "", "--int8", "--exclude", "conv1"),
    bad(58, "nan_pruned", with_weight(spot(np.nan)), 0, "", "--prune", "0.5", "--prune-ends"),
    bad(58, "huge", with_weight(spot(3e38)), 7, "infinite", "--int8"),
    bad(59, "channel", with_weight(silent), 0, "", "--int8", check=finite_scales),
    bad(59, "everything", with_weight(lambda w: w.fill(0)), 0, "", "--int8", check=finite_scales),
    bad(59, "subnormal", with_weight(lambda w: w.fill(1e-45)), 0, "", "--int8", check=finite_scales),
    *[bad(60, f"scale_{s}", pair(s), (0, 3)) for s in (0, -1, np.nan, np.inf)],
    bad(61, "quantised_already", quantised, 5, "quantised already", "--int8"),
    bad(61, "only_simplified", quantised, 0),
    data(62, "calibration", "no samples", *CALIBRATE, x=PICTURES[:0]),
    data(62, "evaluation", "no samples", *JUDGE, x=PICTURES[:0], y=LABELS[:0]),
    data(62, "no_arrays", "data.npz", *CALIBRATE),
    data(63, "nan", "NaN", *CALIBRATE, x=spoilt(np.nan)),
    data(63, "infinity", "infinity", *CALIBRATE, x=spoilt(np.inf)),
    data(63, "nan_in_evaluation", "NaN", *JUDGE, x=spoilt(np.nan), y=LABELS),
    data(64, "shape", "12, 12", *CALIBRATE, x=PICTURES[:, :, :5]),
    data(64, "channels_last", "transpose", *CALIBRATE, x=PICTURES.transpose(0, 2, 3, 1).copy()),
    data(64, "rank", "12", *CALIBRATE, x=PICTURES[0]),
    data(64, "complex", "type", *CALIBRATE, x=PICTURES.astype(np.complex64)),
    data(64, "text", "type", *CALIBRATE, x=np.array(["a", "b"])),
    data(65, "above", "label", *JUDGE, x=PICTURES, y=LABELS + 1),
    data(65, "negative", "label", *JUDGE, x=PICTURES, y=LABELS - 1),
    data(65, "huge", "label", *JUDGE, x=PICTURES, y=LABELS + 2**62),
    data(65, "floats", "label", *JUDGE, x=PICTURES, y=LABELS + 0.5),
    data(65, "too_few", "19", *JUDGE, x=PICTURES, y=LABELS[:19]),
    data(66, "smaller_than_a_batch", "", *CALIBRATE, "--batch", "64", code=0, x=PICTURES),
    data(66, "one_sample", "hold out", *CALIBRATE, x=PICTURES[:1]),
    data(66, "one_sample_to_judge", "", *JUDGE, code=0, x=PICTURES[:1], y=LABELS[:1]),
]
