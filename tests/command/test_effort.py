"""`--effort best`: the search trains weights under rounding."""

import numpy as np
import onnx
import pytest
import small
from onnx import helper, numpy_helper
from small import floats, node
from support import run_onnx, searched, sqnr_db, tried

BEST = ("--effort", "best", "--weight-bits", "4")


@pytest.fixture
def data(tmp_path):
    """Samples to calibrate and to train on."""
    np.savez(tmp_path / "data.npz", x=floats(0, 400, 3, 8, 8))
    return tmp_path / "data.npz"


@pytest.fixture
def narrow(tmp_path):
    """A network whose answers suffer most from the rounding of weights, where these have 4 bits."""
    return network(tmp_path / "narrow.onnx", depth=4, width=64, scale=0.1)


def network(path, depth, width, scale):
    """A network of so many convolutions of so many channels."""
    weights = {f"w{i}": floats(i, width, width if i else 3, 3, 3, scale=scale if i else 0.4) for i in range(depth)}
    weights |= {f"b{i}": floats(10 + i, width, scale=0.1) for i in range(depth)}
    nodes = []
    for i in range(depth):
        nodes += [
            node("Conv", f"{f'r{i}' if i else 'x'} w{i} b{i}", f"c{i}", f"conv{i}", pads=[1, 1, 1, 1]),
            node("Relu", f"c{i}", f"r{i + 1}"),
        ]
    nodes += [node("GlobalAveragePool", f"r{depth}", "p"), node("Flatten", "p", "y")]
    onnx.save(small.model(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", width])], weights), path)
    return path


@pytest.mark.slow
def test_training_makes_up_for_rounding_where_second_moments_don_t(compress, data, tmp_path):
    """In twelve layers that make noise grow, codes of 4 bits leave little of the answers."""
    deep = network(tmp_path / "deep.onnx", depth=12, width=64, scale=0.106)
    trials = tried(searched(compress, deep, data, tmp_path / "out.onnx", *BEST))
    at = next(i for i, t in enumerate(trials) if t["name"] == "training")
    before = [t for t in trials[:at] if t["kept"]][-1]
    assert trials[at]["kept"] and trials[at]["strong"] < before["strong"] / 1.3, trials[: at + 1]


def test_training_harms_nothing_where_rounding_was_good(compress, narrow, data, tmp_path):
    reached = {}
    for effort in ("normal", "best"):
        report = searched(compress, narrow, data, tmp_path / f"{effort}.onnx", "--effort", effort, "--weight-bits", "4")
        x = floats(9, 100, 3, 8, 8)
        [before], [after] = (run_onnx(m, {"x": x}, optimise=True) for m in (narrow, tmp_path / f"{effort}.onnx"))
        reached[effort] = sqnr_db(before, after)
    trained = [t for t in tried(report) if t["name"] == "training"]
    assert trained and "weights trained under rounding" in trained[0]["what"], tried(report)
    assert reached["best"] > reached["normal"] - 0.1, reached


def test_training_keeps_zeros_and_ends_in_time(compress, data, tmp_path):
    six = network(tmp_path / "six.onnx", depth=6, width=32, scale=0.1)
    prune = ("--prune", "0.5", "--epochs", "6")
    compress(six, *prune, "--data", data, "-o", tmp_path / "pruned.onnx")
    report = searched(compress, six, data, tmp_path / "out.onnx", *prune, "--effort", "best", "--weight-bits", "4")
    assert any(t["kept"] and t["name"] == "training" for t in tried(report)), tried(report)
    for name in ("w1", "w2"):
        [pruned] = [t for t in onnx.load(tmp_path / "pruned.onnx").graph.initializer if t.name == name]
        [codes] = [t for t in onnx.load(tmp_path / "out.onnx").graph.initializer if t.name == f"{name}_quantized"]
        before, after = (np.mean(numpy_helper.to_array(t) == 0) for t in (pruned, codes))
        assert after >= before > 0.4, (name, before, after)
    report = searched(compress, six, data, tmp_path / "out.onnx", "--effort", "best", "--time", "1us")
    assert [t["name"] for t in tried(report)] == ["start"]


def test_training_makes_the_same_bytes_on_one_thread_and_on_two(compress, data, tmp_path):
    # Training makes a quarter less noise here: it is kept, whatever the last bits of a processor's floats are.
    deep = network(tmp_path / "deep.onnx", depth=16, width=24, scale=0.17)
    args = ("--effort", "best", "--weight-bits", "4", "--epochs", "4")
    for threads in (1, 2):
        report = searched(compress, deep, data, tmp_path / f"{threads}.onnx", *args, "--threads", threads)
        assert any(t["kept"] and t["name"] == "training" for t in tried(report)), tried(report)
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes()


def with_end(narrow, last, **weights):
    """The network with two nodes behind it: a product, and one that makes `z` of its `m`."""
    model = onnx.load(narrow)
    model.graph.node.extend([node("MatMul", "y w4", "m"), last])
    weights["w4"] = floats(4, 64, 10, scale=0.1)
    model.graph.initializer.extend(numpy_helper.from_array(t, name) for name, t in weights.items())
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 10]))
    onnx.save(model, narrow)
    return narrow


