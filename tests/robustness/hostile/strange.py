"""Rows 42 to 45: what we don't understand is kept byte for byte, or refused by name."""

import numpy as np
import onnx
import small
from onnx import TensorProto, helper, numpy_helper
from small import node

from hostile import bad


def around(strange, domains=(), **rest):
    """A layer, the strange node from `h` to `s`, and what is to be cleaned away."""
    nodes = [node("MatMul", "x w", "h"), strange, node("Identity", "s", "y")]
    return small.model(nodes, [("x", ["n", 6])], [("y", None)], {"w": small.floats(1, 6, 4), **rest}, domains=domains)


def kept(made):
    """The node `odd` comes through as it was, and the rest was simplified."""

    def check(folder, _report):
        after = onnx.load(folder / "bad.compressed.onnx").graph.node
        before = next(n for n in made.graph.node if n.name == "odd")
        found = next(n for n in after if n.name == "odd")
        # The value it makes takes the name of the output that it now is.
        assert list(found.input) == list(before.input) and found.attribute == before.attribute
        assert (found.op_type, found.domain) == (before.op_type, before.domain)
        assert "Identity" not in [n.op_type for n in after]

    return check


def foreign():
    """A model that imports no version of the default operator set, and needs none."""
    made = helper.make_node("Binarizer", ["x"], ["y"], name="odd", domain="ai.onnx.ml", threshold=0.5)
    model = small.model([made], [("x", [2])], [("y", [2])], domains=[("ai.onnx.ml", 1)])
    del model.opset_import[0]
    return model


def control():
    """An If, a Loop and a Scan, which run."""
    value = helper.make_tensor_value_info
    then = helper.make_graph([node("Relu", "h", "t")], "then", [], [value("t", TensorProto.FLOAT, None)])
    other = helper.make_graph([node("Neg", "h", "e")], "else", [], [value("e", TensorProto.FLOAT, None)])
    body = helper.make_graph(
        [node("Identity", "going", "still"), node("Add", "state state", "next")],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("state", TensorProto.FLOAT, None),
        ],
        [value("still", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, None)],
    )
    scan = helper.make_graph(
        [node("Add", "sum row", "sum2"), node("Identity", "sum2", "seen")],
        "scan",
        [value("sum", TensorProto.FLOAT, [6]), value("row", TensorProto.FLOAT, [6])],
        [value("sum2", TensorProto.FLOAT, [6]), value("seen", TensorProto.FLOAT, [6])],
    )
    return small.model(
        [
            node("Identity", "x", "h"),
            node("If", "c", "chosen", then_branch=then, else_branch=other),
            node("Loop", "times yes chosen", "doubled", body=body),
            node("Scan", "zero doubled", "total y", body=scan, num_scan_inputs=1),
        ],
        [("x", [3, 6]), ("c", [], TensorProto.BOOL)],
        [("y", [3, 6])],
        {"times": np.array(3), "yes": np.array(True), "zero": np.zeros(6, np.float32)},
    )


def runs(folder, _report):
    path = folder / "bad.compressed.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    from support import assert_close, run_onnx

    for c in (True, False):
        feeds = {"x": small.floats(1, 3, 6), "c": np.array(c)}
        assert_close(run_onnx(path, feeds), run_onnx(folder / "bad.onnx", feeds))


def sparse_initializer():
    made = small.mlp()
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return made


def sparse_attribute():
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    sparse = helper.make_sparse_tensor(values, indices, [4])
    constant = helper.make_node("Constant", [], ["k"], name="odd", sparse_value=sparse)
    return small.model([constant, node("Add", "x k", "y")], [("x", [4])], [("y", [4])])


def sparse_indices_out_of_range():
    made = sparse_attribute()
    made.graph.node[0].attribute[0].sparse_tensor.indices.raw_data = np.array([2**62], np.int64).tobytes()
    return made


def sequences():
    nodes = [
        node("SequenceConstruct", "x x", "q"),
        node("SequenceAt", "q i", "s", "odd"),
        node("Identity", "s", "y"),
    ]
    return small.model(nodes, [("x", [2])], [("y", [2])], {"i": np.array(1)})


def sequence_input():
    made = small.model([node("SequenceAt", "q i", "y", "odd")], [("x", [2])], [("y", [2])], {"i": np.array(1)})
    made.graph.input.append(helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None))
    return made


UNKNOWN = around(node("Frobnicate", "h", "s", "odd", depth=3, how="gently"))
UNKNOWN_DOMAIN = around(
    helper.make_node("Attention", ["h"], ["s"], name="odd", domain="com.example", heads=2), [("com.example", 1)]
)
UNKNOWN_ATTRIBUTE = around(node("Relu", "h", "s", "odd", speed=11))

CASES = [
    bad(42, "unknown_operator", UNKNOWN, 0, "odd", check=kept(UNKNOWN)),
    bad(42, "unknown_attribute", UNKNOWN_ATTRIBUTE, 0, "odd", check=kept(UNKNOWN_ATTRIBUTE)),
    bad(42, "unknown_operator_to_int8", UNKNOWN, 0, "odd", "--int8"),
    bad(43, "unknown_domain", UNKNOWN_DOMAIN, 0, "odd", check=kept(UNKNOWN_DOMAIN)),
    bad(
        43,
        "domain_not_imported",
        around(helper.make_node("F", ["h"], ["s"], name="odd", domain="far.away")),
        (0, 3),
        "odd",
    ),
    bad(43, "no_default_domain", foreign, 0, "odd"),
    bad(44, "if_loop_scan", control, 0, check=runs),
    bad(45, "sparse_initializer", sparse_initializer, 5),
    bad(45, "sparse_attribute", sparse_attribute, (0, 5), "odd"),
    bad(45, "sparse_index_out_of_range", sparse_indices_out_of_range, (0, 3, 5), "odd"),
    bad(45, "sequences", sequences, 0),
    bad(45, "sequence_input", sequence_input, (0, 5)),
]
