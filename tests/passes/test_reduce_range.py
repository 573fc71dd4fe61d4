"""`--reduce-range`: sums of two products fit 16 bits, as processors with AVX2 and without VNNI need them."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import small
from onnx import helper, numpy_helper
from small import floats, node
from support import run_onnx, sqnr_db

LARGEST = 2**15 - 1


@pytest.fixture
def model(tmp_path):
    """Layers with an odd number of input channels, with groups, with two taps, and a product: weights of one sign, and codes
    up to the largest. Zeros on every second channel of the product's input: nothing is paired there."""
    weights = {
        "w0": abs(floats(0, 8, 3, 3, 3)) + 0.5,
        "w1": abs(floats(1, 8, 4, 1, 2)) + 0.5,
        "w2": np.where(np.arange(8)[:, None] % 2, 0.01, 1) * (abs(floats(2, 8, 6)) + 0.5),
        "b0": np.zeros(8),
        "b1": -np.ones(8) * 400 * (np.arange(8) % 2),
    }
    nodes = [
        node("Conv", "x w0 b0", "c0", "first", pads=[1, 1, 1, 1]),
        node("Relu", "c0", "r0"),
        node("Conv", "r0 w1 b1", "c1", "groups", group=2),
        node("Relu", "c1", "r1"),
        node("GlobalMaxPool", "r1", "p"),
        node("Flatten", "p", "f"),
        node("MatMul", "f w2", "y", "product"),
    ]
    weights = {name: w.astype(np.float32) for name, w in weights.items()}
    path = tmp_path / "positive.onnx"
    onnx.save(small.model(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 6])], weights), path)
    np.savez(tmp_path / "data.npz", x=samples(0, 200))
    return path


def samples(seed, count):
    return np.random.default_rng(seed).uniform(0, 1, (count, 3, 8, 8)).astype(np.float32)


def made(compress, model, tmp_path, *flags):
    out = tmp_path / "out.onnx"
    done = compress(model, "--int8", "--effort", "quick", "--data", tmp_path / "data.npz", "-o", out, "--force", *flags)
    return onnx.load(out), done.out + done.err


def sums(model, data):
    """The largest sum of two neighbouring products in each layer, from the codes that it reads."""
    by_output = {o: n for n in model.graph.node for o in n.output}
    tensors = {t.name: numpy_helper.to_array(t).astype(np.int64) for t in model.graph.initializer}
    layers = [n for n in model.graph.node if n.op_type in ("Conv", "MatMul", "Gemm")]
    codes = [by_output[n.input[0]].input[0] for n in layers]
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    shown.graph.output.extend(helper.make_tensor_value_info(c, onnx.TensorProto.UINT8, None) for c in codes)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    read = ort.InferenceSession(shown.SerializeToString(), options).run(codes, {"x": data})
    found = {}
    for layer, x in zip(layers, read):
        w, x = tensors[by_output[layer.input[1]].input[0]], x.astype(np.int64)
        if layer.op_type == "Conv":
            group = {a.name: a.i for a in layer.attribute}.get("group", 1)
            (outputs, channels, height, width), pads = w.shape, 1 if layer.name == "first" else 0
            zero = tensors[by_output[layer.input[0]].input[2]]
            x = np.pad(x, ((0, 0), (0, 0), (pads, pads), (pads, pads)), constant_values=zero)
            windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(2, 3))
            # Taps, then channels: as kernels read them.
            windows = windows.transpose(0, 2, 3, 4, 5, 1).reshape(-1, height * width, group, channels)
            x = windows.transpose(2, 0, 1, 3).reshape(group, -1, height * width * channels)
            w = w.transpose(0, 2, 3, 1).reshape(group, outputs // group, -1)
        else:
            x, w = x.reshape(1, -1, x.shape[-1]), w.T[None]
        most = 0
        for read_by_group, weights in zip(x, w):
            products = read_by_group[:, None, :] * weights[None]
            products = np.pad(products, ((0, 0), (0, 0), (0, products.shape[-1] % 2)))
            most = max(most, abs(products[..., ::2] + products[..., 1::2]).max())
        found[layer.name] = most
    return found


def test_sums_fit_on_calibration_data(compress, model, tmp_path):
    plain, said = made(compress, model, tmp_path, "--reduce-range", "never")
    cut = sums(plain, samples(0, 200))
    assert cut["first"] > LARGEST and cut["groups"] > LARGEST, "the network has to need room"
    assert "exceed 16 bits" in said and "first" in said, said
    quantised, said = made(compress, model, tmp_path)
    assert max(sums(quantised, samples(0, 200)).values()) <= LARGEST
    assert "16 bits" not in said, said
    # Zeros in every second channel leave the product its scales.
    scale = {t.name: numpy_helper.to_array(t) for t in plain.graph.initializer}
    now = {t.name: numpy_helper.to_array(t) for t in quantised.graph.initializer}
    [product] = [name for name in scale if name.startswith("w2") and name.endswith("scale")]
    np.testing.assert_array_equal(scale[product], now[product])
    assert all((now[n] >= scale[n]).all() for n in scale if n.startswith("w") and n.endswith("scale"))


def test_sums_of_any_codes_fit(compress, model, tmp_path):
    quantised, _ = made(compress, model, tmp_path, "--reduce-range", "always")
    for t in quantised.graph.initializer:
        codes = numpy_helper.to_array(t).astype(np.int64)
        if codes.ndim == 4:
            codes = codes.transpose(0, 2, 3, 1).reshape(len(codes), -1)
            codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
            assert 255 * abs(codes[:, ::2] + codes[:, 1::2]).max() <= LARGEST, t.name


def test_onnx_runtime_answers_as_measured_on_any_processor(compress, model, tmp_path):
    made(compress, model, tmp_path)
    x = samples(1, 100)
    [before], [after] = (run_onnx(m, {"x": x}, optimise=True) for m in (model, tmp_path / "out.onnx"))
    assert sqnr_db(before, after) > 30


@pytest.mark.parametrize("effort", ["normal", "best"])
def test_weights_that_a_search_rounds_fit_as_well(compress, model, tmp_path, effort):
    out = tmp_path / "searched.onnx"
    compress(model, "--int8", "--effort", effort, "--data", tmp_path / "data.npz", "-o", out)
    found = sums(onnx.load(out), samples(0, 200))
    # Some of these samples were held out of calibration.
    assert len(found) == 3 and max(found.values()) <= 1.01 * LARGEST, found


@pytest.mark.parametrize("flags", [("--target", "qnn"), ("--weight-bits", "4"), ("--target", "tensorrt")])
def test_codes_that_are_never_cut_off(compress, model, tmp_path, flags):
    done = compress(model, "--int8", "--reduce-range", "always", *flags, "-o", tmp_path / "out.onnx", code=2)
    assert "--reduce-range needs U8 activations and weights of 8 bits" in done.err
