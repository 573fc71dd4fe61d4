"""Weights outside the model's file, in and out: round trips, and models that name what they must not."""

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, numpy_helper
from support import assert_close, binary, listing, run_onnx, started

DATA = "weights.bin"


def wide():
    """Two weights of 64 KB and more, and a bias of 1 KB."""
    return small.mlp(width=4096, classes=256)


def external(folder, model=None, data=DATA, name="model.onnx"):
    """A model whose weights are in the file `data`."""
    path = folder / name
    options = dict(save_as_external_data=True, location=data, size_threshold=64)
    onnx.save(model or wide(), path, **options)
    return path


def edited(folder, change, data=DATA):
    """An external model whose first external tensor was changed."""
    path = external(folder, data=data)
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL)
    change(tensor)
    path.write_bytes(model.SerializeToString())
    return path, tensor.name


def entries(**new):
    """A change: external data's entries are these, besides those that are kept."""

    def change(tensor):
        old = {e.key: e.value for e in tensor.external_data} | new
        del tensor.external_data[:]
        for key, value in old.items():
            if value is not None:
                tensor.external_data.add(key=key, value=value)

    return change


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def feeds():
    return {"input": small.floats(7, 3, 8)}


def refused(compress, path, *said, code=6):
    """The model is refused by every subcommand, and nothing is left behind."""
    before = listing(path.parent)
    err = compress(path, code=code).err
    compress("inspect", path, code=code)
    compress("check", path, "--against", path, code=code)
    assert listing(path.parent) == before
    for words in said:
        assert words in err, err
    return err


# --- in ---


def test_external_weights_come_into_one_file(compress, tmp_path):
    path = external(tmp_path)
    expected = run_onnx(path, feeds())
    report = compress(path, "--json").json()
    output = tmp_path / "model.compressed.onnx"
    (tmp_path / DATA).unlink()
    onnx.checker.check_model(output, full_check=True)
    assert_close(run_onnx(output, feeds()), expected)
    assert [d["path"] for d in report["input"]["data"]] == [str(tmp_path / DATA)]
    assert report["output"]["data"] == [] and report["output"]["bytes"] == output.stat().st_size


def test_input_facts_are_those_of_all_files(compress, tmp_path):
    path = external(tmp_path)
    facts = compress("inspect", path, "--json").json()["file"]
    data = tmp_path / DATA
    assert facts["bytes"] == path.stat().st_size + data.stat().st_size
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["data"][0]["sha256"] == hashlib.sha256(data.read_bytes()).hexdigest()


def test_a_file_in_a_subfolder(compress, tmp_path):
    (tmp_path / "sub").mkdir()
    path = external(tmp_path, data="sub/weights.bin")
    compress(path, "--no-check")
    assert_close(run_onnx(tmp_path / "model.compressed.onnx", feeds()), run_onnx(path, feeds()))


