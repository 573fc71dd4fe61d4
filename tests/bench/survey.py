"""What INT8 does to many models: `survey.py INDEX.tsv [NAME ...]` prints a table, and writes survey.json beside it.

INDEX.tsv has a line for each model: a name, its file, and its data (.npz, or `-` for none); other columns are not looked
at. Each model goes through `compress MODEL --int8 --data DATA --json`, and both files are timed in ONNX Runtime, by turns.
The command is that of COMPRESS_BIN, or target/release/compress.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import onnxruntime as ort

BINARY = os.environ.get("COMPRESS_BIN", str(Path(__file__).resolve().parents[2] / "target/release/compress"))
TIMEOUT = 300
ROUNDS = 7
# Characters of what the command said.
SAID = 110


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    ort.set_default_logger_severity(4)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds(model, data):
    """The first sample, as each input takes it."""
    arrays = np.load(data, allow_pickle=False)
    given = {}
    for i in model.get_inputs():
        array = arrays[i.name]
        sample = array[:1] if array.ndim else array
        given[i.name] = sample if len(i.shape) == sample.ndim else np.asarray(sample[0])
    return given


def ratio(before, after, data):
    """How many times as fast ONNX Runtime runs the second: the median of interleaved rounds, or why it doesn't."""
    try:
        a, b = session(before), session(after)
        given = feeds(a, data)
        a.run(None, given), b.run(None, given)
        ratios = []
        for _ in range(ROUNDS):
            least = []
            for s in (a, b):
                times = []
                end = time.perf_counter() + 0.05
                while time.perf_counter() < end or len(times) < 2:
                    start = time.perf_counter()
                    s.run(None, given)
                    times.append(time.perf_counter() - start)
                least.append(min(times))
            ratios.append(least[0] / least[1])
        return sorted(ratios)[ROUNDS // 2]
    except Exception as e:  # noqa: BLE001 - whatever ONNX Runtime says belongs into the table
        return str(e).splitlines()[0][:80]


def apart(compute, *args):
    """In a process of its own: ONNX Runtime dies of some files."""
    with ProcessPoolExecutor(1) as pool:
        try:
            return pool.submit(compute, *args).result()
        except BrokenProcessPool:
            return "died"


def look(name, model, data, folder):
    out = folder / "out.onnx"
    args = [BINARY, model, "--int8", "-o", out, "--force", "--json"]
    if data != "-":
        args += ["--data", data]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            ["/usr/bin/time", "-f", "%M", *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "code": "timeout"}
    err = done.stderr.strip().splitlines()
    row = {
        "name": name,
        "model": str(model),
        "code": done.returncode,
        "seconds": time.perf_counter() - start,
        "megabytes": int(err[-1]) // 1024,
    }
    row["said"] = [line for line in err if line.startswith(("error", "warning", "thread"))]
    if done.stdout:
        report = json.loads(done.stdout)
        a, s = report["accuracy"], report["speed"]
        row["coverage"] = report["coverage"]
        row["warnings"] = report["warnings"]
        row["size"] = report["output"]["bytes"] / report["input"]["bytes"]
        if a:
            row |= {
                "metric": a["metric"],
                "value": a["after"],
                "before": a["before"],
                "sqnr": a["sqnr_db"],
                "worst": a["worst_output"],
            }
            row |= {"equal": a["equal"], "synthetic": a["synthetic"]}
        if s:
            row |= {"speed": s["speedup"], "interval": s["interval"], "inputs": s["inputs"], "ms": s["before_ms"]}
        if data != "-" and out.exists():
            row["ort"] = apart(ratio, model, out, data)
    out.unlink(missing_ok=True)
    return row


def shown(row):
    def number(v, pattern):
        return pattern.format(v) if isinstance(v, (int, float)) else (v or "-")

    c = (row.get("coverage") or [{}])[0]
    layers = f"{c['layers']} of {c['of_layers']}" if c else "-"
    metric = row.get("metric", "sqnr")
    kept = number(row.get("value"), f"{metric} {{:.4f}}" if metric == "cosine" else f"{metric} {{:.1%}}")
    # The last line is the error, if there is one.
    said = [line.removeprefix("warning: ").removeprefix("error: ") for line in row.get("said", [])][-1:]
    said = "".join(said).replace("gate failed: the result is ", "").replace(row.get("model", "-"), row["name"])
    warned = any(w.startswith("WARNING") for w in row.get("warnings", []))
    cells = [
        row["name"], str(row["code"]), layers, number(c.get("macs"), "{:.0%}"), "-" if metric == "sqnr" else kept,
        "equal" if row.get("equal") else number(row.get("sqnr"), "{:.1f} dB"), number(row.get("size"), "{:.3f}"),
        number(row.get("speed"), "{:.2f}x"), number(row.get("ort"), "{:.2f}x"), number(row.get("seconds"), "{:.1f}"),
        number(row.get("megabytes"), "{}"), said if len(said) <= SAID else said[: SAID - 3] + "...",
    ]  # fmt: skip
    if warned and not said:
        cells[-1] = "WARNING"
    return "| " + " | ".join(cells) + " |"


def main():
    index, wanted = Path(sys.argv[1]), set(sys.argv[2:])
    print("| model | exit | layers | MACs | kept | SQNR | size | ours | ORT | s | MB | said |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as folder, index.open() as lines:
        for line in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            if line[0] == "name" or (wanted and line[0] not in wanted):
                continue
            rows.append(look(line[0], line[1], line[2], Path(folder)))
            print(shown(rows[-1]), flush=True)
    Path("survey.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
