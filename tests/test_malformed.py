"""Models that are broken, hostile or strange: the right exit code, one message, nothing left."""

import gzip

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper, numpy_helper
from small import node
from support import listing


def refused(compress, folder, data, code):
    """Every subcommand refuses the bytes with `code`, naming the file and leaving nothing."""
    path = folder / "bad.onnx"
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    before = listing(folder)
    result = compress(path, code=code)
    assert "bad.onnx" in result.err
    compress("inspect", path, code=code)
    compress("check", path, "--against", path, code=code)
    assert listing(folder) == before
    return result.err


MODEL = small.cnn().SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"This is a text file, not a model.\n" * 20,
        b'{"ir_version": 8}',
        b"\x89PNG\r\n\x1a\n" + bytes(200),
        gzip.compress(MODEL, mtime=0),
        bytes(1000),
        b"\xff" * 1000,
        np.random.default_rng(5).bytes(5000),
    ],
    ids=["empty", "newline", "text", "json", "png", "gzip", "zeros", "ones", "noise"],
)
def test_other_files_are_3(compress, tmp_path, data):
    refused(compress, tmp_path, data, 3)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999])
def test_truncated_models_are_3(compress, tmp_path, share):
    refused(compress, tmp_path, MODEL[: max(1, int(len(MODEL) * share))], 3)


def test_damaged_models_never_panic(compress, tmp_path):
    """Bytes turned at random may still be a model; they may never end in a panic or a bug."""
    rng = np.random.default_rng(1)
    model = small.mlp().SerializeToString()
    for _ in range(60):
        damaged = bytearray(model)
        for place in rng.integers(0, len(damaged), rng.integers(1, 6)):
            damaged[place] = rng.integers(0, 256)
        path = tmp_path / "damaged.onnx"
        path.write_bytes(damaged)
        compress("inspect", path, code=(0, 3, 4, 5))
        compress(path, "--force", code=(0, 3, 4, 5, 7))


