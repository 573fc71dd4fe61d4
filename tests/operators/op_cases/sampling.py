"""Regions, grids and signals."""

import itertools

import numpy as np

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(29)
PICTURE = f32(rng, 2, 3, 6, 7)
CORNERS = np.sort(rng.uniform(0, 9, (5, 2, 2)), axis=1).reshape(5, 4).astype(np.float32)
OF = i64(0, 1, 1, 0, 1)


def scalar(v):
    return np.array([v])


boxes = np.sort(rng.uniform(0, 10, (2, 12, 2, 2)), axis=2).reshape(2, 12, 4).astype(np.float32)
scores = rng.random((2, 3, 12)).astype(np.float32)
cases.op("all", "NonMaxSuppression", boxes, scores, scalar(5), np.float32([0.3]), np.float32([0.2]))
cases.op("no_scores", "NonMaxSuppression", boxes, scores, scalar(4), np.float32([0.5]))
cases.op("no_limits", "NonMaxSuppression", boxes, scores)
cases.op("centers", "NonMaxSuppression", boxes, scores, scalar(9), np.float32([0.1]), center_point_box=1)
cases.op("turned", "NonMaxSuppression", boxes[:, :, [2, 3, 0, 1]], scores, scalar(9), np.float32([0.1]))

cases.op("opset10", "RoiAlign", PICTURE, CORNERS, OF, opset=10, output_height=3, output_width=2, spatial_scale=0.5)
for mode, ratio, at in itertools.product(("avg", "max"), (0, 2), ("half_pixel", "output_half_pixel")):
    name = f"{mode}_{ratio}_{at}"
    more = {"mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": at}
    cases.op(name, "RoiAlign", PICTURE, CORNERS, OF, output_height=2, output_width=3, spatial_scale=0.7, **more)
REGIONS = np.concatenate([OF[:, None], CORNERS], 1).astype(np.float32)
cases.op("plain", "MaxRoiPool", PICTURE, REGIONS, pooled_shape=[2, 3], opset=7)
cases.op("scaled", "MaxRoiPool", PICTURE, REGIONS, pooled_shape=[3, 2], spatial_scale=0.6)

GRID = rng.uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
OUTSIDE = ("zeros", "border", "reflection")
for mode, pad, align in itertools.product(("bilinear", "nearest", "bicubic"), OUTSIDE, (0, 1)):
    more = {"mode": mode, "padding_mode": pad, "align_corners": align}
    cases.op(f"{mode}_{pad}_{align}", "GridSample", PICTURE, GRID, opset=16, **more)
SPACE, PLACES = f32(rng, 1, 2, 3, 4, 5), rng.uniform(-1.4, 1.4, (1, 2, 3, 4, 3)).astype(np.float32)
for mode, pad, align in itertools.product(("linear", "nearest"), OUTSIDE, (0, 1)):
    more = {"mode": mode, "padding_mode": pad, "align_corners": align}
    cases.op(f"3d_{mode}_{pad}_{align}", "GridSample", SPACE, PLACES, opset=20, **more)
cases.op("2d", "AffineGrid", f32(rng, 2, 2, 3), i64(2, 3, 4, 5), const=(1,), opset=20)
cases.op("3d", "AffineGrid", f32(rng, 1, 3, 4), i64(1, 3, 2, 4, 5), opset=20, align_corners=1)

for kind in ("HannWindow", "HammingWindow", "BlackmanWindow"):
    cases.op("periodic", kind, np.int64(11), const=(0,))
    cases.op("symmetric", kind, np.int32(8), periodic=0, output_datatype=11)

for n in (8, 10, 13):
    real, both = f32(rng, 2, n, 3, 1), f32(rng, 2, n, 3, 2)
    cases.op(f"real_{n}", "DFT", real, opset=17)
    cases.op(f"complex_{n}", "DFT", both, None, np.int64(1), opset=20)
    cases.op(f"inverse_{n}", "DFT", both, opset=17, inverse=1)
    cases.op(f"onesided_{n}", "DFT", real, opset=17, onesided=1)
cases.op("longer", "DFT", f32(rng, 2, 5, 1), np.int64(9), opset=17)
cases.op("shorter", "DFT", f32(rng, 2, 9, 1), np.int64(4), const=(1,), opset=17)
cases.op("last", "DFT", f32(rng, 2, 5, 6, 2), opset=20)
cases.op("doubles", "DFT", f32(rng, 2, 5, 6, 2).astype(np.float64), None, np.int64(-3), const=(2,), opset=20)

SIGNAL = f32(rng, 2, 40, 1)
WINDOW = np.hanning(16).astype(np.float32)
cases.op("window", "STFT", SIGNAL, np.int64(4), WINDOW, np.int64(16), const=(1, 3))
cases.op("length", "STFT", SIGNAL, np.int64(6), None, np.int64(10))
cases.op("twosided", "STFT", SIGNAL, np.int64(5), WINDOW, np.int64(16), onesided=0)
cases.op("plain", "MelWeightMatrix", np.int64(8), np.int64(64), np.int64(8192), np.float32(0), np.float32(4096))
