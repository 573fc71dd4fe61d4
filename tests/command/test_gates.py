"""Gates that can not fail, or hold figures of something else, fail or say so."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import onnx
import pytest
import small
from small import node
from support import ROOT, run_onnx

DIGITS = ROOT / "models" / "digits"


def classifier(path, bias=(0, 0, 0, 0), noise=0.0):
    """Softmax over a product, with noise in its weights."""
    w = small.floats(1, 8, 4) + noise * small.floats(2, 8, 4)
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "s"), node("Softmax", "s", "y", axis=-1)]
    weights = {"w": w, "b": np.float32(bias)}
    onnx.save(small.model(nodes, [("x", ["n", 8])], [("y", ["n", 4])], weights), path)
    return path


@pytest.fixture
def x(tmp_path):
    np.savez(tmp_path / "x.npz", x=small.floats(3, 40, 8))
    return tmp_path / "x.npz"


def gate(report, name):
    [found] = [g for g in report["gates"] if g["name"] == f"--{name}"]
    return found


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_decibels_do_not_hold_a_share(compress, tmp_path, x, noise):
    """The original chooses one class for all samples, so its answers are measured by noise."""
    old = classifier(tmp_path / "old.onnx", bias=(100, 0, 0, 0))
    new = classifier(tmp_path / "new.onnx", bias=(100, 0, 0, 0), noise=noise)
    report = compress("check", new, "--against", old, "--eval", x, "--min-score", "95%", "--json", code=9).json()
    assert gate(report, "min-score")["value"] is None and "95" in gate(report, "min-score")["limit_shown"]


def test_what_has_nothing_to_lose_keeps_no_limit(compress, tmp_path):
    old, new = classifier(tmp_path / "old.onnx"), classifier(tmp_path / "new.onnx", noise=0.01)
    many = small.floats(3, 400, 8)
    # Labels that the model never gives.
    right = run_onnx(old, {"x": many})[0].argmax(1)
    np.savez(tmp_path / "wrong.npz", x=many, y=(right + 1) % 4)
    np.savez(tmp_path / "right.npz", x=many, y=right)
    how = ["check", new, "--against", old, "--max-drop", "10%", "--json"]
    compress(*how, "--eval", tmp_path / "right.npz")
    report = compress(*how, "--eval", tmp_path / "wrong.npz", code=9).json()
    assert "the original itself has only 0.00%" in gate(report, "max-drop")["shown"]


def test_labels_that_fit_nothing_hide_no_destroyed_model(compress, tmp_path):
    old, new = classifier(tmp_path / "old.onnx"), classifier(tmp_path / "new.onnx", noise=100.0)
    many = small.floats(3, 400, 8)
    np.savez(tmp_path / "wrong.npz", x=many, y=(run_onnx(old, {"x": many})[0].argmax(1) + 1) % 4)
    report = compress("check", new, "--against", old, "--eval", tmp_path / "wrong.npz", "--json", code=9).json()
    assert report["unusable"]


def test_few_samples_are_said_to_tell_little(compress, tmp_path, x):
    old, new = classifier(tmp_path / "old.onnx"), classifier(tmp_path / "new.onnx")
    how = ["check", new, "--against", old, "--eval", x, "--json"]
    said = "--max-drop 1.00% was held on 40 samples, of which one is 2.50%: give --eval with 100 or more"
    assert said in compress(*how, "--max-drop", "1%").json()["warnings"]
    assert not any("was held on" in w for w in compress(*how, "--max-drop", "5%").json()["warnings"])


def test_a_sweep_of_destroyed_models_fails(compress, tmp_path):
    args = ["--sweep", "0.99,0.995", "--prune-by", "magnitude", "--epochs", "0", "--data", DIGITS / "train.npz"]
    done = compress(DIGITS / "digits.onnx", *args, "-o", tmp_path / "out.onnx", code=9)
    assert "none of the 2 models passed" in done.err and "unusable" in done.err


def test_an_original_that_gives_no_number_is_not_the_results_fault(compress, tmp_path):
    def root(path, *nodes):
        onnx.save(
            small.model([*nodes, node("Sqrt", nodes[-1].output[0], "y")], [("x", ["n", 8])], [("y", ["n", 8])]), path
        )
        return path

    np.savez(tmp_path / "x.npz", x=np.concatenate([small.floats(3, 40, 7), np.ones((40, 1), np.float32)], 1))
    old = root(tmp_path / "old.onnx", node("Identity", "x", "h"))
    new = root(tmp_path / "new.onnx", node("Abs", "x", "h"))
    compress("check", new, "--against", old, "--eval", tmp_path / "x.npz")
    backwards = compress("check", old, "--against", new, "--eval", tmp_path / "x.npz", code=7)
    assert "where the original's have none" in backwards.err


def test_what_was_not_done_fails_where_pipelines_look(compress, tmp_path):
    path = small.save(small.model([node("Relu", "x", "y")], [("x", ["n", 4])], [("y", ["n", 4])], {}), tmp_path)
    pages = ["--junit", tmp_path / "gates.xml", "--markdown", tmp_path / "gates.md", "--html", tmp_path / "gates.html"]
    done = compress(path, "--int8", "--strict", "--max-size", "1MB", *pages, code=9)
    assert "asked for INT8" in done.err
    failed = [case.get("name") for case in ElementTree.parse(tmp_path / "gates.xml").iter("testcase") if len(case)]
    assert "--strict" in failed
    assert (
        "**failed**" in (tmp_path / "gates.md").read_text()
        and "1 of 2 gates failed" in (tmp_path / "gates.html").read_text()
    )


def test_a_score_of_the_result_alone_has_no_drop(compress, tmp_path, x):
    old, new = classifier(tmp_path / "old.onnx"), classifier(tmp_path / "new.onnx")
    scorer = tmp_path / "score"
    scorer.write_text("#!/bin/sh\ncat >/dev/null\necho 0.9\n")
    scorer.chmod(0o755)
    how = ["--score", scorer, "--max-drop", "1%", "--json"]
    report = compress("check", new, "--against", old, "--eval", x, *how, code=9).json()
    assert any("only that of the result is there" in w for w in report["warnings"])
