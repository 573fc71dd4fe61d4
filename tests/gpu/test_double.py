"""The command with a CUDA device, which is the double of tests/gpu/double.

`tests/run --gpu` builds the command with the feature `cuda`, and says where it is in COMPRESS_CUDA_BIN. What it finds holds for what
kernels compute; the double says nothing of time.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import ptxas
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import ROOT

BINARY = os.environ.get("COMPRESS_CUDA_BIN")
DIGITS = ROOT / "models" / "digits"
ZOO = Path(os.environ.get("COMPRESS_ZOO", "/nowhere"))
MODELS = {path.stem: path for path in sorted((ZOO / "models").glob("*.onnx"))}

pytestmark = pytest.mark.skipif(not BINARY, reason="COMPRESS_CUDA_BIN is a command built for CUDA: tests/run --gpu")


class Ran:
    """A command that ran: what it printed, and what the double saw."""

    def __init__(self, done, record):
        self.out, self.err, self.record = done.stdout, done.stderr, record
        lines = (record / "events.jsonl").read_text().splitlines() if (record / "events.jsonl").exists() else []
        self.events = [json.loads(line) for line in lines]

    def json(self):
        return json.loads(self.out)

    def copies(self, which):
        return sum(event.get("copy") == which for event in self.events)

    def launches(self):
        return [event for event in self.events if "kernel" in event]


@pytest.fixture
def double(tmp_path):
    """Runs the command on a double of an architecture."""
    runs = iter(range(1000))

    def run(*args, arch=80, code=0, **settings):
        record = tmp_path / f"record{next(runs)}"
        env = {**os.environ, "CUDA_DOUBLE_ARCH": str(arch), "CUDA_DOUBLE_RECORD": str(record), **settings}
        command = [ROOT / "tests/gpu/on_double", BINARY, *map(str, args)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == code, done.stdout + done.stderr
        return Ran(done, record)

    return run


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("model", ["digits", "int8", *(MODELS or ["zoo"])])
def test_outputs_are_those_of_the_cpu(double, int8, model, arch):
    if model == "zoo":
        pytest.skip("COMPRESS_ZOO is the folder of the zoo")
    path = {"digits": DIGITS / "digits.onnx", "int8": int8, **MODELS}[model]
    ran = double("bench", path, "--device", "cuda", "--reference", "cpu", "--runs", 1, "--json", arch=arch)
    found = ran.json()
    assert found["max_relative_difference"] <= (0 if model == "int8" else 1e-4)
    if model == "int8":
        # Codes are multiplied on tensor cores.
        assert {"conv_i8", "gemm_i8"} <= {node["kernel"] for node in found["nodes"]}
    assert any(launch["tensor"] > 0 for launch in ran.launches())


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("tf32", 1e-6, 5e-3), ("bf16", 1e-4, 3e-2), ("f16", 1e-5, 5e-3)]
)
def test_floats_are_multiplied_in_fewer_bits_when_asked(double, precision, least, most):
    job = ["bench", DIGITS / "digits.onnx", "--device", "cuda", "--reference", "cpu", "--runs", 1, "--json"]
    found = double(*job, "--precision", precision).json()
    kernels = {node["kernel"] for node in found["nodes"]}
    assert {f"conv_{precision}", f"gemm_{precision}"} <= kernels and found["device"].endswith(f", {precision}")
    assert least < found["max_relative_difference"] < most


@pytest.mark.parametrize("model", ["digits", "int8"])
def test_a_run_that_comes_again_is_one_launch(double, int8, model):
    """The first runs launch each kernel; then one run is recorded, and played again."""
    ran = double(
        "bench", int8 if model == "int8" else DIGITS / "digits.onnx", "--device", "cuda", "--runs", 5, "--json"
    )
    graphs = [event["graph"] for event in ran.events if "graph" in event]
    # The first run, a run before the timed ones and one of these come before the recording.
    assert len(graphs) >= 3 and len(set(graphs)) == 1 and graphs[0] >= 6


def encoder_of_tokens(path):
    """Rows of a table, a mask that is added, products, and the mean of what isn't masked, as sentence encoders have them."""
    rng = np.random.default_rng(6)
    constants = {"table": rng.normal(size=(20, 16)), "w": rng.normal(0, 0.2, (16, 16)), "one": 1.0, "far": -100.0}
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "tokens"], ["rows"]),
        node("Unsqueeze", ["mask", "last"], ["column"]),
        node("Cast", ["column"], ["kept"], to=TensorProto.FLOAT),
        node("Sub", ["one", "kept"], ["off"]),
        node("Mul", ["off", "far"], ["added"]),
    ]
    last = "rows"
    for i in range(6):
        nodes += [
            node("MatMul", [last, "w"], [f"m{i}"]),
            node("Add", [f"m{i}", "added"], [f"a{i}"]),
            node("Softmax", [f"a{i}"], [f"s{i}"], axis=1),
            node("Add", [f"s{i}", last], [f"h{i}"]),
        ]
        last = f"h{i}"
    nodes += [
        node("Shape", [last], ["sizes"]),
        node("Expand", ["column", "sizes"], ["wide"]),
        node("Cast", ["wide"], ["taken"], to=TensorProto.FLOAT),
        node("Mul", [last, "taken"], ["masked"]),
        node("ReduceSum", ["masked", "axis"], ["y"], keepdims=0),
    ]
    made = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()]
    made += [numpy_helper.from_array(np.array([n], np.int64), name) for name, n in (("last", 2), ("axis", 1))]
    whole = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 8]) for name in ("tokens", "mask")]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])
    graph = helper.make_graph(nodes, "encoder", whole, [out], made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_an_encoder_is_played_again_behind_its_tokens(double, tmp_path):
    """What tokens and masks go through is done in each run, and all else is one launch."""
    encoder_of_tokens(path := tmp_path / "encoder.onnx")
    ran = double("bench", path, "--device", "cuda", "--reference", "cpu", "--runs", 6, "--json")
    assert ran.json()["max_relative_difference"] <= 1e-5
    at = [i for i, event in enumerate(ran.events) if "graph" in event]
    assert len(at) >= 3
    graph = ran.events[at[-1]]["graph"]
    between = [event for event in ran.events[at[-2] + 1 : at[-1]] if "kernel" in event]
    # Kernels of the graph are told of behind it.
    assert graph >= 18 and len(between) - graph <= 6


@pytest.mark.parametrize("model", ["digits", "int8"])
def test_only_outputs_come_back_from_the_device(double, int8, model):
    """What one run more copies and launches."""
    path = int8 if model == "int8" else DIGITS / "digits.onnx"
    one, two = (double("bench", path, "--device", "cuda", "--runs", n, "--json") for n in (1, 2))
    runs = two.copies("to device") - one.copies("to device")
    assert runs > 0 and two.copies("to host") - one.copies("to host") == runs


def rows_of_words(path):
    """A product with a sum and a function, LayerNormalization and Softmax."""
    rng = np.random.default_rng(5)
    weights = {"w": rng.normal(0, 0.2, (32, 32)), "b": rng.normal(size=32), "scale": np.ones(32), "moved": np.zeros(32)}
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Add", ["a", "x"], ["s"]),
        node("Sigmoid", ["s"], ["g"]),
        node("Mul", ["s", "g"], ["h"]),
        node("LayerNormalization", ["h", "scale", "moved"], ["n"]),
        node("Softmax", ["n"], ["y"]),
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 32]) for name in "xy"]
    tensors = [numpy_helper.from_array(of.astype(np.float32), name) for name, of in weights.items()]
    graph = helper.make_graph(nodes, "rows", value[:1], value[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_sums_functions_and_rows_are_kernels_of_their_own(double, tmp_path):
    model = rows_of_words(tmp_path / "rows.onnx")
    found = double("bench", model, "--device", "cuda", "--reference", "cpu", "--runs", 1, "--json").json()
    kernels = sorted(node["kernel"] for node in found["nodes"] if node["node"] != "between nodes")
    assert kernels == ["gemm_f32", "layer_norm", "softmax"] and found["max_relative_difference"] < 1e-5


def test_kernels_need_no_more_of_a_device_than_before(double, int8):
    """Registers, spills and shared memory of what three networks and three steps of training launch."""
    manifest = ROOT / "tests/gpu/ptxas.json"
    test, some = np.load(DIGITS / "test.npz"), int8.parent / "some.npz"
    np.savez(some, x=test["x"][:24], y=test["y"][:24])
    found = {}
    for arch in (80, 90, 100):
        bench = ["--device", "cuda", "--runs", 1, "--json"]
        job = ["distill", DIGITS / "digits.onnx", "--data", some, "--epochs", 1, "--batch", 8, "--labels", 1]
        runs = [double("bench", model, *bench, arch=arch) for model in (DIGITS / "digits.onnx", int8)]
        rows = rows_of_words(int8.parent / "rows.onnx")
        runs += [double("bench", rows, *bench, "--precision", of, arch=arch) for of in ("f32", "tf32", "bf16", "f16")]
        digits = ["bench", DIGITS / "digits.onnx", *bench]
        runs += [double(*digits, "--precision", of, arch=arch) for of in ("bf16", "f16")]
        runs.append(
            double(*job, "--device", "cuda", "-o", int8.parent / "trained.onnx", "--force", "--quiet", arch=arch)
        )
        found[f"sm_{arch}"] = ptxas.kernels([ran.record for ran in runs])
    if os.environ.get("UPDATE_GOLDEN"):
        lines = ",\n".join(
            f'  "{arch}": {{\n' + ",\n".join(f'    "{name}": {figures}' for name, figures in of.items()) + "\n  }"
            for arch, of in found.items()
        )
        manifest.write_text(f"{{\n{lines}\n}}\n")
    known = json.loads(manifest.read_text())
    for arch, of in found.items():
        assert len(of) > 20
        for name, figures in of.items():
            limits = known[arch].get(name)
            assert limits, f"{name} is new on {arch}: UPDATE_GOLDEN=1 writes it into {manifest}"
            assert all(a <= b for a, b in zip(figures, limits, strict=True)), (arch, name, figures, limits)


def test_batches_of_training_are_sent_on_one_other_stream(double, int8):
    """So that one is sent while the one before is computed. Each stream keeps memory: epochs have to share them."""
    test, some = np.load(DIGITS / "test.npz"), int8.parent / "some.npz"
    np.savez(some, x=test["x"][:24], y=test["y"][:24])
    job = ["distill", DIGITS / "digits.onnx", "--data", some, "--epochs", 6, "--batch", 8, "--labels", 1]
    out = ["-o", int8.parent / "streams.onnx", "--force", "--quiet"]
    ran = double(*job, "--device", "cuda", *out, CUDA_DOUBLE_MEMORY="64")
    computes = {launch["stream"] for launch in ran.launches()}
    batch = 8 * test["x"][0].size * 4
    sent = [event["stream"] for event in ran.events if event.get("copy") == "to device" and event["bytes"] == batch]
    others = [stream for stream in sent if stream not in computes]
    assert len(others) >= 12 and len(set(others)) == 1, (sent, computes)


def test_a_device_without_memory_is_an_error(double):
    failed = double("bench", DIGITS / "digits.onnx", "--device", "cuda", "--runs", 1, code=4, CUDA_DOUBLE_MEMORY="1")
    assert "no memory for a value of" in failed.err and "smaller batch" in failed.err and "panicked" not in failed.err


def test_training_learns_what_it_learns_on_the_cpu(double, learns_the_same):
    learns_the_same(double, "cuda")


def test_a_batch_is_halved_until_it_fits_the_memory(double, tmp_path):
    wide, path = 1 << 18, tmp_path / "wide.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", wide]) for name in "xy"]
    graph = helper.make_graph(nodes, "wide", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    job = ["bench", path, "--device", "cuda", "--runs", 1, "--json"]
    ran = double(*job, "--batch", 32, CUDA_DOUBLE_MEMORY="80")
    found = ran.json()
    assert 1 <= found["batch"] < 32 and found["asked_batch"] == 32
    assert "16 of the 32 samples" in double(*job[:-1], "--batch", 32, CUDA_DOUBLE_MEMORY="80").err
    assert "asked_batch" not in double(*job, "--batch", found["batch"]).json()
    # A model that fixes its batch has no smaller one.
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, wide]) for name in "xy"]
    graph = helper.make_graph(nodes, "wide", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert "no room" in double(*job, "--batch", 32, code=4, CUDA_DOUBLE_MEMORY="80").err


def test_profilers_see_the_nodes_that_launches_are_of(double):
    """NVTX ranges: the double is a profiler, which knows the range of the thread that launches."""
    job = ["bench", DIGITS / "digits.onnx", "--device", "cuda", "--runs", 2, "--json"]
    ran = double(*job, NVTX_INJECTION64_PATH="libcuda.so")
    at = [i for i, event in enumerate(ran.events) if "graph" in event]
    ranges = [launch.get("range") for launch in ran.launches()]
    steps = {"`/relu1/Relu` (Relu)", "`/relu2/Relu` (Relu)", "`/pool1/MaxPool` (MaxPool)", "`/fc/Gemm` (Gemm)"}
    assert at and steps | {"a recorded run"} <= set(ranges), set(ranges)
    products = [launch for launch in ran.launches() if launch["tensor"]]
    # Weights are packed before any node is computed.
    assert products and all("range" in launch for launch in products)
    assert not any("range" in launch for launch in double(*job).launches())


def test_the_driver_says_how_busy_the_device_is(double):
    ran = double(
        "bench", DIGITS / "digits.onnx", "--device", "cuda", "--profile", "--runs", 1, "--json", CUDA_DOUBLE_HOT="1"
    )
    gpu = ran.json()["profile"]["gpu"]
    assert (gpu["busy"], gpu["watts"], gpu["celsius"]) == (pytest.approx(0.37), pytest.approx(123.456), 71)
    assert (gpu["clock_mhz"], gpu["highest_clock_mhz"], gpu["slowed_by"]) == (1200, 1980, ["heat"])
    assert 0 < gpu["peak_bytes"] < gpu["memory_bytes"] == 8 << 30
    # The double takes a joule a launch: a run has a launch for each of seven nodes.
    assert gpu["joules_per_sample"] == pytest.approx(7, abs=0.01) and gpu["joules"] == pytest.approx(7 * gpu["runs"])


def test_training_tells_of_its_device(double, int8):
    test, some = np.load(DIGITS / "test.npz"), int8.parent / "some.npz"
    np.savez(some, x=test["x"][:24], y=test["y"][:24])
    out = int8.parent / "told.onnx"
    job = [
        "distill",
        DIGITS / "digits.onnx",
        "--data",
        some,
        "--epochs",
        2,
        "--batch",
        8,
        "--labels",
        1,
        "--device",
        "cuda",
    ]
    ran = double(*job, "-o", out, "--force", "--json", CUDA_DOUBLE_HOT="1")
    found = ran.json()
    assert found["training"]["gpu"]["busy"] == pytest.approx(0.37) and any(
        "slowed down by heat" in note for note in found["warnings"]
    )
    assert "--batch" in found["training"]["advice"] or "waits for samples" in found["training"]["advice"]
    lines = [json.loads(line) for line in (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()]
    of_batches = [line for line in lines if "loss" in line]
    assert of_batches and all(line["gpu_watts"] == 123.456 and line["gpu_memory_bytes"] > 0 for line in of_batches)
    events = b"".join(path.read_bytes() for path in out.with_suffix(".job").glob("events.out.*"))
    assert b"gpu/watts" in events and b"gpu/clock_mhz" in events


def test_loading_is_told_from_training(double, int8):
    test, some = np.load(DIGITS / "test.npz"), int8.parent / "some.npz"
    np.savez(some, x=test["x"][:24], y=test["y"][:24])
    job = [
        "distill",
        DIGITS / "digits.onnx",
        "--data",
        some,
        "--batch",
        8,
        "--labels",
        1,
        "--device",
        "cuda",
        "--time",
        "2s",
    ]
    ran = double(*job, "--ablate-data", "--json")
    found = ran.json()
    assert found["loaded"]["samples_per_second"] > 0 and found["resident"]["samples_per_second"] > 0
    # Rounds with one batch send nothing for many steps.
    batch = 8 * test["x"][0].size * 4
    sent = [i for i, event in enumerate(ran.events) if event.get("copy") == "to device" and event["bytes"] == batch]
    between = [sum("kernel" in event for event in ran.events[a:b]) for a, b in zip(sent, [*sent[1:], len(ran.events)])]
    assert len(between) > 6 and max(between) > 3 * sorted(between)[len(between) // 2], between
