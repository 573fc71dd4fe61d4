"""Many nodes: the whole command beside other simplifiers, in one run.

    python3 -m venv target/bench-venv
    target/bench-venv/bin/pip install -r tests/bench/requirements.txt
    target/bench-venv/bin/python tests/bench/chain.py

Chains of foldable Add, Identity, Mul and Relu, of 10,000 and of 40,000 nodes; once from a constant, so that all of it
folds away, and once from the input, so that half of it must stay. Processes are timed whole, with their start.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from large import commands, run
from onnx import TensorProto, helper, numpy_helper


def make(path, count, constant):
    weights = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("half", 0.5), ("two", 2.0))]
    weights.append(numpy_helper.from_array(np.array([[1, -2, 3, 0.5]], np.float32), "start"))
    nodes, last = [], "start" if constant else "x"
    for i in range(count):
        kind, extra = (("Add", ["half"]), ("Identity", []), ("Mul", ["two"]), ("Relu", []))[i % 4]
        nodes.append(helper.make_node(kind, [last, *extra], [f"v{i}"], f"n{i}"))
        last = f"v{i}"
    nodes.append(helper.make_node("Add", ["x", last], ["y"], "sum"))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def main():
    print("| chain | tool | 10,000 nodes, s | 40,000 nodes, s | ratio | peak MB |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        source, scratch = Path(folder) / "model.onnx", Path(folder) / "out"
        scratch.mkdir()
        for what, constant in (("folds away", True), ("half stays", False)):
            rows = {}
            for count in (10_000, 40_000):
                make(source, count, constant)
                for name, (command, times) in commands(source, scratch, False).items():
                    if "cp" in name:
                        continue
                    done = []
                    for _ in range(times):
                        done.append(run(command, scratch))
                        for entry in scratch.iterdir():
                            entry.unlink()
                    done = [d for d in done if d]
                    rows.setdefault(name, []).append(sorted(done)[len(done) // 2] if done else None)
            for name, row in rows.items():
                if None in row:
                    print(f"| {what} | {name} | failed |", flush=True)
                    continue
                small, large = row
                print(
                    f"| {what} | {name} | {small[0]:.2f} | {large[0]:.2f} | {large[0] / small[0]:.1f} | {large[2]:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
