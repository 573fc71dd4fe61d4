"""The command with a Vulkan device, which is lavapipe: Mesa's driver that computes on the CPU.

`tests/run --vulkan` builds the command with the feature `vulkan` and a mended compiler (docs/upstream), and says where it is in
COMPRESS_VULKAN_BIN.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from support import ROOT

BINARY = os.environ.get("COMPRESS_VULKAN_BIN")
DIGITS = ROOT / "models" / "digits"
ZOO = Path(os.environ.get("COMPRESS_ZOO", "/nowhere"))
MODELS = {path.stem: path for path in sorted((ZOO / "models").glob("*.onnx"))}

pytestmark = pytest.mark.skipif(
    not BINARY, reason="COMPRESS_VULKAN_BIN is a command built for Vulkan: tests/run --vulkan"
)


def on_lavapipe(*args, code=0, **settings):
    command = [ROOT / "tests/gpu/on_lavapipe", BINARY, *map(str, args)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=280)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_it_is_listed_and_only_used_by_name():
    found = json.loads(on_lavapipe("devices", "--json").stdout)
    assert [gpu["software"] for gpu in found["gpus"] if gpu["device"] == "vulkan:0"] == [True]
    chosen = json.loads(on_lavapipe("bench", DIGITS / "digits.onnx", "--runs", 1, "--json").stdout)
    assert chosen["device"].startswith("CPU")
    assert (
        "there is no Vulkan device 7"
        in on_lavapipe("bench", DIGITS / "digits.onnx", "--device", "vulkan:7", code=8).stderr
    )


def test_a_driver_that_kernels_crash_is_refused():
    unmended = ["env", "-u", "COMPRESS_VULKAN_MENDED", BINARY, "bench", DIGITS / "digits.onnx", "--device", "vulkan"]
    done = subprocess.run([ROOT / "tests/gpu/on_lavapipe", *unmended], capture_output=True, text=True, timeout=280)
    assert done.returncode == 8 and "lacks VK_KHR_workgroup_memory_explicit_layout" in done.stderr


@pytest.mark.parametrize("model", ["digits", "int8", *(MODELS or ["zoo"])])
def test_outputs_are_those_of_the_cpu(int8, model):
    if model == "zoo":
        pytest.skip("COMPRESS_ZOO is the folder of the zoo")
    path = {"digits": DIGITS / "digits.onnx", "int8": int8, **MODELS}[model]
    found = json.loads(
        on_lavapipe("bench", path, "--device", "vulkan", "--reference", "cpu", "--runs", 1, "--json").stdout
    )
    assert found["max_relative_difference"] <= (0 if model == "int8" else 1e-4)
    if model == "int8":
        assert {"conv_i8", "gemm_i8"} <= {node["kernel"] for node in found["nodes"]}


def test_training_learns_what_it_learns_on_the_cpu(learns_the_same):
    learns_the_same(on_lavapipe, "vulkan")
