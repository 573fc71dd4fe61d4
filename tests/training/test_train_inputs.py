"""Training jobs on models, teachers and data that are odd, or do not go together."""

import numpy as np
import onnx
import pytest
from jobs import STUDENT, TEST, TRAIN, distill
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support import read_report, session


def changed(path, change):
    """The student, changed."""
    model = onnx.load(STUDENT)
    change(model.graph)
    onnx.save(model, path)
    return path


def of_seven_classes(graph):
    """Leaves three classes out."""
    for t in graph.initializer:
        if t.name.startswith("fc."):
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t)[:7].copy(), t.name))
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7


def of_bytes(graph):
    """Takes bytes."""
    graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    graph.node.insert(0, helper.make_node("Cast", ["input"], ["cast"], to=TensorProto.FLOAT))
    graph.node[1].input[0] = "cast"


def without_numbers(graph):
    """Spoils a weight."""
    weight = numpy_helper.to_array(graph.initializer[0]).copy()
    weight.flat[0] = np.nan
    graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, graph.initializer[0].name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (of_seven_classes, "teacher.onnx: the teacher's outputs ("),
        (of_bytes, "teacher.onnx: the teacher's inputs (`input` u8["),
        (without_numbers, "teacher.onnx: its outputs on the data have NaN"),
    ],
)
def test_a_teacher_that_does_not_suit_is_refused(compress, tmp_path, change, says):
    teacher = changed(tmp_path / "teacher.onnx", change)
    done, _ = distill(compress, tmp_path / "out.onnx", "--teacher", teacher, "--epochs", 1, code=7)
    assert says in done.err


def test_a_teacher_of_other_classes_can_give_features(compress, tmp_path):
    teacher = changed(tmp_path / "teacher.onnx", of_seven_classes)
    features = "/Flatten_output_0=/Flatten_output_0"
    _, report = distill(compress, tmp_path / "out.onnx", "--teacher", teacher, "--distill", 0, "--labels", 1, "--match",
                        features, "--epochs", 1)  # fmt: skip
    assert report["training"]["metric"] == "top1" and report["training"]["after"] > 0.9


def test_inputs_with_defaults_need_no_data(compress, tmp_path):
    def scaled(graph):
        graph.input.insert(0, helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
        graph.initializer.append(numpy_helper.from_array(np.float32(1), "scale"))
        graph.node.insert(0, helper.make_node("Mul", ["input", "scale"], ["scaled"]))
        graph.node[1].input[0] = "scaled"

    out = tmp_path / "out.onnx"
    flags = ["--epochs", 1, "--keep-initializer-inputs"]
    _, report = distill(compress, out, *flags, student=changed(tmp_path / "student.onnx", scaled))
    assert report["training"]["after"] > 0.9
    assert [i.name for i in onnx.load(out).graph.input] == ["scale", "input"]


def test_weights_that_callers_may_replace_are_not_trained(compress, tmp_path):
    """With the flag they are inputs with defaults; without it, and up to IR version 3, they are weights."""

    def listed(graph):
        for t in graph.initializer:
            graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))

    student = changed(tmp_path / "student.onnx", listed)
    keep = "--keep-initializer-inputs"
    done, _ = distill(compress, tmp_path / "out.onnx", "--epochs", 1, keep, student=student, code=5)
    assert "inputs too" in done.err and keep in done.err
    _, report = distill(compress, tmp_path / "out.onnx", "--epochs", 1, student=student)
    assert report["training"]["after"] > 0.9
    model = onnx.load(student)
    model.ir_version = 3
    onnx.save(model, student)
    _, report = distill(compress, tmp_path / "old.onnx", "--epochs", 1, keep, student=student)
    assert report["training"]["after"] > 0.9


