"""Tables in codes of 4 bits, as `--weights int4` writes them, beside ONNX Runtime and OpenVINO."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper
from small import model, node
from support import session

ROWS, WIDE = 600, 96
LIBRARY = Path(onnxruntime.__file__).parent / "capi"


def encoder(path, rng, wide=WIDE, dtype=np.float32):
    """A table, a normalisation, and a product."""
    weights = {
        "table": rng.normal(0, 0.1, (ROWS, wide)),
        "ones": np.ones(wide),
        "w": rng.normal(0, 0.1, (wide, 64)),
    }
    nodes = [
        node("Gather", "table ids", "rows"),
        node("LayerNormalization", "rows ones", "h", axis=-1),
        node("MatMul", "h w", "y"),
    ]
    made = model(
        nodes,
        [("ids", ["b", "s"], TensorProto.INT64)],
        [("y", ["b", "s", 64], helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))],
        {k: v.astype(dtype) for k, v in weights.items()},
    )
    onnx.save(made, path)
    return path


def kinds(path):
    return [n.op_type for n in onnx.load(path).graph.node]


def ran(path, ids):
    return session(path).run(None, {"ids": ids})[0]


def ours(compress, path, tmp_path, ids):
    """How far outputs of ONNX Runtime, and of the interpreter, are from those of our executor, whichever are further."""
    np.savez(tmp_path / "ids.npz", ids=ids)
    far = []
    for engine in (["onnxruntime", "--ort", LIBRARY], ["burn"]):
        how = ["--data", tmp_path / "ids.npz", "--batch", 2, "--runs", 1, "--reference", "cpu", "--json"]
        done = compress("bench", path, "--device", "cpu", "--engine", *engine, *how)
        far.append(json.loads(done.out)["max_relative_difference"])
    return max(far)


@pytest.mark.parametrize("block", ["16", "32", "128"])
@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_a_table_is_looked_up_in_codes_of_4_bits(compress, tmp_path, rng, target, block):
    path, out = encoder(tmp_path / "m.onnx", rng), tmp_path / "out.onnx"
    how = ["--weights", "int4", "--block", block, "--exclude", "^w$", "--target", target]
    compress(path, *how, "-o", out, "--check", "none")
    onnx.checker.check_model(onnx.load(out))
    assert ("GatherBlockQuantized" in kinds(out)) == (target == "onnxruntime")
    ids = rng.integers(-ROWS, ROWS, (4, 7))
    before, after = ran(path, ids), ran(out, ids)
    error = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 0.01 < error < 0.13
    assert ours(compress, out, tmp_path, ids) < 1e-5
    # No block is larger than what divides a row.
    scales = next(t for t in onnx.load(out).graph.initializer if t.name == "table_scale")
    assert list(scales.dims)[:2] == [ROWS, WIDE // min(int(block), 32)]
    if target == "portable":
        made = openvino.compile_model(out, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(ids)
        np.testing.assert_allclose(next(iter(made.values())), after, atol=1e-5)
        # As rows of a table alone: 4 bits a code, 32 a scale.
        bytes_of = {t.name: len(t.raw_data) for t in onnx.load(out).graph.initializer}
        assert bytes_of["table_quantized"] == ROWS * WIDE // 2


def test_each_form_of_a_table_is_made_of_the_other(compress, tmp_path, rng):
    path = encoder(tmp_path / "m.onnx", rng)
    ids = rng.integers(0, ROWS, (2, 5))
    for target, other in (("portable", "onnxruntime"), ("onnxruntime", "portable")):
        first, second = tmp_path / f"{target}.onnx", tmp_path / f"{target}-{other}.onnx"
        compress(path, "--weights", "int4", "--exclude", "^w$", "--target", target, "-o", first, "--check", "none")
        report = compress(first, "--target", other, "-o", second, "--check", "none", "--json").json()
        # Codes that are read as others are not counted twice.
        assert report["input"]["parameters"] < ROWS * WIDE / 2 + ROWS * WIDE / 32 + 65 * WIDE + 600
        assert ("GatherBlockQuantized" in kinds(second)) == (other == "onnxruntime")
        np.testing.assert_allclose(ran(second, ids), ran(first, ids), atol=1e-5)


def test_rows_that_no_block_divides_have_codes_of_8_bits(compress, tmp_path, rng):
    path, out = encoder(tmp_path / "m.onnx", rng, wide=100), tmp_path / "out.onnx"
    compress(path, "--weights", "int4", "-o", out, "--check", "none")
    tensors = {t.name: t for t in onnx.load(out).graph.initializer}
    assert tensors["table_quantized"].data_type == TensorProto.INT8


def test_a_table_of_16_bits_becomes_codes_too(compress, tmp_path, rng):
    path, out = encoder(tmp_path / "m.onnx", rng, dtype=np.float16), tmp_path / "out.onnx"
    compress(path, "--weights", "int4", "-o", out, "--check", "none")
    large = [t.name for t in onnx.load(out).graph.initializer if np.prod(t.dims) > 4096]
    assert sorted(large) == ["table_quantized", "w_quantized"]
    ids = rng.integers(0, ROWS, (2, 5))
    before, after = ran(path, ids).astype(np.float32), ran(out, ids).astype(np.float32)
    assert np.linalg.norm(after - before) < 0.2 * np.linalg.norm(before)


def test_a_small_table_keeps_8_bits(compress, tmp_path, rng):
    """It is less than an eighth of all weights."""
    path, out = encoder(tmp_path / "m.onnx", rng), tmp_path / "out.onnx"
    made = onnx.load(path)
    wide = numpy_helper.from_array(rng.standard_normal((64, 8000)).astype(np.float32), "wide")
    made.graph.initializer.append(wide)
    made.graph.node.append(node("MatMul", "y wide", "z"))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["b", "s", 8000]))
    onnx.save(made, path)
    compress(path, "--weights", "int4", "-o", out, "--check", "none")
    tensors = {t.name: t for t in onnx.load(out).graph.initializer}
    assert tensors["table_quantized"].data_type == TensorProto.INT8


def packed(codes):
    """Two codes a byte, the first in its lower half; an odd row is filled with a zero."""
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)]).astype(np.uint8)
    return codes[..., ::2] & 15 | codes[..., 1::2] << 4


@pytest.mark.parametrize(
    ("kind", "bits", "zeros", "columns"),
    [
        ("uint8", 4, False, 64),
        ("uint8", 4, True, 48),
        ("uint8", 8, False, 64),
        ("uint8", 8, True, 48),
        ("int4", 4, False, 64),
        ("int4", 4, True, 64),
        ("uint4", 4, True, 64),
        ("uint4", 4, False, 64),
    ],
)
def test_tables_of_others_are_read(compress, tmp_path, rng, kind, bits, zeros, columns):
    rows, block = 40, 16
    parts = columns // block
    low, high = (-8, 8) if kind == "int4" else (0, 1 << bits)
    codes, zero = rng.integers(low, high, (rows, columns)), rng.integers(low, high, (rows, parts))
    scales = rng.uniform(0.01, 0.1, (rows, parts)).astype(np.float32)

    def tensor(name, values):
        if kind == "uint8":
            return numpy_helper.from_array(packed(values) if bits == 4 else values.astype(np.uint8), name)
        dtype = TensorProto.INT4 if kind == "int4" else TensorProto.UINT4
        return helper.make_tensor(name, dtype, values.shape, values.flatten())

    given = [tensor("t", codes), numpy_helper.from_array(scales, "s")] + [tensor("z", zero)] * zeros
    op = helper.make_node(
        "GatherBlockQuantized",
        ["t", "ids", "s"] + ["z"] * zeros,
        ["y"],
        "rows",
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        block_size=block,
        **({} if bits == 4 else {"bits": bits}),
    )
    graph = helper.make_graph(
        [op],
        "rows",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", columns])],
        given,
    )
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    compress(path, "-o", out, "--check", "none")
    # Only what is looked up becomes floats, but of codes of 8 bits.
    assert ("DequantizeLinear" in kinds(out)) == (bits == 8)
    assert "GatherBlockQuantized" not in kinds(out)
    ids = rng.integers(0, rows, (3, 4))
    np.testing.assert_allclose(ran(out, ids), ran(path, ids), atol=1e-6)
    assert ours(compress, path, tmp_path, ids) < 1e-5
    if bits == 4:
        again = tmp_path / "again.onnx"
        compress(out, "--target", "onnxruntime", "-o", again, "--check", "none")
        assert kinds(again) == ["GatherBlockQuantized"]
        np.testing.assert_allclose(ran(again, ids), ran(path, ids), atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (["--int8", "--effort", "quick"], "INT8"),
        (["--int8", "--effort", "quick", "--layer", "^table$=float"], "FLOAT"),
        (["--weights", "int8", "--layer", "^rows$=float"], "FLOAT"),
        (["--weights", "int8", "--layer", "^table$=weights-int4"], "UINT8"),
        (["--weights", "int4", "--layer", "^table$=weights-int8"], "INT8"),
        (["--layer", "^w$=weights-int8"], "FLOAT"),
        (["--layer", "^table$=weights-int4"], "UINT8"),
    ],
)
def test_a_rule_may_name_a_table(compress, tmp_path, rng, flags, kind):
    path, out = encoder(tmp_path / "m.onnx", rng), tmp_path / "out.onnx"
    compress(path, *flags, "-o", out, "--check", "none")
    kinds = {t.name: TensorProto.DataType.Name(t.data_type) for t in onnx.load(out).graph.initializer}
    # Two codes of 4 bits share a byte.
    assert [k for name, k in kinds.items() if name in ("table", "table_quantized")] == [kind]


def test_a_table_that_can_not_have_the_form_is_told(compress, tmp_path, rng):
    path, out = encoder(tmp_path / "m.onnx", rng, wide=8), tmp_path / "out.onnx"
    report = compress(path, "--weights", "int8", "--layer", "^table$=weights-int4", "-o", out, "--json").json()
    assert any("asked for --layer weights-int4" in u and "`table` has fewer" in u for u in report["undone"])
