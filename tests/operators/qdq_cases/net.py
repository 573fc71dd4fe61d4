"""Building small quantised models, with what ONNX Runtime's integer kernels make of them.

A `Net` is computed while it is built, so that scales can fit the values. What every QuantizeLinear gives is an output
of the model: integers are compared one by one, not only what they come to in the end. (Signed ones aren't: on x86
ONNX Runtime turns S8 into U8, and only does where nobody else sees it. What is dequantised at the end shows them.)

Expected outputs are those of ONNX Runtime's default session, one thread. A case says which integer kernels it is about
(`fused`), and is refused if ONNX Runtime didn't choose them. Where it computes in floats before it quantises, equal
sums may round differently: such a case has to say `steps=1`, and why.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from processor import SATURATES

# What rounds: sums, products and approximations. (A maximum or a copy doesn't.)
ROUNDING = set(
    "Conv FusedConv Gemm FusedGemm MatMul FusedMatMul Add Sub Mul Div AveragePool GlobalAveragePool Sigmoid Tanh Softmax "
    "HardSwish HardSigmoid Gelu FusedAdd Exp Erf ReduceMean".split()
)


class Quantised:
    """An integer value with its scale and zero point."""

    def __init__(self, name, scale, zero, numbers):
        self.name, self.scale, self.zero = name, scale, zero
        # The values behind `scale` and `zero`.
        self.numbers = numbers

    @property
    def inputs(self):
        """How QLinear operators take it."""
        return self.name, self.scale, self.zero


class Net:
    """A model in the making."""

    def __init__(self, opset=17):
        self.opset = opset
        self.nodes, self.feeds, self.constants, self.outputs = [], {}, {}, []
        self.open = set()
        # The scales of values that were just dequantised: multiples of them.
        self.grids = {}
        self.count = 0
        self.known = {}

    def _name(self, what):
        self.count += 1
        return f"{what.lower()}_{self.count}"

    def input(self, value, name="x", dynamic=False):
        """A graph input; `dynamic` leaves its first axis open."""
        self.feeds[name] = np.asarray(value)
        if dynamic:
            self.open.add(name)
        return name

    def const(self, value, what="const"):
        """An initializer."""
        name = self._name(what)
        self.constants[name] = np.asarray(value)
        return name

    def op(self, kind, *inputs, outputs=1, domain="", **attributes):
        """A node; arrays among its inputs become initializers. Its output, or a list of them."""
        inputs = [i if isinstance(i, str) else self.const(i, f"{kind}_in") for i in inputs]
        names = [self._name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, f"the_{names[0]}", domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def output(self, name):
        """Makes a value a graph output."""
        self.outputs.append(name)
        return name

    def scale_of(self, name, zero, bits):
        """A scale for the value of `name`, a little too small, so that something saturates."""
        value = self.value(name)
        low, high = bits.min, bits.max
        needed = [v / n for v, n in ((value.max(), high - zero), (value.min(), low - zero)) if n and v / n > 0]
        return np.float32(0.97 * max(needed, default=1.0))

    def quantize(self, x, zero=117, scale=None, signed=False, like=None, expose=None):
        """QuantizeLinear, whose output is one of the graph unless signed; by a scale that fits unless one is given."""
        if like:
            scale_name, zero_name, numbers = like.scale, like.zero, like.numbers
        else:
            kind = np.int8 if signed else np.uint8
            scale = self.scale_of(x, zero, np.iinfo(kind)) if scale is None else np.float32(scale)
            numbers = scale, kind(zero)
            scale_name, zero_name = self.const(numbers[0], "scale"), self.const(numbers[1], "zero")
        name = self.op("QuantizeLinear", x, scale_name, zero_name)
        if expose if expose is not None else numbers[1].dtype == np.uint8:
            self.output(name)
        return Quantised(name, scale_name, zero_name, numbers)

    def dequantize(self, q):
        """DequantizeLinear of a quantised value."""
        name = self.op("DequantizeLinear", *q.inputs)
        self.grids[name] = float(q.numbers[0])
        return name

    def qdq(self, x, **how):
        """Both, one after the other."""
        return self.dequantize(self.quantize(x, **how))

    def quantised_weight(self, value, axis=None, kind=np.int8, zero=0):
        """A constant in 8 bits, with a scale for each slice along `axis`, or a single one."""
        bits = np.iinfo(kind)
        rest = tuple(a for a in range(value.ndim) if a != axis)
        largest = np.abs(value).max(axis=rest if axis is not None else None, keepdims=axis is not None)
        scale = (largest / min(bits.max - zero, zero - bits.min)).astype(np.float32)
        whole = np.clip(np.rint(value / scale) + zero, bits.min, bits.max).astype(kind)
        scale = scale.reshape(-1) if axis is not None else scale
        zeros = np.full(scale.shape, zero, kind)
        return Quantised(self.const(whole, "weight"), self.const(scale, "ws"), self.const(zeros, "wz"), (scale, zeros))

    def weight(self, value, axis=None, **how):
        """The same behind its DequantizeLinear, and its scales."""
        q = self.quantised_weight(value, axis, **how)
        extra = {} if axis is None else {"axis": axis}
        return self.op("DequantizeLinear", *q.inputs, **extra), q.numbers[0]

    def whole_bias(self, value, scale):
        """A bias in INT32 at `scale`, as integer kernels want it."""
        return self.const(np.rint(value / scale).astype(np.int32), "bias"), self.const(scale, "bs")

    def bias(self, value, scale):
        """The same behind its DequantizeLinear."""
        extra = {"axis": 0} if np.ndim(scale) else {}
        return self.op("DequantizeLinear", *self.whole_bias(value, scale), **extra)

    def model(self, outputs=None):
        """The model as it stands; with outputs whose types aren't known if it is only to be computed."""
        inputs = []
        for name, value in self.feeds.items():
            shape = ["n" if name in self.open and a == 0 else d for a, d in enumerate(value.shape)]
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape))
        names = self.outputs if outputs is None else outputs
        graph = helper.make_graph(
            self.nodes,
            "case",
            inputs,
            [onnx.ValueInfoProto(name=o) for o in names],
            [numpy_helper.from_array(v, n) for n, v in self.constants.items()],
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        imports = imports[: 1 + any(n.domain for n in self.nodes)]
        return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports[:1]))

    def value(self, name):
        """What `name` is, computed as the file says."""
        if name in self.feeds:
            return self.feeds[name]
        if name not in self.known:
            self.known[name] = run(self.model([name]).SerializeToString(), self.feeds, plain=True)[0]
        return self.known[name]


