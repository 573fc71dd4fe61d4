"""What PyTorch is timed with computes what the file says. It needs PyTorch, which no other test does."""

import numpy as np
import pytest
from onnx import helper
from support import ROOT, run_onnx

torch = pytest.importorskip("torch")
torch_of = pytest.importorskip("torch_of")


def test_pytorch_runs_the_same_network():
    model = ROOT / "models/digits/digits.onnx"
    x = np.random.default_rng(0).standard_normal((3, 1, 8, 8), np.float32)
    with torch.inference_mode():
        (made,) = torch_of.OnnxModule(model).eval()(torch.from_numpy(x))
    (wanted,) = run_onnx(model, {"input": x})
    assert np.abs(made.numpy() - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("kind", "attributes"), [("Conv", {"auto_pad": "SAME_UPPER"}), ("MaxPool", {"dilations": [2, 2]})]
)
def test_what_is_not_heeded_is_an_error(kind, attributes):
    with pytest.raises(NotImplementedError, match=next(iter(attributes))):
        torch_of.checked(helper.make_node(kind, ["x"], ["y"], **attributes))
