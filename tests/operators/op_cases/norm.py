"""Normalisations, with what opset each of their forms came."""

import numpy as np

from .build import Cases, f32

cases = Cases()
rng = np.random.default_rng(23)

X = f32(rng, 2, 6, 4, 3)


def channels(n=6):
    """A scale and a shift for `n` channels."""
    return f32(rng, n) + np.float32(1), f32(rng, n)


for opset in (18, 21):
    for groups in (1, 2, 3, 6):
        scale = channels(groups if opset < 21 else 6)
        cases.op(
            f"groups_{groups}_{opset}", "GroupNormalization", X, *scale, opset=opset, num_groups=groups, const=(1, 2)
        )
cases.op("epsilon", "GroupNormalization", X, *channels(), opset=21, num_groups=2, epsilon=0.5)
cases.op("plain", "InstanceNormalization", X, *channels(), const=(1, 2))
cases.op("one_axis", "InstanceNormalization", f32(rng, 2, 6, 9), *channels(), epsilon=0.1)
for size in (1, 3, 5):
    cases.op(f"size_{size}", "LRN", X, size=size)
cases.op("parameters", "LRN", X, size=3, alpha=0.7, beta=0.4, bias=2.0)
for outputs in (1, 2, 3):
    for axis in (-1, 1, -2):
        scale = [f32(rng, *X.shape[axis % 4 :]) for _ in range(2)]
        cases.op(f"axis_{axis % 4}_{outputs}", "LayerNormalization", X, *scale, outputs=outputs, axis=axis)
cases.op("no_bias_3", "LayerNormalization", X, f32(rng, 3), outputs=3)
for axis in (-1, 1):
    cases.op(f"axis_{axis % 4}", "RMSNormalization", X, f32(rng, *X.shape[axis % 4 :]), opset=23, axis=axis)
parameters = (*channels(), f32(rng, 6), np.abs(f32(rng, 6)) + np.float32(0.1))
cases.op("training", "BatchNormalization", X, *parameters, opset=15, outputs=3, training_mode=1, momentum=0.7)
