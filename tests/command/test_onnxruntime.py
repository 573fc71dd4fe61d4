"""ONNX Runtime as an engine: found, loaded, and asked for the figures that a script with it would find."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import small
from onnx import helper
from small import floats, node
from support import ROOT

DIGITS = ROOT / "models" / "digits"
DATA = ("--data", DIGITS / "train.npz", "--eval", DIGITS / "test.npz")
LIBRARY = Path(ort.__file__).parent / "capi"
ENVIRONMENT = {"VIRTUAL_ENV": sys.prefix}


def answers(path, x, batch=64):
    """What a script with ONNX Runtime gets, with its usual options."""
    model = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = model.get_inputs()[0].name
    return np.concatenate([model.run(None, {name: x[i : i + batch]})[0] for i in range(0, len(x), batch)])


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """The digits network in INT8."""
    from support import run_command

    out = tmp_path_factory.mktemp("quantised") / "int8.onnx"
    run_command(DIGITS / "digits.onnx", "--int8", *DATA, "-o", out)
    return out


def test_accuracy_is_what_a_script_measures(compress, quantised, tmp_path):
    found = compress(
        "check",
        quantised,
        "--against",
        DIGITS / "digits.onnx",
        *DATA[2:],
        "--engine",
        "onnxruntime",
        "--ort",
        LIBRARY,
        "--json",
    ).json()
    test = np.load(DIGITS / "test.npz")
    before, after = answers(DIGITS / "digits.onnx", test["x"]), answers(quantised, test["x"])
    share = [float(np.mean(made.argmax(1) == test["y"])) for made in (before, after)]
    assert [found["accuracy"]["before"], found["accuracy"]["after"]] == share
    assert found["accuracy"]["agreement"] == float(np.mean(before.argmax(1) == after.argmax(1)))
    noise = np.square(before - after, dtype=np.float64).sum() / np.square(before, dtype=np.float64).sum()
    assert abs(found["accuracy"]["sqnr_db"] + 10 * np.log10(noise)) < 0.02
    assert found["speed"]["engine"] == "onnxruntime" and "deployed" not in found


def test_results_are_measured_as_deployed_where_it_is_installed(compress, tmp_path):
    out = tmp_path / "out.onnx"
    args = (DIGITS / "digits.onnx", "--int8", *DATA, "-o", out, "--force", "--json")
    found = compress(*args, env=ENVIRONMENT).json()
    test = np.load(DIGITS / "test.npz")
    deployed = found["deployed"]
    assert deployed["engine"] == "onnxruntime" and deployed["speed"]["speedup"] > 0
    assert deployed["accuracy"]["after"] == float(np.mean(answers(out, test["x"]).argmax(1) == test["y"]))
    assert found["speed"]["engine"] != "onnxruntime"
    assert "deployed" not in compress(*args).json()
    shown = compress("check", out, "--against", DIGITS / "digits.onnx", *DATA[2:], env=ENVIRONMENT).out
    assert "\n  onnxruntime  " in shown and "files as they are" in shown


def test_where_it_is_missing_the_way_to_get_it_is_said(compress, tmp_path):
    model = DIGITS / "digits.onnx"
    bare = {"PATH": "/nowhere"}
    absent = compress("bench", model, "--engine", "onnxruntime", code=8, env=bare)
    assert "pip install onnxruntime" in absent.err and "--ort" in absent.err
    assert "no library at" in compress("bench", model, "--engine", "onnxruntime", "--ort", tmp_path, code=8).err
    named = {"ORT_DYLIB_PATH": "/nowhere/libonnxruntime.so", **ENVIRONMENT}
    assert "no library at /nowhere" in compress("bench", model, "--engine", "onnxruntime", code=8, env=named).err
    named_wrong = ("check", model, "--against", model, "--ort", "/nowhere")
    assert "no library at" in compress(*named_wrong, code=8).err
    assert "by the provider" in compress("bench", model, "--engine", "onnxruntime", "--device", "cuda", code=2).err
    broken = tmp_path / "libonnxruntime.so"
    broken.write_bytes(b"no library")
    assert "can't be loaded" in compress("bench", model, "--engine", "onnxruntime", "--ort", broken, code=8).err
    other = compress("bench", model, "--engine", "onnxruntime:cuda", "--ort", LIBRARY, code=8)
    assert "pip install onnxruntime-gpu" in other.err
    assert "onnxruntime" in compress("bench", model, "--engine", "tflite", code=2).err


def test_each_way_to_name_it_finds_it(compress):
    model, library = DIGITS / "digits.onnx", next(LIBRARY.glob("libonnxruntime.so*"))
    ways = [
        ((), ENVIRONMENT),
        ((), {"ORT_DYLIB_PATH": str(library)}),
        ((), {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}),
        (("--ort", LIBRARY), None),
        (("--ort", library), None),
    ]
    for args, env in ways:
        found = compress("bench", model, "--engine", "onnxruntime", "--runs", 3, *args, "--json", env=env).json()
        assert found["engine"] == "onnxruntime" and found["median_ms"] > 0


def with_unknown_operators(path):
    """Operators of ONNX-ML, which only ONNX Runtime knows here, among layers."""
    channels = 16
    weights = {
        "w1": floats(0, channels, 3, 3, 3, scale=0.3),
        "w2": floats(1, channels, channels, 3, 3, scale=0.1),
        "w3": floats(2, channels * 36, 4, scale=0.1),
    }
    scaler = helper.make_node("Scaler", ["f"], ["s"], "scaler", domain="ai.onnx.ml", offset=[0.0], scale=[2.0])
    nodes = [
        node("Conv", "x w1", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w2", "c", pads=[1] * 4),
        node("Relu", "c", "d"),
        node("Flatten", "d", "f"),
        scaler,
        node("Gemm", "s w3", "y"),
    ]
    made = small.model(nodes, [("x", ["n", 3, 8, 8])], [("y", ["n", 4])], weights, domains=[("ai.onnx.ml", 3)])
    onnx.save(made, path)


def test_unknown_operators_are_calibrated_and_checked_through_it(compress, tmp_path, rng):
    model, out = tmp_path / "scaled.onnx", tmp_path / "out.onnx"
    with_unknown_operators(model)
    x = rng.standard_normal((300, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    args = (model, "--int8", "--data", tmp_path / "x.npz", "-o", out, "--force", "--json")
    # Alone, our runtime can't look behind the operator, and measures nothing.
    alone = compress(*args).json()
    assert alone["accuracy"] is None
    found = compress(*args, "--engine", "onnxruntime", "--ort", LIBRARY, "--min-sqnr", 20).json()
    ops = {layer["node"]: layer["precision"] for layer in found["layers"]}
    assert ops["y"] == "int8", "the layer behind the unknown operator is quantised"
    assert found["accuracy"]["sqnr_db"] > 20 and found["gates"][0]["passed"]
    before, after = answers(model, x), answers(out, x)
    noise = np.square(before - after).sum() / np.square(before).sum()
    assert -10 * np.log10(noise) > 20


def test_a_model_that_it_refuses_is_an_error_or_a_note(compress, tmp_path):
    # It has no kernel for the arc tangent of doubles.
    double = onnx.TensorProto.DOUBLE
    made = small.model([node("Atan", "x", "y")], [("x", ["n", 4], double)], [("y", ["n", 4], double)])
    path = tmp_path / "doubles.onnx"
    onnx.save(made, path)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED|NotImplemented"):
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    refused = compress("bench", path, "--engine", "onnxruntime", "--ort", LIBRARY, code=5)
    assert "ONNX Runtime refuses the model" in refused.err
    note = compress("check", path, "--against", path, "--json", env=ENVIRONMENT).json()
    assert any("not measured on ONNX Runtime" in w for w in note["warnings"]) and note["accuracy"]
