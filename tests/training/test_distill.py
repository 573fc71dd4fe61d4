"""Training jobs: what is learnt."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from jobs import STUDENT, TRAIN, accuracy, distill, scales
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support import read_report

pytestmark = pytest.mark.slow


@pytest.fixture
def unlabelled(tmp_path):
    """The training pictures alone."""
    np.savez(tmp_path / "pictures.npz", x=np.load(TRAIN)["x"])
    return tmp_path / "pictures.npz"


def small_student(folder):
    """A student with a quarter of the weights, or so, without any batch normalisation."""
    rng = np.random.default_rng(1)
    tensors = {
        "w1": rng.normal(0, 0.3, (6, 1, 3, 3)),
        "b1": np.zeros(6),
        "w2": rng.normal(0, 0.1, (10, 96)),
        "b2": np.zeros(10),
    }
    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["logits"], "head", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "student",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tensors.items()],
    )
    path = folder / "student.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_labels_alone_train_a_model_from_nothing(compress, tmp_path):
    out = tmp_path / "trained.onnx"
    done, report = distill(compress, out, "--from-nothing", "--epochs", 12, "--batch", 32, "--lr", "0.003")
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert accuracy(out) > 0.95
    training = report["training"]
    assert training["metric"] == "top1" and training["before"] < 0.3
    assert abs(training["after"] - accuracy(out)) < 1e-6
    assert "top1" in done.out and "bound by" in done.out
    # The graph is the one that came in: names, normalisation, dynamic batch.
    a, b = onnx.load(STUDENT).graph, onnx.load(out).graph
    assert [n.op_type for n in a.node] == [n.op_type for n in b.node]
    assert [i.name for i in a.initializer] == [i.name for i in b.initializer]
    changed = [
        x.name for x, y in zip(a.initializer, b.initializer) if x.raw_data != y.raw_data or x.float_data != y.float_data
    ]
    assert len(changed) >= 10, "running statistics are learnt too"


def test_a_teacher_alone_is_enough(compress, tmp_path, unlabelled):
    student = small_student(tmp_path)
    out = tmp_path / "trained.onnx"
    compress("distill", student, "--teacher", STUDENT, "--data", unlabelled, "--epochs", 15, "--batch", 32, "-o", out,
             "--lr", "0.01")  # fmt: skip
    report = read_report(out.with_suffix(".report.json"))
    assert report["training"]["metric"] == "agreement"
    assert report["training"]["after"] > 0.85 > report["training"]["before"]
    assert accuracy(out) > 0.85


def test_a_recipe_says_what_the_flags_say(compress, tmp_path):
    recipe, flags = tmp_path / "job.toml", ["--epochs", 2, "--ema", "0.9", "--augment", "crop=1", "--clip", "1"]
    flags += ["--precision", "bf16", "--replicas", 2, "--threads", 2]
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    distill(compress, one, *flags, "--save-recipe", recipe)
    text = recipe.read_text().replace("one.onnx", "two.onnx")
    assert all(line in text for line in ["ema = 0.9", 'precision = "bf16"', "replicas = 2"])
    recipe.write_text(text)
    compress("run", recipe)
    weights = [{t.name: t.raw_data for t in onnx.load(m).graph.initializer} for m in (one, two)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("student = true", 2, "student"),
        ("", 2, "job"),
        ('student = "s.onnx"\nepochs = 0', 2, "epochs"),
        ('student = "s.onnx"\n[train]\nepochs = -1', 2, "epochs"),
        ('student = "s.onnx"\n[train]\nlr = nan', 2, "lr"),
        ('student = "s.onnx"\n[train]\nteecher = "t.onnx"', 2, "teecher"),
        ('student = "s.onnx"\n[train]\ndata = "nowhere"', 6, "s.onnx"),
        ('student = "s.onnx"\nteacher = "t.onnx"\ndata = "d"\nfeatures = 1', 2, "--match"),
        ('student = "s.onnx"\ndata = "d"\nmse = 1', 2, "--teacher"),
    ],
)
def test_a_wrong_recipe_is_refused(compress, tmp_path, text, code, says):
    recipe = tmp_path / "job.toml"
    recipe.write_text(text)
    done = compress("run", recipe, code=code, cwd=tmp_path)
    assert says in done.err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--epochs", "0"], 2, "--epochs"),
        (["--lr", "-1"], 2, "--lr"),
        (["--distill", "1"], 2, "--teacher"),
        (["--match", "a=b"], 2, "--teacher"),
        (["--teacher", STUDENT, "--match", "a"], 2, "STUDENT_VALUE=TEACHER_VALUE"),
        (["--teacher", STUDENT, "--match", "nothing=logits"], 2, "nothing"),
        (["--optimiser", "magic"], 2, "adamw"),
        (["--schedule", "magic"], 2, "cosine"),
        (["--precision", "f8"], 2, "bf16"),
        (["--replicas", "0"], 2, "--replicas"),
        (["--replicas", "2", "--threads", "1"], 2, "2 replicas for 1 threads"),
        (["--replicas", "5", "--threads", "8", "--batch", "4"], 2, "5 replicas for 4 samples"),
        (["--augment", "magic"], 2, "flip"),
        (["--time", "soon"], 2, "30m"),
        (["--freeze", "("], 2, "--freeze"),
        (["--freeze", "."], 2, "every weight that can be trained is frozen"),
        (["--labels", "0"], 2, "nothing to learn from"),
    ],
)
def test_what_makes_no_sense_is_refused(compress, tmp_path, args, code, says):
    done, _ = distill(compress, tmp_path / "out.onnx", *args, code=code)
    assert says in done.err
    assert not (tmp_path / "out.onnx").exists()


def test_nothing_is_overwritten_unasked(compress, tmp_path):
    out = tmp_path / "out.onnx"
    distill(compress, out, "--epochs", 1)
    before = out.read_bytes()
    done, _ = distill(compress, out, "--epochs", 1, code=6)
    assert "--force" in done.err and out.read_bytes() == before
    out.unlink()
    out.with_suffix(".report.json").unlink()
    done, _ = distill(compress, out, "--epochs", 1, code=6)
    assert "--resume" in done.err and "--force" in done.err
    distill(compress, out, "--epochs", 1, "--force")
    assert out.read_bytes() == before


def test_threads_and_workers_change_nothing(compress, tmp_path):
    made = []
    for i, args in enumerate([["--threads", 1, "--workers", 1], ["--threads", 2, "--workers", 3]]):
        out = tmp_path / f"{i}.onnx"
        distill(compress, out, "--epochs", 2, "--augment", "crop=1,mixup=0.2", "--accumulate", 2, *args)
        made.append({t.name: t.raw_data for t in onnx.load(out).graph.initializer})
    assert made[0] == made[1]


def weights(model):
    """The weights of a model by name."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}


