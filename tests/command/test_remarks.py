"""What a file says besides what it computes goes where the nodes and tensors go that it is about."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper
from small import node


def remarked(made, doc):
    """The node, with documentation and metadata."""
    made.doc_string = doc
    entry = made.metadata_props.add()
    entry.key, entry.value = "namespace", f"model/{doc}"
    return made


def said(nodes):
    """What nodes say, by their names."""
    return {n.name: (n.doc_string, [(p.key, p.value) for p in n.metadata_props]) for n in nodes if n.doc_string}


def test_nodes_keep_their_documentation(compress, tmp_path):
    """Those of graphs inside others, and those kept as they are, too."""

    def branch(name, op):
        inner = remarked(node(op, "h", name), f"doc of {name}")
        return helper.make_graph([inner], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    made = small.model(
        [
            remarked(node("Relu", "x", "h"), "doc of h"),
            node("Abs", "h", "a"),
            remarked(node("Frobnicate", "a", "f"), "doc of f"),
            helper.make_node("If", ["c"], ["y"], "y", then_branch=branch("t", "Exp"), else_branch=branch("e", "Neg")),
            helper.make_node(
                "If", ["true"], ["z"], "z", then_branch=branch("s", "Sin"), else_branch=branch("o", "Cos")
            ),
        ],
        [("x", [2, 3]), ("c", [], TensorProto.BOOL)],
        [("f", None), ("y", [2, 3]), ("z", [2, 3])],
        {"true": np.array(True)},
    )
    compress(small.save(made, tmp_path))
    graph = onnx.load(tmp_path / "model.compressed.onnx").graph
    branches = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    found = said([n for g in [graph, *branches] for n in g.node])
    assert found == {n: (f"doc of {n}", [("namespace", f"model/doc of {n}")]) for n in "hftes"}


@pytest.mark.parametrize("external", [False, True])
def test_quantization_annotations_are_kept(compress, tmp_path, external):
    """With the parameters that only they name; one of a value that is gone is gone."""
    weights = {"w": small.floats(1, 6, 4), "v": small.floats(2, 4, 4), "unread": small.floats(3, 2)}
    parameters = {f"{n}_{p}": np.float32(i) for i, n in enumerate("xdh") for p in ("scale", "min")}
    made = small.model(
        [node("MatMul", "x w", "h"), node("Identity", "h", "d"), node("Relu", "d", "r"), node("MatMul", "r v", "y")],
        [("x", ["n", 6])],
        [("y", ["n", 4])],
        weights | parameters,
    )
    for name in "xdh":
        entries = {"SCALE_TENSOR": f"{name}_scale", "MIN_TENSOR": f"{name}_min"}
        annotation = made.graph.quantization_annotation.add(tensor_name=name)
        for key, value in entries.items():
            annotation.quant_parameter_tensor_names.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=external, location="w.data", size_threshold=0)
    compress(path)
    output = tmp_path / "model.compressed.onnx"
    onnx.checker.check_model(str(output), full_check=True)
    after = onnx.load(output).graph
    expected = [a for a in made.graph.quantization_annotation if a.tensor_name != "d"]
    assert list(after.quantization_annotation) == expected
    kept = small.initializers(output)
    assert kept.keys() == {"w", "v", "x_scale", "x_min", "h_scale", "h_min"}
    for name in kept.keys() & parameters.keys():
        assert kept[name] == parameters[name]
    # The result is read and written alike.
    compress(output, "-o", tmp_path / "again.onnx")
    assert onnx.load(tmp_path / "again.onnx").graph.quantization_annotation == after.quantization_annotation
