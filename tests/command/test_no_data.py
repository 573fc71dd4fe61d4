"""Compression without data: inputs are made up, and matched to the statistics of BatchNormalization if there are any."""

import numpy as np
import onnx
import pytest
import small
from support import run_onnx

pytestmark = pytest.mark.slow


def pictures(seed, n):
    """Smooth, of one sign, and with channels that hang together: nothing like noise."""
    z = np.random.default_rng(seed).standard_normal((n, 3, 10, 10))
    smooth = sum(np.roll(z, (i, j), (2, 3)) for i in range(3) for j in range(3)) / 3
    mix = np.array([[1, 0.9, 0], [0.9, 1, 0.1], [0.8, 0.9, 0.4]])
    return (np.einsum("oc,nchw->nohw", mix, smooth) * 0.5 + 3).astype(np.float32)


def network(batch="batch", normalised=True):
    """Three times Conv and Relu, with BatchNormalization that has seen `pictures` or without, a global pool and Gemm."""
    nodes, weights, value = [], {}, "input"
    for i, (c, k) in enumerate([(3, 16), (16, 24), (24, 24)]):
        weights[f"w{i}"] = small.floats(i, k, c, 3, 3, scale=(2 / (9 * c)) ** 0.5)
        nodes.append(small.node("Conv", f"{value} w{i}", f"c{i}", f"conv{i}", pads=[1, 1, 1, 1]))
        value = f"c{i}"
        if normalised:
            seen = run_onnx(small.model(nodes, [("input", ["n", 3, 10, 10])], [(value, None)], weights),
                            {"input": pictures(1, 200)})[0]  # fmt: skip
            scale, shift = small.floats(10 + i, k, scale=0.2) + np.float32(1), small.floats(20 + i, k, scale=0.3)
            weights |= {f"s{i}": scale, f"o{i}": shift, f"m{i}": seen.mean((0, 2, 3)), f"v{i}": seen.var((0, 2, 3))}
            nodes.append(small.node("BatchNormalization", f"{value} s{i} o{i} m{i} v{i}", f"n{i}", f"bn{i}"))
            value = f"n{i}"
        nodes.append(small.node("Relu", value, f"r{i}"))
        value = f"r{i}"
    nodes += [small.node("GlobalAveragePool", value, "p"), small.node("Flatten", "p", "f")]
    nodes.append(small.node("Gemm", "f w b", "output", "last", transB=1))
    weights |= {"w": small.floats(7, 5, 24), "b": small.floats(8, 5)}
    return small.model(nodes, [("input", [batch, 3, 10, 10])], [("output", [batch, 5])], weights)


def noise_ratio(model, result):
    x = pictures(2, 300)
    wanted, got = (run_onnx(m, {"input": x})[0] for m in (model, result))
    return 10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum())


def test_pruning_reconstructs_on_matched_inputs(compress, tmp_path):
    model = small.save(network(), tmp_path)
    ratios = {}
    for by in ("reconstruct", "magnitude"):
        out = tmp_path / f"{by}.onnx"
        report = compress(model, "--prune", "0.5", "--prune-by", by, "-o", out, "--json").json()
        ratios[by] = noise_ratio(model, out)
        said = [w for w in report["warnings"] if "NO DATA" in w]
        assert len(said) == (by == "reconstruct")
        # Whatever decided, nobody is to take the figures for those of real inputs.
        assert any("made-up inputs" in w and "real inputs was not measured" in w for w in report["warnings"])
        if said:
            assert "BatchNormalization" in said[0] and "--data" in said[0]
            first, last = (float(w.split(" ")[0]) for w in said[0].split("squared error ")[1].split(", "))
            assert last < first / 10
            assert report["accuracy"]["synthetic"] and report["accuracy"]["samples"] == 32
            assert report["recipe"]["data"] == "synthetic:0:matched"
    assert ratios["reconstruct"] > ratios["magnitude"] + 3, ratios


def test_int8_calibrates_on_matched_inputs(compress, tmp_path):
    """These inputs lie around 3: on standard normal noise this is 31 dB."""
    model = small.save(network(), tmp_path)
    compress(model, "--int8", "--no-check", "-q")
    assert noise_ratio(model, tmp_path / "model.compressed.onnx") > 36


