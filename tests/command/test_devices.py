"""What models can run on: `compress devices`."""

import json

from support import run_command


def test_the_cpu_is_always_there():
    lines = run_command("devices").out.splitlines()
    assert lines[0].startswith("cpu") and "kernels portable" in lines[0]
    assert len(lines) >= 4, "every interface to GPUs has a line"
    found = json.loads(run_command("devices", "--json").out)
    assert found["cpu"]["threads"] > 0 and found["cpu"]["kernels"][0] == "portable"
    known = {device["device"].split(":")[0] for device in found["gpus"]} | {api for api, _ in found["missing"]}
    assert known == {"cuda", "metal", "vulkan"}
