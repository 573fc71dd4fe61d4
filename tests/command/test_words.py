"""Words at the right moment: what is said before, instead of, and beside a result."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto
from PIL import Image
from small import node
from support import ROOT, binary, read_report, run_onnx, started

DIGITS = ROOT / "models/digits"


@pytest.fixture
def mlp(tmp_path):
    return small.save(small.mlp(), tmp_path)


def warnings(report):
    return " ".join(report["warnings"])


def raw(*args, stdout=subprocess.PIPE):
    """The command with its output as bytes, or to a file."""
    return subprocess.run([binary(), *map(str, args)], stdout=stdout, stderr=subprocess.PIPE, timeout=600)


def test_the_result_goes_to_standard_output(compress, mlp):
    done = raw(mlp, "-o", "-", "--prune", "0.5")
    assert done.returncode == 0, done.stderr
    onnx.checker.check_model(onnx.load_from_string(done.stdout))
    assert b"-> standard output" in done.stderr and b"parameters" in done.stderr
    assert [p.name for p in mlp.parent.iterdir()] == [mlp.name], "nothing is left"
    said = raw(mlp, "-o", "-", "--report", mlp.parent / "r")
    report = read_report(mlp.parent / "r/report.json")
    assert report["output"]["path"] == "-" and report["output"]["bytes"] == len(said.stdout)
    for flags, way in (
        (["--json"], "--report FOLDER"),
        (["--external-data"], "-o FILE"),
        (["--sweep", "0.5,0.9"], "-o FILE"),
    ):
        assert way in compress(mlp, "-o", "-", *flags, code=2).err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error(mlp):
    for args in (["inspect", mlp], [mlp, "-o", "-"], [mlp, "--json"]):
        with open("/dev/full", "wb") as full:
            done = raw(*args, stdout=full)
        assert done.returncode == 6 and b"standard output" in done.stderr, args


def test_data_of_what_is_replaced_is_removed(compress, tmp_path):
    data = lambda: sorted(p.name for p in tmp_path.glob("*.data"))
    out = ["-o", tmp_path / "out.onnx", "--external-data", "--force", "--no-check"]
    made = [small.save(small.mlp(width=64, classes=n), tmp_path, f"{n}.onnx") for n in (4, 5, 6)]
    compress(made[0], *out)
    first = data()
    compress(made[1], *out)
    assert len(first) == len(data()) == 1 and data() != first, "those of the replaced model are gone"
    second = data()
    (tmp_path / "out.onnx").rename(tmp_path / "copy.onnx")
    report = compress(made[2], *out, "--json").json()
    assert len(data()) == 2 and second[0] in warnings(report), "a copy may need them, which is said"
    run_onnx(tmp_path / "copy.onnx", {"input": np.zeros((1, 8), np.float32)})


def pictures(folder, names, size):
    """Four pictures a class, and the place of its folder in `names` as their brightness."""
    for i, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for j in range(4):
            Image.fromarray(np.full((size, size, 3), 20 * i + j, np.uint8)).save(folder / name / f"{j}.png")


def brightness(classes):
    """A model whose class is the brightness of a picture over 20."""
    centres = np.float32([20 * i + 1.5 for i in range(classes)]).reshape(1, -1)
    nodes = [
        node("ReduceMean", "x", "m", axes=[1, 2, 3], keepdims=0),
        node("Unsqueeze", "m axis", "u"),
        node("Sub", "u centres", "d"),
        node("Abs", "d", "a"),
        node("Neg", "a", "logits"),
    ]
    return small.model(
        nodes, [("x", ["n", 3, 8, 8])], [("logits", ["n", classes])], {"axis": np.int64([1]), "centres": centres}
    )


def test_numbered_folders_are_classes_by_number(compress, tmp_path):
    model = small.save(brightness(11), tmp_path)
    pictures(tmp_path / "set", [str(i) for i in range(11)], 8)
    check = ["check", model, "--against", model, "--preprocess", "scale=1", "--json"]
    found = compress(*check, "--data", tmp_path / "set").json()["accuracy"]
    assert (found["metric"], found["before"], found["after"]) == ("top1", 1.0, 1.0), "10 comes after 2, not before it"
    (tmp_path / "set/3").rename(tmp_path / "set/11")
    assert "the model has 11 classes" in compress(*check, "--data", tmp_path / "set", code=7).err
    pictures(tmp_path / "names", ["cat", "dog"], 8)
    wrong = compress(*check, "--data", tmp_path / "names", code=7)
    assert (
        "there are folders for 2 classes, and the model has 11" in wrong.err
        and "by the number of its class" in wrong.err
    )


def test_filters_that_match_nothing_are_errors(compress, tmp_path):
    args = ["distill", DIGITS / "digits.onnx", "--data", DIGITS / "train.npz", "-o", tmp_path / "out.onnx"]
    names = [t.name for t in onnx.load(DIGITS / "digits.onnx").graph.initializer]
    wrong = compress(*args, "--freeze", names[0][:-1] + "#", code=2)
    assert "--freeze" in wrong.err and f"`{names[0]}`" in wrong.err, wrong.err
    assert "every weight that can be trained is frozen" in compress(*args, "--freeze", ".*", code=2).err


def test_training_that_was_of_no_use_is_told(compress, tmp_path):
    args = ["distill", DIGITS / "digits.onnx", "--data", DIGITS / "train.npz", "--eval", DIGITS / "test.npz"]
    args += ["-o", tmp_path / "out.onnx", "--epochs", "1", "--lr", "1e-12", "-q"]
    assert "no epoch improved top1" in compress(*args).err
    assert read_report(tmp_path / "out.report.json")["undone"]
    assert "no epoch" in compress(*args, "--strict", "--force", code=9).err


def test_remarks_of_exporters_are_stripped(compress, mlp):
    model = onnx.load(mlp)
    for n in model.graph.node:
        n.doc_string = "a stack trace\n" * 100
        n.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="x" * 500)
    model.metadata_props.add(key="names", value="{0: 'cat'}")
    onnx.save(model, mlp)
    kept = compress(mlp, "--json").json()
    assert "--strip removes them" in warnings(kept) and kept["output"]["bytes"] > 3000
    report = compress(mlp, "--strip", "--force", "--json").json()
    made = onnx.load(report["output"]["path"])
    assert not any(n.doc_string or n.metadata_props for n in made.graph.node)
    assert {p.key: p.value for p in made.metadata_props}["names"] == "{0: 'cat'}", "that of the model stays"
    assert "--strip" not in warnings(report) and report["output"]["bytes"] < kept["output"]["bytes"] / 2


def test_bench_names_the_nodes_that_burn_runs(compress, tmp_path):
    made = small.model(
        [node("MatMul", "x w", "h"), node("Softplus", "h", "s"), node("Celu", "s", "y")],
        [("x", [1, 64])],
        [("y", [1, 64])],
        {"w": small.floats(1, 64, 64)},
    )
    bench = compress("bench", small.save(made, tmp_path), "--json", "--runs", "2").json()
    burn = [n["node"] for n in bench["nodes"] if n["kernel"] == "burn"]
    assert [n.split("`")[1] for n in burn[:3]] == ["h", "s", "y"] and burn[-1] == "between nodes"


def test_a_dry_run_reads_what_a_run_reads(compress, mlp, tmp_path):
    np.savez(tmp_path / "data.npz", input=small.floats(1, 100, 8))
    done = compress(mlp, "--int8", "--dry-run", "--data", tmp_path / "data.npz")
    assert "64 samples to calibrate on, 20 to measure on: input Nx8" in done.out
    assert "int8      quantise activations" in done.out and "for a run of" in done.out
    said = compress(mlp, "--int8", "--dry-run", "--json", "--data", tmp_path / "data.npz").json()
    assert (said["samples"]["calibrate"], said["samples"]["measure"]) == (64, 20)
    assert said["passes"][-2]["name"] == "int8" and said["time"]["run_s"] > 0
    np.savez(tmp_path / "wrong.npz", input=small.floats(1, 100, 9))
    compress(mlp, "--int8", "--dry-run", "--data", tmp_path / "wrong.npz", code=7)


def test_passes_behind_the_last_one_are_told(compress, mlp, tmp_path):
    done = compress(mlp, "--int8", "--stop-after", "clean", "-o", tmp_path / "out.onnx", "--json")
    assert done.json()["undone"] == ["--stop-after clean ends before int8"]
    assert "ends before int8" in done.err
    compress(mlp, "--int8", "--stop-after", "clean", "-o", tmp_path / "out.onnx", "--force", "--strict", code=9)


def test_a_target_that_brings_in_nothing_is_told(compress, mlp):
    done = compress(mlp, "--target", "onnxruntime", "--strict", code=9)
    assert "asked for --target onnxruntime: no operator was replaced" in done.err


def detector(width=64):
    """The places at which scores are above a threshold: any number of them."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("Greater", "h zero", "found"),
        node("NonZero", "found", "t"),
        node("Transpose", "t", "places", perm=[1, 0]),
    ]
    return small.model(
        nodes,
        [("x", [1, 16])],
        [("places", ["found", 2], TensorProto.INT64)],
        {"w": small.floats(1, 16, width), "zero": np.float32([0])},
    )


