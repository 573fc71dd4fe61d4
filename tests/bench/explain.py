"""What `compress explain` says of kernels beside ONNX Runtime's own profiler, node by node.

    .venv/bin/python tests/bench/explain.py MODEL DATA [MODEL DATA]... [--threads 1]

Of each model the command says which kernels ONNX Runtime runs, on which nodes of its optimised graph, and how long each takes. A
script with the profiler and the same sample finds the same: the table has the nodes, those whose kernel both name alike, those
that both call integer or float, how much of the time differs (half of the sum of the differences of all shares), and the layer
that both call the costliest. A node is known by the value of the file that it makes, if it makes one, as the numbers in the names that ONNX
Runtime makes up change from one load to the next. The command is COMPRESS_BIN, or target/release/compress.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
LIBRARY = Path(ort.__file__).parent / "capi"
RUNS = 60
CODES = ("uint8", "int8")


def profiled(path, data, threads):
    """Operator, whether it reads codes, and milliseconds of each node, by the value of the file that it makes, or by its name."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        arrays = np.load(data)
        feed = {i.name: (arrays[i.name] if i.name in arrays else arrays["x"])[:1] for i in session.get_inputs()}
        for _ in range(RUNS):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
        optimised = onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node
    made = {v for n in onnx.load(path, load_external_data=False).graph.node for v in n.output}
    # Nodes run in the order of that file: the profiler's names of those without one follow it.
    first = [next((v for v in n.output if v in made), "") for n in optimised]
    values = {n.name: v for n, v in zip(optimised, first) if n.name}
    unnamed = defaultdict(list)
    for n, v in zip(optimised, first):
        if not n.name:
            unnamed[n.op_type].append(v)
    nodes, times = {}, [defaultdict(float)]
    for e in nested(events):
        if e["name"] == "model_run":
            times.append(defaultdict(float))
            continue
        name, args = e["node"], e["args"]
        if name not in values:
            values[name] = unnamed[args["op_name"]].pop(0) if "within" not in e and unnamed[args["op_name"]] else ""
        key = values[name] or name
        codes = next(iter(args["input_type_shape"][0]), "") in CODES if args["input_type_shape"] else False
        nodes[key] = (args["op_name"], codes)
        times[-1][key] += e["own"] / 1e3
    faster = {key: sorted(run[key] for run in times[:-1])[: len(times) // 2] for key in nodes}
    return {key: (*nodes[key], float(np.mean(faster[key]))) for key in nodes}


def nested(events):
    """The calls of nodes in their order, and the ends of runs: a node inside another is called after that, too."""
    done = []
    for e in events:
        if e["name"] == "model_run":
            done.append(e)
        elif e["name"].endswith("_kernel_time"):
            e["node"], e["own"] = e["name"].removesuffix("_kernel_time"), e["dur"]
            if e["args"]["op_name"] in ("If", "Loop", "Scan"):
                for inner in reversed(done):
                    if inner["name"] == "model_run" or inner["ts"] < e["ts"]:
                        break
                    if "within" not in inner:
                        e["own"] -= inner["dur"]
                    inner["node"], inner["within"] = f"{e['node']}/{inner['node']}", True
            done.append(e)
    return done


def explained(path, data, threads):
    """The same by the command, and whether the part of each node is in integers."""
    command = [BINARY, "explain", path, "--data", data, "--threads", threads, "--ort", LIBRARY, "--json"]
    ran = subprocess.run([str(a) for a in command], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    nodes = {}
    for part in found["parts"]:
        work = part["onnxruntime"]
        for k in work["kernels"] if work else []:
            nodes[k.get("value") or k["node"]] = (k["kernel"].rsplit(".")[-1], work["int8"], k["ms"])
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