def test_replicas_depend_on_their_number_alone(compress, tmp_path):
    made = []
    for i, args in enumerate([["--replicas", 2, "--threads", 2], ["--replicas", 2, "--threads", 5], []]):
        out = tmp_path / f"{i}.onnx"
        distill(compress, out, "--epochs", 2, "--augment", "crop=1,mixup=0.2", "--batch", 33, "--accumulate", 2,
                "--teacher", STUDENT, "--from-nothing", *args)  # fmt: skip
        made.append(weights(out))
    assert all((made[0][name] == made[1][name]).all() for name in made[0])
    # Each normalises its own part.
    assert any((made[0][name] != made[2][name]).any() for name in made[0])


def test_replicas_add_up_to_one(compress, tmp_path):
    """Where nothing mixes samples they find the same gradients, but for how sums are rounded."""
    student, made = small_student(tmp_path), []
    for replicas in (1, 2, 3):
        out = tmp_path / f"{replicas}.onnx"
        args = ["--epochs", 2, "--optimiser", "sgd", "--augment", "mixup=0.2", "--threads", 3, "--replicas", replicas]
        distill(compress, out, *args, student=student)
        made.append(weights(out))
    for other in made[1:]:
        for name, expected in made[0].items():
            np.testing.assert_allclose(other[name], expected, rtol=1e-4, atol=1e-5)


def test_replicas_need_batches_of_any_size(compress, tmp_path):
    model = onnx.load(small_student(tmp_path))
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(model, tmp_path / "fixed.onnx")
    args = ["--replicas", 2, "--threads", 2]
    done, _ = distill(compress, tmp_path / "out.onnx", *args, student=tmp_path / "fixed.onnx", code=2)
    assert "--replicas 2" in done.err and "fixes the size of a batch" in done.err


def multiplies_bf16():
    """Whether this processor has products of bf16, beside the sets that there are kernels for."""
    about = Path("/proc/cpuinfo")
    flags = set(about.read_text().split()) if about.exists() else set()
    return {"avx512_bf16", "avx512_vnni"} <= flags or {"asimd", "bf16"} <= flags


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_half_precision_learns(compress, tmp_path, precision):
    made = []
    for i in range(2):
        out = tmp_path / f"{i}.onnx"
        args = ["--from-nothing", "--epochs", 6, "--batch", 32, "--lr", "0.003", "--precision", precision]
        done, report = distill(compress, out, *args)
        slow = precision == "f16" or not multiplies_bf16()
        assert ("slower than in f32" in done.err, any("slower" in w for w in report["warnings"])) == (slow, slow)
        made.append(out.read_bytes())
    assert made[0] == made[1]
    assert accuracy(out) > 0.9
    # Half the width is for computing alone: the model keeps its own types.
    types = [{t.name: t.data_type for t in onnx.load(m).graph.initializer} for m in (STUDENT, out)]
    assert types[0] == types[1]


