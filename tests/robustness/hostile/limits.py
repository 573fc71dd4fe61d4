"""Rows 13 to 17: small files that ask for much memory or time."""

import numpy as np
import small
from onnx import TensorProto, helper
from small import node

from hostile import bad
from hostile.wire import field


def sized(*dims):
    """The classifier with a weight of that shape and 8 bytes."""

    def make():
        made = small.mlp()
        made.graph.initializer[0].dims[:] = dims
        made.graph.initializer[0].raw_data = bytes(8)
        return made

    return make


def ints(*values):
    return np.array(values, np.int64)


def summed(nodes, weights):
    """A model that adds up what the nodes make, `big`, and adds it to its input."""
    rest = [node("ReduceSum", "big", "r", keepdims=0), node("Add", "x r", "y")]
    return small.model([*nodes, *rest], [("x", [2])], [("y", [2])], weights)


def fed(op, weights, inputs="x s"):
    """The operator on the model's input, so that it isn't folded but inferred, and run when measured."""
    return small.model([node(op, inputs, "y", f"the_{op.lower()}")], [("x", [2])], [("y", None)], weights)


def chain(count, op=b"Relu"):
    """Nodes in a row, written without a parser, which would take minutes."""
    names = [b"x", *(b"v%d" % i for i in range(1, count)), b"y"]
    nodes = b"".join(field(1, field(1, a) + field(2, b) + field(4, op)) for a, b in zip(names, names[1:]))
    ends = small.model([], [("x", [2])], [("y", [2])])
    whole = ends.graph.SerializeToString() + nodes
    ends.ClearField("graph")
    return ends.SerializeToString() + field(7, whole)


def nested_if(depth):
    """An If in an If: work that doubles with each level when done carelessly."""
    branch = helper.make_graph([node("Identity", "x", "b")], "b", [], [small_output("b")])
    for i in range(depth):
        made = node("If", "c", f"b{i}", then_branch=branch, else_branch=branch)
        if len(made.SerializeToString()) > 4 << 20:
            break
        branch = helper.make_graph([made], f"g{i}", [], [small_output(f"b{i}")])
    top = node("If", "c", "y", then_branch=branch, else_branch=branch)
    return small.model([top], [("x", [2]), ("c", [], TensorProto.BOOL)], [("y", None)])


def small_output(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def doubling_functions(depth):
    """Functions that each call the one below twice: 2^depth nodes when inlined."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
    made = small.model([node("f0", "x", "y", domain="bomb")], [("x", [2])], [("y", [2])], domains=[("bomb", 1)])
    for i in range(depth):
        calls = [node(f"f{i + 1}", "a", "m", domain="bomb"), node(f"f{i + 1}", "m", "b", domain="bomb")]
        made.functions.append(helper.make_function("bomb", f"f{i}", ["a"], ["b"], calls, imports))
    last = [node("Relu", "a", "b")]
    made.functions.append(helper.make_function("bomb", f"f{depth}", ["a"], ["b"], last, imports))
    return made


def endless_loop():
    """A Loop of 2^62 iterations over constants: nothing that folding should run."""
    body = helper.make_graph(
        [node("Identity", "going", "still"), node("Add", "state one", "next")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []), small_output("next")],
    )
    nodes = [node("Loop", "times yes start", "last", "the_loop", body=body), node("Add", "x last", "y")]
    weights = {"times": np.array(2**62), "yes": np.array(True), "start": np.float32([0]), "one": np.float32([1])}
    return small.model(nodes, [("x", [2])], [("y", [2])], weights)


BOMBS = {
    "expand": ([node("Expand", "one s", "big")], {"one": np.float32([1]), "s": ints(2**20, 2**16)}),
    "tile": ([node("Tile", "one s", "big")], {"one": np.float32([[1]]), "s": ints(2**20, 2**16)}),
    "range": (
        [node("Range", "a b c", "i"), node("Cast", "i", "big", to=1)],
        dict(a=np.array(0), b=np.array(2**62), c=np.array(1)),
    ),
    "pad": ([node("Pad", "one s", "big")], {"one": np.float32([1]), "s": ints(2**34, 2**34)}),
    "pad_overflow": ([node("Pad", "one s", "big")], {"one": np.float32([1]), "s": ints(2**62, 2**62)}),
    "resize": (
        [node("Resize", "one  s", "big")],
        {"one": np.ones((1, 1, 1, 1), np.float32), "s": np.float32([1, 1, 2**18, 2**18])},
    ),
    "one_hot": (
        [node("OneHot", "i d v", "big")],
        {"i": ints(*range(1000)), "d": np.array(2**40), "v": np.float32([0, 1])},
    ),
    "eye_like": (
        [node("EyeLike", "w", "e"), node("ConstantOfShape", "s", "f"), node("Add", "e f", "big")],
        {"w": np.ones((9, 9), np.float32), "s": ints(2**40)},
    ),
}
# What is refused at sight (3), runs into a limit (4), or is written as it came (0).
REFUSED = (0, 3, 4)

CASES = [
    bad(13, "dimension_2_40", sized(2**40), (3, 4), "w1"),
    bad(13, "dimensions_2_60", sized(2**40, 2**20), (3, 4), "w1"),
    bad(14, "product_overflows", sized(2**62, 2**62), (3, 4), "w1"),
    bad(14, "product_wraps_to_2", sized(2**32, 2**32, 2), (3, 4), "w1"),
    bad(14, "product_wraps_to_0", sized(2**32, 2**32), (3, 4), "w1"),
    bad(14, "bits_wrap", sized(2**59 + 2), (3, 4), "w1"),
    bad(
        15,
        "constant_of_shape_folded",
        lambda: summed([node("ConstantOfShape", "s", "big")], {"s": ints(2**36)}),
        REFUSED,
    ),
    bad(
        15,
        "constant_of_shape_overflow",
        lambda: summed([node("ConstantOfShape", "s", "big")], {"s": ints(2**40, 2**40)}),
        REFUSED,
    ),
    *[bad(16, f"{name}_folded", lambda b=b: summed(*b), REFUSED) for name, b in BOMBS.items()],
    bad(16, "expand_at_run_time", lambda: fed("Expand", {"s": ints(2**30, 2)}), REFUSED),
    bad(16, "tile_at_run_time", lambda: fed("Tile", {"s": ints(2**40)}), REFUSED),
    bad(16, "pad_at_run_time", lambda: fed("Pad", {"s": ints(2**40, 0)}), REFUSED),
    bad(16, "endless_loop", endless_loop, REFUSED),
    bad(16, "nested_if", lambda: nested_if(14), REFUSED),
    bad(16, "doubling_functions", lambda: doubling_functions(40), 4),
    bad(17, "a_million_nodes", lambda: chain(1_000_001), 4, "nodes"),
    bad(17, "a_hundred_thousand_nodes", lambda: chain(100_000), 0),
]
