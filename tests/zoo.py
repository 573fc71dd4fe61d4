"""Inputs and data of the real models in COMPRESS_ZOO."""

import gzip

import numpy as np
from support import session

MNIST = "scale=255,mean=0.1307,std=0.3081"


def feeds(path, seed=0, batch=2):
    """Random inputs as a model declares them; open axes are a batch, or long enough for audio."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in session(path).get_inputs():
        shape = [d if isinstance(d, int) else 512 if d == "sequence" else batch for d in i.shape]
        if "int64" in i.type:
            made[i.name] = np.full(shape, 16000, np.int64)
        else:
            made[i.name] = rng.standard_normal(shape).astype(np.float32)
    return made


def mnist(zoo, which, n=None):
    """Pictures as LeNet wants them, and their labels."""
    with gzip.open(zoo / f"data/mnist-{which}-images-idx3-ubyte.gz") as f:
        pictures = np.frombuffer(f.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)[:n]
    with gzip.open(zoo / f"data/mnist-{which}-labels-idx1-ubyte.gz") as f:
        labels = np.frombuffer(f.read(), np.uint8, offset=8)[:n]
    return ((pictures / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)).astype(np.float32), labels


def points(path, x, y, optimise=False):
    """Accuracy in ONNX Runtime, in percent."""
    model = session(path, optimise)
    name = model.get_inputs()[0].name
    said = [model.run(None, {name: x[i : i + 500]})[0].argmax(1) for i in range(0, len(x), 500)]
    return 100 * (np.concatenate(said) == y).mean()