def test_gradients_that_overflow_are_skipped(compress, tmp_path):
    out = tmp_path / "out.onnx"
    args = ["--from-nothing", "--epochs", 4, "--lr", "0.003", "--batch", 32, "--precision", "f16", "--labels", 10_000]
    done, _ = distill(compress, out, *args)
    # The first batches overflow, which is not a divergence: the learning rate stays, and the model learns.
    assert scales(out)[-1] < 65536 / 16 and "half the learning rate" not in done.err
    assert accuracy(out) > 0.8
    # No scale is left to lower: this is one.
    other = tmp_path / "other.onnx"
    done, _ = distill(compress, other, *args[:-1], 1e9, code=7)
    assert "half the learning rate" in done.err and not other.exists()


def test_frozen_weights_stay(compress, tmp_path):
    out = tmp_path / "out.onnx"
    names = [i.name for i in onnx.load(STUDENT).graph.initializer]
    # From nothing its values are drawn, by the seed alone.
    frozen = onnx.load(STUDENT).graph.node[0].input[1]
    drawn = tmp_path / "drawn.onnx"
    distill(compress, drawn, "--epochs", 1, "--lr", "1e-30", "--from-nothing", "--weight-decay", "0")
    distill(compress, out, "--epochs", 2, "--freeze", f"^{frozen}$", "--from-nothing")
    old, new = ({t.name: t.raw_data for t in onnx.load(m).graph.initializer} for m in (drawn, out))
    assert old[frozen] == new[frozen]
    assert sum(old[n] != new[n] for n in names) > len(names) / 2


def test_weights_that_are_transposed_in_the_graph_are_trained(compress, tmp_path):
    """As PyTorch's exporter writes linear layers: MatMul by Transpose of the weight, then Add."""
    rng = np.random.default_rng(0)
    tensors = {"w1": rng.normal(0, 0.1, (32, 64)), "b1": np.zeros(32), "w2": rng.normal(0, 0.1, (10, 32))}
    nodes = [
        helper.make_node("Flatten", ["input"], ["x"]),
        helper.make_node("Transpose", ["w1"], ["t1"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t1"], ["m"]),
        helper.make_node("Add", ["b1", "m"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Transpose", ["w2"], ["t2"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "t2"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tensors.items()],
    )
    student, out = tmp_path / "mlp.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), student)
    done, report = distill(compress, out, "--from-nothing", "--epochs", 8, "--lr", "0.01", student=student)
    assert report["training"]["parameters"] == 32 * 64 + 32 + 10 * 32
    assert accuracy(out) > 0.9


def test_features_are_matched(compress, tmp_path, unlabelled):
    student = small_student(tmp_path)
    out = tmp_path / "out.onnx"
    compress("distill", student, "--teacher", STUDENT, "--data", unlabelled, "--epochs", 8, "--match", "logits=logits",
             "--distill", "0", "-o", out, "--lr", "0.01")  # fmt: skip
    lines = (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()
    losses = [r["loss_features"] for r in map(json.loads, lines) if "loss_features" in r]
    assert losses and losses[-1] < losses[0] / 2


def test_a_loss_that_is_no_number_ends_the_job(compress, tmp_path):
    out = tmp_path / "out.onnx"
    done, _ = distill(compress, out, "--epochs", 5, "--optimiser", "sgd", "--lr", "1e30", "--clip", "0", "--warmup", "0",
                      code=7)  # fmt: skip
    assert "half the learning rate" in done.err and "--lr" in done.err
    assert not out.exists()


def test_loading_is_told_from_training(compress, tmp_path):
    """Large pictures for a small network: loading limits. Rows of an array: it doesn't. Nothing is written."""
    pictures, rng = tmp_path / "pictures", np.random.default_rng(3)
    for i in range(40):
        folder = pictures / str(i % 10)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (900, 900), np.uint8)).save(folder / f"{i}.png")
    job = ["distill", STUDENT, "--labels", 1, "--batch", 8, "--time", "2s", "--ablate-data"]
    loading = ["--data", pictures, "--preprocess", "resize=8,crop=8"]
    before = sorted(tmp_path.rglob("*"))
    found = json.loads(compress(*job, *loading, "--json").out)
    assert found["loading_limits"] is True and found["loading_costs"] > 0.5
    assert found["loaded"]["spent"]["data"] > found["loaded"]["spent"]["compute"]
    said = compress(*job, *loading).out
    assert "loading costs" in said and "training waits for samples" in said and "as asked" in said
    rows = json.loads(compress(*job, "--data", TRAIN, "--json").out)
    assert rows["loading_costs"] < found["loading_costs"] and rows["student"].endswith("digits.onnx")
    assert sorted(tmp_path.rglob("*")) == before and not (STUDENT.parent / "digits.trained.job").exists()
    for other in ("--dry-run", "--resume", "--strict"):
        assert "cannot be used with" in compress(*job, "--data", TRAIN, other, code=2).err
