"""Resize: every combination of modes that the compiler knows, at whole and fractional scales."""

import numpy as np

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(8)
IMAGE = f32(rng, 1, 2, 4, 5)


def scales(*values):
    """The scales of the spatial axes, as the input that Resize wants."""
    return np.array([1, 1, *values], np.float32)


for mode in ("nearest", "linear", "cubic"):
    for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
        kind = {"mode": mode, "coordinate_transformation_mode": coordinates, "opset": 19}
        for name, by in (("double", (2, 2)), ("fraction", (1.6, 2.4)), ("shrink", (0.5, 0.6))):
            if (coordinates, name) == ("align_corners", "fraction"):
                continue  # ONNX aligns the corners of an output of fractional size, and ONNX Runtime doesn't.
            cases.op(f"{mode}_{coordinates}_{name}", "Resize", IMAGE, None, scales(*by), const=(2,), **kind)
        sizes = i64(1, 2, 7, 3)
        cases.op(f"{mode}_{coordinates}_sizes", "Resize", IMAGE, None, None, sizes, const=(3,), **kind)
# Lengths at which the scale, a rounded quotient, decides which of two pixels is picked.
for rounding, coordinates, old, new in (
    ("round_prefer_ceil", "asymmetric", 7, 2),
    ("round_prefer_ceil", "asymmetric", 7, 8),
    ("round_prefer_floor", "asymmetric", 23, 14),
    ("round_prefer_ceil", "half_pixel", 20, 6),
    ("round_prefer_floor", "half_pixel", 14, 19),
    ("round_prefer_floor", "pytorch_half_pixel", 18, 21),
    ("floor", "align_corners", 13, 7),
    ("floor", "half_pixel_symmetric", 24, 8),
    ("floor", "half_pixel_symmetric", 23, 7),
    ("ceil", "half_pixel_symmetric", 21, 3),
    ("ceil", "tf_crop_and_resize", 21, 16),
):
    kind = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates, "opset": 19}
    row, name = np.arange(old, dtype=np.float32).reshape(1, old), f"{rounding}_{coordinates}_{old}_to_{new}"
    region = np.array([0, 0.1, 1, 0.85], np.float32) if coordinates == "tf_crop_and_resize" else None
    cases.op(name, "Resize", row, region, None, i64(1, new), const=(1, 3), **kind)
    by = np.array([1, np.float32(new) / np.float32(old)], np.float32)
    if int(old * float(by[1])) != new:
        continue  # ONNX's checker infers an element less than ONNX Runtime makes.
    cases.op(f"{name}_scale", "Resize", row, region, by, const=(1, 2), **kind)
for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for coordinates in ("half_pixel", "asymmetric"):
        kind = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
        cases.op(f"{rounding}_{coordinates}_up", "Resize", IMAGE, None, scales(2.5, 3), const=(2,), **kind)
        cases.op(f"{rounding}_{coordinates}_down", "Resize", IMAGE, None, scales(0.5, 0.4), const=(2,), **kind)
ROI = np.array([0, 0, 0.2, -0.1, 1, 1, 0.9, 1.2], np.float32)
for mode in ("nearest", "linear"):
    cases.op(f"{mode}_crop", "Resize", IMAGE, ROI, None, i64(1, 2, 7, 3), const=(1, 3), mode=mode,
             coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-3.0)  # fmt: skip
cases.op("exclude_outside", "Resize", IMAGE, None, scales(1.6, 2.4), const=(2,), mode="cubic", exclude_outside=1)
cases.op("cubic_half", "Resize", IMAGE, None, scales(1.6, 2.4), const=(2,), mode="cubic", cubic_coeff_a=-0.5)
SIZED = {"mode": "linear", "opset": 18, "axes": [3, 2]}
cases.op("axes", "Resize", IMAGE, None, np.array([2, 1.5], np.float32), const=(2,), **SIZED)
for policy in ("not_larger", "not_smaller"):
    cases.op(policy, "Resize", IMAGE, None, None, i64(7, 9), const=(3,), keep_aspect_ratio_policy=policy, **SIZED)
cases.op("opset10", "Resize", IMAGE, scales(2, 1.5), const=(1,), opset=10, mode="linear")
cases.op("opset10_down", "Resize", IMAGE, scales(0.5, 0.6), const=(1,), opset=10, mode="linear")
cases.op("opset10_nearest_down", "Resize", IMAGE, scales(0.6, 0.5), const=(1,), opset=10, mode="nearest")
cases.op("opset9", "Upsample", IMAGE, scales(2, 3), const=(1,), opset=9, mode="nearest")
cases.op("opset9_linear", "Upsample", IMAGE, scales(2, 3), const=(1,), opset=9, mode="linear")
cases.op("opset7", "Upsample", IMAGE, opset=7, mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
cases.op("nearest_i32", "Resize", rng.integers(0, 2**30, (1, 2, 4, 4), np.int32), None, scales(2, 1), const=(2,))
cases.op(
    "3d", "Resize", f32(rng, 1, 2, 3, 4, 3), None, np.array([1, 1, 2, 1.5, 1], np.float32), const=(2,), mode="linear"
)
cases.op(
    "to_one_pixel",
    "Resize",
    IMAGE,
    None,
    None,
    i64(1, 2, 1, 1),
    const=(3,),
    mode="linear",
    coordinate_transformation_mode="pytorch_half_pixel",
)
cases.op(
    "to_one_pixel_corners",
    "Resize",
    IMAGE,
    None,
    None,
    i64(1, 2, 1, 1),
    const=(3,),
    mode="linear",
    coordinate_transformation_mode="align_corners",
)
cases.op("same_size", "Resize", IMAGE, None, scales(1, 1), const=(2,), mode="linear")
cases.op(
    "opset11",
    "Resize",
    IMAGE,
    np.zeros(0, np.float32),
    scales(2, 2),
    const=(1, 2),
    opset=11,
    mode="nearest",
    coordinate_transformation_mode="asymmetric",
    nearest_mode="floor",
)
cases.op(
    "opset11_sizes",
    "Resize",
    IMAGE,
    np.zeros(0, np.float32),
    np.zeros(0, np.float32),
    i64(1, 2, 8, 10),
    const=(1, 2, 3),
    opset=11,
    mode="linear",
)
cases.op("scales_are_input", "Resize", IMAGE, None, scales(2, 2), mode="nearest")
cases.op("sizes_are_input", "Resize", IMAGE, None, None, i64(1, 2, 8, 5), mode="linear")
cases.op("u8", "Resize", rng.integers(0, 255, (1, 2, 4, 4), np.uint8), None, scales(2, 2), const=(2,), mode="nearest")
cases.op("1d", "Resize", f32(rng, 1, 2, 6), None, np.array([1, 1, 2], np.float32), const=(2,), mode="linear")
cases.op("opset19", "Resize", IMAGE, None, scales(2, 2), const=(2,), mode="linear", opset=19)