def test_the_same_bytes_for_any_number_of_threads(compress, tmp_path):
    model = small.save(network(), tmp_path)

    def made(name, *flags):
        compress(model, "--prune", "0.5", "--int8", "--no-check", "-q", "-o", tmp_path / name, *flags)
        return (tmp_path / name).read_bytes()

    first = made("1.onnx", "--threads", "1")
    assert first == made("2.onnx", "--threads", "2")
    assert first != made("3.onnx", "--seed", "1")


def test_a_fixed_batch(compress, tmp_path):
    model = small.save(network(batch=2), tmp_path)
    report = compress(model, "--prune", "0.5", "--json").json()
    assert any("squared error" in w for w in report["warnings"])
    assert report["accuracy"]["samples"] == 32


def test_noise_is_no_ground_to_solve_on(compress, tmp_path):
    """Without statistics, and too small to show a picture: magnitude decides, and that is said."""
    model = small.save(network(normalised=False), tmp_path)
    result = compress(model, "--prune", "0.5", "--no-check").out
    assert "NO DATA" in result and "by magnitude" in result
    compress(model, "--prune", "0.5", "--prune-by", "magnitude", "--no-check", "-q", "-o", tmp_path / "plain.onnx")
    weights = [small.initializers(tmp_path / name) for name in ("model.compressed.onnx", "plain.onnx")]
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][k], weights[1][k]) for k in weights[0])
    assert "standard normal noise" in compress(model, "--int8", "--no-check", "--force").out


def test_pictures_of_any_size_show_dead_leaves(compress, tmp_path):
    made = network(normalised=False)
    for axis, name in ((2, "height"), (3, "width")):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    model = small.save(made, tmp_path)
    result = compress(model, "--prune", "0.5", "--no-check").out
    assert "layers were pruned on made-up pictures (dead leaves" in result
    compress(model, "--prune", "0.5", "--prune-by", "magnitude", "--no-check", "-q", "-o", tmp_path / "plain.onnx")
    weights = [small.initializers(tmp_path / name) for name in ("model.compressed.onnx", "plain.onnx")]
    assert any((weights[0][k] != weights[1][k]).any() for k in weights[0]), "what is left was solved for"


def test_made_up_pictures_have_the_size_of_those_to_evaluate_on(compress, tmp_path):
    """They were of one pixel where --eval alone is given."""
    made = network(normalised=False)
    for axis, name in ((2, "height"), (3, "width")):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    model = small.save(made, tmp_path)
    np.savez(tmp_path / "x.npz", x=np.repeat(np.repeat(pictures(3, 100), 2, 2), 2, 3))
    report = compress(model, "--int8", "--eval", tmp_path / "x.npz", "--json").json()
    assert "dead leaves" in " ".join(report["warnings"])


def test_data_is_not_made_up_where_it_is_given(compress, tmp_path):
    model = small.save(network(), tmp_path)
    np.savez(tmp_path / "x.npz", x=pictures(3, 100))
    result = compress(model, "--prune", "0.5", "--epochs", "0", "--int8", "--data", tmp_path / "x.npz")
    assert "NO DATA" not in result.out and "make inputs" not in result.err
    onnx.checker.check_model(str(tmp_path / "model.compressed.onnx"), full_check=True)


def test_training_without_data_is_on_made_up_pictures(compress, tmp_path):
    made = network(normalised=False)
    for axis in (2, 3):
        made.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 16
    model, out = small.save(made, tmp_path), tmp_path / "out.onnx"
    report = compress(model, "--prune", "0.7", "--epochs", 2, "-o", out, "--json").json()
    (trained,) = [t for p in report["passes"] for t in p.get("trained", [])]
    assert (trained["epochs"], trained["samples"], trained["metric"]) == (2, 4096, "sqnr")
    assert trained["after"] >= trained["before"]
    assert "trained on 4096 made-up pictures (dead leaves)" in report["warnings"]
    assert any("NO DATA" in w for w in report["warnings"])
    # Where nothing is asked for, nothing is trained.
    report = compress(model, "--prune", "0.7", "-o", out, "--force", "--json").json()
    assert not [t for p in report["passes"] for t in p.get("trained", [])]
