"""Recurrent layers in every configuration, and what goes with sequences."""

import numpy as np

from .build import Cases, f32

cases = Cases()
rng = np.random.default_rng(17)

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
T, B, I, H = 5, 3, 4, 2


def layer(name, op, directions=1, *, bias=True, lens=None, h0=False, c0=False, p=False, outputs=None, **attrs):
    """One recurrent layer; what is left out of its inputs stays out."""
    x = f32(rng, T, B, I)
    w = f32(rng, directions, GATES[op] * H, I)
    r = f32(rng, directions, GATES[op] * H, H)
    inputs = [
        x,
        w,
        r,
        f32(rng, directions, 2 * GATES[op] * H) if bias else None,
        None if lens is None else np.array(lens, np.int32),
        f32(rng, directions, B, H) if h0 else None,
    ]
    if op == "LSTM":
        inputs += [f32(rng, directions, B, H) if c0 else None, f32(rng, directions, 3 * H) if p else None]
    while inputs[-1] is None:
        inputs.pop()
    outputs = outputs or (3 if op == "LSTM" else 2)
    attrs = {"opset": 14, "hidden_size": H, "const": (1, 2, 3, 7)} | attrs
    attrs["const"] = tuple(i for i in attrs["const"] if i < len(inputs) and inputs[i] is not None)
    cases.op(name, op, *inputs, outputs=outputs, **attrs)


for op in GATES:
    state = {"h0": True} | ({"c0": True, "p": True} if op == "LSTM" else {})
    layer("plain", op, bias=False)
    layer("opset7", op, opset=7)
    layer("reverse", op, direction="reverse", **state)
    layer("both", op, 2, direction="bidirectional", **state)
    layer("no_bias", op, bias=False, **state)
    layer("y_only", op, outputs=1)
    layer("both_constants", op, 2, direction="bidirectional", **(state | {"p": False} if op == "LSTM" else state))
    layer("computed_weights", op, const=(), **state)
    for direction, n in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        layer(f"lens_{direction}", op, n, direction=direction, lens=(2, 5, 1), **state)
    layer("lens_equal", op, lens=(5, 5, 5))
    layer("clip", op, clip=0.3, **state)
    # Gates stay bounded: others grow with every step, and rounding with them.
    gates = [["Tanh"], ["Sigmoid", "Softplus"], ["Sigmoid", "Softplus", "Softsign"]][FUNCTIONS[op] - 1]
    layer("functions", op, activations=gates)
    layer("relu", op, activations=gates[:-1] + ["Relu"])
    layer("thresholded", op, activations=gates[:-1] + ["ThresholdedRelu"], activation_alpha=[0.2])


def by_codes(name, directions=1, *, bias=True, start=False, per_column=True, signed=True, zero=0, lens=None, **attrs):
    """An LSTM of ONNX Runtime's domain, whose weights are codes."""
    codes = np.int8 if signed else np.uint8
    columns = (directions, 4 * H) if per_column else (directions,)
    # Signed ones of 7 bits: ONNX Runtime's sums saturate on processors without VNNI.
    low, high = (-64, 64) if signed else (0, 256)

    def some(rows):
        return rng.integers(low, high, (directions, rows, 4 * H)).astype(codes)

    scales = [np.abs(f32(rng, *columns)) * 0.01 + 0.001 for _ in range(2)]
    inputs = [
        f32(rng, T, B, I),
        some(I),
        some(H),
        f32(rng, directions, 8 * H) if bias else None,
        None if lens is None else np.array(lens, np.int32),
        *([f32(rng, directions, B, H) if start else None] * 2),
        None,
    ]
    for scale in scales:
        inputs += [scale.astype(np.float32), np.full(columns, zero, codes)]
    const = (1, 2, 8, 9, 10, 11) + ((3,) if bias else ())
    attrs = {"domain": "com.microsoft", "hidden_size": H, "outputs": 3, "const": const} | attrs
    cases.op(f"{name}_codes", "DynamicQuantizeLSTM", *inputs, **attrs)


by_codes("plain")
by_codes("no_bias", bias=False, start=True)
by_codes("both", 2, direction="bidirectional", start=True)
by_codes("reverse", direction="reverse", outputs=1)
by_codes("one_scale", 2, direction="bidirectional", per_column=False)
by_codes("unsigned", signed=False, zero=128)
by_codes("lens_equal", lens=(5, 5, 5), start=True)
by_codes("clip", clip=0.3)
layer(
    "alpha_beta",
    "RNN",
    2,
    direction="bidirectional",
    activations=["HardSigmoid", "Affine"],
    activation_alpha=[0.3, 0.7],
    activation_beta=[0.4, 0.1],
)
layer(
    "alpha_beta",
    "GRU",
    2,
    direction="bidirectional",
    activations=["HardSigmoid", "Tanh", "Sigmoid", "ScaledTanh"],
    activation_alpha=[0.3, 1.2],
    activation_beta=[0.4, 0.8],
)
layer(
    "alpha_beta",
    "LSTM",
    2,
    direction="bidirectional",
    activations=["HardSigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "ScaledTanh", "Elu"],
    activation_alpha=[0.3, 0.05, 0.25, 1.2, 0.9],
    activation_beta=[0.4, 0.5, 0.8],
)
layer("any_case", "GRU", activations=["rElu", "tanH"])
layer("linear_before_reset", "GRU", linear_before_reset=1, h0=True)
layer("linear_before_reset_both", "GRU", 2, direction="bidirectional", linear_before_reset=1, lens=(4, 1, 5), h0=True)
layer("linear_before_reset_no_bias", "GRU", linear_before_reset=1, bias=False)
layer("input_forget", "LSTM", input_forget=1, c0=True, p=True)
