"""Our runtime beside ONNX Runtime on models of text, in turns, in milliseconds.

    .venv/bin/python tests/bench/text_models.py MODEL[:OTHER]... [--threads 1 2] [--lengths 1 16 64 256] [--batches 1 8] [--turns 3]

An encoder is run on sequences of each length, in batches of each size. A decoder with a cache is run on one sequence: its length less
eight tokens at once, then eight one by one, each with the cache of the run before; lengths up to eight are left out. OTHER is the file
that ONNX Runtime runs, as one with MatMulNBits beside one with DequantizeLinear. A time is the median of a turn, and of the turns the
least. The command is COMPRESS_BIN, or target/release/compress.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
RUNS = 20
STEPS = 8
WORDS = 200


def ours(model, inputs, batch, length, threads):
    """What `bench` says: of an encoder the time of a run, of a decoder that of the prompt and of a token behind it."""
    shapes = [word for name in inputs for word in ("--shape", f"{name}={batch}x{length}")]
    on = ["--device", "cpu", "--batch", batch, "--threads", threads]
    args = ["bench", model, "--json", "--runs", RUNS, *on, *shapes]
    ran = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    if "decoding" not in figures:
        return [figures["median_ms"]]
    speed = figures["decoding"]
    return [1e3 * speed["prompt"] / speed["prompt_tokens_per_second"], speed["token_ms"]]


def made_up(name, shape):
    """Numbers of words, ones of a mask, zeros of types."""
    rng = np.random.default_rng(0)
    if "mask" in name:
        return np.ones(shape, np.int64)
    return rng.integers(1, WORDS, shape) if name == "input_ids" else np.zeros(shape, np.int64)


def timed(run):
    began = time.perf_counter()
    made = run()
    return made, 1e3 * (time.perf_counter() - began)


def decode(session, ids):
    """The time of the prompt, and the times of the tokens behind it."""
    of = {i.name: i for i in session.get_inputs()}
    outputs = [o.name for o in session.get_outputs()]
    cache = {n: np.zeros([len(ids), i.shape[1], 0, i.shape[3]], np.float32) for n, i in of.items() if "past" in n}
    past, times = 0, []
    for count in [ids.shape[1] - STEPS] + [1] * STEPS:
        places = np.arange(past, past + count)[None].repeat(len(ids), 0)
        feed = {"input_ids": ids[:, past : past + count], "attention_mask": np.ones((len(ids), past + count), np.int64)}
        feed |= {"position_ids": places} if "position_ids" in of else {}
        made, ms = timed(lambda feed=feed | cache: session.run(None, feed))
        times.append(ms)
        cache = {n: made[outputs.index(n.replace("past_key_values", "present"))] for n in cache}
        past += count
    return times[:1], times[1:]


def theirs(session, batch, length):
    """The medians of as many runs."""
    names = [i.name for i in session.get_inputs()]
    feed = {n: made_up(n, (batch, length)) for n in names if "past" not in n}
    if any("past" in n for n in names):
        parts = zip(*(decode(session, feed["input_ids"]) for _ in range(RUNS)))
        return [float(np.median(np.concatenate(part))) for part in parts]
    return [float(np.median([timed(lambda: session.run(None, feed))[1] for _ in range(RUNS)]))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--lengths", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    print("| model | threads | what | ONNX Runtime | ours | ratio |\n|---|---|---|---|---|---|")
    for model in args.models:
        own, other = (model.split(":") * 2)[:2]
        for threads in args.threads:
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = threads, 4
            session = ort.InferenceSession(other, options, providers=["CPUExecutionProvider"])
            names = [i.name for i in session.get_inputs()]
            is_decoder = any("past" in n for n in names)
            fed = ["input_ids"] if is_decoder else names
            lengths = [n for n in args.lengths if n > STEPS] if is_decoder else args.lengths
            for batch, length in [(b, n) for b in ([1] if is_decoder else args.batches) for n in lengths]:
                turns = [
                    (theirs(session, batch, length), ours(own, fed, batch, length, threads)) for _ in range(args.turns)
                ]
                whats = (
                    [f"{length - STEPS} tokens at once", f"a token behind {length - STEPS}"]
                    if is_decoder
                    else [f"{batch}x{length}"]
                )
                for place, what in enumerate(whats):
                    a, b = (min(turn[side][place] for turn in turns) for side in (0, 1))
                    print(f"| {Path(own).stem} | {threads} | {what} | {a:.3f} | {b:.3f} | {b / a:.2f} |", flush=True)


if __name__ == "__main__":
    main()
