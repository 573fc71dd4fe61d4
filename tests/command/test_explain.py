"""Where the time of a model goes: the kernels that explain names are those of ONNX Runtime's own optimised graph."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import small
from small import floats, node
from support import ROOT, run_command

DIGITS = ROOT / "models" / "digits"
DATA = ("--data", DIGITS / "train.npz")
LIBRARY = Path(ort.__file__).parent / "capi"
ENVIRONMENT = {"VIRTUAL_ENV": sys.prefix}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """The digits network in INT8."""
    out = tmp_path_factory.mktemp("quantised") / "int8.onnx"
    run_command(DIGITS / "digits.onnx", "--int8", *DATA, "-o", out)
    return out


def kernels(path, folder):
    """The kernels of ONNX Runtime's profiler, and the types that they read, in the order in which they ran."""
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {
        i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], np.float32) for i in session.get_inputs()
    }
    session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [e["args"] for e in events if e["name"].endswith("_kernel_time")]
    return [(a["op_name"], [next(iter(t)) for t in a["input_type_shape"]]) for a in ran]


def names(work):
    """The operators of the kernels."""
    return [k["kernel"].rsplit(".")[-1] for k in work["kernels"]]


def explained(compress, *args, **rest):
    return compress("explain", *args, "--ort", LIBRARY, "--json", **rest).json()


@pytest.mark.parametrize("form", ["float", "int8", "dwsep"])
def test_kernels_are_those_that_ran(compress, quantised, tmp_path, form):
    path = {"float": DIGITS / "digits.onnx", "int8": quantised}.get(form) or small.save(small.cnn(batch=1), tmp_path)
    found = explained(compress, path)
    ran = kernels(path, tmp_path)
    named = [op for p in found["parts"] for op in names(p["onnxruntime"] or {"kernels": []})]
    assert Counter(named) == Counter(op for op, _ in ran)
    # A part in integers has a kernel that reads 8-bit codes.
    coded = {op for op, types in ran if types[0] in ("uint8", "int8")}
    for part in found["parts"]:
        work = part["onnxruntime"]
        if work and work["int8"]:
            assert coded & set(names(work))
    assert (found["onnxruntime"]["int8"] > 0) == (form == "int8")
    shares = sum(p["onnxruntime"]["share"] for p in found["parts"] if p["onnxruntime"])
    assert abs(shares - 1) < 1e-6
    assert abs(sum(p["ours"]["share"] for p in found["parts"] if p["ours"]) - 1) < 1e-6


def test_every_node_is_in_one_part(compress, quantised):
    found = explained(compress, quantised)
    nodes = [n for p in found["parts"] for n in p["nodes"]]
    assert len(nodes) == len(set(nodes))
    graph = onnx.load(quantised).graph
    fixed = {i.name for i in graph.initializer}
    computed = []
    for n in graph.node:
        if all(i in fixed for i in n.input):
            fixed.update(n.output)
        else:
            computed.append(n.name or n.output[0])
    assert set(nodes) == set(computed)
    # What only changes a layout belongs to what reads it.
    assert all(p["nodes"] for p in found["parts"] if p["onnxruntime"])
    by_part = {name: p for p in found["parts"] for name in p["layers"]}
    rounded = {n.name for n in graph.node if n.op_type == "Conv" and n.input[0].endswith("DequantizeLinear_Output")}
    convolutions = {n.name for n in graph.node if n.op_type == "Conv"}
    coded = {name for name in convolutions if "QLinearConv" in names(by_part[name]["onnxruntime"])}
    assert coded == rounded and all(by_part[name]["onnxruntime"]["int8"] for name in coded)
    assert all("does not round its input" in by_part[name]["float_because"] for name in convolutions - coded)


def test_beside_the_original_all_of_its_time_has_a_place(compress, quantised):
    found = explained(compress, quantised, "--against", DIGITS / "digits.onnx")
    whole = found["onnxruntime"]["against_ms"]
    assert abs(sum(p.get("against_ms") or 0 for p in found["parts"]) - whole) < 1e-6
    shown = compress("explain", quantised, "--against", DIGITS / "digits.onnx", env=ENVIRONMENT).out
    assert "The costliest:\n  1. `" in shown and "original, ms" in shown


