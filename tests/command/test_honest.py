"""Nothing that was asked for and not done passes in silence, and no figure is shown that means nothing."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper, numpy_helper
from small import floats, node
from support import assert_close, binary, read_report, run_onnx, session, started


def warnings(report):
    return " ".join(report["warnings"])


def recurrent():
    """Nearly all multiply-accumulates are in an LSTM."""
    hidden, width = 32, 16
    return small.model(
        [
            node("LSTM", "x w r", "h last", hidden_size=hidden),
            node("Squeeze", "last axes", "s"),
            node("MatMul", "s m", "y"),
        ],
        [("x", [20, 1, width])],
        [("y", None)],
        {
            "w": small.floats(1, 1, 4 * hidden, width),
            "r": small.floats(2, 1, 4 * hidden, hidden),
            "m": small.floats(3, hidden, 4),
            "axes": np.int64([0]),
        },
    )


def test_layers_that_stay_float_are_told(compress, tmp_path):
    path = small.save(recurrent(), tmp_path)
    done = compress(path, "--int8", "--quiet")
    assert "asked for INT8: 1 of 2 layers are quantised" in done.err and "LSTM" in done.err
    report = read_report(tmp_path / "model.compressed.report.json")
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"]) == (1, 2) and covered["macs"] < 0.01
    assert covered["left"][0]["op"] == "LSTM" and covered["left"][0]["macs"] > 0.99
    strict = compress(path, "--int8", "--strict", "--force", code=9)
    assert "--strict" in strict.err and (tmp_path / "model.compressed.onnx").exists()


def test_nothing_to_quantise_is_told(compress, tmp_path):
    path = small.save(small.model([node("Relu", "x", "y")], [("x", [1, 4])], [("y", [1, 4])], {}), tmp_path)
    done = compress(path, "--int8", "--prune", "0.5", "--prune-channels", "0.5", "-q")
    assert "asked for INT8: 0 of 0" in done.err and "asked for pruning: 0 of 0" in done.err
    assert "asked for fewer channels: none were removed" in done.err


def with_unknown():
    """A layer before an operator that nobody knows, and one behind it."""
    odd = helper.make_node("Mystery", ["h"], ["m"], "the_mystery", domain="com.example")
    return small.model(
        [node("MatMul", "x w", "h", "known"), odd, node("MatMul", "m v", "y", "behind")],
        [("x", ["n", 8])],
        [("y", ["n", 4])],
        {"w": small.floats(1, 8, 16), "v": small.floats(2, 16, 4)},
        domains=[("com.example", 1)],
    )


def test_what_lies_before_an_unknown_operator_is_quantised(compress, tmp_path):
    path = small.save(with_unknown(), tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 100, 8))
    done = compress(path, "--int8", "--data", tmp_path / "data.npz")
    report = read_report(tmp_path / "model.compressed.report.json")
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"], covered["macs"]) == (1, 2, None)
    assert any("depends on `the_mystery`" in left["reason"] for left in covered["left"])
    assert report["unknown_operators"] == 1 and "without those of 1 unknown operator" in done.out
    pruned = compress(path, "--prune", "0.5", "--prune-ends", "--data", tmp_path / "data.npz", "--force")
    assert "asked for training" in pruned.err, "this was an internal error"


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["f16", "bf16"])
def test_sixteen_bits_are_quantised(compress, tmp_path, kind):
    """Inputs and outputs keep their type; what stays float keeps its size."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    half = {name: small.floats(i, *shape).astype(dtype) for i, (name, shape) in enumerate(
        {"w": (8, 3, 3, 3), "b": (8,), "v": (200, 64), "table": (8, 512)}.items()
    )}  # fmt: skip
    made = small.model(
        [
            node("Conv", "x w b", "c", "conv"),
            node("Relu", "c", "r"),
            node("Flatten", "r", "f"),
            node("MatMul", "f v", "m", "product"),
            node("ReduceMean", "m", "i", axes=[1]),
            node("Mul", "i table", "big"),
            node("ReduceMax", "big", "y", axes=[0]),
        ],
        [("x", [1, 3, 7, 7], kind)],
        [("y", None, kind)],
        half,
    )
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(9, 64, 3, 7, 7))
    # A search would leave layers of this size in floats, as codes don't make them faster.
    report = compress(path, "--int8", "--effort", "quick", "--data", tmp_path / "data.npz", "--json").json()
    assert report["coverage"][0]["layers"] == 2 and report["accuracy"]["sqnr_db"] > 25
    output = tmp_path / "model.compressed.onnx"
    model = onnx.load(output)
    types = [v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]]
    assert types == [kind, kind]
    stored = {
        t.data_type for t in model.graph.initializer if np.prod(t.dims) > 2000 and len(t.dims) == 2 and t.dims[0] == 8
    }
    assert stored == {kind}, "the table is as small as it was"
    onnx.checker.check_model(model)
    if kind == TensorProto.FLOAT16:
        x = np.load(tmp_path / "data.npz")["x"][:1].astype(np.float16)
        before, after = (run_onnx(p, {"x": x})[0].astype(np.float32) for p in (path, output))
        assert_close(after, before, 0.1)