def run(model, feeds, plain=False, save=None, literal=False):
    """The outputs of a model (its bytes, or where it is) in ONNX Runtime on one thread.

    It quantises float weights by itself where all around them is quantised; `literal` keeps it from that.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if SATURATES:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if save:
        options.optimized_model_filepath = str(save)
    disabled = ["WeightBiasQuantization"] if literal else None
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)
    return session.run(None, feeds)


def write_data(folder: Path, feeds, outputs):
    """An ONNX test data set."""
    folder.mkdir(parents=True)
    for i, (name, value) in enumerate(feeds.items()):
        onnx.save_tensor(numpy_helper.from_array(value, name), folder / f"input_{i}.pb")
    for i, (name, value) in enumerate(outputs.items()):
        onnx.save_tensor(numpy_helper.from_array(np.asarray(value), name), folder / f"output_{i}.pb")


def rounds_before_quantising(graph):
    """The float operators of a graph whose results are quantised afterwards."""
    readers = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    reach, found = {}, set()
    for node in reversed(graph.node):
        after = [r for o in node.output for r in readers.get(o, [])]
        reach[id(node)] = any(r.op_type == "QuantizeLinear" or reach[id(r)] for r in after)
        if node.op_type in ROUNDING and reach[id(node)]:
            found.add(node.op_type)
    return found


class Case:
    """A finished net under a name."""

    def __init__(self, name, net, fused=(), steps=0, why="", literal=False, floats_differ=False, same_order=False):
        assert bool(steps) == bool(why), f"{name}: say why it may be {steps} steps off"
        self.name, self.net, self.fused, self.steps, self.why, self.literal = name, net, fused, steps, why, literal
        # Whether ONNX Runtime's integer kernels give something else than ONNX's floats, by more than a step.
        self.floats_differ = floats_differ
        # Whether our kernels add floats in ONNX Runtime's order, and so round as it does.
        self.same_order = same_order

    def write(self, folder: Path):
        """Writes the model, `case.json` and a data set into `folder`; refuses what is not a case of its kind."""
        model = onnx.shape_inference.infer_shapes(self.net.model(), strict_mode=True, data_prop=True)
        del model.graph.value_info[:]
        with tempfile.TemporaryDirectory() as scratch:
            dump = Path(scratch) / "optimised.onnx"
            outputs = run(model.SerializeToString(), self.net.feeds, save=dump, literal=self.literal)
            graph = onnx.load(dump).graph
        kernels = [n.op_type for n in graph.node]
        for kernel in self.fused:
            assert kernel in kernels, f"ONNX Runtime made {kernels} of it, no {kernel}"
        floats = rounds_before_quantising(graph)
        may_round = self.steps or self.same_order or not floats
        assert may_round, f"ONNX Runtime computes {floats} in floats: give it steps=1 and say so"
        write_data(folder / "test_data_set_0", self.net.feeds, dict(zip(self.net.outputs, outputs)))
        for output, value in zip(model.graph.output, outputs):
            kind = output.type.tensor_type
            kind.elem_type = helper.np_dtype_to_tensor_dtype(value.dtype)
            if not self.net.open:
                kind.shape.CopyFrom(helper.make_tensor_value_info("", 1, value.shape).type.tensor_type.shape)
        onnx.save(model, folder / "model.onnx")
        facts = {
            "steps": self.steps,
            "why": self.why,
            "floats_differ": self.floats_differ,
            "scales": [self.net.grids.get(o) for o in self.net.outputs],
            "fused": list(self.fused),
            "kernels": kernels,
        }
        (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


class Cases:
    """The cases of one module."""

    def __init__(self, seed):
        self.all = []
        self.rng = np.random.default_rng(seed)

    def add(self, name, net, fused=(), **rest):
        """Takes a finished net in."""
        self.all.append(Case(name, net, (fused,) if isinstance(fused, str) else fused, **rest))

    def f32(self, *shape, scale=1.0):
        """Normal floats."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)
