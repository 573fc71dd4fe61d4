"""`compress search` beside a search by chance and beside flags alone: what the front of each is worth on samples that none of them saw.

    python tests/bench/search.py FOLDER [NAME ...] --minutes 10 --seeds 3

FOLDER is as tests/bench/shipped_data.py makes it. COMPRESS_BIN is a release build. Writes FOLDER/NAME/search-*.json, and prints a line for
each model: the hypervolume on the evaluation set, and on the samples that chose after a sixth, a half and all of the time. Flags alone have
no limit of time: their default epochs are trained. Where other work runs on the machine, --threads 1 on a core of its own (taskset) keeps
times comparable.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

BIN = os.environ.get("COMPRESS_BIN", "target/release/compress")
PLAIN = [
    [],
    ["--int8"],
    ["--int8", "--effort", "best"],
    ["--int8", "--qat"],
    ["--int8=dynamic"],
    ["--weights", "int8"],
    ["--weights", "int4"],
    ["--prune", "0.5"],
    ["--int8", "--prune", "0.5"],
    ["--prune-channels", "0.3"],
    ["--int8", "--prune-channels", "0.3"],
]


def hypervolume(points, most_lost):
    """Of points (lost, time, size): the part of the box up to (most_lost, 1, 1) that they dominate, slice by slice."""
    boxes = sorted(
        ((max(p[0], 0) / most_lost, p[1], p[2]) for p in points if p[0] < most_lost and p[1] < 1 and p[2] < 1),
        key=lambda p: p[2],
    )
    volume = 0.0
    for i, box in enumerate(boxes):
        deep = (boxes[i + 1][2] if i + 1 < len(boxes) else 1.0) - box[2]
        area, lowest = 0.0, 1.0
        for x, y, _ in sorted(boxes[: i + 1]):
            if y < lowest:
                area, lowest = area + (1 - x) * (lowest - y), y
        volume += deep * area
    return volume


def run(*args):
    done = subprocess.run(
        [BIN, *map(str, args)], capture_output=True, text=True, env={**os.environ, "COMPRESS_CACHE": ""}
    )
    if done.returncode not in (0, 9):
        print(f"  {' '.join(map(str, args[1:]))}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return json.loads(done.stdout)


def data_of(place, threads):
    how = ["--threads", threads] if threads else []
    return ["--data", place / "calibration.npz", "--eval", place / "evaluation.npz", "--json", "--force", *how]


def course(report, minutes):
    """What was reached on the samples that chose, after a sixth, a half and all of the time."""
    parts = [60 * minutes * part for part in (1 / 6, 1 / 2, 1)]
    until = [[r["hypervolume"] for r in report["reached"] if r["seconds"] <= end] for end in parts]
    # What is learnt later may lower it, which only the last shows.
    return [max(part, default=0.0) for part in until[:-1]] + [report["reached"][-1]["hypervolume"]]


def objectives(report, of_share):
    """What was lost, the time and the size, in parts of the original's; nothing of a model that is not fit for use."""
    if report is None or report["accuracy"] is None or report["unusable"]:
        return None
    accuracy = report["accuracy"]
    noise = 0.0 if accuracy["equal"] else 10 ** (-(accuracy["sqnr_db"] or 0) / 20)
    lost = accuracy["drop"] if of_share and accuracy["drop"] is not None else noise
    return lost, 1 / report["speed"]["speedup"], report["output"]["bytes"] / report["input"]["bytes"]


def arguments():
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("names", nargs="*")
    options.add_argument("--minutes", type=int, default=10)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--threads", type=int)
    return options.parse_args()


def plain(place, of_share, threads):
    """What flags alone reach, and the seconds that all of them took."""
    points, began = [], time.time()
    with tempfile.TemporaryDirectory() as folder:
        for flags in PLAIN:
            report = run(place / "model.onnx", *flags, *data_of(place, threads), "-o", Path(folder) / "out.onnx")
            reached = objectives(report, of_share)
            if reached is None:
                continue
            points.append(reached)
            lost, part, size = reached
            print(f"  {' '.join(flags) or 'simplified'}: lost {lost:.4f}, {1 / part:.2f}x, {size:.3f}", flush=True)
    return points, time.time() - began


def search(place, strategy, options, seed):
    with tempfile.TemporaryDirectory() as folder:
        args = [
            "--strategy",
            strategy,
            "--time",
            f"{options.minutes}m",
            "--seed",
            seed,
            "-o",
            Path(folder) / "out.onnx",
        ]
        return run("search", place / "model.onnx", *data_of(place, options.threads), *args)


def main():
    options = arguments()
    for name in options.names:
        place = options.folder / name
        found = {}
        for strategy in ("guided", "random"):
            for seed in range(options.seeds):
                report = search(place, strategy, options, seed)
                if report is None:
                    continue
                (place / f"search-{strategy}-{options.minutes}-{seed}.json").write_text(json.dumps(report))
                found.setdefault(strategy, []).append(report)
        if not found.get("guided"):
            continue
        of_share = found["guided"][0]["of_share"]
        most_lost = 0.1 if of_share else 0.3
        by_hand, seconds = plain(place, of_share, options.threads)
        line = [f"{name} ({'points' if of_share else 'error'})"]
        for strategy, reports in found.items():
            values = []
            for report in reports:
                best = [p["measured"] for p in report["points"] if p["front"]]
                values.append(hypervolume([(p["lost"], p["time"], p["size"]) for p in best], most_lost))
            tries = [report["tried"] for report in reports]
            line.append(f"{strategy} {' '.join(f'{v:.3f}' for v in values)} ({'/'.join(map(str, tries))} ways)")
            for report in reports:
                line.append("chose by " + " ".join(f"{v:.3f}" for v in course(report, options.minutes)))
        line.append(f"flags alone {hypervolume(by_hand, most_lost):.3f} in {seconds / 60:.1f} min")
        print("; ".join(line), flush=True)


if __name__ == "__main__":
    main()
