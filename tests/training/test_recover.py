"""Pruning under training, from the command to ONNX Runtime: budgets, and the worth of zeros."""

import hashlib
import re
import signal
import subprocess

import numpy as np
import onnx
import pytest
import small
from jobs import DIGITS, GRADUAL, INNER, TRAIN
from jobs import STUDENT as MODEL
from support import TIMEOUT, binary, listing, read_report, run_onnx, started


def points(path):
    """Test pictures in their right class, in percent, in ONNX Runtime."""
    test = np.load(DIGITS / "test.npz")
    return 100 * (run_onnx(path, {"input": test["x"]}, optimise=True)[0].argmax(1) == test["y"]).mean()


def noise_ratio(path):
    """How near the outputs on test pictures are to those of the shipped model, in decibels."""
    x = np.load(DIGITS / "test.npz")["x"]
    wanted, got = (run_onnx(p, {"input": x}, optimise=True)[0].astype(float) for p in (MODEL, path))
    return 10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum())


def divergence(path):
    """How far the probabilities of classes are from those of the shipped model on test pictures: the mean Kullback-Leibler divergence."""
    x = np.load(DIGITS / "test.npz")["x"]
    scores = (run_onnx(p, {"input": x}, optimise=True)[0].astype(float) for p in (MODEL, path))
    teacher, student = (s - s.max(1, keepdims=True) for s in scores)
    teacher, student = (s - np.log(np.exp(s).sum(1, keepdims=True)) for s in (teacher, student))
    return (np.exp(teacher) * (teacher - student)).sum(1).mean()


def inner(path):
    """The weights of the second and the third convolution, by size."""
    sizes = (64 * 32 * 9, 64 * 64 * 9)
    return {w.size: w for w in small.initializers(path).values() if w.size in sizes}


def zeros(path):
    return sum(int((w == 0).sum()) for w in inner(path).values())


def trained(report):
    return [t["name"] for p in report["passes"] for t in p.get("trained", [])]


@pytest.fixture(scope="module")
def digits(compress, tmp_path_factory):
    """Makes a model of the shipped one, once for all tests: its path and its report."""
    folder, made = tmp_path_factory.mktemp("digits"), {}

    def make(*flags, again=""):
        key = f"{' '.join(map(str, flags))} {again}".strip()
        if key not in made:
            output = folder / f"{len(made)}.onnx"
            made[key] = output, compress(MODEL, "--data", TRAIN, *flags, "--json", "-o", output).json()
        return made[key]

    return make


PRUNED = ["--prune", "0.97", "--epochs", "4", *GRADUAL]
# Rounding to 8 bits costs so little that training can hardly help.
FOUR = ["--weight-bits", "4", "--effort", "quick"]


def test_training_keeps_what_pruning_at_once_loses(digits):
    output, report = digits(*PRUNED)
    at_once, _ = digits("--prune", "0.97", "--epochs", "0", *GRADUAL)
    assert zeros(output) == zeros(at_once) == round(0.97 * INNER)
    # At 90% the shipped model hardly minds, trained or not.
    assert points(output) >= max(points(at_once) + 20, 96), (points(output), points(at_once))
    assert trained(report) == ["recover"]
    # Neither end was touched.
    assert all((w != 0).all() for w in small.initializers(output).values() if w.size in (32 * 9, 256 * 10))
    onnx.checker.check_model(output)


def test_training_wins_back_what_solving_leaves(digits):
    flags = ["--prune", "0.99", "--calibration-samples", "128"]
    (output, report), (solved, _) = digits(*flags, "--epochs", "4"), digits(*flags, "--epochs", "0")
    assert trained(report) == ["recover"]
    assert all(abs(zeros(path) - 0.99 * INNER) <= 2 for path in (output, solved))
    assert points(output) >= points(solved) + 0.8, (points(output), points(solved))
    assert divergence(output) <= 0.7 * divergence(solved), (divergence(output), divergence(solved))


def test_the_bytes_do_not_depend_on_run_or_threads(digits):
    runs = [digits(*PRUNED)[0]]
    runs += [digits(*PRUNED, "--threads", n, again="once more")[0] for n in (1, 2)]
    assert len({hashlib.sha256(p.read_bytes()).digest() for p in runs}) == 1