def test_the_reason_for_floats(compress, tmp_path):
    """Of three convolutions one is rounded as a whole, one reads floats, and the result of one is read in floats."""
    one = np.float32(0.05)
    weights = {f"w{i}": floats(i, 4, 4, 3, 3) for i in range(3)} | {"s": one, "z": np.uint8(128), "zs": np.int8(0)}

    def rounded(x, to, zero="z"):
        quantised = node("QuantizeLinear", f"{x} s {zero}", f"{to}_q")
        return [quantised, node("DequantizeLinear", f"{to}_q s {zero}", to)]

    def convolution(i, x, y):
        return [*rounded(f"w{i}", f"dw{i}", "zs"), node("Conv", f"{x} dw{i}", y, f"c{i}", pads=[1, 1, 1, 1])]

    nodes = [*rounded("x", "dx"), *convolution(0, "dx", "a"), *rounded("a", "da")]
    nodes += [*convolution(1, "da", "b"), node("Sigmoid", "b", "sb", "s1")]
    nodes += [node("Conv", "sb w2", "c", "c2", pads=[1, 1, 1, 1])]
    made = small.model(nodes, [("x", [1, 4, 16, 16])], [("c", [1, 4, 16, 16])], weights)
    path = small.save(made, tmp_path)
    parts = {p["node"]: p for p in explained(compress, path)["parts"]}
    assert parts["c0"]["onnxruntime"]["int8"] and "float_because" not in parts["c0"]
    assert "`s1` (Sigmoid) reads its result in floats" in parts["c1"]["float_because"]
    assert "does not round its input `sb`" in parts["c2"]["float_because"]


def test_without_onnxruntime_our_runtime_is_shown(compress):
    found = compress("explain", DIGITS / "digits.onnx", "--json", env={"PATH": "/nowhere"}).json()
    assert found["onnxruntime"] is None and found["ours"]["ms"] > 0
    assert any("pip install onnxruntime" in w for w in found["warnings"])
    compress("explain", DIGITS / "digits.onnx", "--ort", "/nowhere", code=8)


def test_a_model_with_operators_that_only_onnxruntime_knows(compress, tmp_path):
    unknown = node("Scaler", "y", "z", "scaler", domain="ai.onnx.ml", scale=[2.0], offset=[0.0])
    nodes = [node("Relu", "x", "y"), unknown]
    made = small.model(nodes, [("x", [1, 8])], [("z", [1, 8])], domains=[("ai.onnx.ml", 3)])
    found = explained(compress, small.save(made, tmp_path))
    assert found["ours"] is None and any("does not know 1 operator" in w for w in found["warnings"])
    assert "Scaler" in str([p["onnxruntime"]["kernels"] for p in found["parts"]])


def test_the_report_names_the_kernels_of_layers(compress, tmp_path):
    out = tmp_path / "out.onnx"
    found = compress(DIGITS / "digits.onnx", "--int8", *DATA, "-o", out, "--json", env=ENVIRONMENT).json()
    layers = {layer["node"]: layer for layer in found["layers"]}
    assert all(layer["kernel"]["ms"] is None or layer["kernel"]["ms"] >= 0 for layer in layers.values())
    for layer in layers.values():
        assert layer["deployed"]["int8"] == (layer["precision"] == "int8") == ("float_because" not in layer)
    bare = compress(DIGITS / "digits.onnx", "--int8", *DATA, "-o", out, "--force", "--json").json()
    assert all("deployed" not in layer and "kernel" in layer for layer in bare["layers"])


def test_models_with_other_inputs_are_not_compared(compress, tmp_path):
    other = small.save(small.mlp(), tmp_path, "other.onnx")
    refused = compress("explain", DIGITS / "digits.onnx", "--against", other, code=7)
    assert "other.onnx" in refused.err
    renamed = onnx.load(other)
    renamed.graph.input[0].name = renamed.graph.node[0].input[0] = "another"
    onnx.save(renamed, other)
    refused = compress("explain", DIGITS / "digits.onnx", "--against", other, code=7)
    assert "those of the model that it is compared with `another`" in " ".join(refused.err.replace(",", "").split())


def test_where_onnxruntime_refuses_a_model_ours_is_shown(compress, tmp_path):
    """Two nodes of one name, which ONNX allows."""
    made = small.model(
        [node("Relu", "x", "y", "same"), node("Neg", "y", "z", "same")], [("x", [1, 8])], [("z", [1, 8])]
    )
    path = small.save(made, tmp_path)
    found = explained(compress, path)
    shown = [p for p in found["parts"] if p["ours"]]
    assert shown and (found["onnxruntime"] or any("ONNX Runtime is not shown" in w for w in found["warnings"]))


