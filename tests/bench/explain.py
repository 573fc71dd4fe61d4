"""What `compress explain` says of kernels beside ONNX Runtime's own profiler, node by node.

    .venv/bin/python tests/bench/explain.py MODEL DATA [MODEL DATA]... [--threads 1]

Of each model the command says which kernels ONNX Runtime runs, on which nodes of its optimised graph, and how long each takes. A
script with the profiler and the same sample finds the same: the table has the nodes, those whose kernel both name alike, those
that both call integer or float, how much of the time differs (half of the sum of the differences of all shares), and the layer
that both call the costliest. The command is COMPRESS_BIN, or target/release/compress.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
LIBRARY = Path(ort.__file__).parent / "capi"
RUNS = 60
CODES = ("uint8", "int8")


def profiled(path, data, threads):
    """Operator, whether it reads codes, and milliseconds of each node, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        arrays = np.load(data)
        feed = {i.name: (arrays[i.name] if i.name in arrays else arrays["x"])[:1] for i in session.get_inputs()}
        for _ in range(RUNS):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes, times = {}, defaultdict(list)
    for e in events:
        if e["name"].endswith("_kernel_time"):
            name, args = e["name"].removesuffix("_kernel_time"), e["args"]
            first = next(iter(args["input_type_shape"][0]), "") if args["input_type_shape"] else ""
            nodes[name] = (args["op_name"], first in CODES)
            times[name].append(e["dur"] / 1e3)
    return {n: (*nodes[n], float(np.mean(sorted(t)[: (len(t) + 1) // 2]))) for n, t in times.items()}


def explained(path, data, threads):
    """The same by the command, and whether the part of each node is in integers."""
    command = [BINARY, "explain", path, "--data", data, "--threads", threads, "--ort", LIBRARY, "--json"]
    ran = subprocess.run([str(a) for a in command], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    nodes = {}
    for part in found["parts"]:
        work = part["onnxruntime"]
        for k in work["kernels"] if work else []:
            nodes[k["node"]] = (k["kernel"].rsplit(".")[-1], work["int8"], k["ms"])
    return nodes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    print(
        "| model | nodes | same kernel | layers, same type | time elsewhere | costliest node |\n|---|--:|--:|--:|--:|---|"
    )
    for path, data in zip(given.files[::2], given.files[1::2]):
        ours, theirs = explained(path, data, given.threads), profiled(path, data, given.threads)
        same = sum(ours.get(n, ("",))[0] == op for n, (op, *_) in theirs.items())
        layers = [n for n, (op, *_) in theirs.items() if any(k in op for k in ("Conv", "MatMul", "Gemm")) and n in ours]
        alike = sum(ours[n][1] == theirs[n][1] for n in layers)
        total = [sum(n[2] for n in nodes.values()) for nodes in (ours, theirs)]
        elsewhere = sum(abs(ours.get(n, (0, 0, 0))[2] / total[0] - t[2] / total[1]) for n, t in theirs.items()) / 2
        most = [max(nodes, key=lambda n: nodes[n][2]) for nodes in (ours, theirs)]
        costliest = "the same" if most[0] == most[1] else f"{most[0]}, {most[1]}"
        print(
            f"| {path.name} | {len(theirs)} | {same} | {alike} of {len(layers)} | {100 * elsewhere:.1f}% | {costliest} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