def test_codes_that_become_sixteen_bits_are_widened_too(compress, tmp_path):
    """Both factors of the second product have to be of one type."""
    rng = np.random.default_rng(0)
    made = small.model(
        [
            node("MatMul", "x w", "h"),
            node("DequantizeLinear", "q s", "d", output_dtype=TensorProto.FLOAT16),
            node("MatMul", "h d", "y"),
        ],
        [("x", ["n", 64], TensorProto.FLOAT16)],
        [("y", ["n", 64], TensorProto.FLOAT16)],
        {
            "w": small.floats(1, 64, 64).astype(np.float16),
            "q": rng.integers(-9, 9, (64, 64)).astype(np.int8),
            "s": np.float32(0.02),
        },
        opset=23,
        ir=11,
    )
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(9, 64, 64).astype(np.float16))
    output = tmp_path / "model.compressed.onnx"
    compress(path, "--weights", "int8", "--exclude", "d", "--data", tmp_path / "data.npz")
    onnx.shape_inference.infer_shapes(onnx.load(output), check_type=True, strict_mode=True)
    x = np.load(tmp_path / "data.npz")["x"][:4]
    before, after = (session(p).run(None, {"x": x})[0].astype(np.float32) for p in (path, output))
    assert np.linalg.norm(after - before) < 0.02 * np.linalg.norm(before)


def test_tiny_weights_become_zeros(compress, tmp_path):
    w = small.floats(1, 8, 3, 3, 3)
    w[4:] *= np.float32(1e-36)
    made = small.model([node("Conv", "x w", "y")], [("x", [1, 3, 9, 9])], [("y", None)], {"w": w})
    path = small.save(made, tmp_path)
    done = compress(path)
    assert "108 weights below 1e-30 were set to zero" in done.out
    x = {"x": small.floats(2, 1, 3, 9, 9)}
    assert_close(run_onnx(tmp_path / "model.compressed.onnx", x), run_onnx(path, x), 1e-6)
    (stored,) = small.initializers(tmp_path / "model.compressed.onnx").values()
    assert np.count_nonzero(stored) == 108


def test_unnamed_dimensions_are_of_any_size(compress, tmp_path):
    """Paddle calls them all `?`, which does not make them equal."""
    made = small.model([node("Relu", "x", "y")], [("x", ["?", 3, "?", "?"])], [("y", ["?", 3, "?", "?"])], {})
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(1, 40, 3, 4, 8))
    report = compress("check", path, "--against", path, "--data", tmp_path / "data.npz", "--json").json()
    assert report["speed"]["inputs"] == "x 1x3x4x8"


def test_a_batch_that_only_one_sample_fits(compress, tmp_path):
    made = small.model(
        [node("Reshape", "x shape", "r"), node("MatMul", "r w", "y")],
        [("x", ["n", 6])],
        [("y", None)],
        {"shape": np.int64([1, 6]), "w": small.floats(1, 6, 3)},
    )
    np.savez(tmp_path / "data.npz", x=small.floats(2, 50, 6))
    report = compress(small.save(made, tmp_path), "--int8", "--data", tmp_path / "data.npz", "--json").json()
    assert report["accuracy"]["samples"] == 10