def was_trained(report):
    return any(t["kept"] and t["name"] == "training" for t in tried(report))


def test_an_activation_that_codes_make_needless_is_no_reason_to_fail(compress, narrow, data, tmp_path):
    model = with_end(narrow, node("Relu", "m", "z"))
    report = searched(compress, model, data, tmp_path / "out.onnx", *BEST, "--epochs", "4")
    assert [t for t in tried(report) if t["name"] == "training"], tried(report)


@pytest.mark.parametrize("never", [-np.inf, -3.4e38])
def test_masked_answers_spoil_neither_training_nor_figures(compress, narrow, data, tmp_path, never):
    mask = np.where(np.arange(10) < 8, 0, never).astype(np.float32)
    model = with_end(narrow, node("Add", "m mask", "z"), mask=mask)
    report = searched(compress, model, data, tmp_path / "out.onnx", *BEST, "--epochs", "4")
    # There is no loss beside infinity: the file is as good as without training, and the report says so.
    said = [w for w in report["warnings"] if w.startswith("--effort best: weights were not trained: ")]
    assert was_trained(report) != bool(said), report["warnings"]
    x = floats(9, 50, 3, 8, 8)
    before, after = (run_onnx(m, {"x": x}, optimise=True)[0][:, :8] for m in (model, tmp_path / "out.onnx"))
    assert sqnr_db(before, after) > 15
    assert abs(report["accuracy"]["sqnr_db"] - sqnr_db(before, after)) < 6


def test_what_a_batch_mixes_is_not_kept_from_epoch_to_epoch(compress, tmp_path):
    """Values whose first axis is time: as long as a batch, and still not its samples."""
    weights = {
        "w": floats(1, 16, 256, scale=0.2),
        "v": floats(2, 256, 256, scale=0.05),
        "u": floats(3, 256, 16, scale=0.05),
    }
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("MatMul", "t w", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "b v", "c"),
        node("Relu", "c", "d"),
        node("MatMul", "d u", "e"),
        node("Transpose", "e", "y", perm=[1, 0, 2]),
    ]
    path = tmp_path / "steps.onnx"
    onnx.save(small.model(nodes, [("x", ["N", 2, 16])], [("y", ["N", 2, 16])], weights), path)
    # Samples of very different sizes: another's answers are far off.
    sizes = np.random.default_rng(0).uniform(0.2, 4, (200, 1, 1)).astype(np.float32)
    np.savez(tmp_path / "steps.npz", x=floats(4, 200, 2, 16) * sizes)
    report = searched(compress, path, tmp_path / "steps.npz", tmp_path / "out.onnx", *BEST)
    assert was_trained(report), tried(report)