def test_outputs_of_other_sizes_are_told(compress, tmp_path):
    path = small.save(detector(), tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 40, 16))
    report = compress(path, "--int8", "--data", tmp_path / "data.npz", "--json").json()
    found = report["accuracy"]
    assert found["unlike"] > 0 and found["samples"] + found["unlike"] == 8
    assert "WARNING: for " in warnings(report) and "--score COMMAND" in warnings(report)
    program = tmp_path / "count.py"
    program.write_text(
        "import sys, numpy as np\n"
        "rows = [np.load(f'{sys.argv[1]}/{side}/places.rows.npy') for side in ('before', 'after')]\n"
        "assert all(len(r) == 8 for r in rows)\n"
        "print(1)\n"
    )
    score = ["--score", f"{sys.executable} {program}"]
    assert compress(path, "--int8", "--data", tmp_path / "data.npz", *score, "--json", "--force").json()


def test_samples_may_have_an_axis_that_counts_one(compress, tmp_path):
    made = small.model([node("MatMul", "x w", "y")], [("x", [1, 2, 8])], [("y", None)], {"w": small.floats(1, 8, 4)})
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 40, 1, 2, 8))
    assert compress(path, "--int8", "--data", tmp_path / "data.npz", "--json").json()["accuracy"]["samples"] == 8