def test_work_is_counted_at_the_sizes_of_the_samples(compress, tmp_path):
    path = small.save(small.cnn(batch="n", size="s"), tmp_path)
    found = explained(compress, path, "--shape", "input=1x3x24x24")
    sized = small.save(small.cnn(batch=1, size=24), tmp_path, "sized.onnx")
    macs = compress("inspect", sized, "--json").json()["file"]["macs"]
    assert sum(p["macs"] for p in found["parts"]) == macs


def test_files_of_other_tools_have_the_time_of_their_original(compress, tmp_path):
    """Operators on codes, as ONNX Runtime's quantiser writes them."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.samples = iter([{"input": np.load(DIGITS / "train.npz")["x"][:16]}])

        def get_next(self):
            return next(self.samples, None)

    out = tmp_path / "codes.onnx"
    form = quantization.QuantFormat.QOperator
    quantization.quantize_static(str(DIGITS / "digits.onnx"), str(out), Reader(), quant_format=form)
    found = explained(compress, out, "--against", DIGITS / "digits.onnx")
    convolutions = [p for p in found["parts"] if p["op"] == "Conv"]
    assert len(convolutions) == 3 and all(p["against_ms"] > 0 for p in convolutions)


def convolved(work):
    """The convolutions of a part's kernels."""
    return [op for op in names(work) if op.endswith("Conv")]


def blocks(names):
    """Four convolutions in blocks of channels, with activations and a sum; with names of nodes or without."""
    weights = {"w0": floats(0, 16, 3, 3, 3)} | {f"w{i}": floats(i, 16, 16, 3, 3) for i in range(1, 4)}
    nodes = [node("Conv", "x w0", "c0", pads=[1, 1, 1, 1]), node("HardSwish", "c0", "h0")]
    nodes += [node("Conv", "h0 w1", "c1", pads=[1, 1, 1, 1]), node("HardSwish", "c1", "h1")]
    nodes += [node("Conv", "h1 w2", "c2", pads=[1, 1, 1, 1]), node("Conv", "h0 w3", "c3", pads=[1, 1, 1, 1])]
    nodes += [node("Add", "c2 c3", "a"), node("Relu", "a", "r"), node("GlobalAveragePool", "r", "y")]
    for n in nodes:
        n.name = n.name if names else ""
    return small.model(nodes, [("x", [1, 3, 32, 32])], [("y", [1, 16, 1, 1])], weights)


@pytest.mark.parametrize("names", [True, False])
def test_layers_that_keep_their_layout_have_a_part_each(compress, tmp_path, names):
    """ONNX Runtime gives no value between them the name that it has in the file."""
    path = small.save(blocks(names), tmp_path)
    parts = explained(compress, path)["parts"]
    convolutions = [p for p in parts if p["op"] == "Conv"]
    assert len(convolutions) == 4
    for part in convolutions:
        assert convolved(part["onnxruntime"]) == ["Conv"] and part["ours"]
    by_node = {n: p for p in parts for n in p["nodes"]}
    assert by_node["h0"] is by_node["c0"] and by_node["h1"] is by_node["c1"]
    assert by_node["r"] in (by_node["c2"], by_node["c3"])


def test_layers_on_codes_without_names_have_a_part_each(compress, quantised, tmp_path):
    """ONNX Runtime makes new ones of them, with new names."""
    made = onnx.load(quantised)
    for n in made.graph.node:
        n.name = ""
    path = small.save(made, tmp_path)
    convolutions = [p for p in explained(compress, path)["parts"] if p["op"] == "Conv"]
    found = sorted(convolved(p["onnxruntime"]) for p in convolutions)
    named = [p for p in explained(compress, quantised)["parts"] if p["op"] == "Conv"]
    assert found == sorted(convolved(p["onnxruntime"]) for p in named)
    assert ["QLinearConv"] in found and all(len(kernels) == 1 for kernels in found)