def test_qat_gets_used_to_four_bits(digits):
    (trained_so, report), (rounded, _) = digits("--qat", "--epochs", "2", *FOUR), digits("--int8", *FOUR)
    assert trained(report) == ["qat"]
    (qat,) = [t for p in report["passes"] for t in p.get("trained", [])]
    assert qat["epochs"] == qat["planned"] == 2 and qat["before"] is not None
    assert noise_ratio(trained_so) >= noise_ratio(rounded) + 3, (noise_ratio(trained_so), noise_ratio(rounded))
    assert points(trained_so) >= points(rounded) + 0.5, (points(trained_so), points(rounded))


def test_qat_keeps_the_zeros(digits):
    flags = ["--prune", "0.9", "--epochs", "2", *GRADUAL]
    (floats, _), (codes, report) = digits(*flags), digits(*flags, "--qat", *FOUR)
    assert trained(report) == ["recover", "qat"]
    assert zeros(floats) == round(0.9 * INNER)
    assert {w.dtype for w in inner(codes).values()} == {np.dtype(np.int8)}
    for size, c in inner(codes).items():
        # The same mask in both; a code may be zero besides.
        assert (c[inner(floats)[size] == 0] == 0).all()
    rounded, _ = digits(*flags, "--int8", *FOUR)
    assert noise_ratio(codes) >= noise_ratio(rounded) + 3, (noise_ratio(codes), noise_ratio(rounded))


def test_no_epochs_no_training(digits):
    _, report = digits("--prune", "0.97", "--epochs", "0", *GRADUAL)
    assert trained(report) == [] and "--epochs 0" in report["recipe"]["flags"]


def test_a_layer_budget_is_the_same_for_each(digits):
    flags = ["--prune", "0.8", "--epochs", "1", *GRADUAL]
    output, _ = digits(*flags, "--prune-budget", "layer")
    assert [(w == 0).sum() for w in inner(output).values()] == [round(0.8 * w.size) for w in inner(output).values()]
    together, _ = digits(*flags)
    assert len({round((w == 0).mean(), 3) for w in inner(together).values()}) == 2
    at_once, _ = digits("--prune", "0.8", "--epochs", "0", *GRADUAL, "--prune-budget", "layer")
    assert [(w == 0).sum() for w in inner(at_once).values()] == [round(0.8 * w.size) for w in inner(at_once).values()]


def test_a_pattern_is_trained_under_and_holds(digits):
    output, report = digits("--prune-pattern", "2:4", "--epochs", "2", *GRADUAL)
    assert trained(report) == ["recover"]
    for w in inner(output).values():
        assert ((w.reshape(len(w), -1, 4, 3, 3) == 0).sum(2) == 2).all()
    assert points(output) >= 98


def test_what_the_loss_feels_chooses_others(digits):
    flags = ["--prune", "0.9", "--epochs", "2"]
    (by_magnitude, _), (felt, _) = digits(*flags, *GRADUAL), digits(*flags, "--prune-by", "taylor")
    assert zeros(felt) == round(0.9 * INNER)
    masks = [np.concatenate([(w == 0).ravel() for _, w in sorted(inner(p).items())]) for p in (by_magnitude, felt)]
    assert (masks[0] != masks[1]).mean() > 0.001
    assert points(felt) >= 97


def untrainable(tmp_path):
    """A model that runs, of which the gradient is not known."""
    nodes = [
        small.node("Gemm", "input w1 b1", "h", "first", transB=1),
        small.node("Gemm", "h w2 b1", "i", "middle", transB=1),
        small.node("Reshape", "i shape", "square"),
        small.node("Det", "square", "d"),
        small.node("Unsqueeze", "d one", "column"),
        small.node("Mul", "i column", "scaled"),
        small.node("Gemm", "scaled w3 b1", "output", "last", transB=1),
    ]
    weights = {
        **{f"w{i}": small.floats(i, 4, 8 if i == 1 else 4) for i in (1, 2, 3)},
        "b1": small.floats(9, 4),
        "shape": np.int64([-1, 2, 2]),
        "one": np.int64([1]),
    }
    path = small.save(small.model(nodes, [("input", ["batch", 8])], [("output", ["batch", 4])], weights), tmp_path)
    np.savez(tmp_path / "data.npz", input=small.floats(5, 100, 8))
    return path


