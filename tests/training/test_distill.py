"""Training jobs: what is learnt, and that a job can be stopped or killed at any moment."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import ROOT, binary, run_onnx

pytestmark = pytest.mark.slow

DIGITS = ROOT / "models/digits"
STUDENT, TRAIN, TEST = DIGITS / "digits.onnx", DIGITS / "train.npz", DIGITS / "test.npz"


def accuracy(model, data=TEST):
    """The share of right classes in ONNX Runtime."""
    data = np.load(data)
    (scores,) = run_onnx(model, {"input": data["x"]})
    return (scores.argmax(1) == data["y"]).mean()


def distill(compress, out, *args, student=STUDENT, code=0, **rest):
    """Trains; gives what the command said and the report."""
    done = compress("distill", student, "--data", TRAIN, "--eval", TEST, "-o", out, *args, code=code, **rest)
    report = out.with_suffix(".report.json")
    return done, json.loads(report.read_text()) if report.exists() else None


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
    report = json.loads(out.with_suffix(".report.json").read_text())
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


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_half_precision_learns(compress, tmp_path, precision):
    made = []
    for i in range(2):
        out = tmp_path / f"{i}.onnx"
        args = ["--from-nothing", "--epochs", 6, "--batch", 32, "--lr", "0.003", "--precision", precision]
        done, report = distill(compress, out, *args)
        assert "slower than in f32" in done.err and any("slower" in w for w in report["warnings"])
        made.append(out.read_bytes())
    assert made[0] == made[1]
    assert accuracy(out) > 0.9
    # Half the width is for computing alone: the model keeps its own types.
    types = [{t.name: t.data_type for t in onnx.load(m).graph.initializer} for m in (STUDENT, out)]
    assert types[0] == types[1]


def scales(out):
    """By what the loss was multiplied, as the log tells."""
    lines = (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()
    return [r["scale"] for r in map(json.loads, lines) if "scale" in r]


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


def job(out, *args):
    """A long job as a process."""
    return subprocess.Popen(
        [binary(), "distill", STUDENT, "--data", TRAIN, "--eval", TEST, "-o", out, "--epochs", "6", "--batch", "16",
         "--from-nothing", "--augment", "crop=1", "--accumulate", "3", "--ema", "0.99", "--save-every", "0.05s", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(out, *args):
    """Goes on with a job to its end; what it said."""
    process = job(out, "--resume", *args)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What the long job makes when nobody disturbs it, the seconds it takes, and its log."""
    out = tmp_path_factory.mktemp("unbroken") / "out.onnx"
    began = time.monotonic()
    process = job(out)
    assert process.wait() == 0, process.stderr.read()
    return out.read_bytes(), time.monotonic() - began, records(out)


def records(out):
    """The log of a job without what depends on the time."""
    lines = (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in lines]


def killed(out, share, unbroken, *args):
    """Kills a long job when its log has some share of all records; its checkpoints, the oldest first."""
    process = reached(out, share, unbroken, *args)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    return sorted(out.with_suffix(".job").glob("checkpoint-*"))


def reached(out, share, unbroken, *args):
    """A job whose log has some share of all records."""
    process, log = job(out, *args), out.with_suffix(".job") / "metrics.jsonl"
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < share * len(unbroken[2])):
        time.sleep(0.002)
    return process


def test_a_killed_job_goes_on_to_the_same_bytes(tmp_path, unbroken):
    rng = random.Random(0)
    for i in range(6):
        out = tmp_path / f"{i}.onnx"
        killed(out, rng.uniform(0, 0.95), unbroken)
        finished(out)
        assert out.read_bytes() == unbroken[0], f"kill {i}"
        # Several batches make a step, so a checkpoint between them must not let any be told twice.
        assert records(out) == unbroken[2], f"kill {i}"


