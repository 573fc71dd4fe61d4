"""Rows 18 to 41: graphs that break the specification. The message names what is wrong, and where."""

import numpy as np
import onnx
import small
from onnx import TensorProto, helper, numpy_helper
from small import node

from hostile import bad


def info(name, shape=None, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def mlp(change):
    """The small classifier, spoiled. Its nodes are `first`, `act` and `second`."""

    def make():
        made = small.mlp()
        change(made)
        return made

    return make


def spoiled(row, says, change, code=3):
    return bad(row, change.__name__.strip("_"), mlp(change), code, says)


def negative_dimension(m):
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -8


def negative_initializer(m):
    m.graph.initializer[0].dims[0] = -16


def negative_wraps(m):
    m.graph.initializer[0].dims[:] = [-(2**63), 2]


def short_data(m):
    m.graph.initializer[0].raw_data = m.graph.initializer[0].raw_data[:-4]


def long_data(m):
    m.graph.initializer[0].raw_data += b"\0\0\0\0"


def no_data(m):
    m.graph.initializer[0].ClearField("raw_data")


def typed_data_short(m):
    t = m.graph.initializer[0]
    t.ClearField("raw_data")
    t.float_data.extend([1.0] * 5)


def raw_and_typed(m):
    m.graph.initializer[0].float_data.extend([1.0] * 128)


def typed_in_the_wrong_field(m):
    t = m.graph.initializer[0]
    t.ClearField("raw_data")
    t.int64_data.extend([1] * 128)


def dtype_99(m):
    m.graph.initializer[0].data_type = 99


def dtype_0(m):
    m.graph.initializer[0].data_type = 0


def dtype_negative(m):
    m.graph.initializer[0].data_type = -1


def input_dtype_99(m):
    m.graph.input[0].type.tensor_type.elem_type = 99


def raw_string(m):
    m.graph.initializer[0].data_type = TensorProto.STRING


def cycle_of_two(m):
    m.graph.node[0].input[0] = "output"


def cycle_of_one(m):
    m.graph.node[1].input[0] = "a"


def output_twice(m):
    m.graph.node[1].output[0] = "h"


def output_twice_in_one_node(m):
    m.graph.node.append(node("Split", "output", "p p", "the_split", num_outputs=2))


def output_is_an_initializer(m):
    m.graph.node[1].output[0] = "w1"
    m.graph.node[2].input[0] = "w1"


def output_is_an_input(m):
    m.graph.input.append(info("h", [1, 16]))


def graph_output_twice(m):
    m.graph.output.append(m.graph.output[0])


def input_twice(m):
    m.graph.input.append(m.graph.input[0])


def initializer_twice(m):
    m.graph.initializer.append(m.graph.initializer[0])


def undefined_input(m):
    m.graph.node[1].input[0] = "nowhere"


def undefined_output(m):
    m.graph.output[0].name = "phantom"


def too_few_inputs(m):
    del m.graph.node[0].input[1:]


def too_many_inputs(m):
    m.graph.node[1].input.append("h")


def too_many_outputs(m):
    m.graph.node[1].output.append("more")


def required_input_left_out(m):
    m.graph.node[0].input[0] = ""


def attribute_of_the_wrong_type(m):
    m.graph.node[0].attribute.append(helper.make_attribute("alpha", "much"))


def attribute_says_one_type_and_holds_another(m):
    a = m.graph.node[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    a.s = b"much"


def attribute_twice(m):
    m.graph.node[0].attribute.append(m.graph.node[0].attribute[0])


def no_opset(m):
    del m.opset_import[:]


def opset_99(m):
    m.opset_import[0].version = 99


def opset_0(m):
    m.opset_import[0].version = 0


def opset_negative(m):
    m.opset_import[0].version = -17


def opset_twice(m):
    m.opset_import.append(helper.make_opsetid("", 11))


def no_graph(m):
    m.ClearField("graph")


def no_outputs(m):
    del m.graph.output[:]


def input_shape_contradicts(m):
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 9


def input_rank_contradicts(m):
    del m.graph.input[0].type.tensor_type.shape.dim[1]


def value_info_type_contradicts(m):
    m.graph.value_info.append(info("h", ["batch", 16], TensorProto.INT64))


def value_info_shape_contradicts(m):
    m.graph.value_info.append(info("h", ["batch", 15]))


def output_shape_contradicts(m):
    m.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7


def conv(**attributes):
    """A model of one convolution."""
    weights = {"w": small.floats(1, 4, 3, 3, 3)}
    made = [node("Conv", "x w", "y", "the_conv", **attributes)]
    return small.model(made, [("x", [1, 3, 8, 8])], [("y", None)], weights)


def one(op, inputs, weights=(), shape=(2, 3), opset=17, **attributes):
    """A model of one node of that name."""
    made = [node(op, inputs, "y", f"the_{op.lower()}", **attributes)]
    return small.model(made, [("x", shape)], [("y", None)], weights, opset)


def ints(*values):
    return np.array(values, np.int64)


def picture(op, **attributes):
    return one(op, "x", shape=[1, 3, 8, 8], **attributes)


NODES = [
    (31, "cast_without_to", one("Cast", "x")),
    (31, "concat_without_axis", one("Concat", "x x")),
    (31, "pool_without_kernel", picture("AveragePool")),
    (32, "stride_0", conv(strides=[0, 1])),
    (32, "stride_negative", conv(strides=[-1, 1])),
    (32, "stride_rank", conv(strides=[1, 1, 1])),
    (32, "stride_of_a_pool", picture("MaxPool", kernel_shape=[2, 2], strides=[2, 0])),
    (32, "dilation_0", conv(dilations=[1, 0])),
    (32, "dilation_2_62", conv(dilations=[2**62, 1])),
    (32, "pads_negative", conv(pads=[0, -1, 0, 0])),
    (32, "pads_rank", conv(pads=[1, 1])),
    (32, "pads_2_63", conv(pads=[2**63 - 1, 0, 2**63 - 1, 0])),
    (32, "kernel_shape_not_the_weight's", conv(kernel_shape=[5, 5])),
    (32, "auto_pad_unknown", conv(auto_pad="SOMETIMES")),
    (32, "pool_kernel_0", picture("MaxPool", kernel_shape=[0, 2])),
    (32, "pool_kernel_too_large", picture("MaxPool", kernel_shape=[99, 2])),
    (32, "slice_step_0", one("Slice", "x a b c d", {"a": ints(0), "b": ints(1), "c": ints(0), "d": ints(0)})),
    (33, "group_0", conv(group=0)),
    (33, "group_negative", conv(group=-3)),
    (33, "group_unfit", conv(group=2)),
    (33, "group_2_63", conv(group=2**63 - 1)),
    (
        33,
        "groups_0_of_group_norm",
        one("GroupNormalization", "x c c", {"c": small.floats(1, 3)}, [1, 3, 4], num_groups=0),
    ),
    (34, "softmax", one("Softmax", "x", axis=2)),
    (34, "concat", one("Concat", "x x", axis=-3)),
    (34, "gather", one("Gather", "x i", {"i": ints(0)}, axis=5)),
    (34, "flatten", one("Flatten", "x", axis=4)),
    (34, "slice", one("Slice", "x a b c", {"a": ints(0), "b": ints(1), "c": ints(4)})),
    (34, "reduce", one("ReduceMean", "x", axes=[3])),
    (34, "quantize", one("QuantizeLinear", "x s", {"s": small.floats(1, 3)}, axis=4)),
    (34, "minus_2_63", one("Softmax", "x", axis=-(2**63))),
    (34, "split", one("Split", "x", axis=9)),
    (34, "cumsum", one("CumSum", "x a", {"a": np.array(5)})),
    (34, "topk", one("TopK", "x k", {"k": ints(1)}, axis=3)),
    (34, "one_hot_like", one("ArgMax", "x", axis=-7)),
    (39, "transpose_twice_the_same", one("Transpose", "x", perm=[0, 0])),
    (39, "transpose_rank", one("Transpose", "x", perm=[0, 1, 2])),
    (39, "reshape_size", one("Reshape", "x s", {"s": ints(7)})),
    (39, "reshape_two_rests", one("Reshape", "x s", {"s": ints(-1, -1)})),
    (39, "reshape_negative", one("Reshape", "x s", {"s": ints(-2, 3)})),
    (39, "squeeze_of_3", one("Squeeze", "x a", {"a": ints(1)})),
    (39, "unsqueeze_twice", one("Unsqueeze", "x a", {"a": ints(0, 0)})),
    (39, "expand_unfit", one("Expand", "x s", {"s": ints(2, 5)})),
    (39, "add_unfit", one("Add", "x b", {"b": small.floats(1, 4)})),
    (39, "matmul_unfit", one("MatMul", "x b", {"b": small.floats(1, 4, 4)})),
    (39, "pad_length", one("Pad", "x p", {"p": ints(1, 1)})),
    (39, "pad_cuts_all", one("Pad", "x p", {"p": ints(-3, 0, 0, 0)})),
    (39, "batch_norm_channels", one("BatchNormalization", "x c c c c", {"c": small.floats(1, 7)})),
    (39, "split_sizes", one("Split", "x s", {"s": ints(5)})),
    (39, "gather_index", one("Gather", "x i", {"i": ints(7)})),
]


def input_as_two_outputs():
    made = small.model([node("Identity", "x", "y")], [("x", [2])], [("y", [2])])
    made.graph.output.append(made.graph.output[0])
    return made


def rnn(hidden):
    """Nothing but the attribute tells the size of the state."""
    nodes = [node("RNN", "x w r", "y h", "the_rnn", hidden_size=hidden)]
    ends = [("x", None), ("w", None), ("r", None)], [("y", None), ("h", None)]
    return lambda: small.model(nodes, *ends)


def declared_too_large():
    """One element reshaped to a vector, which is said to have two."""
    nodes = [node("Reshape", "x s", "y", "the_reshape")]
    return small.model(nodes, [("x", []), ("s", [1], TensorProto.INT64)], [("y", [2])])


def unsorted():
    """Backwards, which one sort mends."""
    made = small.cnn()
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def runs(folder, _report):
    onnx.checker.check_model(str(folder / "bad.compressed.onnx"), full_check=True)


def calling(*functions):
    """A model that calls the first of the functions, each of one node."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]

    def make():
        made = small.model(
            [node("f", "x", "y", "the_call", domain="mine")], [("x", [2])], [("y", [2])], domains=[("mine", 1)]
        )
        for name, op in functions:
            inner = helper.make_node(op, ["a"], ["b"], domain="mine" if op in dict(functions) else "")
            made.functions.append(helper.make_function("mine", name, ["a"], ["b"], [inner], imports))
        return made

    return make


def branches(then, other, output=None):
    """An If whose branches give values of these types and shapes."""

    def branch(name, kind, shape):
        value = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind))
        made = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        return helper.make_graph([made], name, [], [info(name, shape, kind)])

    top = node("If", "c", "y", "the_if", then_branch=branch("t", *then), else_branch=branch("e", *other))
    return lambda: small.model([top], [("c", [], TensorProto.BOOL)], [("y", *(output or (None,)))])


def branch_outputs_differ():
    """One branch gives two values, the other one."""
    one_value = helper.make_graph([node("Neg", "x", "n")], "one", [], [info("n")])
    two = helper.make_graph([node("Neg", "x", "n"), node("Abs", "x", "p")], "two", [], [info("n"), info("p")])
    top = node("If", "c", "y z", "the_if", then_branch=two, else_branch=one_value)
    return small.model([top], [("x", [2]), ("c", [], TensorProto.BOOL)], [("y", None), ("z", None)])


def defaulted():
    """The second weight is an initializer and an input: a default that a caller may replace."""
    made = small.model(
        [node("Add", "w v", "s", "of_constants"), node("Mul", "x s", "y")],
        [("x", [2]), ("v", [2])],
        [("y", [2])],
        {"w": np.float32([1, 2]), "v": np.float32([3, 4])},
    )
    return made


def no_input(folder, _report):
    made = onnx.load(folder / "bad.compressed.onnx")
    assert [i.name for i in made.graph.input] == ["x"]
    assert "Add" not in [n.op_type for n in made.graph.node]


def default_of_another_shape():
    made = defaulted()
    made.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 3
    return made


def default_of_another_type():
    made = defaulted()
    made.graph.input[1].type.tensor_type.elem_type = TensorProto.DOUBLE
    return made


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64

# Nodes that are given too much, for what they are in their opset.
ARITY = [
    ("constant", "an_input", one("Constant", "x", value_float=1.0), "the_constant"),
    ("squeeze", "axes_at_opset_11", one("Squeeze", "x a", {"a": ints(0)}, (1, 2), 11), "the_squeeze"),
    ("squeeze", "axes_twice", one("Squeeze", "x a", {"a": ints(0)}, (1, 2), 11, axes=[0]), "the_squeeze"),
    ("clip", "bounds_at_opset_6", one("Clip", "x a", {"a": np.float32(0)}, opset=6), "the_clip"),
    ("reduce", "axes_at_opset_13", one("ReduceMax", "x a", {"a": ints(0)}, opset=13), "the_reducemax"),
    ("batch_norm", "inputs", one("BatchNormalization", "x x x x x x"), "6 inputs are given, at most 5 are taken"),
]

CASES = [
    spoiled(18, "", negative_dimension, 0),
    spoiled(18, "-16", negative_initializer),
    spoiled(18, "w1", negative_wraps),
    spoiled(19, "w1", short_data),
    spoiled(19, "w1", long_data),
    spoiled(19, "w1", no_data),
    spoiled(19, "w1", typed_data_short),
    spoiled(19, "w1", typed_in_the_wrong_field),
    spoiled(20, "w1", raw_and_typed),
    spoiled(21, "99", dtype_99),
    spoiled(21, "w1", dtype_0),
    spoiled(21, "w1", dtype_negative),
    spoiled(21, "99", input_dtype_99),
    spoiled(22, "w1", raw_string),
    spoiled(23, "cycle", cycle_of_two),
    spoiled(23, "cycle", cycle_of_one),
    bad(24, "backwards", unsorted, 0, check=runs),
    spoiled(25, "two nodes make `h`", output_twice),
    spoiled(25, "`p`", output_twice_in_one_node),
    spoiled(25, "first", output_is_an_initializer),
    spoiled(25, "h", output_is_an_input),
    spoiled(25, "", graph_output_twice, 0),
    bad(25, "graph_output_that_is_an_input_twice", input_as_two_outputs, 0),
    spoiled(25, "input", input_twice),
    spoiled(26, "w1", initializer_twice),
    spoiled(27, "nowhere", undefined_input),
    spoiled(28, "phantom", undefined_output),
    spoiled(29, "first", too_few_inputs),
    spoiled(29, "`act` (Relu): 2 inputs are given, at most 1 are taken", too_many_inputs),
    spoiled(29, "`act` (Relu): 2 outputs are asked for, at most 1 are made", too_many_outputs),
    *[bad(29, f"{name}_has_{where}", made, 3, says) for name, where, made, says in ARITY],
    spoiled(29, "first", required_input_left_out),
    spoiled(30, "alpha", attribute_of_the_wrong_type),
    spoiled(30, "alpha", attribute_says_one_type_and_holds_another),
    spoiled(30, "transB", attribute_twice),
    *[bad(row, name, made, 3, "the_") for row, name, made in NODES],
    spoiled(35, "operator set", no_opset),
    spoiled(36, "99", opset_99),
    spoiled(36, "opset 0", opset_0),
    spoiled(36, "opset -17", opset_negative),
    spoiled(36, "opset", opset_twice),
    bad(37, "calls_itself", calling(("f", "f")), 3, "f"),
    bad(37, "calls_in_a_ring", calling(("f", "g"), ("g", "h"), ("h", "f")), 3),
    bad(37, "twice_defined", calling(("f", "Relu"), ("f", "Neg")), 3, "f"),
    bad(38, "types", branches((FLOAT, [2]), (INT, [2])), 3, "the_if"),
    bad(38, "counts", branch_outputs_differ, 3, "the_if"),
    bad(38, "shapes_may_differ", branches((FLOAT, [2]), (FLOAT, [3, 1])), 0),
    bad(32, "hidden_size_negative", rnn(-1), 3, "the_rnn"),
    bad(32, "hidden_size_0", rnn(0), (0, 3)),
    bad(39, "output_declared_larger_than_it_can_be", declared_too_large, (0, 3)),
    spoiled(39, "first", input_shape_contradicts),
    spoiled(39, "first", input_rank_contradicts),
    spoiled(39, "first", value_info_type_contradicts),
    # Exporters often get shapes wrong, and runtimes let it pass.
    spoiled(39, "value `h`", value_info_shape_contradicts, 0),
    spoiled(39, "output", output_shape_contradicts, 0),
    spoiled(40, "no outputs", no_outputs),
    spoiled(40, "no graph", no_graph),
    bad(41, "is_a_weight", defaulted, 0, check=no_input),
    bad(41, "of_another_shape", default_of_another_shape, 3, "v"),
    bad(41, "of_another_type", default_of_another_type, 3, "v"),
]
