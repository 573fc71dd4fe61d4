"""INT8 for the runtimes that `--target` names: what each file has to look like, and what the runtimes make of it.

TensorRT, XNNPACK and processors with 16-bit kernels aren't here: their files are held against their documents, and run in ONNX Runtime.
"""

import numpy as np
import onnx
import openvino
import pytest
import small
from onnx import numpy_helper
from small import floats, node
from support import run_onnx


def residual():
    """A network with what targets differ in: a sum past two convolutions, a Concat, a depthwise convolution, pools, clamps."""
    sizes = {"0": (16, 3, 3), "1": (16, 16, 3), "2": (16, 16, 3), "3": (16, 16, 1), "4": (16, 1, 3), "5": (16, 16, 1)}
    weights = {f"w{i}": floats(int(i), o, c, k, k, scale=(c * k * k) ** -0.5) for i, (o, c, k) in sizes.items()}
    weights |= {f"b{i}": floats(10 + int(i), 16, scale=0.2) for i in sizes}
    weights |= {"wf": floats(20, 32, 10, scale=0.2), "bf": floats(21, 10, scale=0.2)}

    def conv(i, x, y, **attributes):
        return node("Conv", f"{x} w{i} b{i}", y, f"conv{i}", **attributes)

    three = {"pads": [1, 1, 1, 1]}
    nodes = [
        conv(0, "x", "c0", **three),
        node("Relu", "c0", "r0"),
        node("MaxPool", "r0", "p0", kernel_shape=[2, 2], strides=[2, 2]),
        conv(1, "p0", "c1", **three),
        node("Relu", "c1", "r1"),
        conv(2, "r1", "c2", **three),
        node("Add", "c2 p0", "s", "sum"),
        node("Relu", "s", "r2"),
        conv(3, "r2", "c3"),
        conv(4, "r2", "c4", group=16, **three),
        node("Relu", "c4", "r4"),
        conv(5, "r4", "c5"),
        node("Concat", "c3 c5", "j", axis=1),
        node("GlobalAveragePool", "j", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f wf bf", "y", "head"),
    ]
    return small.model(nodes, [("x", ["n", 3, 16, 16])], [("y", ["n", 10])], weights)


@pytest.fixture
def made(compress, tmp_path):
    """Compresses the network for a target: the file, its report, the samples, the answers of the floats."""
    path, x = small.save(residual(), tmp_path), floats(0, 300, 3, 16, 16)
    np.savez(tmp_path / "data.npz", x=x)

    def make(target, *flags):
        out = tmp_path / f"{target}.onnx"
        args = [path, "--int8", "--target", target, "--data", tmp_path / "data.npz", "-o", out, "--json", *flags]
        report = compress(*args).json()
        return onnx.load(out), report, x[:100], run_onnx(path, {"x": x[:100]})[0]

    return make


def decibels(before, after):
    return 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum())


def in_openvino(model, x):
    """What OpenVINO answers, and the types that its layers compute in."""
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(openvino.Core().read_model(model.SerializeToString()), "CPU", config)
    kinds = {}
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        if str(info["layerType"].value) in ("Convolution", "FullyConnected"):
            kinds[op.get_friendly_name()] = str(info["runtimePrecision"].value)
    return compiled({"x": x})[0], kinds


