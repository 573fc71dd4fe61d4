#!/usr/bin/env python3
"""Quantises whole models with other tools and writes them as cases: `make_qdq_models.py FOLDER`.

Every model of COMPRESS_ZOO, by ONNX Runtime's static quantiser in several formats, and by NNCF where it is installed
(`pip install nncf`, which needs no framework but onnx). Calibration is on noise: what matters is that the same numbers
come out, not good ones. Each case has two data sets, one sample and, where the batch is open, three. A second case,
`..._exposed`, has every quantised value as an output, to find out which layer is to blame.

tests/operators/executor.rs runs them on each of our engines. Models that a tool can't quantise are listed. What an earlier run
left is kept if it came from the same models, tools and scripts.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from qdq_cases.net import rounds_before_quantising, run, write_data

sys.path.insert(0, str(Path(__file__).parent.parent))
from zoo import feeds  # noqa: E402

try:
    import nncf
except ImportError:
    nncf = None

# Scales per channel came with this opset.
OPSET = 13
U8, S8 = QuantType.QUInt8, QuantType.QInt8
# The format, the types of activations and weights, and whether there is a scale per channel.
FORMATS = {
    "u8s8": (QuantFormat.QDQ, U8, S8, True),
    "u8u8": (QuantFormat.QDQ, U8, U8, False),
    "s8s8": (QuantFormat.QDQ, S8, S8, True),
    "qlinear": (QuantFormat.QOperator, U8, S8, True),
}
QUANTISED = ("QuantizeLinear", "QLinear")


class Reader(CalibrationDataReader):
    """A few samples of noise."""

    def __init__(self, path):
        self.samples = iter([feeds(path, seed, 1) for seed in range(4)])

    def get_next(self):
        return next(self.samples, None)


def prepared(path, folder):
    """The model at opset 13 or more, simplified by ONNX Runtime."""
    model = onnx.load(path)
    if max(o.version for o in model.opset_import if not o.domain) < OPSET:
        model = version_converter.convert_version(model, OPSET)
    newer, done = folder / "newer.onnx", folder / "prepared.onnx"
    onnx.save(model, newer)
    quant_pre_process(str(newer), str(done), skip_symbolic_shape=True)
    return done


def by_onnx_runtime(source, target, how):
    """Quantises by ONNX Runtime's own tool."""
    form, activation, weight, per_channel = FORMATS[how]
    reader = Reader(source)
    quantize_static(
        source, target, reader, form, activation_type=activation, weight_type=weight, per_channel=per_channel
    )


def by_nncf(source, target):
    """Quantises by NNCF."""
    samples = nncf.Dataset([feeds(source, seed, 1) for seed in range(4)])
    onnx.save(nncf.quantize(onnx.load(source), samples, subset_size=4), target)


def exposed(model):
    """The same model with every 8-bit value as an output."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    known = {o.name for o in made.graph.output}
    for node in made.graph.node:
        if node.op_type.startswith(QUANTISED) and node.output[0] not in known:
            made.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    return made


def scales(model):
    """For each output the scale that it was dequantised by, if that was the last that happened to it."""
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    made = {n.output[0]: n for n in model.graph.node if n.op_type == "DequantizeLinear"}
    found = [values.get(made[o.name].input[1]) if o.name in made else None for o in model.graph.output]
    return [float(s) if s is not None and s.size == 1 else None for s in found]


def write(model, source, folder):
    """One case."""
    sets = [feeds(source, seed=10 + i, batch=b) for i, b in enumerate((1, 3))]
    with tempfile.TemporaryDirectory() as scratch:
        dump = Path(scratch) / "optimised.onnx"
        run(model.SerializeToString(), sets[0], save=dump)
        graph = onnx.load(dump).graph
    kernels = [n.op_type for n in graph.node]
    for i, inputs in enumerate(sets):
        outputs = run(model.SerializeToString(), inputs)
        write_data(folder / f"test_data_set_{i}", inputs, dict(zip((o.name for o in model.graph.output), outputs)))
    for output, value in zip(model.graph.output, outputs):
        output.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    onnx.save(model, folder / "model.onnx")
    # Its own integer kernels approximate these, too.
    loose = rounds_before_quantising(graph) | {"QLinearSoftmax", "QLinearSigmoid"}.intersection(kernels)
    if has_asymmetric_weights(model.graph):
        # We compute these in floats: our integer kernels take weights around zero.
        loose.add("asymmetric weights")
    facts = {"steps": 0, "loose": sorted(loose), "scales": scales(model)}
    facts["kernels"] = {k: kernels.count(k) for k in sorted(set(kernels))}
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


def has_asymmetric_weights(graph):
    """Whether a weight of eight bits has a zero point that is not the middle of its type."""
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and len(node.input) > 2 and node.input[0] in constants:
            zero = constants.get(node.input[2])
            middle = {"uint8": 128, "int8": 0}.get(str(zero.dtype)) if zero is not None else None
            if middle is not None and constants[node.input[0]].ndim > 1 and (zero != middle).any():
                return True
    return False


def origin(models):
    """What the result depends on."""
    here = Path(__file__).parent
    files = [*models, Path(__file__), here / "qdq_cases/net.py", here.parent / "zoo.py"]
    tools = [f"{m.__name__} {m.__version__}" for m in (np, onnx, ort, nncf) if m]
    return "\n".join([*tools, *(f"{p} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in files)])


def main(folder: Path):
    """Replaces what an earlier run left in `folder`."""
    marker = folder / ".qdq-models"
    models = sorted((Path(os.environ["COMPRESS_ZOO"]) / "models").glob("*.onnx"))
    wanted = origin(models)
    if marker.exists() and marker.read_text() == wanted:
        print(f"the quantised models in {folder} are up to date")
        return
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        sys.exit(f"{folder} holds other things; give an empty or a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Empty until all of it is there.
    marker.touch()
    count = 0
    for path in models:
        for how in (*FORMATS, *(["nncf"] if nncf else [])):
            name = f"{path.stem}_{how}"
            with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
                target = Path(scratch) / "quantised.onnx"
                try:
                    source = prepared(path, Path(scratch))
                    if how == "nncf":
                        by_nncf(source, target)
                    else:
                        by_onnx_runtime(source, target, how)
                    model = onnx.load(target)
                    write(model, source, folder / name)
                    count += 1
                    # Signed values that anybody sees keep ONNX Runtime from its integer kernels.
                    if how != "s8s8":
                        write(exposed(model), source, folder / f"{name}_exposed")
                        count += 1
                except Exception as e:
                    shutil.rmtree(folder / name, ignore_errors=True)
                    print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0][:200]}", file=sys.stderr, flush=True)
    marker.write_text(wanted)
    print(f"{count} quantised models in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.environ.get("COMPRESS_ZOO"):
        sys.exit(__doc__)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ort.set_default_logger_severity(3)
    np.seterr(all="ignore")
    main(Path(sys.argv[1]))
