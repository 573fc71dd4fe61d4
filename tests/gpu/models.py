"""Models with random weights in the shapes of real ones, in FP32 and INT8, for tests/gpu/run.

    python tests/gpu/models.py COMPRESS_BINARY FOLDER

Needs onnx and numpy. Times don't depend on weights.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from shapes import Net  # noqa: E402


def resnet50(path):
    """ResNet-50 at 224 (table 1 of arXiv:1512.03385), batch normalisation folded."""
    net = Net(["batch", 3, 224, 224])
    x = net.op("Relu", net.conv("x", 3, 64, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    inner = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = net.op("Relu", net.conv(x, inner, width, 1))
            y = net.op("Relu", net.conv(y, width, width, 3, step))
            y = net.conv(y, width, 4 * width, 1)
            if block == 0:
                x = net.conv(x, inner, 4 * width, 1, step)
            # Sums of sixteen blocks stay within a float's range.
            x, inner = net.op("Relu", net.op("Mul", net.op("Add", x, y), np.float32(0.5))), 4 * width
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.save(path, net.op("Gemm", x, net.normal(1000, 2048, over=2048), np.zeros(1000, np.float32), transB=1), 2)


def encoder(path, layers=6, width=384, heads=12, words=128):
    """An encoder in the shape of MiniLM, without its embedding."""
    net = Net(["batch", words, width])

    def linear(x, inputs, outputs):
        return net.op(
            "Add", net.op("MatMul", x, net.normal(inputs, outputs, over=2 * inputs)), np.zeros(outputs, np.float32)
        )

    def split(x, order):
        return net.op("Transpose", net.op("Reshape", x, np.array([0, words, heads, width // heads])), perm=order)

    def normalised(x):
        return net.op("LayerNormalization", x, np.ones(width, np.float32), np.zeros(width, np.float32))

    x = "x"
    for _ in range(layers):
        q, k, v = (split(linear(x, width, width), order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = net.op("Mul", net.op("MatMul", q, k), np.float32((heads / width) ** 0.5))
        mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores), v), perm=[0, 2, 1, 3])
        x = normalised(net.op("Add", x, linear(net.op("Reshape", mixed, np.array([0, words, width])), width, width)))
        wide = linear(x, width, 4 * width)
        half = net.op("Mul", wide, np.float32(0.5))
        gelu = net.op(
            "Mul", half, net.op("Add", net.op("Erf", net.op("Mul", wide, np.float32(0.5**0.5))), np.float32(1))
        )
        x = normalised(net.op("Add", x, linear(gelu, 4 * width, width)))
    net.save(path, x, 3)


def wide(path, width=4096, layers=4):
    """Layers of 4096 by 4096."""
    net = Net(["batch", width])
    x = "x"
    for _ in range(layers):
        x = net.op("Relu", net.op("Gemm", x, net.normal(width, width, over=width), np.zeros(width, np.float32)))
    net.save(path, x, 2)


SHAPES = {"resnet50": resnet50, "encoder": encoder, "wide4096": wide}


def main(binary, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in SHAPES.items():
        model = folder / f"{name}.onnx"
        make(model)
        # Without data ranges are those of noise, which is as fast.
        job = [binary, model, "--int8", "--no-check", "--quiet", "--force", "-o", folder / f"{name}.int8.onnx"]
        subprocess.run([str(part) for part in job], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