def classifier(tmp_path):
    """A model whose answers differ, with data that is not labelled."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((200, 16)).astype(np.float32)
    weights = {"w": rng.standard_normal((16, 5)).astype(np.float32), "b": np.zeros(5, np.float32)}
    path = small.save(
        small.model([node("Gemm", "x w b", "y")], [("x", ["n", 16])], [("y", ["n", 5])], weights), tmp_path
    )
    np.savez(tmp_path / "data.npz", x=x)
    return path, tmp_path / "data.npz"


def test_filters_that_match_nothing_are_refused(compress, tmp_path):
    path, data = classifier(tmp_path)
    done = compress(path, "--int8", "--data", data, "--exclude", "^why$", code=2)
    assert "matches no node and no weight" in done.err and "nearest names" in done.err


def test_few_samples_to_calibrate_on_are_remarked_on(compress, tmp_path):
    path, data = classifier(tmp_path)
    report = compress(path, "--int8", "--data", data, "--calibration-samples", 31, "--json").json()
    assert "only 31 samples" in warnings(report)
    report = compress(path, "--int8", "--data", data, "--calibration-samples", 32, "--json", "--force").json()
    assert "only 32" not in warnings(report)


def test_gates_that_mean_nothing_are_refused_before_any_work(compress, tmp_path):
    path, data = classifier(tmp_path)
    for bare in ("0.5", "1", "50"):
        assert f"{bare}%" in compress("check", path, "--against", path, "--max-drop", bare, code=2).err
    for flags in (["--max-drop", "5%"], ["--min-sqnr", 20], ["--min-score", 0.9]):
        said = compress(path, "--int8", *flags, code=7).err
        assert "made-up" in said and "--allow-synthetic" in said
        assert not (tmp_path / "model.compressed.onnx").exists(), "nothing was done"
        compress(path, "--int8", *flags, "--data", data, "--force")
        (tmp_path / "model.compressed.onnx").unlink()
        (tmp_path / "model.compressed.report.json").unlink()
    said = compress(path, "--int8", "--data", data, "--metric", "sqnr", "--max-drop", "1%", code=7).err
    assert "--min-sqnr" in said and not (tmp_path / "model.compressed.onnx").exists()
    assert "--check none" in compress(path, "--no-check", "--max-latency", "5ms", code=2).err


def test_gates_on_time_and_memory(compress, tmp_path):
    path, data = classifier(tmp_path)
    check = ["check", path, "--against", path, "--data", data]
    report = compress(*check, "--max-latency", "5s", "--max-memory", "1MB", "--min-sqnr", 20, "--json").json()
    assert [g["verdict"] for g in report["gates"]] == ["passed"] * 3
    # 85 weights, and what one sample needs: 16 and 5 floats.
    assert report["memory"]["after_bytes"] == 4 * (85 + 21)
    failed = compress(*check, "--max-memory", "100B", code=9)
    assert "FAILED: --max-memory is 100 B" in failed.out and "--max-memory is 100 B" in failed.err


def spoiled(path, tmp_path, by):
    model = onnx.load(path)
    for t in model.graph.initializer:
        a = numpy_helper.to_array(t)
        t.CopyFrom(numpy_helper.from_array(by(a).astype(a.dtype), t.name))
    onnx.save(model, tmp_path / "spoiled.onnx")
    return tmp_path / "spoiled.onnx"


def test_a_destroyed_model_is_not_a_success(compress, tmp_path):
    path, data = classifier(tmp_path)
    noise = np.random.default_rng(1)
    bad = spoiled(path, tmp_path, lambda a: noise.permutation(a.ravel()).reshape(a.shape))
    done = compress("check", bad, "--against", path, "--data", data, code=9)
    assert done.out.startswith("UNUSABLE: agreement is") and "the result is unusable" in done.err
    worse = spoiled(path, tmp_path, lambda a: a + 0.15 * noise.standard_normal(a.shape))
    done = compress("check", worse, "--against", path, "--data", data)
    assert "WARNING: " in done.out and "below 20 dB" in done.out and "UNUSABLE" not in done.out
    fine = spoiled(path, tmp_path, lambda a: a * 1.001)
    assert "WARNING" not in compress("check", fine, "--against", path, "--data", data).out


def test_metrics_are_chosen_by_what_outputs_are(compress, tmp_path):
    path, data = classifier(tmp_path)
    near = spoiled(path, tmp_path, lambda a: a * 1.01)
    check = ["check", near, "--against", path, "--data", data]
    found = compress(*check, "--json").json()["accuracy"]
    assert (found["metric"], found["output"], found["meaning"]) == ("agreement", "y", "class scores")
    assert "accuracy measured as agreement of `y`: class scores" in compress(*check).out
    by_hand = {}
    a, b = (run_onnx(p, {"x": np.load(data)["x"]})[0].astype(np.float64) for p in (path, near))
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (a, b)]
    by_hand["cosine"] = (unit[0] * unit[1]).sum(1).mean()
    nearest = [np.argsort(-(u @ u.T) + 9 * np.eye(len(u)), 1)[:, :10] for u in unit]
    by_hand["recall@10"] = np.mean([len(set(p) & set(q)) / 10 for p, q in zip(*nearest, strict=True)])
    by_hand["max-error"] = abs(a - b).max()
    by_hand["sqnr"] = 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())
    by_hand["agreement"] = (a.argmax(1) == b.argmax(1)).mean()
    for metric, expected in by_hand.items():
        found = compress(*check, "--metric", metric, "--json").json()["accuracy"]
        assert found["metric"] == metric and found["after"] == pytest.approx(expected, rel=1e-3), metric
    assert "there is no metric" in compress(*check, "--metric", "mAP", code=2).err
    assert "outputs: y" in compress(*check, "--metric", "cosine:z", code=2).err
    assert "labels" in compress(*check, "--metric", "top5", code=7).err


def test_landmarks_and_sorted_values_are_no_classes(compress, tmp_path):
    points = np.sort(np.random.default_rng(0).standard_normal(12)).astype(np.float32)
    made = small.model(
        [node("Gemm", "x w b", "y")], [("x", ["n", 4])], [("y", ["n", 12])],
        {"w": small.floats(1, 4, 12, scale=1e-3), "b": 10 * points},
    )  # fmt: skip
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(2, 60, 4))
    found = compress("check", path, "--against", path, "--data", tmp_path / "data.npz", "--json").json()["accuracy"]
    assert found["metric"] == "sqnr" and found["agreement"] is None and found["reason"]


def test_a_program_scores(compress, tmp_path):
    """It sees the outputs of both models and the labels, and what it says gates."""
    path, data = classifier(tmp_path)
    x = np.load(data)["x"]
    np.savez(data, x=x, y=run_onnx(path, {"x": x})[0].argmax(1))
    program = tmp_path / "score.py"
    program.write_text(
        "import sys, numpy as np\n"
        "folder = sys.argv[1]\n"
        "labels = np.load(folder + '/labels.npy')\n"
        "for side in ('before', 'after'):\n"
        "    scores = np.load(f'{folder}/{side}/y.npy')\n"
        "    assert scores.shape == (len(labels), 5) and scores.dtype == np.float32\n"
        "    print((scores.argmax(1) == labels).mean(), end=' ')\n"
    )
    near = spoiled(path, tmp_path, lambda a: a + 0.3 * np.random.default_rng(2).standard_normal(a.shape))
    check = ["check", near, "--against", path, "--data", data, "--score", f"{sys.executable} {program}", "--json"]
    found = compress(*check).json()["accuracy"]
    assert (found["metric"], found["before"]) == ("score", 1.0) and 0.5 < found["after"] < 1
    assert compress(*check, "--max-drop", "50%").json()["gates"][0]["passed"]
    assert not compress(*check, "--min-score", 0.999, code=9).json()["gates"][0]["passed"]
    for bad in ("echo no number", "false", "/nothing/there"):
        compress("check", near, "--against", path, "--data", data, "--score", bad, code=7)


def test_a_program_that_takes_long_can_be_stopped(tmp_path):
    """With what it started: both end before the command does."""
    path, data = classifier(tmp_path)
    began = tmp_path / "began"
    program = f"sleep 600 & echo $! > {began}.new; mv {began}.new {began}; wait; true"
    check = [binary(), "check", path, "--against", path, "--data", data, "--score", program]
    process = started(check, stderr=subprocess.PIPE, text=True)
    while not began.exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, process.stderr.read()
    sleeper = Path(f"/proc/{began.read_text().strip()}/stat")
    assert not sleeper.exists() or sleeper.read_text().split()[2] == "Z"


def test_data_that_is_not_used_is_named(compress, tmp_path):
    """A check measures on all of --data, or on --eval."""
    path, data = classifier(tmp_path)
    both = ["check", path, "--against", path, "--data", data, "--eval", data]
    assert "--data has no effect" in compress(*both).err
    assert "--data has no effect" in compress(*both, "--strict", code=9).err


def test_strict_sweeps(compress, tmp_path):
    """Nothing of this model can be pruned, whatever the fraction."""
    path = small.save(small.model([node("Relu", "x", "y")], [("x", ["n", 4])], [("y", ["n", 4])], {}), tmp_path)
    sweep = [path, "--sweep", "0.3,0.5", "-o", tmp_path / "out.onnx", "--force"]
    compress(*sweep)
    assert "none of the 2 models passed" in compress(*sweep, "--strict", code=9).err


def test_the_worst_output_is_named(compress, tmp_path):
    made = small.model(
        [node("MatMul", "x w", "large"), node("MatMul", "x v", "little")],
        [("x", ["n", 8])],
        [("large", ["n", 4]), ("little", ["n", 4])],
        {"w": 1000 * small.floats(1, 8, 4), "v": small.floats(2, 8, 4)},
    )
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 40, 8))
    worse = spoiled(path, tmp_path, lambda a: a if abs(a).max() > 100 else a * 1.2)
    found = compress("check", worse, "--against", path, "--data", tmp_path / "data.npz", "--json").json()["accuracy"]
    assert found["worst_output"] == "little" and found["sqnr_db"] == pytest.approx(-20 * np.log10(0.2), abs=0.01)
    assert [o["name"] for o in found["outputs"]] == ["large", "little"]
    assert found["outputs"][0]["sqnr_db"] is None, "equal"


def test_places_do_not_hide_the_noise_of_scores_beside_them(compress, tmp_path):
    """As a detector has them: places in pixels and scores in one output."""
    weights = {"wb": floats(1, 4, 3, 3, 3, scale=100), "ws": floats(2, 4, 3, 3, 3), "shape": np.int64([0, 8, 64])}
    nodes = [
        node("Conv", "x wb", "places", pads=[1, 1, 1, 1]),
        node("Conv", "x ws", "s", pads=[1, 1, 1, 1]),
        node("Sigmoid", "s", "scores"),
        node("Concat", "places scores", "both", axis=1),
        node("Reshape", "both shape", "y"),
    ]
    path = small.save(small.model(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 8, 64])], weights), tmp_path)
    x = floats(3, 40, 3, 8, 8)
    np.savez(tmp_path / "data.npz", x=x)
    worse = spoiled(path, tmp_path, lambda a: -a if a.ndim == 4 and abs(a).max() < 50 else a)
    [before], [after] = run_onnx(path, {"x": x}), run_onnx(worse, {"x": x})
    noise, signal = ((after - before)[:, 4:] ** 2).sum(), (before[:, 4:] ** 2).sum()
    report = compress("check", worse, "--against", path, "--data", tmp_path / "data.npz", "--json", code=9).json()
    [output] = report["accuracy"]["outputs"]
    assert output["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise), abs=0.1)
    assert output["kind"].startswith("the smaller values: those at 4 of 8 indices of axis 1")


def test_speed_is_that_of_simplified_models(compress, tmp_path):
    """A thousand copies are gone before anything is timed, as they are in any engine."""
    nodes = [node("Identity", f"x{i}", f"x{i + 1}") for i in range(1000)] + [node("MatMul", "x1000 w", "y")]
    path = small.save(small.model(nodes, [("x0", [1, 64])], [("y", [1, 64])], {"w": small.floats(1, 64, 64)}), tmp_path)
    speed = compress(path, "--json").json()["speed"]
    assert not speed["as_is"] and speed["interval"][0] <= speed["speedup"] <= speed["interval"][1]
    assert compress(path, "--as-is", "--json", "--force").json()["speed"]["as_is"]


def test_made_up_text_has_words_and_a_length(compress, tmp_path):
    made = small.model(
        [
            node("Gather", "table ids", "e"),
            node("Cast", "attention_mask", "m", to=TensorProto.FLOAT),
            node("Unsqueeze", "m last", "mm"),
            node("Mul", "e mm", "y"),
        ],
        [("ids", ["n", "length"], TensorProto.INT64), ("attention_mask", ["n", "length"], TensorProto.INT64)],
        [("y", ["n", "length", 4])],
        {"table": small.floats(1, 50, 4), "last": np.int64([2])},
    )
    path = small.save(made, tmp_path)
    report = compress("check", path, "--against", path, "--json").json()
    assert report["speed"]["inputs"] == "ids 1x128, attention_mask 1x128"
    assert session(path).get_inputs()[0].shape == ["n", "length"]
