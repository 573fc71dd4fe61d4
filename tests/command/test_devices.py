"""What models can run on: `compress devices`."""

import json

from support import ROOT, run_command


def test_the_cpu_is_always_there():
    lines = run_command("devices").out.splitlines()
    assert lines[0].startswith("cpu") and "kernels portable" in lines[0]
    assert len(lines) >= 4, "every interface to GPUs has a line"
    found = json.loads(run_command("devices", "--json").out)
    assert found["cpu"]["threads"] > 0 and found["cpu"]["kernels"][0] == "portable"
    known = {device["device"].split(":")[0] for device in [*found["gpus"], *found["missing"]]}
    assert known == {"cuda", "metal", "vulkan"}


def test_what_a_device_cannot_do_is_refused():
    digits = ROOT / "models" / "digits" / "digits.onnx"
    refused = run_command("bench", digits, "--device", "cpu", "--precision", "tf32", code=5)
    assert "computing in tf32 on CPU" in refused.err and "compute capability 8.0" in refused.err
    assert "is not a device" in run_command("bench", digits, "--device", "cuda:+1", code=2).err
    # Kernels of the CPU ask for it.
    assert '"device": "CPU"' in run_command("bench", digits, "--engine", "portable", "--runs", 1, "--json").out