def windowed():
    """A convolution over time, which comes first and must last at least seven steps."""
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0]),
        node("Unsqueeze", "t zero", "u"),
        node("Conv", "u w", "c"),
        node("Squeeze", "c zero", "s"),
        node("Transpose", "s", "y", perm=[1, 0]),
    ]
    weights = {"zero": np.array([0]), "w": small.floats(1, 5, 4, 7)}
    return small.model(nodes, [("x", ["time", 4])], [("y", ["steps", 5])], weights)


def test_whole_inputs_whose_first_axis_is_time(compress, tmp_path):
    path = small.save(windowed(), tmp_path)
    np.savez(tmp_path / "whole.npz", x=small.floats(2, 40, 30, 4))
    report = compress(path, "--int8", "--data", tmp_path / "whole.npz", "--json").json()
    assert report["accuracy"]["samples"] == 8 and report["coverage"][0]["layers"] == 1
    # Each row by itself is too short.
    np.savez(tmp_path / "rows.npz", x=small.floats(2, 40, 4))
    said = compress(path, "--int8", "--data", tmp_path / "rows.npz", "--force", code=7).err
    assert "can't take these samples" in said and "needs an axis in front of it" in said


def test_steps_of_a_sequence_are_not_samples_of_a_batch(compress, tmp_path):
    """Whose first axis is time and takes any length: each row by itself is a sequence, and a batch is not one."""
    nodes = [node("CumSum", "x zero", "s"), node("MatMul", "s w", "y")]
    weights = {"zero": np.array(0), "w": small.floats(1, 4, 5)}
    path = small.save(small.model(nodes, [("x", ["time", 4])], [("y", ["steps", 5])], weights), tmp_path)
    for shape, told in (((40, 4), True), ((40, 30, 4), False)):
        np.savez(tmp_path / "data.npz", x=small.floats(2, *shape))
        report = compress(path, "--int8", "--data", tmp_path / "data.npz", "--json", "--force").json()
        assert ("samples of a batch change each other's outputs" in warnings(report)) == told
        assert report["accuracy"]["samples"] == 8


