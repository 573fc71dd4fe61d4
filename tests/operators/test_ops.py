"""Every operator case through the command: what comes out is valid, and ONNX Runtime computes
the same with it.

The Rust side of the same cases, on our own runtime, is tests/operators/ops.rs. Here it is about reading,
lifting old forms to new ones, simplifying and writing.
"""

import numpy as np
import onnx
import pytest
from op_cases import all_cases
from op_cases.build import PRODUCTS_OF_CODES
from processor import SATURATES
from support import assert_close, run_onnx

CASES = all_cases()
# ONNX's own inference still has the formula that ONNX Runtime and PyTorch corrected, it forgets that STFT is one-sided
# where a window is given, and it calls GroupNormalization of opset 18 deprecated, which ONNX Runtime runs.
CHECKER_IS_WRONG = {
    "maxpool_ceil_drops_last",
    "averagepool_ceil_drops_last",
    "maxpool_3d_ceil",
    "averagepool_3d_ceil",
    "stft_window",
    *(f"groupnormalization_groups_{n}_18" for n in (1, 2, 3, 6)),
}


def test_every_operator_has_cases():
    """The names in the compiler's table, each with a case."""
    tested = {node.op_type for case in CASES for node in case.nodes}
    known = """
        Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization LayerNormalization
        Gemm MatMul LeakyRelu Elu HardSigmoid Gelu Clip Softmax LogSoftmax ReduceMean ReduceSum ReduceMax ReduceMin
        ReduceProd Identity Dropout Cast Where Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather
        ScatterND Pad Expand ConstantOfShape Range Resize Shape QuantizeLinear DequantizeLinear Relu Sigmoid Tanh Exp
        Log Sqrt Erf Neg Abs Sign Ceil Floor Round Reciprocal Sin Cos Softplus HardSwish Not Add Sub Mul Div Pow Min
        Max PRelu Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor
    """.split()
    assert set(known) <= tested, sorted(set(known) - tested)


def feedable(case):
    """Whether the case can be measured: a data set takes numbers only, and at least one."""
    fits = [v.size and (v.dtype.kind != "f" or np.isfinite(v).all()) for v in case.feeds.values()]
    return bool(fits) and all(fits)


@pytest.mark.parametrize("form", ["model", "inner"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_simplified_case_computes_the_same(compress, tmp_path, case, form):
    case.write(tmp_path)
    before = case.model(form)
    source, output = tmp_path / f"{form}.onnx", tmp_path / "out.onnx"
    onnx.save(before, source)
    data = ["--eval", tmp_path / "test_data_set_0"] if feedable(case) else []
    compress(source, "-o", output, "--quiet", *data)
    if case.name not in CHECKER_IS_WRONG and form == "model":
        onnx.checker.check_model(str(output), full_check=True)
    after = onnx.load(output)
    assert [i.name for i in after.graph.input] == [i.name for i in before.graph.input]
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    if form == "model":
        assert [o.type for o in after.graph.output] == [o.type for o in before.graph.output]
    # Where ONNX Runtime's sums saturate, they do with the original as well.
    saturates = SATURATES and any(n.op_type in PRODUCTS_OF_CODES for n in after.graph.node)
    expected = [np.asarray(e) for e in (run_onnx(source, case.feeds) if saturates else case.expected())]
    half = any(e.dtype == np.float16 for e in expected)
    assert_close([np.asarray(o) for o in run_onnx(output, case.feeds)], expected, 2e-3 if half else 1e-5)