def test_a_model_for_one_sample_is_trained_sample_by_sample(compress, tmp_path):
    def alone(graph):
        for value in (graph.input[0], graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_value = 1

    data = np.load(TRAIN)
    np.savez(tmp_path / "few.npz", x=data["x"][:64], y=data["y"][:64])
    student = changed(tmp_path / "student.onnx", alone)
    out = tmp_path / "out.onnx"
    student = changed(tmp_path / "student.onnx", alone)
    compress("distill", student, "--data", tmp_path / "few.npz", "--eval", TEST, "-o", out, "--epochs", 1,
             "--accumulate", 32)  # fmt: skip
    report = read_report(out.with_suffix(".report.json"))
    assert report["training"]["batch"] == 1 and report["training"]["steps"] == 2
    assert report["warnings"] == []
    for batch in ("8", "auto"):
        done = compress("distill", student, "--data", tmp_path / "few.npz", "--eval", TEST, "-o", out, "--epochs", 1,
                        "--batch", batch, "--force")  # fmt: skip
        report = read_report(out.with_suffix(".report.json"))
        (warning,) = report["warnings"]
        assert f"--batch {batch} has no effect" in warning and warning in done.err


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_that_are_no_classes_are_refused(compress, tmp_path, label):
    data = np.load(TRAIN)
    y = data["y"][:100].copy()
    y[7] = label
    few = tmp_path / "few.npz"
    np.savez(few, x=data["x"][:100], y=y)
    out = tmp_path / "out.onnx"
    for data, held in ((few, TEST), (TRAIN, few)):
        done = compress("distill", STUDENT, "--data", data, "--eval", held, "-o", out, code=7)
        assert f"label {label} of sample 7 (from 0) of {few}" in done.err
        # It was found before the job began.
        assert not out.with_suffix(".job").exists()


def test_folders_that_are_no_classes_are_refused(compress, tmp_path):
    for label in range(11):
        (tmp_path / "set" / f"{label:02}").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "set" / f"{label:02}" / "one.png")
    done = compress("distill", STUDENT, "--data", tmp_path / "set", "--eval", TEST, "-o", tmp_path / "out.onnx", code=7)
    assert f"label 10 of {tmp_path}/set/10/one.png" in done.err and "each folder of pictures is a class" in done.err


def test_classes_may_have_axes_of_size_one(compress, tmp_path):
    """As of models that end in a pool: [N, 10, 1, 1]."""

    def pooled(graph):
        graph.initializer.append(numpy_helper.from_array(np.array([0, 10, 1, 1]), "shape"))
        graph.node[-1].output[0] = "flat"
        graph.node.append(helper.make_node("Reshape", ["flat", "shape"], [graph.output[0].name]))
        dims = graph.output[0].type.tensor_type.shape.dim
        for _ in range(2):
            dims.add().dim_value = 1

    student = changed(tmp_path / "student.onnx", pooled)
    _, report = distill(compress, tmp_path / "out.onnx", "--epochs", 1, student=student)
    training = report["training"]
    assert training["metric"] == "top1" and training["before"] > 0.9 and training["after"] > 0.9


@pytest.mark.parametrize("count", [1, 2, 17])
def test_tiny_sets_are_trained_on(compress, tmp_path, count):
    data = np.load(TRAIN)
    np.savez(tmp_path / "few.npz", x=data["x"][:count], y=data["y"][:count])
    out = tmp_path / "out.onnx"
    compress("distill", STUDENT, "--data", tmp_path / "few.npz", "--eval", TEST, "-o", out, "--batch", 16,
             "--epochs", 2, "--augment", "mixup=0.2")  # fmt: skip
    assert session(out)


def test_a_quantised_model_has_nothing_to_train(compress, tmp_path):
    quantised = tmp_path / "int8.onnx"
    compress(STUDENT, "--int8", "--effort", "quick", "--data", TRAIN, "--eval", TEST, "-o", quantised)
    done, _ = distill(compress, tmp_path / "out.onnx", "--epochs", 1, student=quantised, code=5)
    assert "no weight that can be trained: it is quantised" in done.err and "quantise what comes out" in done.err