def test_a_single_number_is_the_same_for_every_sample(compress, tmp_path):
    made = small.model(
        [node("Mul", "x rate", "h"), node("MatMul", "h w", "y")],
        [("x", ["n", 8]), ("rate", [])],
        [("y", None)],
        {"w": small.floats(1, 8, 4)},
    )
    path = small.save(made, tmp_path)
    x = small.floats(3, 40, 1, 8)
    np.savez(tmp_path / "each.npz", x=x, rate=np.full(40, 2, np.float32))
    np.savez(tmp_path / "one.npz", rate=np.float32(2), x=x)
    reports = [
        compress(path, "--int8", "--data", tmp_path / f, "--json", "--force").json() for f in ("each.npz", "one.npz")
    ]
    assert reports[0]["accuracy"]["sqnr_db"] == reports[1]["accuracy"]["sqnr_db"]
    np.savez(tmp_path / "x.npz", x=np.float32(1), rate=np.full(40, 2, np.float32))
    assert "array `x`" in compress(path, "--int8", "--data", tmp_path / "x.npz", "--force", code=7).err


def test_outputs_that_are_zero_measure_nothing(compress, tmp_path):
    """One sample less the mean of its batch: each by itself is zero."""
    nodes = [node("ReduceMean", "x", "m", axes=[0], keepdims=1), node("Sub", "x m", "d"), node("MatMul", "d w", "y")]
    made = small.model(nodes, [("x", ["n", 8])], [("y", ["n", 4])], {"w": small.floats(1, 8, 4)}, opset=17)
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(2, 40, 8))
    args = [path, "--int8", "--data", tmp_path / "data.npz", "--json", "--force"]
    said = warnings(compress(*args).json())
    assert "the original model answers zero to every sample" in said and "zero on all of the calibration data" in said
    assert "measured nothing" in compress(*args, "--min-sqnr", 20, code=9).err


def test_labels_of_whole_inputs_that_have_several_rows(compress, tmp_path):
    made = small.model([node("Gemm", "x w", "y")], [("x", ["n", 8])], [("y", ["n", 4])], {"w": small.floats(1, 8, 4)})
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(2, 40, 3, 8), y=np.arange(40) % 4)
    report = compress(path, "--int8", "--data", tmp_path / "data.npz", "--json").json()
    assert report["accuracy"]["after"] is None and "labels were not used" in warnings(report)


def test_zeros_that_rounding_makes_are_not_pruned_ones(compress, mlp, tmp_path):
    """Both layers are ends of the network, which are left alone."""
    data = tmp_path / "data.npz"
    np.savez(data, input=small.floats(1, 100, 8))
    args = ["--int8", "--prune", 0.5, "--epochs", 0, "--data", data, "-o", tmp_path / "out.onnx", "--json"]
    report = compress(mlp, *args).json()
    assert next(p["edits"] for p in report["passes"] if p["name"] == "prune") == 0
    assert next(c["layers"] for c in report["coverage"] if c["request"] == "prune") == 0
    assert any("asked for pruning" in what for what in report["undone"])


def test_a_size_that_a_file_declares_and_its_model_does_not_keep(compress, tmp_path):
    """Table recognisers declare outputs of the longest table, and stop early."""
    made = detector()
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 300
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 40, 16))
    report = compress(path, "--int8", "--data", tmp_path / "data.npz", "--json").json()
    assert report["accuracy"]["unlike"] > 0


def test_long_models_that_are_only_simplified_are_not_timed(compress, tmp_path):
    nodes = [node("Relu" if i % 2 else "Sigmoid", f"x{i}", f"x{i + 1}") for i in range(10_001)]
    path = small.save(small.model(nodes, [("x0", [1, 4])], [("x10001", [1, 4])], {}), tmp_path)
    report = compress(path, "--json").json()
    assert report["speed"] is None and "speed was not timed" in warnings(report) and report["accuracy"]["equal"]
    assert compress(path, "--json", "--force", "--as-is").json()["speed"]


def test_rows_by_large_matrices_are_read_where_they_lie(compress, tmp_path):
    """One row, and several, for which the matrix is packed; at an address that is not a multiple of four."""
    made = small.model(
        [node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "r"), node("MatMul", "r v", "y")],
        [("x", ["n", 700])],
        [("y", ["n", 500])],
        {"w": small.floats(1, 600, 700), "b": small.floats(2, 600), "v": small.floats(3, 600, 500)},
    )
    path = small.save(made, tmp_path)
    x = small.floats(4, 10, 700)
    program = tmp_path / "keep.py"
    program.write_text("import sys, shutil\nshutil.copytree(sys.argv[1], sys.argv[0] + '.d')\nprint(1)\n")
    (want,) = run_onnx(path, {"x": x})
    for batch in (1, 10):
        np.savez(tmp_path / "data.npz", x=x if batch > 1 else x[:1])
        compress(
            "check", path, "--against", path, "--data", tmp_path / "data.npz", "--score", f"{sys.executable} {program}"
        )
        kept = tmp_path / "keep.py.d"
        got = np.load(kept / "after/y.npy")
        np.testing.assert_allclose(got, want[: len(got)], rtol=1e-4, atol=1e-4 * abs(want).max())
        subprocess.run(["rm", "-r", kept], check=True)


