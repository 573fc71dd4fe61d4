"""Products with a weight as two with thinner ones (--low-rank), beside ONNX Runtime."""

import numpy as np
import onnx
import pytest
from small import floats, initializers, model, node, ops, save
from support import read_report, run_command, run_onnx

WIDTH = 64


def thin(seed, rows, columns, rank):
    """A matrix of low rank."""
    return (floats(seed, rows, rank) @ floats(seed + 1, rank, columns) / WIDTH).astype(np.float32)


def net(rank=16):
    """A convolution with a stride and padding, products in both orders of a weight, a bias in each, one weight for two layers."""
    return model(
        [
            node("Conv", "input k kb", "c", "point", strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("GlobalAveragePool", "r", "p"),
            node("Flatten", "p", "f"),
            node("Gemm", "f u ub", "g", "gemm", transB=1, alpha=0.5, beta=2.0),
            node("Tanh", "g", "t"),
            node("MatMul", "t v", "m1", "once"),
            node("Tanh", "m1", "t1"),
            node("MatMul", "t1 v", "m2", "again"),
            node("Add", "m2 vb", "s"),
            node("MatMul", "s h", "output", "head"),
        ],
        [("input", ["batch", WIDTH, 2, 2])],
        [("output", ["batch", 4])],
        {
            "k": thin(1, WIDTH, WIDTH, rank).reshape(WIDTH, WIDTH, 1, 1),
            "kb": floats(3, WIDTH),
            "u": thin(4, WIDTH, WIDTH, rank) * 8,
            "ub": floats(6, WIDTH),
            "v": thin(7, WIDTH, WIDTH, rank) * 8,
            "vb": floats(9, WIDTH),
            "h": floats(10, WIDTH, 4, scale=0.1),
        },
    )


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, input=floats(20, 256, WIDTH, 2, 2))
    return path


def factorised(folder, made, fraction, *args, **rest):
    path, out = save(made, folder), folder / "thin.onnx"
    run_command(path, "--low-rank", fraction, "--cut-anyway", "-o", out, "--force", *args, **rest)
    return path, out, read_report(out.with_suffix(".report.json"))


@pytest.mark.parametrize("given", [False, True])
def test_weights_of_low_rank_lose_nothing(tmp_path, data, given):
    path, out, report = factorised(tmp_path, net(), 0.48, *(["--data", data, "--epochs", 0] if given else []))
    x = {"input": floats(30, 5, WIDTH, 2, 2)}
    np.testing.assert_allclose(run_onnx(out, x)[0], run_onnx(path, x)[0], rtol=1e-3, atol=1e-4)
    # The weight of two layers is one pair of weights still.
    shapes = {name: t.shape for name, t in initializers(out).items()}
    assert shapes["v_down"] == (WIDTH, 16) and shapes["v_up"] == (16, WIDTH)
    assert shapes["u_down"] == (16, WIDTH) and shapes["u_up"] == (WIDTH, 16)
    assert shapes["k_down"] == (16, WIDTH, 1, 1) and shapes["k_up"] == (WIDTH, 16, 1, 1)
    assert ops(out).count("Conv") == 2 and ops(out).count("MatMul") + ops(out).count("Gemm") == 7
    assert any("--low-rank 0.48 left" in line for line in report["warnings"])
    assert report["output"]["parameters"] < 0.6 * report["input"]["parameters"]


def test_what_layers_read_decides(tmp_path):
    """Inputs that are nearly constant in all directions but few need a low rank, whatever the weight."""
    rng = np.random.default_rng(0)
    made = model(
        [node("MatMul", "input w", "m", "wide"), node("Tanh", "m", "t"), node("MatMul", "t h", "output", "head")],
        [("input", ["batch", WIDTH])],
        [("output", ["batch", 4])],
        {"w": floats(1, WIDTH, WIDTH, scale=0.2), "h": floats(2, WIDTH, 4, scale=0.1)},
    )
    basis = floats(3, 12, WIDTH)
    inputs = lambda n: (rng.standard_normal((n, 12)) @ basis / 4 + rng.standard_normal((n, WIDTH)) / 100).astype(
        np.float32
    )  # noqa: E731
    np.savez(tmp_path / "data.npz", input=inputs(512))
    x = inputs(200)
    errors = {}
    for given in (False, True):
        args = ["--data", tmp_path / "data.npz", "--epochs", 0] if given else []
        path, out, _ = factorised(tmp_path, made, 0.4, *args)
        wanted, found = run_onnx(path, {"input": x})[0], run_onnx(out, {"input": x})[0]
        errors[given] = float(np.square(found - wanted).mean() / np.square(wanted).mean())
    assert errors[True] < 1e-3 < 0.05 < errors[False], errors


def test_training_wins_back(tmp_path, data):
    _, _, report = factorised(tmp_path, net(rank=WIDTH), 0.4, "--data", data, "--epochs", 4)
    (training,) = [t for p in report["passes"] if p["name"] == "low-rank" for t in p["trained"]]
    assert training["after"] > training["before"], training


