#!/usr/bin/env python3
"""Writes onnx's backend test suite as files: `generate.py FOLDER`.

FOLDER/<category>/<case>/ gets model.onnx, model_unranked.onnx (the same without the shapes of
its values), test_data_set_N/{input,output}_I.pb, and case.json: the tolerances, the operators,
and the kinds of values other than numeric tensors that it takes or gives. Every tensor is
written as raw data. A folder that this script wrote for the same onnx is left as it is.
"""

import hashlib
import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

DATA = Path(onnx.__file__).parent / "backend/test/data"
FROM_FILES = ["simple", "pytorch-converted", "pytorch-operator"]
READERS = {
    "sequence": onnx.SequenceProto,
    "optional": onnx.OptionalProto,
    "map": onnx.MapProto,
}
WRITERS = {
    "sequence": numpy_helper.from_list,
    "optional": numpy_helper.from_optional,
    "map": numpy_helper.from_dict,
}


def kind_of(info) -> str:
    """What a graph input or output is, by its declared type."""
    kind = info.type.WhichOneof("value").removesuffix("_type")
    if kind == "tensor" and info.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        return "string"
    return kind


def raw(value, name: str) -> onnx.TensorProto:
    """A tensor with its elements as raw data; strings have none."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    return numpy_helper.from_array(np.asarray(value), name)


def write_values(folder: Path, which: str, infos, values):
    # A model of the old IR lists its weights as inputs too, behind those that are given.
    for i, (info, value) in enumerate(zip(infos, values)):
        kind = kind_of(info)
        if not isinstance(value, tuple(READERS.values())):
            value = WRITERS.get(kind, raw)(value, info.name)
        (folder / f"{which}_{i}.pb").write_bytes(value.SerializeToString(deterministic=True))


def forget_shapes(graph: onnx.GraphProto):
    for info in [*graph.input, *graph.output, *graph.value_info]:
        forget_shape(info.type)
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                forget_shapes(body)


def forget_shape(type_: onnx.TypeProto):
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(type_, kind).ClearField("shape")
    elif kind in ("sequence_type", "optional_type"):
        forget_shape(getattr(type_, kind).elem_type)
    elif kind == "map_type":
        forget_shape(type_.map_type.value_type)


def operators(graph: onnx.GraphProto) -> set[str]:
    found = set()
    for node in graph.node:
        found.add(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                found |= operators(body)
    return found


def write_case(folder: Path, model: onnx.ModelProto, data_sets, rtol: float, atol: float):
    folder.mkdir(parents=True)
    graph = model.graph
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    for i, (inputs, outputs) in enumerate(data_sets):
        data = folder / f"test_data_set_{i}"
        data.mkdir()
        write_values(data, "input", graph.input, inputs)
        write_values(data, "output", graph.output, outputs)
    kinds = {kind_of(info) for info in [*graph.input, *graph.output]} - {"tensor"}
    about = {"rtol": rtol, "atol": atol, "operators": sorted(operators(graph)), "kinds": sorted(kinds)}
    (folder / "case.json").write_text(json.dumps(about, indent=1) + "\n")
    forget_shapes(graph)
    (folder / "model_unranked.onnx").write_bytes(model.SerializeToString(deterministic=True))


def stored(source: Path, which: str, infos):
    """The values of a test data set that the onnx package ships as files."""
    values = []
    for i, info in enumerate(infos):
        file = source / f"{which}_{i}.pb"
        if not file.exists():
            break
        values.append(READERS.get(kind_of(info), onnx.TensorProto).FromString(file.read_bytes()))
    return values


def write_all(folder: Path) -> int:
    with warnings.catch_warnings():
        # Computing the cases overflows and divides by zero on purpose.
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    for case in cases:
        write_case(folder / "node" / case.name, case.model, case.data_sets, case.rtol, case.atol)
    count = len(cases)
    for category in FROM_FILES:
        for source in sorted(p.parent for p in (DATA / category).glob("*/model.onnx")):
            model = onnx.load(source / "model.onnx")
            sets = sorted(source.glob("test_data_set_*"), key=lambda p: int(p.name.rsplit("_", 1)[1]))
            data = [(stored(s, "input", model.graph.input), stored(s, "output", model.graph.output)) for s in sets]
            about = source / "data.json"
            tolerances = json.loads(about.read_text()) if about.exists() else {}
            rtol, atol = tolerances.get("rtol", 1e-3), tolerances.get("atol", 1e-7)
            write_case(folder / category / source.name, model, data, rtol, atol)
            count += 1
    return count


def main(folder: Path):
    stamp = folder / ".conformance"
    wanted = f"onnx {onnx.__version__} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if folder.exists() and any(folder.iterdir()) and not stamp.exists():
        sys.exit(f"{folder} holds other things; give an empty or a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Without what it should hold, the stamp marks the folder as ours until all is there.
    stamp.touch()
    count = write_all(folder)
    stamp.write_text(wanted)
    print(f"{count} conformance cases of onnx {onnx.__version__} in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
