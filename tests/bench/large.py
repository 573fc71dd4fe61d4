"""Large models: import, simplify and export beside `cp`, and beside other simplifiers, in one run.

    python3 -m venv target/bench-venv
    target/bench-venv/bin/pip install -r tests/bench/requirements.txt
    target/bench-venv/bin/python tests/bench/large.py [FOLDER]

Makes two models of 72 nodes (MatMul, Add, Relu, LayerNormalization by turns) with seeded random weights in FOLDER (a
temporary one by default; 12 GB must be free): 906 MB in one file, and 2.7 GB with external data. Then each command
turns each of them into a new file, all of them with the input in the page cache. `cp` is followed by fsync of what it
wrote, as `compress --no-check` is by itself. The command is COMPRESS_BIN, or target/release/compress.

Memory is the peak of RssAnon, sampled every 5 ms: what a process allocates. Pages of mapped files, which the kernel
takes back whenever it wants, are not in it; the second figure, VmHWM, counts them too.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCKS = 18
NEEDED = 12 << 30


def make(path, width, external):
    """A model of BLOCKS * 4 nodes with weights of `width` x `width`."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "input"

    def weight(name, *shape):
        data = rng.standard_normal(shape, np.float32) * np.float32(width**-0.5)
        weights.append(helper.make_tensor(name, TensorProto.FLOAT, shape, data.tobytes(), raw=True))
        return name

    for i in range(BLOCKS):
        w = weight(f"w{i}", width, width)
        b, s, o = (weight(f"{n}{i}", width) for n in "bso")
        nodes += [
            helper.make_node("MatMul", [x, w], [f"m{i}"], f"matmul{i}"),
            helper.make_node("Add", [f"m{i}", b], [f"a{i}"], f"add{i}"),
            helper.make_node("Relu", [f"a{i}"], [f"r{i}"], f"relu{i}"),
            helper.make_node("LayerNormalization", [f"r{i}", s, o], [f"n{i}"], f"norm{i}"),
        ]
        x = f"n{i}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", width]) for n in ("input", x)]
    graph = helper.make_graph(nodes, "large", info[:1], info[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location=path.name + ".data")


def by_onnx_runtime(source, target, external):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = target
    if external:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "ort.data")
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def commands(source, folder, external):
    """What is run, by name. Each writes into `folder`."""
    target = folder / "out.onnx"
    tools = Path(sys.executable).parent
    copy = 'for f; do cp "$f" "$OUT" && sync "$OUT/${f##*/}"; done'
    files = [str(source), f"{source}.data"][: 1 + external]
    binary = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
    ours = [binary, str(source), "--quiet", "-o", str(target)]
    return {
        "`cp` + fsync": (["sh", "-c", copy, "sh", *files], 5),
        "compress --no-check": ([*ours, "--no-check"], 5),
        "compress": (ours, 5),
        "ONNX Runtime, basic": ([sys.executable, __file__, "ort", str(source), str(target), str(int(external))], 1),
        "onnxslim": ([str(tools / "onnxslim"), str(source), str(target), *["--save-as-external-data"] * external], 1),
        "onnxsim": ([str(tools / "onnxsim"), str(source), str(target), *["--save-as-external-data"] * external], 1),
    }


def run(command, folder):
    """Seconds, peak RssAnon and VmHWM in MB of a command; None when it fails."""
    peak = dict.fromkeys(("RssAnon", "VmHWM"), 0)
    start = time.perf_counter()
    child = subprocess.Popen(
        command, env={**os.environ, "OUT": str(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while child.poll() is None:
        try:
            for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in peak:
                    peak[key] = max(peak[key], int(value.split()[0]))
        except (FileNotFoundError, ProcessLookupError):
            pass
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    return None if child.returncode else (seconds, peak["RssAnon"] / 1024, peak["VmHWM"] / 1024)


def bench(source, external):
    size = sum(p.stat().st_size for p in source.parent.iterdir())
    print(f"\n{size / 1e6:.0f} MB, {BLOCKS * 4} nodes{', external data' if external else ''}\n")
    print("| | seconds | of `cp` | memory, MB | with mapped files, MB |\n|---|---|---|---|---|", flush=True)
    copied = None
    with tempfile.TemporaryDirectory(dir=source.parent.parent) as scratch:
        for name, (command, times) in commands(source, Path(scratch), external).items():
            done = []
            for _ in range(times):
                done.append(run(command, scratch))
                for entry in os.scandir(scratch):
                    os.unlink(entry)
            if None in done:
                print(f"| {name} | failed |", flush=True)
                continue
            seconds = sorted(d[0] for d in done)[len(done) // 2]
            copied = copied or seconds
            memory = [max(d[i] for d in done) for i in (1, 2)]
            figures = [f"{seconds:.2f}", f"{seconds / copied:.2f}", *(f"{m:.0f}" for m in memory)]
            print(f"| {name} | {' | '.join(figures)} |", flush=True)


def main(folder):
    if shutil.disk_usage(folder).free < NEEDED:
        sys.exit(f"{folder}: {NEEDED >> 30} GB must be free")
    with tempfile.TemporaryDirectory(dir=folder) as folder:
        for name, width, external in (("one", 3547, False), ("two", 6140, True)):
            place = Path(folder) / name
            place.mkdir()
            make(place / "model.onnx", width, external)
            bench(place / "model.onnx", external)
            shutil.rmtree(place)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ort"]:
        by_onnx_runtime(sys.argv[2], sys.argv[3], sys.argv[4] == "1")
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
