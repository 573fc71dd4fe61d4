"""INT8 by `compress` beside INT8 by ONNX Runtime's own quantiser, in one run.

    .venv/bin/python tests/bench/int8.py BINARY MODEL CALIBRATION.npz EVALUATION.npz [MinMax|Percentile]

Prints one markdown row a quantiser: the time and peak memory it took, the size of its file, how far its outputs are
from FP32 on the evaluation samples, how many Conv became QLinearConv, and FP32 latency over its latency, batch 1, one
thread, all in ONNX Runtime, taking turns. Both calibrate on every sample of CALIBRATION.npz. The seconds of `compress`
are those of the whole command: it also measures accuracy, layers and latency, which the quantiser does not.
"""

import collections
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort

RUNS = 60


def session(path, optimized=None):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = optimized
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def by_onnx_runtime(model, calibration, output, method):
    """Runs ONNX Runtime's quantiser in this process (see `main`)."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self):
            data = np.load(calibration)
            name = data.files[0]
            self.samples = ({name: data[name][i : i + 1]} for i in range(len(data[name])))

        def get_next(self):
            return next(self.samples, None)

    prepared = output + ".prepared.onnx"
    quant_pre_process(model, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        output,
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        calibrate_method=getattr(CalibrationMethod, method),
    )


def timed(command):
    """Seconds and peak megabytes of a command."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def outputs(path, data):
    run = session(path)
    name = run.get_inputs()[0].name
    return np.concatenate([run.run(None, {name: data[i : i + 1]})[0] for i in range(len(data))])


def integer_convolutions(path, folder):
    optimized = os.path.join(folder, "optimized.onnx")
    session(path, optimized)
    count = collections.Counter(n.op_type for n in onnx.load(optimized).graph.node)
    return f"{count['QLinearConv']} of {count['QLinearConv'] + count['Conv'] + count['FusedConv']}"


def latencies(paths, sample):
    runs = [session(p) for p in paths]
    name = runs[0].get_inputs()[0].name
    times = [[] for _ in runs]
    for turn in range(RUNS + 5):
        for run, t in zip(runs, times):
            start = time.perf_counter()
            run.run(None, {name: sample})
            if turn >= 5:
                t.append(time.perf_counter() - start)
    return [float(np.median(t)) * 1e3 for t in times]


def main(binary, model, calibration, evaluation, method="MinMax"):
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = os.path.join(folder, "ours.onnx"), os.path.join(folder, "theirs.onnx")
        count = str(10**9)
        cost = {
            ours: timed([binary, model, "--int8", "--data", calibration, "--eval", calibration,
                         "--calibration-samples", count, "-o", ours, "--quiet"]),
            theirs: timed([sys.executable, __file__, "--worker", model, calibration, theirs, method]),
        }
        # Only now: a child's peak counts what its parent held when it was started.
        data = np.load(evaluation)
        data = data[data.files[0]]
        exact = outputs(model, data)
        fp32, *int8 = latencies([model, ours, theirs], data[:1])
        print("| quantiser | seconds | peak MB | size | same class | SQNR dB | QLinearConv | FP32 ms / INT8 ms |")
        print("|---|---|---|---|---|---|---|---|")
        for name, path, ms in (("compress", ours, int8[0]), (f"ONNX Runtime {method}", theirs, int8[1])):
            got = outputs(path, data)
            rows = (a.reshape(len(data), -1) for a in (exact, got))
            same = np.mean([np.argmax(a) == np.argmax(b) for a, b in zip(*rows)])
            noise = 10 * np.log10((exact**2).sum() / ((exact - got) ** 2).sum())
            size = os.path.getsize(path) / os.path.getsize(model)
            seconds, peak = cost[path]
            print(f"| {name} | {seconds:.1f} | {peak:.0f} | {size:.3f} | {same:.2%} | {noise:.1f} "
                  f"| {integer_convolutions(path, folder)} | {fp32:.2f} / {ms:.2f} = {fp32 / ms:.2f}x |")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        by_onnx_runtime(*sys.argv[2:])
    elif len(sys.argv) in (5, 6):
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