def constants(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def of_type(model, op):
    return [n for n in model.graph.node if n.op_type == op]


def maker(model, value):
    return next((n for n in model.graph.node if value in n.output), None)


def coded(model, value):
    """Whether a value comes from codes."""
    made_by = maker(model, value)
    return made_by is not None and made_by.op_type == "DequantizeLinear"


@pytest.mark.parametrize("flags", [("--effort", "quick"), ()], ids=["quick", "normal"])
def test_openvino_computes_what_onnx_runtime_does(made, flags):
    model, report, x, before = made("openvino", *flags)
    ours, kinds = in_openvino(model, x)
    theirs = run_onnx(model, {"x": x})[0]
    assert decibels(before, ours) > 25 and decibels(theirs, ours) > 35
    floats_ = sum(kind == "f32" for kind in kinds.values())
    quantised = next(p for p in report["passes"] if p["name"] == "int8")["edits"]
    assert len(kinds) == 7 and floats_ == 7 - quantised


def test_openvino_adds_before_it_rounds(made):
    model, *_ = made("openvino", "--effort", "quick")
    (total,) = [n for n in of_type(model, "Add") if "sum" in n.name]
    assert sorted(coded(model, x) for x in total.input) == [False, True]
    portable, *_ = made("portable", "--effort", "quick")
    (total,) = [n for n in of_type(portable, "Add") if "sum" in n.name]
    assert all(coded(portable, x) for x in total.input)


def test_a_pool_takes_codes_where_an_integer_convolution_makes_its_input(made):
    """ONNX Runtime's MaxPool on codes is up to a hundred times slower in the layout of the file."""
    for flags, expected in (((), True), (("--exclude", "conv0"), False)):
        model, *_ = made("portable", "--effort", "quick", "--force", *flags)
        [pool] = of_type(model, "MaxPool")
        assert coded(model, pool.input[0]) == expected, flags


def test_a_sum_of_products_stays_in_floats(compress, tmp_path):
    """Runtimes compute the sum past a convolution with that, but not the sum past a product of a transformer."""
    weights = {"w1": floats(1, 16, 16, scale=0.3), "w2": floats(2, 16, 16, scale=0.3)}
    nodes = [
        node("MatMul", "x w1", "a"),
        node("Relu", "a", "r"),
        node("MatMul", "r w2", "b"),
        node("Add", "b x", "y", "sum"),
    ]
    path = small.save(small.model(nodes, [("x", ["n", 16])], [("y", ["n", 16])], weights), tmp_path)
    np.savez(tmp_path / "data.npz", x=floats(0, 300, 16))
    args = ["--int8", "--effort", "quick", "--target", "openvino", "--data", tmp_path / "data.npz"]
    compress(path, *args, "-o", tmp_path / "out.onnx")
    model = onnx.load(tmp_path / "out.onnx")
    (total,) = of_type(model, "Add")
    assert len(of_type(model, "QuantizeLinear")) == 2 and not any(coded(model, x) for x in total.input)


def test_a_file_for_any_runtime_loads_in_openvino_too(made):
    model, _, x, before = made("portable", "--effort", "quick")
    assert decibels(before, in_openvino(model, x)[0]) > 20


def test_xnnpack_gets_signed_codes_with_zero_points(made):
    model, _, x, before = made("xnnpack", "--effort", "quick")
    values = constants(model)
    pairs = of_type(model, "QuantizeLinear") + of_type(model, "DequantizeLinear")
    of_activations = [n for n in pairs if values[n.input[1]].size == 1 and values[n.input[2]].dtype != np.int32]
    assert all(values[n.input[2]].dtype == np.int8 for n in of_activations)
    assert any(values[n.input[2]].any() for n in of_activations)
    layers = of_type(model, "Conv")
    assert len(layers) == 6
    for layer in layers:
        # Both sides of a convolution have codes, its weights a scale for each channel, and its biases 32 bits.
        weight, bias = (maker(model, value) for value in layer.input[1:])
        assert coded(model, layer.input[0]) and values[weight.input[1]].size == 16
        assert values[weight.input[0]].dtype == np.int8 and values[bias.input[0]].dtype == np.int32
        assert any(layer.output[0] in n.input for n in of_type(model, "QuantizeLinear"))
    assert not of_type(model, "Relu"), "ranges that end at zero clamp"
    assert decibels(before, run_onnx(model, {"x": x})[0]) > 25


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_a_relu_that_was_never_open_stays_shut(compress, tmp_path, target):
    """Calibration sees nothing but zeros behind it: the codes must not let through what it holds back."""
    weights = {"w0": floats(0, 8, 3, 3, 3, scale=0.2), "b0": np.full(8, -6, np.float32), "w1": floats(1, 8, 8, 3, 3)}
    weights |= {"w2": floats(2, 8, 3, 3, 3, scale=0.2)}
    three = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w0 b0", "c", "shut", **three),
        node("Relu", "c", "r"),
        node("Conv", "r w1", "d", **three),
        node("Conv", "x w2", "e", **three),
        node("Add", "d e", "y"),
    ]
    path = small.save(small.model(nodes, [("x", ["n", 3, 8, 8])], [("y", ["n", 8, 8, 8])], weights), tmp_path)
    x = floats(0, 300, 3, 8, 8)
    np.savez(tmp_path / "data.npz", x=x)
    args = ["--int8", "--effort", "quick", "--target", target, "--data", tmp_path / "data.npz"]
    compress(path, *args, "-o", tmp_path / "out.onnx")
    before, after = (run_onnx(p, {"x": x[:50]})[0] for p in (path, tmp_path / "out.onnx"))
    assert decibels(before, after) > 25


def test_tensorrt_gets_no_zero_points_and_float_biases(made):
    model, _, x, before = made("tensorrt", "--effort", "quick")
    values = constants(model)
    pairs = of_type(model, "QuantizeLinear") + of_type(model, "DequantizeLinear")
    assert pairs and all(values[n.input[2]].dtype == np.int8 and not values[n.input[2]].any() for n in pairs)
    # Only weights have a scale for each channel, and only a layer or the next pair reads codes.
    assert all(values[n.input[1]].size == 1 for n in of_type(model, "QuantizeLinear"))
    layers = of_type(model, "Conv") + of_type(model, "Gemm")
    assert len(layers) == 7
    for layer in layers:
        assert coded(model, layer.input[0]) and coded(model, layer.input[1])
        assert values[layer.input[2]].dtype == np.float32
    assert len(of_type(model, "Relu")) == 4, "codes reach below zero, so that each Relu has work"
    behind = [n.op_type for layer in layers for n in model.graph.node if layer.output[0] in n.input]
    assert "QuantizeLinear" not in behind[:3], "TensorRT computes what follows a convolution with it"
    assert decibels(before, run_onnx(model, {"x": x})[0]) > 25


def test_qnn_gets_activations_of_16_bits(made):
    model, _, x, before = made("qnn", "--effort", "quick")
    values = constants(model)
    assert model.opset_import[0].version == 21
    assert {values[n.input[2]].dtype for n in of_type(model, "QuantizeLinear")} == {np.dtype(np.uint16)}
    eight, *_ = made("portable", "--effort", "quick")
    after = {m: decibels(before, run_onnx(n, {"x": x})[0]) for m, n in {"qnn": model, "portable": eight}.items()}
    assert after["qnn"] > after["portable"] + 1


def test_a_model_of_two_domains_loads_in_openvino(compress, tmp_path):
    """OpenVINO doesn't know a file in which the opsets stand before the graph if there are two."""
    model = small.cnn(batch=1)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    compress(small.save(model, tmp_path), "--no-check", "-o", tmp_path / "out.onnx")
    assert openvino.Core().read_model(tmp_path / "out.onnx").inputs