def varint(n):
    """A number on the wire."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def field(number, payload):
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def test_groups_are_3(compress, tmp_path):
    """The generated parser recurses into groups without end, on the stack."""
    refused(compress, tmp_path, b"\x0b" * 200_000 + b"\x0c" * 200_000, 3)
    refused(compress, tmp_path, b"\x08\x08" + field(7, b"\x0b" * 100_000), 3)


def test_deep_nesting_is_4(compress, tmp_path):
    """Subgraphs in subgraphs in subgraphs."""
    inner = b""
    for _ in range(2000):
        inner = field(1, field(5, field(6, inner)))
    refused(compress, tmp_path, b"\x08\x08" + field(7, inner), 4)


def test_overlong_varints_are_3(compress, tmp_path):
    refused(compress, tmp_path, b"\x08" + b"\x80" * 20 + b"\x01", 3)
    refused(compress, tmp_path, b"\x08" + b"\xff" * 9 + b"\x7f", 3)
    refused(compress, tmp_path, b"\x3a" + b"\xff" * 9 + b"\x01" + b"abc", 3)


def test_floods_of_empty_messages_are_4(compress, tmp_path):
    """Two bytes on the wire, hundreds in memory each."""
    refused(compress, tmp_path, b"\x08\x08" + field(7, field(1, b"") * 1_000_000), 4)


def test_impossible_sizes_are_refused_without_memory(compress, tmp_path):
    bomb = small.mlp()
    bomb.graph.initializer[0].dims[:] = [2**40, 2**20]
    refused(compress, tmp_path, bomb, (3, 4))
    fill = small.model(
        [node("ConstantOfShape", "s", "c"), node("ReduceSum", "c", "r", keepdims=0), node("Add", "x r", "y")],
        [("x", [2])],
        [("y", [2])],
        {"s": np.array([2**30, 2**20], np.int64)},
    )
    path = small.save(fill, tmp_path)
    result = compress(path, code=(3, 4, 5))
    assert "model.onnx" in result.err


def broken(change):
    """The small classifier, spoiled."""
    made = small.mlp()
    change(made)
    return made


def twice_made(m):
    m.graph.node[1].output[0] = "h"


def twice_initialised(m):
    m.graph.initializer.append(m.graph.initializer[0])


def undefined(m):
    m.graph.node[1].input[0] = "nowhere"


def cyclic(m):
    m.graph.node[0].input[0] = "output"


def no_opset(m):
    del m.opset_import[:]


def opset_99(m):
    m.opset_import[0].version = 99


def no_ir_version(m):
    m.ClearField("ir_version")


def no_graph(m):
    m.ClearField("graph")


def no_output(m):
    del m.graph.output[:]


def unknown_output(m):
    m.graph.output[0].name = "phantom"


def negative_dimension(m):
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -8


def negative_initializer(m):
    m.graph.initializer[0].dims[0] = -16


def short_data(m):
    t = m.graph.initializer[0]
    t.raw_data = t.raw_data[:-4]


def long_data(m):
    m.graph.initializer[0].raw_data += b"\0\0\0\0"


def wrong_inner(m):
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 9


def wrong_rank(m):
    del m.graph.input[0].type.tensor_type.shape.dim[1]


def too_few_inputs(m):
    del m.graph.node[0].input[1:]


def attribute_type(m):
    m.graph.node[0].attribute.append(helper.make_attribute("alpha", "much"))


def input_is_output_of_node(m):
    m.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 16]))


def contradicting_value_info(m):
    m.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.INT64, ["batch", 16]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (twice_made, "two nodes make `h`"),
        (twice_initialised, "w1"),
        (undefined, "nowhere"),
        (cyclic, "cycle"),
        (no_opset, "operator set"),
        (opset_99, "99"),
        (no_ir_version, "ir_version"),
        (no_graph, "no graph"),
        (no_output, "no outputs"),
        (unknown_output, "phantom"),
        (negative_dimension, "-8"),
        (negative_initializer, "-16"),
        (short_data, "bytes"),
        (long_data, "bytes"),
        (wrong_inner, "first"),
        (wrong_rank, "first"),
        (too_few_inputs, "first"),
        (attribute_type, "alpha"),
        (input_is_output_of_node, "h"),
        (contradicting_value_info, "first"),
    ],
    ids=lambda v: v.__name__ if callable(v) else None,
)
def test_broken_graphs_are_3(compress, tmp_path, change, says):
    assert says in refused(compress, tmp_path, broken(change), 3)


def conv(**attributes):
    """A model of one convolution."""
    weights = {"w": small.floats(1, 4, 3, 3, 3)}
    made = [node("Conv", "x w", "y", "the_conv", **attributes)]
    return small.model(made, [("x", [1, 3, 8, 8])], [("y", None)], weights)


def one(op, inputs, weights=(), shape=(2, 3), **attributes):
    """A model of one node of that name."""
    return small.model([node(op, inputs, "y", f"the_{op.lower()}", **attributes)], [("x", shape)], [("y", None)], weights)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("stride_0", conv(strides=[0, 1])),
        ("stride_negative", conv(strides=[-1, 1])),
        ("stride_rank", conv(strides=[1, 1, 1])),
        ("dilation_0", conv(dilations=[1, 0])),
        ("group_0", conv(group=0)),
        ("group_negative", conv(group=-3)),
        ("group_unfit", conv(group=2)),
        ("pads_negative", conv(pads=[0, -1, 0, 0])),
        ("pads_rank", conv(pads=[1, 1])),
        ("kernel_shape", conv(kernel_shape=[5, 5])),
        ("auto_pad", conv(auto_pad="SOMETIMES")),
        ("pool_kernel_0", one("MaxPool", "x", shape=[1, 3, 8, 8], kernel_shape=[0, 2])),
        ("pool_kernel_huge", one("MaxPool", "x", shape=[1, 3, 8, 8], kernel_shape=[99, 2])),
        ("pool_no_kernel", one("AveragePool", "x", shape=[1, 3, 8, 8])),
        ("softmax_axis", one("Softmax", "x", axis=2)),
        ("concat_axis", one("Concat", "x x", axis=-3)),
        ("concat_no_axis", one("Concat", "x x")),
        ("gather_axis", one("Gather", "x i", {"i": ints(0)}, axis=5)),
        ("gather_index", one("Gather", "x i", {"i": ints(7)})),
        ("transpose_perm", one("Transpose", "x", perm=[0, 0])),
        ("transpose_rank", one("Transpose", "x", perm=[0, 1, 2])),
        ("reshape_size", one("Reshape", "x s", {"s": ints(7)})),
        ("reshape_two_rests", one("Reshape", "x s", {"s": ints(-1, -1)})),
        ("reshape_negative", one("Reshape", "x s", {"s": ints(-2, 3)})),
        ("squeeze_not_1", one("Squeeze", "x a", {"a": ints(1)})),
        ("unsqueeze_twice", one("Unsqueeze", "x a", {"a": ints(0, 0)})),
        ("slice_step_0", one("Slice", "x a b c d", {"a": ints(0), "b": ints(1), "c": ints(0), "d": ints(0)})),
        ("slice_axis", one("Slice", "x a b c", {"a": ints(0), "b": ints(1), "c": ints(4)})),
        ("expand_unfit", one("Expand", "x s", {"s": ints(2, 5)})),
        ("add_unfit", one("Add", "x b", {"b": small.floats(1, 4)})),
        ("matmul_unfit", one("MatMul", "x b", {"b": small.floats(1, 4, 4)})),
        ("pad_length", one("Pad", "x p", {"p": ints(1, 1)})),
        ("pad_cuts_all", one("Pad", "x p", {"p": ints(-3, 0, 0, 0)})),
        ("cast_no_to", one("Cast", "x")),
        ("flatten_axis", one("Flatten", "x", axis=4)),
        ("batch_norm_channels", one("BatchNormalization", "x c c c c", {"c": small.floats(1, 7)})),
        ("reduce_axis", one("ReduceMean", "x", axes=[3])),
        ("split_sizes", one("Split", "x s", {"s": ints(5)})),
        ("quantize_axis", one("QuantizeLinear", "x s", {"s": small.floats(1, 3)}, axis=4)),
    ],
)
def test_broken_nodes_are_3_and_named(compress, tmp_path, name, made):
    said = refused(compress, tmp_path, made, 3)
    assert "the_" in said, said


def test_unsorted_nodes_are_fine(compress, tmp_path):
    made = small.cnn()
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    path = small.save(made, tmp_path)
    compress(path)
    onnx.checker.check_model(str(tmp_path / "model.compressed.onnx"), full_check=True)


def test_old_and_strange_models_are_5(compress, tmp_path):
    old = small.mlp(opset=6)
    assert "opset" in refused(compress, tmp_path, old, 5)
    made = small.mlp()
    made.functions.append(
        helper.make_function("mine", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)])
    )
    assert "inline" in refused(compress, tmp_path, made, 5)
    sparse = small.mlp()
    sparse.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.ones(1, np.float32), "sparse"), numpy_helper.from_array(np.zeros(1, np.int64), "i"), [4]
        )
    )
    refused(compress, tmp_path, sparse, 5)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "missing.bin", "weights.bin"])
def test_external_data_never_leaves_the_folder(compress, tmp_path, location):
    """What a model names outside its folder is never read into the output."""
    (tmp_path / "secret.bin").write_bytes(b"SECRET!!" * 100)
    folder = tmp_path / "model"
    folder.mkdir()
    made = small.mlp()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    if location == "weights.bin":
        (folder / location).write_bytes(small.floats(1, 16, 8).tobytes())
    path = small.save(made, folder)
    result = compress(path, code=(0, 5) if location == "weights.bin" else (5, 6))
    if result.code:
        assert "w1" in result.err
    assert not any(b"SECRET" in (content or b"") for content in listing(folder).values())


def test_nothing_in_the_file_is_executed_or_expanded(compress, tmp_path):
    """Names are text, whatever they hold."""
    made = small.mlp()
    odd = "../../$(id)\n\x1b[31m`rm`'\";"
    made.graph.node[0].name = odd
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = odd
    path = small.save(made, tmp_path)
    compress(path)
    assert odd in [n.name for n in onnx.load(tmp_path / "model.compressed.onnx").graph.node]
    assert compress("inspect", path, "--json").json()["layers"][0]["node"] == odd


@pytest.mark.parametrize("name", ["op_type", "input", "tensor"])
def test_names_that_are_no_utf8_are_3(compress, tmp_path, name):
    """Names have to be UTF-8, whatever other readers take."""
    made = small.mlp()
    if name == "op_type":
        made.graph.node[1].op_type = "Re@u"
    elif name == "input":
        made.graph.node[1].input[0] = made.graph.node[0].output[0] = "Re@u"
    else:
        made.graph.initializer[0].name = made.graph.node[0].input[1] = "Re@u"
    data = made.SerializeToString()
    assert b"Re@u" in data
    refused(compress, tmp_path, data.replace(b"Re@u", b"Re\xffu"), 3)