def test_each_weight_in_its_own_file(compress, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(wide(), path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=64)
    assert len(list(tmp_path.iterdir())) > 3
    compress(path, "--no-check")
    assert_close(run_onnx(tmp_path / "model.compressed.onnx", feeds()), run_onnx(path, feeds()))


def test_a_relative_path_without_a_folder(compress, tmp_path):
    external(tmp_path)
    compress("model.onnx", "--no-check", cwd=tmp_path)
    assert (tmp_path / "model.compressed.onnx").exists()


def test_tied_weights_may_share_their_bytes(compress, tmp_path):
    made = small.mlp(width=8, classes=8)
    made.graph.initializer[2].raw_data = made.graph.initializer[0].raw_data
    path = external(tmp_path, made)
    model = onnx.load(path, load_external_data=False)
    first, second = (t for t in model.graph.initializer if t.name in ("w1", "w2"))
    del second.external_data[:]
    second.external_data.extend(first.external_data)
    path.write_bytes(model.SerializeToString())
    compress(path, "--no-check")


OUTSIDE = ["../secret.bin", "/etc/hostname", "sub/../../secret.bin", "x/../weights.bin"]


@pytest.mark.parametrize("location", [*OUTSIDE, ".", "sub", "", "none.bin", "a\0b"])
def test_what_is_no_file_of_the_model_is_6(compress, tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(b"SECRET!!" * 100_000)
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    path, name = edited(folder, entries(location=location))
    err = refused(compress, path, name, str(path))
    assert "help:" in err or location in (".", "sub", "", "a\0b")
    assert not any(b"SECRET" in (content or b"") for content in listing(folder).values())


@pytest.mark.parametrize(
    "new",
    [
        {"offset": "-1"},
        {"offset": "1"},
        {"offset": str(2**63)},
        {"offset": str(2**64 - 8)},
        {"offset": "many"},
        {"offset": "100000000"},
        {"length": "8"},
        {"length": "-8"},
        {"length": str(2**47)},
        {"location": None},
        {"colour": "red"},
    ],
    ids=str,
)
def test_wrong_places_are_6(compress, tmp_path, new):
    path, name = edited(tmp_path, entries(**new))
    refused(compress, path, name)


def test_a_key_twice_is_6(compress, tmp_path):
    path, name = edited(tmp_path, lambda t: t.external_data.add(key="offset", value="0"))
    refused(compress, path, name, "offset")


def test_overlapping_weights_are_6(compress, tmp_path):
    def change(tensor):
        entries(offset="64")(tensor)

    path, _ = edited(tmp_path, change)
    with open(tmp_path / DATA, "ab") as f:
        f.write(bytes(4096))
    refused(compress, path, "overlap")


def test_raw_data_besides_external_is_3(compress, tmp_path):
    def change(tensor):
        tensor.raw_data = b"12345678"

    path, name = edited(tmp_path, change)
    refused(compress, path, name, code=3)


def test_a_shape_beyond_any_file(compress, tmp_path):
    def change(tensor):
        del tensor.dims[:]
        tensor.dims.extend([2**40, 2**40])

    path, _ = edited(tmp_path, change)
    refused(compress, path, code=(3, 4, 6))


def test_a_data_file_that_is_cut_short_is_6(compress, tmp_path):
    path = external(tmp_path)
    os.truncate(tmp_path / DATA, 1000)
    refused(compress, path, DATA, "cut short")


def test_a_fifo_does_not_hang(compress, tmp_path):
    path = external(tmp_path)
    (tmp_path / DATA).unlink()
    os.mkfifo(tmp_path / DATA)
    assert compress(path, code=6).err
    os.mkfifo(tmp_path / "model2.onnx")
    assert compress(tmp_path / "model2.onnx", code=6).err


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_link_to_a_device_is_6(compress, tmp_path):
    path = external(tmp_path)
    (tmp_path / DATA).unlink()
    (tmp_path / DATA).symlink_to("/dev/zero")
    assert compress(path, code=6).err


# --- links ---


def test_a_link_out_of_the_folder_is_6(compress, tmp_path):
    folder, other = tmp_path / "model", tmp_path / "other"
    folder.mkdir(), other.mkdir()
    path = external(folder)
    (folder / DATA).rename(other / DATA)
    (folder / DATA).symlink_to(other / DATA)
    refused(compress, path, DATA, "outside")


def test_a_folder_that_is_a_link_out_is_6(compress, tmp_path):
    folder, other = tmp_path / "model", tmp_path / "other"
    (folder / "sub").mkdir(parents=True), other.mkdir()
    path = external(folder, data="sub/weights.bin")
    (folder / "sub/weights.bin").rename(other / DATA)
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(other)
    refused(compress, path, "outside")


def test_a_link_inside_the_folder_is_followed(compress, tmp_path):
    path = external(tmp_path)
    (tmp_path / DATA).rename(tmp_path / "real.bin")
    (tmp_path / DATA).symlink_to("real.bin")
    compress(path, "--no-check")
    assert weights(tmp_path / "model.compressed.onnx")


def test_links_as_in_the_cache_of_hugging_face(compress, tmp_path):
    """snapshots/1/* are links to blobs/*; the model's real folder is blobs."""
    snapshot, blobs = tmp_path / "snapshots/1", tmp_path / "blobs"
    snapshot.mkdir(parents=True), blobs.mkdir()
    path = external(snapshot)
    for name, blob in (("model.onnx", "abc"), (DATA, "def")):
        (snapshot / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    compress(path, "--no-check", "-o", tmp_path / "out.onnx")
    assert weights(tmp_path / "out.onnx")


def test_hard_links_want_a_flag(compress, tmp_path):
    path = external(tmp_path)
    os.link(tmp_path / DATA, tmp_path / "other.bin")
    refused(compress, path, DATA, "--allow-hardlinks")
    compress(path, "--no-check", "--allow-hardlinks")
    compress("inspect", path, "--allow-hardlinks")


# --- out ---


def test_weights_go_out_when_asked(compress, tmp_path):
    path = small.save(wide(), tmp_path)
    report = compress(path, "--external-data", "--json").json()
    output = tmp_path / "model.compressed.onnx"
    onnx.checker.check_model(output, full_check=True)
    assert_close(run_onnx(output, feeds()), run_onnx(path, feeds()))
    data = [p for p in tmp_path.iterdir() if p.suffix == ".data"]
    content = data[0].read_bytes()
    assert [d.name for d in data] == [f"model.compressed-{hashlib.sha256(content).hexdigest()[:16]}.data"]
    assert report["output"]["data"] == [
        {"path": str(data[0]), "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    ]
    assert report["output"]["bytes"] == len(content) + output.stat().st_size
    arrays = weights(output)
    for t in onnx.load(output, load_external_data=False).graph.initializer:
        place = {e.key: e.value for e in t.external_data}
        assert bool(place) == (t.data_location == TensorProto.EXTERNAL) == (arrays[t.name].nbytes >= 1024)
        assert int(place.get("offset", 0)) % 64 == 0


def test_out_and_in_and_out_again_gives_the_same_bytes(compress, tmp_path):
    path = small.save(wide(), tmp_path)
    compress(path, "--external-data", "--no-check", "-o", tmp_path / "a.onnx")
    again = [p.read_bytes() for p in sorted(tmp_path.glob("a*")) if p.suffix in (".onnx", ".data")]
    compress(path, "--external-data", "--no-check", "-o", tmp_path / "a.onnx", "--force")
    assert again == [p.read_bytes() for p in sorted(tmp_path.glob("a*")) if p.suffix in (".onnx", ".data")]
    compress(tmp_path / "a.onnx", "--external-data", "--no-check", "-o", tmp_path / "b.onnx")
    (a,), (b,) = tmp_path.glob("a-*.data"), tmp_path.glob("b-*.data")
    assert a.read_bytes() == b.read_bytes()
    compress(tmp_path / "b.onnx", "--no-check", "-o", tmp_path / "c.onnx")
    assert weights(tmp_path / "c.onnx").keys() == weights(tmp_path / "a.onnx").keys()


def test_data_files_of_other_results_stay_and_are_named(compress, tmp_path):
    path = small.save(wide(), tmp_path)
    compress(path, "--external-data", "--no-check")
    (old,) = tmp_path.glob("*.data")
    (tmp_path / "model.compressed-notes.data").write_text("not ours")
    (tmp_path / "model.compressed.onnx").rename(tmp_path / "copy.onnx")

    def named(*args):
        return [w for w in compress(*args, "--no-check", "--force", "--json").json()["warnings"] if ".data" in w]

    assert named(path, "--external-data") == [], "the same weights"
    (note,) = named(path)
    assert old.name in note and "remove" in note and old.exists(), "the copy needs it"
    # What the input itself needs is not a left-over.
    compress(path, "--external-data", "--no-check", "--force")
    assert named(tmp_path / "copy.onnx", "-o", tmp_path / "model.compressed.onnx") == [] and old.exists()


def test_a_small_model_needs_no_data_file(compress, tmp_path):
    path = small.save(small.mlp(width=2), tmp_path)
    compress(path, "--external-data", "--no-check")
    assert not list(tmp_path.glob("*.data"))


def test_a_failure_leaves_neither_file(compress, tmp_path):
    path = small.save(wide(), tmp_path)
    output = tmp_path / "out.onnx"
    output.mkdir()
    before = listing(tmp_path)
    compress(path, "--external-data", "--no-check", "--force", "-o", output, code=6)
    assert listing(tmp_path) == before


def test_int8_with_external_data_on_both_sides(compress, tmp_path):
    path = external(tmp_path)
    np.savez(tmp_path / "x.npz", input=small.floats(5, 64, 8))
    compress(path, "--int8", "--data", tmp_path / "x.npz", "--external-data")
    assert run_onnx(tmp_path / "model.compressed.onnx", feeds(), optimise=True)[0].shape == (3, 256)


# --- what the reader leaves alone ---


def test_tensors_everywhere_come_back_whole(compress, tmp_path):
    """Weights in attributes, subgraphs, kept operators and training info."""
    big = numpy_helper.from_array(small.floats(3, 100, 100), "big")
    inner = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["input", "big"], ["inner_out"])],
        "inner",
        [],
        [onnx.helper.make_tensor_value_info("inner_out", TensorProto.FLOAT, None)],
        [big],
    )
    other = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["input"], ["other_out"])],
        "other",
        [],
        [onnx.helper.make_tensor_value_info("other_out", TensorProto.FLOAT, None)],
    )
    table = numpy_helper.from_array(small.floats(5, 50, 50))
    made = small.model(
        [
            onnx.helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(small.floats(4, 100, 100))),
            onnx.helper.make_node("Add", ["input", "k"], ["sum"]),
            onnx.helper.make_node("If", ["c"], ["chosen"], then_branch=inner, else_branch=other),
            onnx.helper.make_node("Strange", ["sum"], ["kept"], domain="my.domain", table=table),
            onnx.helper.make_node("Add", ["chosen", "kept"], ["output"]),
        ],
        [("input", [100, 100]), ("c", [], TensorProto.BOOL)],
        [("output", [100, 100])],
        domains=[("my.domain", 1)],
    )
    info = made.training_info.add()
    info.initialization.name = "init"
    info.initialization.initializer.append(numpy_helper.from_array(small.floats(6, 60, 60), "start"))
    made.graph.doc_string = "a graph"
    made.graph.metadata_props.add(key="who", value="me")
    path = small.save(made, tmp_path)
    compress(path)
    back = onnx.load(tmp_path / "model.compressed.onnx")
    assert back.training_info[0] == info
    assert (back.graph.doc_string, back.graph.metadata_props[0].value) == ("a graph", "me")
    kept = next(n for n in back.graph.node if n.op_type == "Strange")
    np.testing.assert_array_equal(numpy_helper.to_array(kept.attribute[0].t), small.floats(5, 50, 50))
    arrays = [numpy_helper.to_array(t) for t in back.graph.initializer]
    assert any(np.array_equal(a, small.floats(4, 100, 100)) for a in arrays)
    branch = next(n for n in back.graph.node if n.op_type == "If")
    arrays += [numpy_helper.to_array(t) for a in branch.attribute for t in a.g.initializer]
    assert any(np.array_equal(a, small.floats(3, 100, 100)) for a in arrays)