def wide():
    """Convolutions that keep the size of a picture: the output of each takes 8 MB a sample."""
    nodes, weights = [], {"w0": small.floats(0, 32, 3, 3, 3, scale=0.2)}
    for i in range(4):
        weights.setdefault(f"w{i}", small.floats(i, 32, 32, 1, 1, scale=0.2))
        nodes.append(node("Conv", f"x{i} w{i}", f"c{i}", pads=[1] * 4 if i == 0 else [0] * 4))
        nodes.append(node("Relu", f"c{i}", f"x{i + 1}"))
    nodes.append(node("GlobalAveragePool", "x4", "y"))
    return small.model(nodes, [("x0", ["n", 3, 256, 256])], [("y", ["n", 32, 1, 1])], weights)


# A process counts the peak of the one that it was made from as its own: that has to be a small one.
PEAK = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, used = os.wait4(child.pid, 0)
print(status, used.ru_maxrss // 1024)
"""


def test_calibration_needs_no_more_memory_for_more_samples(tmp_path):
    path = small.save(wide(), tmp_path)
    rng = np.random.default_rng(1)

    def peak(samples):
        np.savez(tmp_path / "data.npz", x0=rng.standard_normal((samples, 3, 256, 256), np.float32))
        args = [path, "--int8", "--data", tmp_path / "data.npz", "--no-check", "--force", "-q"]
        child = [sys.executable, "-c", PEAK, binary(), *map(str, args)]
        status, peak = map(int, subprocess.check_output(child, timeout=600).split())
        assert status == 0
        return peak

    few, many = peak(10), peak(70)
    assert many < few + 40, f"{few} MB with 10 samples, {many} MB with 70"
    assert many < 300


def two(names=("large", "little")):
    return small.model(
        [node("MatMul", "x w", names[0]), node("MatMul", "x v", names[1])],
        [("x", ["n", 8])],
        [(names[0], ["n", 4]), (names[1], ["n", 6])],
        {"w": small.floats(1, 8, 4), "v": small.floats(2, 8, 6)},
    )


@pytest.fixture
def samples(tmp_path):
    np.savez(tmp_path / "data.npz", x=small.floats(3, 40, 8))
    return tmp_path / "data.npz"


def test_a_score_decides_what_is_fit_for_use(compress, tmp_path, samples):
    path = small.save(two(), tmp_path)
    spoiled = onnx.load(path)
    spoiled.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(small.floats(9, 8, 4), "w"))
    onnx.save(spoiled, tmp_path / "spoiled.onnx")
    check = ["check", tmp_path / "spoiled.onnx", "--against", path, "--data", samples, "--json"]
    assert compress(*check, code=9).json()["unusable"]
    assert compress(*check, "--score", "echo 0.5 0.5; :").json()["unusable"] is None


def test_outputs_of_like_names_have_files_of_their_own(compress, tmp_path, samples):
    path = small.save(two(("a/b", "a_b")), tmp_path)
    program = tmp_path / "shapes.py"
    program.write_text(
        "import sys, numpy as np\n"
        "shapes = [np.load(f'{sys.argv[1]}/after/{n}.npy').shape for n in ('a_b', 'a_b_2')]\n"
        "assert shapes == [(40, 4), (40, 6)], shapes\n"
        "print(1)\n"
    )
    compress("check", path, "--against", path, "--data", samples, "--score", f"{sys.executable} {program}")


def test_outputs_of_other_names_are_compared_in_order(compress, tmp_path, samples):
    first, second = small.save(two(), tmp_path, "a.onnx"), small.save(two(("p", "q")), tmp_path, "b.onnx")
    report = compress("check", second, "--against", first, "--data", samples, "--json").json()
    assert report["accuracy"]["equal"] and "compared in order: `p`, `q` with `large`, `little`" in warnings(report)
    other = small.save(small.mlp(), tmp_path, "c.onnx")
    wrong = compress("check", other, "--against", first, "--data", samples, code=7)
    assert "the inputs are `input`, those of the model that it is compared with `x`" in wrong.err


def test_a_gate_without_a_figure_fails_when_all_is_written(compress, tmp_path):
    path = small.save(detector(8192), tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 40, 16))
    gate = ["--data", tmp_path / "data.npz", "--min-sqnr", "10"]
    failed = compress(path, "--int8", *gate, code=9)
    assert (
        "gate --min-sqnr: FAILED (limit 10 dB, measured nothing" in failed.out
        and (tmp_path / "model.compressed.onnx").exists()
    )


def test_a_sweep_says_what_it_would_do(compress, mlp):
    done = compress(mlp, "--sweep", "0.5,0.9", "--dry-run")
    assert "prune " in done.out and "the same for 0.9 -> " in done.out


def test_a_sweep_says_what_it_would_do_as_json(compress, mlp):
    said = compress(mlp, "--sweep", "0.5,0.7", "--dry-run", "--json").json()
    assert [Path(s["output"]).name for s in said] == ["model.compressed-0.5.onnx", "model.compressed-0.7.onnx"]


def test_half_a_model_on_standard_output_is_an_error(tmp_path):
    path = small.save(small.mlp(width=20_000), tmp_path)
    child = started([binary(), path, "-o", "-", "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.read(10)
    child.stdout.close()
    assert child.wait(600) == 6 and b"standard output" in child.stderr.read()


def test_names_of_folders_are_sorted_by_their_numbers(compress, tmp_path):
    model = small.save(brightness(11), tmp_path)
    pictures(tmp_path / "set", [f"class_{i}" for i in range(11)], 8)
    check = ["check", model, "--against", model, "--preprocess", "scale=1", "--json", "--data"]
    assert compress(*check, tmp_path / "set").json()["accuracy"]["before"] == 1.0
    pictures(tmp_path / "words", list("ponmlkjihgf"), 8)
    assert "the original model is right on only 9.09%" in warnings(compress(*check, tmp_path / "words").json())


def test_samples_far_from_made_up_ones_are_told(compress, tmp_path):
    path = small.save(two(), tmp_path)
    np.savez(tmp_path / "wide.npz", x=small.floats(3, 40, 8) * 200)
    report = compress(path, "--int8", "--eval", tmp_path / "wide.npz", "--json").json()
    assert "the samples to measure on are of size" in warnings(report)


def test_answers_kept_do_not_hide_another_output_that_is_lost(compress, tmp_path, samples):
    made = two(("logits", "boxes"))
    path = small.save(made, tmp_path)
    made.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(small.floats(9, 8, 6), "v"))
    onnx.save(made, tmp_path / "spoiled.onnx")
    report = compress("check", tmp_path / "spoiled.onnx", "--against", path, "--data", samples, "--json", code=9).json()
    assert report["accuracy"]["after"] == 1.0 and "`boxes`" in report["unusable"]


def test_answers_are_the_same_however_a_batch_is_cut(compress, tmp_path):
    """A row by a large matrix is multiplied otherwise than several rows, which a piece of a batch must not show."""
    made = small.model(
        [
            node("Conv", "x c", "h", pads=[1, 1, 1, 1]),
            node("Relu", "h", "r"),
            node("GlobalAveragePool", "r", "p"),
            node("Flatten", "p", "f"),
            node("Gemm", "f w", "y", transB=1),
        ],
        [("x", ["n", 3, 28, 28])],
        [("y", ["n", 2400])],
        {"c": small.floats(1, 128, 3, 3, 3), "w": small.floats(2, 2400, 128)},
    )
    path = small.save(made, tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(3, 8, 3, 28, 28))
    program = tmp_path / "keep.py"
    program.write_text("import sys, shutil\nshutil.copytree(sys.argv[2], sys.argv[1])\nprint(1)\n")
    answers = []
    for threads in (1, 2, 8):
        kept = tmp_path / f"kept{threads}"
        score = f"{sys.executable} {program} {kept}"
        compress(
            "check", path, "--against", path, "--data", tmp_path / "data.npz", "--threads", threads, "--score", score
        )
        answers.append(np.load(kept / "after/y.npy"))
    assert all(np.array_equal(answers[0], a) for a in answers[1:])
