"""How an operator case is written down, and how it becomes files.

A case is a small model with inputs; ONNX Runtime, without its own optimisations, says what
comes out. Every case is written in up to four forms, because they take different ways through
the compiler:

- `model.onnx`: the shapes of the inputs are known,
- `symbolic.onnx`: only their ranks are,
- `unranked.onnx`: not even those,
- `constant.onnx`: the inputs are initializers, so that everything can be folded.

A fifth form, `inner`, leaves all axes open but the first, which a data set counts samples by.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from processor import SATURATES

# Of these ONNX Runtime's results are not the specification's on processors where sums saturate.
PRODUCTS_OF_CODES = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")

FORMS = ("model", "symbolic", "unranked", "constant")


@dataclass
class Case:
    """A model, what it is fed, and which forms of it make sense."""

    name: str
    nodes: list
    feeds: dict
    constants: dict
    outputs: list
    opset: int
    forms: tuple = FORMS
    types: dict = field(default_factory=dict)
    _expected: list | None = None

    def model(self, form="model"):
        """The case as an ONNX model."""
        constants, inputs = dict(self.constants), []
        for name, value in self.feeds.items():
            if form == "constant":
                constants[name] = value
                continue
            elem = helper.np_dtype_to_tensor_dtype(value.dtype)
            shape = None if form == "unranked" else list(value.shape)
            if form == "symbolic":
                shape = [f"{name}_{i}" for i in range(value.ndim)]
            if form == "inner":
                shape = [n if i == 0 else f"{name}_{i}" for i, n in enumerate(value.shape)]
            inputs.append(helper.make_tensor_value_info(name, elem, shape))
        graph = helper.make_graph(
            self.nodes,
            "case",
            inputs,
            [helper.make_tensor_value_info(o, self.types[o], self._declared(form, o)) for o in self.outputs],
            [numpy_helper.from_array(v, n) for n, v in constants.items()],
        )
        imports = imported(self.nodes, self.opset)
        return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports[:1]))

    def _declared(self, form, output):
        """What the model says of an output's shape: inference has to agree with it."""
        if form != "model":
            return None
        return np.shape(self.expected()[self.outputs.index(output)])

    def expected(self):
        """What ONNX Runtime makes of it."""
        if self._expected is None:
            self._expected = self._run()
        return self._expected

    def _run(self):
        if SATURATES and any(n.op_type in PRODUCTS_OF_CODES for n in self.nodes):
            return ReferenceEvaluator(self.model("plain")).run(self.outputs, self.feeds)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        # DynamicQuantizeLSTM gives each thread a part of the batch, with a range of its own.
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(self.model("plain").SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(self.outputs, self.feeds)

    def write(self, folder: Path):
        """Writes the models and an ONNX test data set into `folder`."""
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        for form in self.forms:
            onnx.save(self.model(form), folder / f"{form}.onnx")
        for i, (name, value) in enumerate(self.feeds.items()):
            onnx.save_tensor(numpy_helper.from_array(value, name), data / f"input_{i}.pb")
        for i, (name, value) in enumerate(zip(self.outputs, self.expected())):
            onnx.save_tensor(numpy_helper.from_array(np.asarray(value), name), data / f"output_{i}.pb")


def imported(nodes, opset):
    """The operator sets of a model: the default one, and version 1 of the others."""
    others = sorted({n.domain for n in nodes if n.domain})
    return [helper.make_opsetid("", opset)] + [helper.make_opsetid(domain, 1) for domain in others]


def output_types(nodes, constants, feeds, outputs, opset):
    """The element types of the outputs, found by ONNX's own inference."""
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=imported(nodes, opset))
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*inferred.output, *inferred.value_info)}
    return {o: found[o] or TensorProto.FLOAT for o in outputs}


class Cases:
    """The cases of one module."""

    def __init__(self):
        self.all = []

    def graph(self, name, nodes, feeds, constants=None, outputs=("y",), opset=17, forms=FORMS):
        """A case of several nodes, written out."""
        constants = constants or {}
        types = output_types(nodes, constants, feeds, outputs, opset)
        self.all.append(Case(name, nodes, feeds, constants, list(outputs), opset, forms, types))

    def op(self, name, op_type, *inputs, opset=17, outputs=1, const=(), forms=FORMS, **attributes):
        """A case of one node. Inputs at the slots in `const` are initializers; None is absent."""
        names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
        made = ["y"] if outputs == 1 else [f"y{i}" for i in range(outputs)]
        feeds, constants = {}, {}
        for i, (n, v) in enumerate(zip(names, inputs)):
            if v is not None:
                (constants if i in const else feeds)[n] = np.asarray(v)
        node = helper.make_node(op_type, names, made, name=f"the_{op_type}", **attributes)
        self.graph(f"{op_type.lower()}_{name}", [node], feeds, constants, made, opset, forms)


def f32(rng, *shape, scale=1.0):
    """Normal floats."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def i64(*values):
    """A vector of int64, as most operators take their axes and shapes."""
    return np.array(values, np.int64)