def test_nodes_in_a_loop_are_told_from_those_around_it(compress, tmp_path):
    """Neither have names: by the profiler's names they are the same."""
    values = [("turn", [], onnx.TensorProto.INT64), ("go", [], onnx.TensorProto.BOOL), ("s", [1, 64, 64])]
    turn = [node("MatMul", "s w", "p"), node("Add", "p one", "q"), node("Tanh", "q", "t"), node("Identity", "go", "on")]
    body = small.model(turn, values, [("on", [], onnx.TensorProto.BOOL), ("t", [1, 64, 64])]).graph
    nodes = [node("Add", "x one", "a"), onnx.helper.make_node("Loop", ["n", "", "a"], ["l"], body=body)]
    nodes += [node("Add", "l two", "y")]
    for n in [*nodes, *body.node, *nodes[1].attribute[0].g.node]:
        n.name = ""
    weights = {"w": floats(0, 64, 64), "one": np.float32([1]), "two": floats(1, 64, 64), "n": np.int64(20)}
    path = small.save(small.model(nodes, [("x", [1, 64, 64])], [("y", [1, 64, 64])], weights), tmp_path)
    found = explained(compress, path)
    parts = {p["node"]: [k["kernel"] for k in p["onnxruntime"]["kernels"]] for p in found["parts"] if p["nodes"]}
    assert parts["a"] == ["Add"] and parts["y"] == ["Add"]
    assert sorted(parts["l"]) == ["Add", "Identity", "Loop", "MatMul", "Tanh"]
    loop = next(p["onnxruntime"] for p in found["parts"] if p["node"] == "l")
    assert all("/" in k["node"] for k in loop["kernels"] if k["kernel"] != "Loop")
    assert loop["share"] > 0.5


def dynamic(folder, nodes, weights, to):
    """A model with ranges that are found as it runs, as ONNX Runtime's quantiser writes it."""
    from onnxruntime import quantization

    path = small.save(small.model(nodes, [("x", [1, 16, 16, 16])], [("y", to)], weights), folder, "float.onnx")
    quantization.quantize_dynamic(str(path), str(folder / "dynamic.onnx"))
    return folder / "dynamic.onnx"


def test_reasons_in_files_with_dynamic_ranges(compress, tmp_path):
    nodes = [
        node("Conv", "x w0", "a", "c0"),
        node("Transpose", "a", "b", "t", perm=[0, 1, 3, 2]),
        node("MatMul", "a b", "y", "m"),
    ]
    path = dynamic(tmp_path, nodes, {"w0": floats(0, 16, 16, 3, 3)}, [1, 16, 14, 14])
    parts = {p["node"]: p for p in explained(compress, path)["parts"]}
    assert parts["c0_quant"]["onnxruntime"]["int8"] and "float_because" not in parts["c0_quant"]
    assert "does not round its input `a`" in parts["m"]["float_because"]
    because = " ".join(p.get("float_because") or "" for p in parts.values())
    assert "finds the range of `x` in each run" in because and "floats of the sums of `c0_quant`" in because


@pytest.mark.parametrize("level", [0, 4])
def test_reasons_in_files_with_weights_of_four_bits(compress, tmp_path, level):
    weights = {"q": np.full((64, 2, 16), 0x5A, np.uint8), "s": np.abs(floats(0, 64, 2))}
    product = node(
        "MatMulNBits", "x q s", "y", domain="com.microsoft", K=64, N=64, bits=4, block_size=32, accuracy_level=level
    )
    made = small.model([product], [("x", [1, 8, 64])], [("y", [1, 8, 64])], weights, domains=[("com.microsoft", 1)])
    (part,) = explained(compress, small.save(made, tmp_path))["parts"]
    assert part["onnxruntime"]["int8"] == (level == 4)
    assert ("accuracy_level is not 4" in part.get("float_because", "")) == (level == 0)


def test_constants_that_are_made_floats_in_each_run_are_told(compress, tmp_path):
    """ONNX Runtime folds no DequantizeLinear."""
    weights = {"q": np.full((64, 64, 3, 3), 3, np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [node("DequantizeLinear", "q s z", "w", "d"), node("Conv", "x w", "y", "c")]
    made = small.model(nodes, [("x", [1, 64, 4, 4])], [("y", [1, 64, 2, 2])], weights)
    (part,) = [p for p in explained(compress, small.save(made, tmp_path))["parts"] if p["nodes"]]
    assert part["node"] == "c" and "DequantizeLinear" in names(part["onnxruntime"])
    expected = (
        "not round its input `x`, only its weight; in each run ONNX Runtime makes floats of constant codes anew (`w`)"
    )
    assert expected in part["float_because"]
