"""INT8 by `compress` beside INT8 by ONNX Runtime's own quantiser and NNCF, in one run.

    .venv/bin/python tests/bench/int8.py BINARY MODEL CALIBRATION.npz EVALUATION.npz [--seeds N] [--task TASK]
        [--output NAME] [METHOD ...]

Methods: quick, normal and best (the efforts of `compress`), MinMax, Percentile and dynamic (ONNX Runtime), reduced (MinMax with
weights of 7 bits, `reduce_range`), NNCF (needs the package). Each method is run once for each seed, on four fifths of the calibration samples, drawn by the seed. Prints one
markdown row a method: the most time and memory that a process took, the size of the file, the signal to noise of an
output (the first, or NAME) and what is left of the model's task (tasks.py; the class by default) beside FP32 on the evaluation samples (mean and, in
brackets, least of the seeds), the signal to noise as with VNNI, where sums do not saturate, and FP32 latency over its latency
(the file of the last seed; batch 1, one thread), all in ONNX Runtime, taking turns. shipped_data.py makes models and data.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from tasks import TASKS, decibels

RUNS = 60
OURS = ("quick", "normal", "best")
METHODS = (*OURS, "MinMax", "Percentile", "reduced", "dynamic", "NNCF")


def session(path, exact=False):
    options = ort.SessionOptions()
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def runs(path, feed):
    """Whether ONNX Runtime runs a file: a quantiser may write invalid ones."""
    try:
        session(path).run(None, feed)
    except Exception:
        return False
    return True


def feeds(path):
    """The samples of a file, as inputs by name."""
    arrays = dict(np.load(path))
    count = min(map(len, arrays.values()))
    return [{name: a[i : i + 1] for name, a in arrays.items()} for i in range(count)]


def by_others(model, calibration, output, method):
    """Runs a quantiser in this process (see `main`)."""
    if method == "NNCF":
        import nncf

        data = feeds(calibration)
        onnx.save(nncf.quantize(onnx.load(model), nncf.Dataset(data), subset_size=len(data)), output)
        return
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = output + ".prepared.onnx"
    quant_pre_process(model, prepared, skip_symbolic_shape=True)
    if method == "dynamic":
        quantization.quantize_dynamic(prepared, output, per_channel=True, weight_type=quantization.QuantType.QInt8)
        return

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.samples = iter(feeds(calibration))

        def get_next(self):
            return next(self.samples, None)

    quantization.quantize_static(
        prepared,
        output,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
        calibrate_method=getattr(quantization.CalibrationMethod, "MinMax" if method == "reduced" else method),
        reduce_range=method == "reduced",
    )


# The peak of a process counts what its parent held when it was started: a small one starts it.
STARTER = """
import os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss / 1024)
sys.exit(status != 0)
"""


def timed(command):
    """Seconds and peak megabytes of a command; nothing if it fails."""
    done = subprocess.run([sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE, text=True)
    return None if done.returncode else tuple(map(float, done.stdout.split()))


def outputs(path, samples, name, exact=False):
    run = session(path, exact)
    return np.concatenate([run.run([name], feed)[0] for feed in samples])


def unsaturated(exact, path, samples, name, part):
    """The signal to noise as with VNNI. ONNX Runtime 1.31 doesn't load a model so in which two products share a weight."""
    try:
        return decibels(exact, part(outputs(path, samples, name, exact=True)))
    except ort.capi.onnxruntime_pybind11_state.Fail:
        return np.nan


def latencies(paths, feed):
    runs = [session(p) for p in paths]
    times = [[] for _ in runs]
    for turn in range(RUNS + 5):
        for run, t in zip(runs, times):
            start = time.perf_counter()
            run.run(None, feed)
            if turn >= 5:
                t.append(time.perf_counter() - start)
    return [float(np.median(t)) * 1e3 for t in times]


def drawn(calibration, seed, folder):
    """A file with four fifths of the samples of another."""
    arrays = dict(np.load(calibration))
    count = min(map(len, arrays.values()))
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[: count * 4 // 5])
    path = os.path.join(folder, f"calibration-{seed}.npz")
    np.savez(path, **{name: a[chosen] for name, a in arrays.items()})
    return path


def main(binary, model, calibration, evaluation, seeds, task, output, methods):
    kept, task_name, part = TASKS[task]
    with tempfile.TemporaryDirectory() as folder:
        made = {method: [] for method in methods}
        for seed in range(seeds):
            data = drawn(calibration, seed, folder)
            for method in methods:
                made_file = os.path.join(folder, f"{method}-{seed}.onnx")
                if method in OURS:
                    command = [
                        binary,
                        model,
                        "--int8",
                        "--effort",
                        method,
                        "--data",
                        data,
                        "--check",
                        "none",
                        "-o",
                        made_file,
                    ]
                else:
                    command = [sys.executable, __file__, "--worker", model, data, made_file, method]
                made[method].append((made_file, timed(command)))
        samples = feeds(evaluation)
        output = output or session(model).get_outputs()[0].name
        exact = part(outputs(model, samples, output))
        finished = {method: files for method, files in made.items() if all(cost for _, cost in files)}
        done = {method: files for method, files in finished.items() if all(runs(path, samples[0]) for path, _ in files)}
        fp32, *int8 = latencies([model, *(files[-1][0] for files in done.values())], samples[0])
        print(f"| quantiser | seconds | peak MB | size | SQNR dB | {task_name} | dB with VNNI | FP32 ms / INT8 ms |")
        print("|---|---|---|---|---|---|---|---|")
        for (method, files), ms in zip(done.items(), int8):
            name = f"compress, {method}" if method in OURS else method if method == "NNCF" else f"ONNX Runtime {method}"
            answers = [part(outputs(path, samples, output)) for path, _ in files]
            db = [decibels(exact, a) for a in answers]
            with_vnni = np.mean([unsaturated(exact, path, samples, output, part) for path, _ in files])
            same = [kept(exact, a, samples) for a in answers]
            seconds, peak = (max(cost[i] for _, cost in files) for i in (0, 1))
            size = os.path.getsize(files[-1][0]) / os.path.getsize(model)
            print(
                f"| {name} | {seconds:.1f} | {peak:.0f} | {size:.3f} | {np.mean(db):.1f} ({min(db):.1f}) "
                f"| {np.mean(same):.1%} ({min(same):.1%}) | {with_vnni:.1f} | {fp32:.2f} / {ms:.2f} = {fp32 / ms:.2f}x |",
                flush=True,
            )
        for method in made.keys() - done.keys():
            print(f"{method}: {'its file does not run' if method in finished else 'failed'}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        by_others(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        for name in ("binary", "model", "calibration", "evaluation"):
            parser.add_argument(name)
        parser.add_argument("--seeds", type=int, default=3)
        parser.add_argument("--output", metavar="NAME")
        parser.add_argument("--task", choices=TASKS, default="classes")
        parser.add_argument(
            "methods", nargs="*", metavar="METHOD", help=f"of {', '.join(METHODS)} [default: quick normal MinMax]"
        )
        asked = vars(parser.parse_intermixed_args())
        unknown = set(asked["methods"]) - set(METHODS)
        if unknown:
            parser.error(f"unknown methods: {', '.join(sorted(unknown))}")
        main(**asked | {"methods": asked["methods"] or ["quick", "normal", "MinMax"]})