def test_training_is_left_to_a_pass_that_has_something_to_do(tmp_path, data):
    """Channels go, no weight can become two, and the model is trained all the same."""
    args = ["--prune-channels", 0.3, "--round-channels", 4, "--data", data, "--epochs", 2]
    nothing = ["--exclude", "gemm", "--exclude", "once", "--exclude", "again", "--exclude", "head"]
    _, _, report = factorised(tmp_path, net(rank=WIDTH), 1e-6, *args, *nothing)
    assert [t["epochs"] for p in report["passes"] for t in p.get("trained", [])] == [2]
    _, _, report = factorised(tmp_path, net(rank=WIDTH), 0.3, *args, "--stop-after", "channels")
    assert [p["name"] for p in report["passes"] if p.get("trained")] == ["channels"]
    _, _, report = factorised(
        tmp_path, net(rank=WIDTH), 0.2, "--prune", 0.3, "--data", data, "--epochs", 2, "--stop-after", "low-rank"
    )
    assert [p["name"] for p in report["passes"] if p.get("trained")] == ["low-rank"]


def test_layers_in_branches_are_told(tmp_path):
    branch = model(
        [node("MatMul", "x w", "then_y", "inside")],
        [],
        [("then_y", ["batch", WIDTH])],
        {"w": thin(1, WIDTH, WIDTH, 16)},
    ).graph
    other = model([node("Identity", "x", "else_y")], [], [("else_y", ["batch", WIDTH])]).graph
    made = model(
        [
            node("MatMul", "input v", "x", "outside"),
            node("If", "c", "output", "branches", then_branch=branch, else_branch=other),
        ],
        [("input", ["batch", WIDTH]), ("c", [], onnx.TensorProto.BOOL)],
        [("output", ["batch", WIDTH])],
        {"v": thin(3, WIDTH, WIDTH, 16)},
    )
    path = save(made, tmp_path)
    out = tmp_path / "thin.onnx"
    done = run_command(path, "--low-rank", 0.4, "--cut-anyway", "--strict", "-o", out, code=9)
    assert "asked for --low-rank 0.4: 25.0% of the multiply-accumulates are gone" in done.err
    run_command(path, "--low-rank", 0.25, "--cut-anyway", "--strict", "-o", out, "--force")
    skipped = [s for p in read_report(out.with_suffix(".report.json"))["passes"] for s in p["skipped"]]
    assert any("branches" in s["node"] and s["reason"] == "weights of 1 layer inside it stay whole" for s in skipped), (
        skipped
    )


def test_excluded_layers_and_what_cannot_be_done_are_told(tmp_path):
    _, out, report = factorised(tmp_path, net(), 0.3, "--exclude", "point", "--exclude", "gemm")
    assert "k" in initializers(out) and "u" in initializers(out) and "v_up" in initializers(out)
    skipped = {s["node"]: s["reason"] for p in report["passes"] if p["name"] == "low-rank" for s in p["skipped"]}
    assert any("excluded" in why for node, why in skipped.items() if "point" in node), skipped
    assert any("at least as much" in why for node, why in skipped.items() if "head" in node), skipped
    path = save(net(), tmp_path)
    done = run_command(path, "--low-rank", 0.9, "--cut-anyway", "--strict", "-o", out, "--force", code=9)
    assert "asked for --low-rank 0.9" in done.err
    done = run_command(
        path, "--low-rank", 0.5, "--cut-anyway", "--strict", "--exclude", ".*", "-o", out, "--force", code=9
    )
    assert "no weight became two thinner ones" in done.err and "excluded" in done.err


def test_it_is_followed_by_quantisation(tmp_path, data):
    path, out, _ = factorised(tmp_path, net(), 0.4, "--int8", "--data", data, "--epochs", 0)
    x = {"input": floats(31, 64, WIDTH, 2, 2)}
    wanted, found = run_onnx(path, x)[0], run_onnx(out, x, optimise=True)[0]
    assert np.square(found - wanted).mean() < 0.02 * np.square(wanted).mean()
    assert "QuantizeLinear" in ops(out)


@pytest.mark.parametrize("args", [["--round-channels", 8], ["--cut-anyway"]])
def test_options_that_need_it_say_so(tmp_path, args):
    done = run_command(save(net(), tmp_path), *args, code=2)
    assert "--prune-channels or --low-rank" in done.err


def test_ranks_are_multiples(tmp_path):
    _, out, _ = factorised(tmp_path, net(), 0.3, "--round-channels", 8)
    ranks = [t.shape[0] for name, t in initializers(out).items() if name in ("u_down", "k_down")]
    assert ranks and all(rank % 8 == 0 for rank in ranks)


def test_the_result_is_valid(tmp_path):
    _, out, _ = factorised(tmp_path, net(), 0.4)
    onnx.checker.check_model(onnx.load(out), full_check=True)