def test_the_learning_rate_suits_the_weights(compress, tmp_path):
    # A thousandth of the first layer's values, and a thousand times the weights behind it: the same function, as all between is ReLU.
    model = onnx.load(MODEL)
    for tensor in model.graph.initializer:
        by = {"bn1.weight": 1e-3, "bn1.bias": 1e-3, "conv2.weight": 1e3}.get(tensor.name)
        if by:
            values = onnx.numpy_helper.to_array(tensor) * np.float32(by)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    path = tmp_path / "small.onnx"
    onnx.save(model, path)

    def made(*flags):
        output = tmp_path / "out.onnx"
        flags = ["--prune", "0.98", "--calibration-samples", "128", *flags]
        done = compress(path, *flags, "--data", TRAIN, "-o", output, "--force")
        report = read_report(output.with_suffix(".report.json"))
        courses = [t for p in report["passes"] for t in p.get("trained", [])]
        return divergence(output), *courses, done.err

    (solved, _), (_, fixed, _) = made("--epochs", "0"), made("--epochs", "1", "--lr", "0.001")
    # The usual rate is larger than the weights of the first layer.
    assert fixed["course"][1]["score"] < fixed["before"] - 0.2 and fixed["after"] == fixed["before"]
    assert fixed["rate"] == 0.001 and "rate_trials" not in fixed
    after, found, told = made("--epochs", "1")
    assert found["rate"] < 0.0005 and after <= 0.7 * solved, (found["rate"], after, solved)
    untrained, *trials = found["rate_trials"]
    assert (untrained["rate"], untrained["steps"]) == (0, 0)
    rates = [t["rate"] for t in trials]
    assert len(rates) >= 2 and rates == sorted(rates)
    # The model is left as it was by trials: the same rate, asked for, makes the same.
    again, asked, _ = made("--epochs", "1", "--lr", str(found["rate"]))
    assert again == after and asked["course"] == found["course"]
    chosen = re.search(
        r"^recover: learning rate ([\d.]+), chosen by trials of (\d+) steps \((.*)\); --lr sets another$", told, re.M
    )
    assert float(chosen[1]) == found["rate"] and {int(chosen[2])} == {t["steps"] for t in trials}
    assert chosen[3].count(" at ") == len(trials) and " untrained, " in chosen[3]


@pytest.mark.parametrize("by", ["magnitude", "taylor"])
def test_trials_leave_masks_as_they_were(compress, tmp_path, by):
    flags = [
        "--prune",
        "0.9",
        "--prune-by",
        by,
        "--epochs",
        "1",
        "--data",
        TRAIN,
        "--json",
        "--force",
        "-o",
        tmp_path / "out.onnx",
    ]
    report = compress(MODEL, *flags).json()
    (found,) = [t for p in report["passes"] for t in p.get("trained", [])]
    chosen = (tmp_path / "out.onnx").read_bytes()
    # A model that isn't trained has lost its weights as well when it is compared.
    assert found["rate_trials"][0]["steps"] == found["rate_trials"][1]["steps"]
    compress(MODEL, *flags, "--lr", found["rate"])
    weights = small.initializers(tmp_path / "out.onnx")
    (tmp_path / "out.onnx").write_bytes(chosen)
    assert all(np.array_equal(w, weights[n]) for n, w in small.initializers(tmp_path / "out.onnx").items())


def test_a_tenth_of_the_rate_is_told(compress, tmp_path):
    args = [MODEL, "--qat", "--epochs", "1", *FOUR, "--data", TRAIN, "--force", "-o", tmp_path / "out.onnx"]
    told = compress(*args).err
    chosen = re.search(r"^qat: learning rate ([\d.]+), .*; --lr sets another, of which it takes a tenth$", told, re.M)
    (found,) = [t for p in read_report(tmp_path / "out.report.json")["passes"] for t in p.get("trained", [])]
    assert found["rate"] == float(chosen[1])
    asked = compress(*args, "--lr", "0.002", "--json").json()
    assert [t["rate"] for p in asked["passes"] for t in p.get("trained", [])] == [0.0002]


