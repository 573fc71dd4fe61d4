"""Real models that PyPI packages ship: text recognition, file types, speech. They need no folder of models.

tests/run installs the packages, of which only the ONNX files are used.
"""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import assert_close, run_onnx, session

# Package, file, and the inputs that the model takes.
MODELS = {
    "ocr-detector": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 224, 224)}),
    "ocr-recogniser": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "ocr-direction": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "file-types": ("magika", "models/standard_v3_3/model.onnx", {"bytes": (2, 2048)}),
    "speech": ("silero_vad", "data/silero_vad.onnx", {"input": (1, 512), "state": (2, 1, 128), "sr": ()}),
    "speech-without-if": (
        "silero_vad",
        "data/silero_vad_op18_ifless.onnx",
        {"input": (1, 512), "state": (2, 1, 128), "sr": ()},
    ),
}


def found(name):
    """The file of a model; a test without its package is skipped."""
    package, file, _ = MODELS[name]
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed: tests/run installs it")
    return Path(spec.submodule_search_locations[0]) / file


def feeds(path, shapes, seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for i in session(path).get_inputs():
        shape = shapes[i.name]
        if i.name == "sr":
            made[i.name] = np.array(16000, np.int64)
        elif i.type == "tensor(int32)":
            made[i.name] = rng.integers(0, 256, shape).astype(np.int32)
        else:
            made[i.name] = rng.standard_normal(shape).astype(np.float32) * 0.1
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_simplified_model_computes_the_same(compress, tmp_path, name):
    path, out = found(name), tmp_path / "out.onnx"
    report = compress(path, "-o", out, "--json").json()
    onnx.checker.check_model(str(out), full_check=True)
    inputs = feeds(path, MODELS[name][2])
    # A detector finds nothing in noise: its sigmoids are next to zero.
    assert_close(run_onnx(out, inputs), run_onnx(path, inputs), atol=1e-6)
    assert report["output"]["nodes"] <= report["input"]["nodes"]
    assert report["undone"] == [] and report["unusable"] is None


@pytest.mark.parametrize("name", MODELS)
def test_int8_runs_in_onnx_runtime_and_the_report_is_honest(compress, tmp_path, name):
    path, out = found(name), tmp_path / "out.onnx"
    shapes = MODELS[name][2]
    batches = [feeds(path, shapes, seed) for seed in range(8)]
    # A sample is one run of the model: models with a state take one at a time.
    np.savez(tmp_path / "data.npz", **{k: np.stack([b[k] for b in batches]) for k in batches[0]})
    done = compress(path, "--int8", "--data", tmp_path / "data.npz", "-o", out, "--json", code=(0, 9))
    report = done.json()
    before, after = (run_onnx(p, batches[0]) for p in (path, out))
    assert [a.shape for a in after] == [b.shape for b in before]
    (covered,) = [c for c in report["coverage"] if c["request"] == "int8"]
    quantised = sum(layer["precision"] == "int8" for layer in report["layers"])
    assert covered["layers"] == quantised > 0
    assert report["output"]["bytes"] < report["input"]["bytes"]
    # What is below the line is called unusable, and fails.
    assert (report["unusable"] is not None) == (done.code == 9)