def test_a_goal_is_reached_by_training_before_forms_that_cost_time(compress, narrow, data, tmp_path):
    report = searched(compress, narrow, data, tmp_path / "out.onnx", *BEST, "--min-sqnr", "38")
    names = [t["name"] for t in tried(report)]
    dear = [i for i, t in enumerate(tried(report)) if t["time"] > 0.7 and t["kept"]]
    assert dear and "training" in names[: dear[0]], tried(report)
    assert report["accuracy"]["sqnr_db"] >= 38


@pytest.mark.parametrize("effort", ["quick", "normal", "best"])
@pytest.mark.parametrize("width", [16, 40])
def test_a_weight_that_layers_read_along_different_axes(compress, tmp_path, effort, width):
    nodes = [
        node("MatMul", "x w", "a", "product"),
        node("Relu", "a", "b"),
        node("Gemm", "b w bias", "y", "transposed", transB=1),
    ]
    # Rows and columns of very different sizes: scales of one axis don't suit the other.
    spread = [10.0 ** np.random.default_rng(i).uniform(-1, 1, n) for i, n in enumerate((16, width))]
    weights = {"w": floats(1, 16, width) * np.outer(*spread).astype(np.float32), "bias": floats(2, 16)}
    path = tmp_path / "tied.onnx"
    onnx.save(small.model(nodes, [("x", ["N", 16])], [("y", ["N", 16])], weights), path)
    np.savez(tmp_path / "tied.npz", x=floats(3, 200, 16))
    report = searched(compress, path, tmp_path / "tied.npz", tmp_path / "out.onnx", "--effort", effort)
    x = floats(9, 50, 16)
    [before], [after] = (run_onnx(m, {"x": x}, optimise=True) for m in (path, tmp_path / "out.onnx"))
    assert sqnr_db(before, after) > report["accuracy"]["sqnr_db"] - 3


@pytest.mark.parametrize("bits", ["4", "8"])
@pytest.mark.parametrize("effort", ["quick", "normal", "best"])
def test_a_weight_that_an_excluded_layer_reads_too_stays_as_it_is(compress, tmp_path, effort, bits):
    weights = {"w0": floats(0, 32, 3, 3, 3, scale=0.4), "w": floats(1, 32, 32, 3, 3, scale=0.1)}
    weights |= {name: floats(i, 32, scale=0.1) for i, name in enumerate(("b_one", "b_two"))}
    nodes = [node("Conv", "x w0", "a", "first", pads=[1, 1, 1, 1])]
    for x, y in (("a", "one"), ("one", "two")):
        nodes += [node("Relu", x, f"{x}_relu"), node("Conv", f"{x}_relu w b_{y}", y, y, pads=[1, 1, 1, 1])]
    nodes += [node("Relu", "two", "two_relu"), node("GlobalAveragePool", "two_relu", "p"), node("Flatten", "p", "y")]
    path = tmp_path / "shared.onnx"
    onnx.save(small.model(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 32])], weights), path)
    np.savez(tmp_path / "data.npz", x=floats(1, 400, 3, 8, 8))
    flags = ("--effort", effort, "--weight-bits", bits, "--exclude", "two")
    report = searched(compress, path, tmp_path / "data.npz", tmp_path / "out.onnx", *flags)
    model = onnx.load(tmp_path / "out.onnx")
    [two] = [n for n in model.graph.node if n.name == "two"]
    [weight] = [t for t in model.graph.initializer if t.name == two.input[1]]
    np.testing.assert_array_equal(numpy_helper.to_array(weight), weights["w"])
    x = floats(9, 100, 3, 8, 8)
    [before], [after] = (run_onnx(m, {"x": x}, optimise=True) for m in (path, tmp_path / "out.onnx"))
    assert sqnr_db(before, after) > report["accuracy"]["sqnr_db"] - 2