def test_a_model_that_cannot_be_trained_is_pruned_all_the_same(compress, tmp_path):
    path = untrainable(tmp_path)
    args = [path, "--prune", "0.5", *GRADUAL, "--data", tmp_path / "data.npz", "--json"]
    report = compress(*args).json()
    assert trained(report) == []
    assert any("no training won accuracy back" in w for w in report["warnings"])
    assert (small.initializers(tmp_path / "model.compressed.onnx")["w2"] == 0).sum() == 8
    before = listing(tmp_path)
    assert "Det" in compress(*args, "--epochs", "1", "--force", code=5).err
    assert listing(tmp_path) == before


def test_a_loss_that_is_no_number_ends_what_was_asked_for_alone(compress, cnn):
    data = ["--data", cnn.parent / "x.npz"]
    args = [cnn, "--prune", "0.5", "--lr", "1e30", *data]
    report = compress(*args, "--json").json()
    (said,) = [w for w in report["warnings"] if "no training won accuracy back" in w]
    assert "is not a number" in said and "--lr" in said and "--clip" not in said
    compress(cnn, "--prune", "0.5", "--epochs", "0", *data, "-q", "-o", cnn.parent / "solved.onnx")
    solved, kept = (small.initializers(cnn.parent / f"{n}.onnx") for n in ("solved", "model.compressed"))
    assert all(np.array_equal(solved[n], kept[n]) for n in solved)
    before = listing(cnn.parent)
    assert "is not a number" in compress(*args, "--epochs", "1", "--force", code=7).err
    assert listing(cnn.parent) == before


def test_what_training_did_is_told(compress, cnn):
    args = [cnn, "--prune", "0.7", "--prune-ends", "--data", cnn.parent / "x.npz", "--force"]
    result = compress(*args)
    plan = re.search(r"^recover: (\d+) epochs of (\d+) samples, .* or less", result.err, re.M)
    planned, samples = map(int, plan.groups())
    (line,) = [line for line in result.out.splitlines() if line.startswith("  recover ")]
    report = read_report(cnn.parent / "model.compressed.report.json")
    (course,) = [t for p in report["passes"] for t in p.get("trained", [])]
    assert (course["planned"], course["samples"]) == (planned, samples) == (50, 128)
    assert 1 <= course["epochs"] <= planned and course["metric"] == "agreement" and course["validated"] == 32
    assert course["after"] >= course["before"]
    assert f"{100 * course['before']:.2f}%" in line and f"{100 * course['after']:.2f}%" in line
    epochs = "50" if course["epochs"] == planned else f"{course['epochs']} of 50"
    assert f"agreement on 32 samples for validation; {epochs} epochs of 128 samples" in line
    assert line.endswith(course["ended"])
    # There is no score of a model that has yet to be pruned.
    report = compress(*args, *GRADUAL, "--epochs", "1", "--json").json()
    (course,) = [t for p in report["passes"] for t in p.get("trained", [])]
    assert course["before"] is None and course["after"] > 0 and course["epochs"] == course["planned"] == 1


def test_one_of_something_is_no_plural(compress, cnn):
    result = compress(cnn, "--prune", "0.7", "--epochs", "1", "--data", cnn.parent / "x.npz")
    assert "recover: 1 epoch of" in result.err and "1 epoch of 128 samples" in result.out
    assert "weights of 1 layer," in result.out
    assert not re.search(r"\b1 (samples|layers|epochs)\b", result.out + result.err)


def refused(compress, *args):
    """What the command says that ends before there was any work."""
    result = compress(*args, code=7)
    assert not re.search("weigh|solve|recover|calibrate", result.err), result.err
    return result.err


@pytest.mark.parametrize("label", [5, -1])
@pytest.mark.parametrize("where", [0, 50, 150, 199])
def test_labels_that_are_no_classes_are_refused_before_any_work(compress, cnn, label, where):
    y = np.arange(200) % 5
    y[where] = label
    data = cnn.parent / "bad.npz"
    np.savez(data, x=np.load(cnn.parent / "x.npz")["x"], y=y)
    said = refused(compress, cnn, "--prune", "0.5", "--data", data)
    assert f"label {label} of sample {where} (from 0) of {data}" in said and "5 classes" in said
    assert "model.onnx" not in said


