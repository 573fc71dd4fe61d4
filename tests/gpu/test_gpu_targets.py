"""What tests/gpu/run is measured by."""

import peers
from targets import BATCH, shown, targets


def test_targets_are_met_missed_or_not_measured():
    row = {"model": "m.onnx", "numbers": "bf16"}
    result = {
        "throughput": [{**row, "ms": {1: 1.0, 64: 5.0}}, {"model": "n.onnx", "numbers": "bf16", "ms": {64: 5.0}}],
        "products": {"int8": 600.0, "bf16": 500.0},
        "peers": {
            "products": {"int8": 900.0},
            "peers": [
                {**row, "by": "PyTorch 2, eager", "ms": {"64": 20.0}},
                {**row, "by": "PyTorch 2, compiled", "ms": {"64": 4.0}},
            ],
        },
    }
    found = {row["target"]: (row["found"] and round(row["found"], 3), row["met"]) for row in targets(result)}
    assert found == {
        "INT8 product, of PyTorch's": (0.667, True),
        "bf16 product, of PyTorch's": (None, None),
        "INT8 product, of our bf16": (1.2, False),
        "m.onnx in bf16, batch 64, of PyTorch's compiled": (0.8, False),
        "n.onnx in bf16, batch 64, of PyTorch's compiled": (None, None),
    }
    text = shown(targets(result))
    assert text.count("MISSED") == 2 and text.count("not measured") == 2
    assert all(row["met"] is None for row in targets({"throughput": []}))


def test_peers_are_timed_at_the_batch_of_the_targets():
    assert peers.BATCH == BATCH