def test_typed_data_is_read_as_raw_data_is(compress, tmp_path):
    """Floats and doubles that no raw data holds, a few and many; integers always take the long way."""
    kinds = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.INT64: np.int64}
    for kind, dtype in kinds.items():
        for n in (3, 5000):
            values = (small.floats(n, n) * 1000).astype(dtype)
            add = small.node("Add", "input w", "output")
            made = small.model([add], [("input", [n], kind)], [("output", [n], kind)])
            made.graph.initializer.append(onnx.helper.make_tensor("w", kind, [n], values))
            assert not made.graph.initializer[0].HasField("raw_data")
            compress(small.save(made, tmp_path), "--no-check", "--force")
            np.testing.assert_array_equal(weights(tmp_path / "model.compressed.onnx")["w"], values)


def test_sixteen_bytes_of_raw_data_are_no_reference(compress, tmp_path):
    """Raw data that looks like one of our references stays what it is."""
    forged = np.array([8, 64], np.int64)
    made = small.model(
        [small.node("Add", "input w", "output")],
        [("input", [2], TensorProto.INT64)],
        [("output", [2], TensorProto.INT64)],
        {"w": forged},
    )
    compress(small.save(made, tmp_path), "--no-check")
    np.testing.assert_array_equal(weights(tmp_path / "model.compressed.onnx")["w"], forged)