def test_a_teacher_that_does_not_fit_is_refused_before_any_work(compress, tmp_path):
    student = small.save(small.mlp(), tmp_path)
    np.savez(tmp_path / "x.npz", x=small.floats(1, 200, 8))
    teachers = {
        "classes": (small.mlp(classes=7), "outputs", "[batch,7]"),
        "batch": (small.mlp(batch=1), "inputs", "[1,8]"),
        "pictures": (small.cnn(), "inputs", "[batch,3,12,12]"),
    }
    for name, (made, what, shape) in teachers.items():
        teacher = small.save(made, tmp_path, f"{name}.onnx")
        for command in ([student, "--prune", "0.5", "--prune-ends"], ["distill", student, "-o", tmp_path / "out.onnx"]):
            said = refused(compress, *command, "--data", tmp_path / "x.npz", "--teacher", teacher)
            assert f"{name}.onnx: " in said and f"the teacher's {what} " in said and shape in said and "help: " in said
    wider = small.save(small.mlp(width=64), tmp_path, "wider.onnx")
    args = ["--prune", "0.5", "--prune-ends", "--epochs", "1", "--data", tmp_path / "x.npz"]
    compress(student, *args, "--teacher", wider)


def test_scores_with_axes_of_size_one_are_trained(compress, tmp_path):
    nodes = [
        small.node("Conv", "input w1", "c", pads=[1, 1, 1, 1]),
        small.node("Relu", "c", "r"),
        small.node("Conv", "r w2", "d"),
        small.node("GlobalAveragePool", "d", "output"),
    ]
    weights = {"w1": small.floats(1, 8, 3, 3, 3), "w2": small.floats(2, 5, 8, 1, 1)}
    made = small.model(nodes, [("input", ["n", 3, 12, 12])], [("output", ["n", 5, 1, 1])], weights)
    np.savez(tmp_path / "xy.npz", x=small.floats(11, 100, 3, 12, 12), y=np.arange(100) % 5)
    args = ["--prune", "0.5", "--prune-ends", "--epochs", "1", "--data", tmp_path / "xy.npz", "--json"]
    assert trained(compress(small.save(made, tmp_path), *args).json()) == ["recover"]


def test_few_samples_are_said(compress, cnn):
    np.savez(cnn.parent / "few.npz", x=small.floats(11, 40, 3, 12, 12))

    def said(*flags):
        report = compress(cnn, "--prune", "0.5", "--force", "--json", *flags).json()
        return [w for w in report["warnings"] if "fewer than 64" in w]

    few = ["--data", cnn.parent / "few.npz"]
    assert "only 26 samples to train on" in said(*few, "--epochs", "1")[0]
    assert "weights are adjusted on only 32 samples" in said(*few, "--epochs", "0")[0]
    assert not said(*few, "--epochs", "0", *GRADUAL) and not said("--data", cnn.parent / "x.npz", "--epochs", "1")
    assert not said(), "made-up inputs have a warning of their own"


@pytest.mark.parametrize("flags", [["--prune", "0.5"], ["--prune", "0.5", *GRADUAL]], ids=" ".join)
def test_what_is_not_done_to_half_floats_is_said(compress, cnn, flags):
    made = onnx.load(cnn)
    for t in made.graph.initializer:
        t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t).astype(np.float16), t.name))
    for v in [*made.graph.input, *made.graph.output]:
        v.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    result = compress(small.save(made, cnn.parent, "half.onnx"), *flags, "--data", cnn.parent / "x.npz")
    assert "asked for pruning: 0 of 3 layers" in result.err
    assert "nothing was pruned: its weight is f16, only f32 is handled (3 layers)" in result.out


@pytest.mark.parametrize("flags", [["--int8"], ["--qat", "--epochs", "1"]], ids=" ".join)
def test_equal_biases_are_quantised_to_a_file_that_loads(compress, tmp_path, flags):
    """Three layers whose biases are zeros of one size: ONNX Runtime refuses two nodes of one name."""
    nodes = []
    for i in range(3):
        nodes.append(small.node("Conv", f"x{i} w{i} b{i}", f"c{i}", f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(small.node("Relu", f"c{i}", f"x{i + 1}"))
    weights = {f"w{i}": small.floats(i, 4, 4, 3, 3, scale=0.3) for i in range(3)}
    weights |= {f"b{i}": np.zeros(4, np.float32) for i in range(3)}
    made = small.model(nodes, [("x0", ["n", 4, 8, 8])], [("x3", ["n", 4, 8, 8])], weights)
    x = small.floats(9, 100, 4, 8, 8)
    np.savez(tmp_path / "x.npz", x=x)
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, *flags, "--data", tmp_path / "x.npz", "-q", "-o", output)
    wanted, got = (run_onnx(p, {"x0": x}, optimise=True)[0] for p in (path, output))
    assert 10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()) > 20


