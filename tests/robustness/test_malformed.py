"""Damaged bytes and odd names. What is wrong in one known way is in tests/hostile/."""

import numpy as np
import onnx
import small


def test_damaged_models_never_panic(compress, tmp_path):
    """Bytes turned at random may still be a model; they may never end in a panic or a bug."""
    rng = np.random.default_rng(1)
    model = small.mlp().SerializeToString()
    for _ in range(60):
        damaged = bytearray(model)
        for place in rng.integers(0, len(damaged), rng.integers(1, 6)):
            damaged[place] = rng.integers(0, 256)
        path = tmp_path / "damaged.onnx"
        path.write_bytes(damaged)
        compress("inspect", path, code=(0, 3, 4, 5))
        compress(path, "--force", code=(0, 3, 4, 5, 7))


def test_nothing_in_the_file_is_executed_or_expanded(compress, tmp_path):
    """Names are text, whatever they hold."""
    made = small.mlp()
    odd = "../../$(id)\n\x1b[31m`rm`'\";"
    made.graph.node[0].name = odd
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = odd
    path = small.save(made, tmp_path)
    compress(path)
    assert odd in [n.name for n in onnx.load(tmp_path / "model.compressed.onnx").graph.node]
    assert compress("inspect", path, "--json").json()["layers"][0]["node"] == odd