def test_half_precision_goes_on_to_the_same_bytes(tmp_path):
    # Large losses overflow first, so that a scale that isn't kept would be found out.
    args = ["--precision", "f16", "--labels", "1000"]
    out = tmp_path / "unbroken.onnx"
    process = job(out, *args)
    assert process.wait() == 0, process.stderr.read()
    unbroken = (out.read_bytes(), None, records(out))
    assert scales(out)[-1] < 65536
    for share in (0.05, 0.6):
        out = tmp_path / f"{share}.onnx"
        killed(out, share, unbroken, *args)
        finished(out, *args)
        assert out.read_bytes() == unbroken[0] and records(out) == unbroken[2], share


def test_ctrl_c_saves_and_goes_on(tmp_path, unbroken):
    expected = unbroken[0]
    out = tmp_path / "out.onnx"
    process = reached(out, 0.3, unbroken)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and "--resume" in said, said
    assert not out.exists() and list(out.with_suffix(".job").glob("checkpoint-*"))
    finished(out)
    assert out.read_bytes() == expected


SPOILT = {
    "flipped": lambda p: p.write_bytes((data := p.read_bytes())[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
    "cut": lambda p: os.truncate(p, p.stat().st_size // 2),
    "empty": lambda p: os.truncate(p, 0),
    "deleted": Path.unlink,
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_checkpoint_falls_back_to_the_one_before(tmp_path, unbroken, how):
    out = tmp_path / "out.onnx"
    saved = killed(out, 0.7, unbroken)
    assert len(saved) == 2
    SPOILT[how](saved[-1])
    assert saved[-1].name in finished(out) or how == "deleted"
    assert out.read_bytes() == unbroken[0] and records(out) == unbroken[2]


def test_no_whole_checkpoint_is_an_error(tmp_path, unbroken):
    out = tmp_path / "out.onnx"
    saved = killed(out, 0.7, unbroken)
    for path in saved:
        SPOILT["cut"](path)
    process = job(out, "--resume")
    _, said = process.communicate()
    assert process.returncode == 6 and all(p.name in said for p in saved) and "--force" in said, said
    assert not out.exists()


def test_another_recipe_does_not_resume(compress, tmp_path, unbroken):
    out = tmp_path / "out.onnx"
    killed(out, 0.5, unbroken)
    done, _ = distill(compress, out, "--epochs", 3, "--resume", code=2)
    assert "--checkpoint" in done.err and "--force" in done.err


@pytest.mark.parametrize("which", ["student", "teacher", "eval"])
def test_a_job_with_other_files_does_not_resume(compress, tmp_path, which):
    files = {"student": STUDENT, "teacher": STUDENT, "eval": TEST}
    for name, source in files.items():
        files[name] = tmp_path / f"{name}{source.suffix}"
        shutil.copy(source, files[name])
    args = ["distill", files["student"], "--teacher", files["teacher"], "--data", TRAIN, "--eval", files["eval"], "-o",
            tmp_path / "out.onnx", "--epochs", 60, "--save-every", "0.1s"]  # fmt: skip
    command = [str(a) for a in [binary(), *args]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "out.job").glob("checkpoint-*")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    if which == "eval":
        data = dict(np.load(TEST))
        np.savez(files["eval"], x=data["x"][1:], y=data["y"][1:])
    else:
        model = onnx.load(STUDENT)
        model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
        onnx.save(model, files[which])
    done = compress(*command[1:], "--resume", code=2)
    assert "recipe" in done.err


def test_a_full_disk_leaves_whole_files(tmp_path):
    out = tmp_path / "out.onnx"
    # Room for the data, which is unpacked to a temporary file, and not for a checkpoint.
    limit = 400_000
    np.savez(tmp_path / "few.npz", **{k: v[:64] for k, v in np.load(TRAIN).items()})
    process = subprocess.run(
        [binary(), "distill", STUDENT, "--data", tmp_path / "few.npz", "--eval", TEST, "-o", out, "--epochs", "2", "--quiet"],
        preexec_fn=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ),
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 6, process.stderr
    assert not out.exists()
    assert not [p for p in Path(tmp_path).rglob("*") if p.name.startswith((".checkpoint-", ".compress-"))]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB that is full, and the file that fills it."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        (place / "filler").write_bytes(bytes(os.statvfs(place).f_bavail * os.statvfs(place).f_bsize))
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_file_system_leaves_whole_files(compress, tmp_path, small_disk):
    done, _ = distill(compress, tmp_path / "out.onnx", "--checkpoint", small_disk / "job", code=6)
    assert "No space left" in done.err
    out = small_disk / "out.onnx"
    (small_disk / "filler").unlink()
    out.write_bytes(b"old")
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    args = ["--checkpoint", tmp_path / "job", "--epochs", 2]
    done, _ = distill(compress, out, *args, "--force", code=6)
    assert "No space left" in done.err and out.read_bytes() == b"old"
    assert sorted(p.name for p in small_disk.iterdir() if p.name != "job") == ["filler", "out.onnx"]
    (small_disk / "filler").unlink()
    _, report = distill(compress, out, *args, "--resume")
    assert report["training"]["spent"]["compute"] == 0, "only the output was missing"


def test_a_finished_job_is_not_done_again(compress, tmp_path):
    out = tmp_path / "out.onnx"
    begun, first = distill(compress, out, "--epochs", 1, "--resume")
    assert "no checkpoint to go on from" in begun.err
    made = out.read_bytes(), out.stat().st_mtime_ns
    again, report = distill(compress, out, "--epochs", 1, "--resume")
    assert "is done already" in again.out and "--force" in again.out
    assert report == first and (out.read_bytes(), out.stat().st_mtime_ns) == made
    again, _ = distill(compress, out, "--epochs", 1, "--resume", "--json")
    assert json.loads(again.out) == first
    # What another recipe would make, or somebody else did, is not replaced.
    other, _ = distill(compress, out, "--epochs", 2, "--resume", code=6)
    assert "not what this job made" in other.err and "--force" in other.err
    out.write_bytes(b"changed")
    other, _ = distill(compress, out, "--epochs", 1, "--resume", code=6)
    assert out.read_bytes() == b"changed"
    # Without the model it is made again.
    out.unlink()
    distill(compress, out, "--epochs", 1, "--resume")
    assert out.read_bytes() == made[0]


def test_one_job_a_folder(compress, tmp_path):
    out = tmp_path / "out.onnx"
    process = job(out)
    while not (out.with_suffix(".job") / "metrics.jsonl").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    try:
        for flag in ("--force", "--resume"):
            done, _ = distill(compress, out, flag, code=6)
            assert "another training job" in done.err
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("what", ["data", "student"])
def test_files_cut_short_while_they_are_used(tmp_path, what):
    files = {"student": tmp_path / "student.onnx", "data": tmp_path / "pictures.npy"}
    shutil.copy(STUDENT, files["student"])
    np.save(files["data"], np.load(TRAIN)["x"])
    out = tmp_path / "out.onnx"
    process = subprocess.Popen(
        [binary(), "distill", files["student"], "--teacher", STUDENT, "--data", files["data"], "--eval", TEST,
         "-o", out, "--epochs", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = out.with_suffix(".job") / "metrics.jsonl"
    while not log.exists():
        time.sleep(0.002)
    os.truncate(files[what], 1000)
    _, said = process.communicate()
    assert process.returncode == 6 and "error: file: " in said, said
    assert not out.exists()


def test_the_memory_chooses_the_batch_once(compress, tmp_path):
    out = tmp_path / "out.onnx"
    command = ["distill", STUDENT, "--data", TRAIN, "--eval", TEST, "-o", out, "--batch", "auto", "--epochs", "10",
               "--save-every", "0.1s"]  # fmt: skip
    process = subprocess.Popen([binary(), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.with_suffix(".job").glob("checkpoint-*")):
        time.sleep(0.002)
    process.kill()
    process.wait()
    compress(*command, "--resume")
    assert json.loads(out.with_suffix(".report.json").read_text())["training"]["batch"] == 64