def test_an_interrupt_while_layers_are_solved_leaves_nothing(tmp_path):
    nodes = [small.node("Gemm", f"x{i} w{i}", f"x{i + 1}") for i in range(3)]
    weights = {f"w{i}": small.floats(i, 1536, 1536, scale=0.03) for i in range(3)}
    made = small.model(nodes, [("x0", ["n", 1536])], [("x3", ["n", 1536])], weights)
    np.savez(tmp_path / "x.npz", x=small.floats(9, 100, 1536))
    path, before = small.save(made, tmp_path), listing(tmp_path).keys() | {"model.onnx"}
    args = [path, "--prune", "0.5", "--prune-ends", "--data", tmp_path / "x.npz", "--no-check"]
    process = started([binary(), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "weigh: 3 steps" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and out == "" and "interrupted" in err and "solve:" not in err, err
    assert {p.name for p in tmp_path.iterdir()} == {str(name) for name in before}


@pytest.mark.parametrize("lines", [1, 3], ids=["trials", "training"])
def test_an_interrupt_while_training_leaves_nothing(tmp_path, lines):
    args = ["--prune", "0.9", *GRADUAL, "--epochs", "100000", "--data", TRAIN, "-o", tmp_path / "out.onnx"]
    process = started([binary(), MODEL, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for said in ("recover: 100000 epochs", "recover: learning rate", "epoch 0")[:lines]:
        assert said in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and out == "" and "interrupted" in err, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prune", "0.5", "--prune-by", "taylor", "--epochs", "0"], "taylor is for training"),
        (["--prune", "0.5", "--lr", "0.1", "--epochs", "0"], "--lr is for training"),
        (["--prune", "0.5", "--teacher", MODEL, "--epochs", "0"], "--teacher is for training"),
        (["--qat", "--epochs", "0"], "--qat is for training"),
        (["--prune-budget", "layer"], "needs --prune"),
        (["--prune-pattern", "2:4", "--prune-budget", "layer"], "cannot be used with"),
        (["--sweep", "0.5", "--prune", "0.5"], "cannot be used with"),
        (["--sweep", "0.5,1.5"], "not a fraction"),
    ],
    ids=lambda v: " ".join(map(str, v)) if isinstance(v, list) else "",
)
def test_nonsense_is_refused(compress, tmp_path, flags, says):
    assert says in compress(MODEL, "--data", TRAIN, "-o", tmp_path / "out.onnx", *flags, code=2).err


def test_zeros_are_told_as_they_are(compress, tmp_path):
    """A product by a matrix of mostly zeros is faster on our runtime; a 3x3 convolution is not."""
    nodes = [
        small.node("Conv", "input w1", "c", "conv", pads=[1, 1, 1, 1]),
        small.node("Relu", "c", "r"),
        small.node("Conv", "r w2", "d", "pixel"),
        small.node("Relu", "d", "output", "rectified"),
    ]
    weights = {"w1": small.floats(1, 64, 4, 3, 3), "w2": small.floats(2, 64, 64, 1, 1)}
    for w in weights.values():
        w[np.abs(w) < 1.645] = 0
    path = small.save(small.model(nodes, [("input", ["batch", 4, 16, 16])], [("output", None)], weights), tmp_path)
    report = compress(path, "--prune", "0.5", "--prune-ends", "--json").json()
    layers = {x["node"]: x for x in report["layers"]}
    assert layers["conv"]["skips_zeros"] is False and layers["pixel"]["skips_zeros"] is True
    for name, w in (("conv", weights["w1"]), ("pixel", weights["w2"])):
        assert layers[name]["live_bytes"] == 4 * np.count_nonzero(w)
        assert layers[name]["dead_bytes"] == 4 * (w == 0).sum()
    (said,) = [w for w in report["warnings"] if "zeros do not" in w]
    assert "skips the zeros of 1 (pixel) of the 2 pruned layers" in said