# --- the file under our feet ---


def test_a_file_truncated_while_it_is_mapped(tmp_path):
    """A message and exit code 6 instead of a crash, and nothing left behind."""
    path = tmp_path / "model.onnx"
    made = small.model(
        [small.node("Add", "input w", "output")],
        [("input", [1])],
        [("output", [64 << 20])],
        {"w": np.ones(64 << 20, np.float32)},
    )
    onnx.save(made, path)
    (tmp_path / "copy.onnx").symlink_to("model.onnx")
    seen = set()
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        onnx.save(made, path)
        out = tmp_path / "out.onnx"
        command = [binary(), path, "--no-check", "-o", out]
        child = started(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        time.sleep(delay)
        os.truncate(path, 5000)
        _, err = child.communicate(timeout=120)
        assert child.returncode in (0, 3, 6), err
        seen.add(child.returncode)
        if child.returncode:
            assert err.startswith("error: ") and not out.exists()
        for made_file in tmp_path.glob("out.*"):
            made_file.unlink()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.onnx", "model.onnx"]
    shutil.rmtree(tmp_path)


def test_no_check_and_gates_contradict_each_other(compress, tmp_path):
    path = small.save(small.mlp(), tmp_path)
    assert "--check none" in compress(path, "--no-check", "--max-drop", "1%", code=2).err
    report = compress(path, "--no-check", "--json").json()
    assert report["accuracy"] is None and any("--check none" in w for w in report["warnings"])
