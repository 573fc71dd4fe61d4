"""Data in every format: the figures must be those that ONNX Runtime gives on the same samples."""

import gzip
import struct

import numpy as np
import onnx
import pytest
import small
from onnx import numpy_helper
from PIL import Image
from support import listing, run_onnx

CLASSES = 5
SIZE = 12


@pytest.fixture
def cnn(tmp_path):
    """A small classifier of 3x12x12 pictures."""
    return small.save(small.cnn(), tmp_path)


@pytest.fixture
def grey(tmp_path):
    """A small classifier of grey pictures."""
    return small.save(small.cnn(channels=1), tmp_path, "grey.onnx")


def normal(rng, n, channels=3):
    """Pictures as the model wants them."""
    return rng.standard_normal((n, channels, SIZE, SIZE)).astype(np.float32)


def labels_with(model, x, right, rng):
    """Labels of which about the share `right` is what the model says."""
    said = run_onnx(model, {"input": x})[0].argmax(1)
    wrong = rng.random(len(x)) >= right
    return np.where(wrong, (said + 1) % CLASSES, said).astype(np.int64)


def accuracy(compress, model, *args):
    """What a simplifying run reports."""
    return compress(model, "--force", "--json", *args).json()["accuracy"]


def expect(found, model, x, y):
    """The figures of all samples, as ONNX Runtime has them."""
    right = (run_onnx(model, {"input": x})[0].argmax(1) == y).mean()
    assert found["samples"] == len(x) and found["metric"] == "top1" and not found["synthetic"]
    assert found["before"] == pytest.approx(right) and found["after"] == pytest.approx(right)
    assert 0.1 < right < 0.95, "the labels tell nothing"


@pytest.mark.parametrize("names", [("x", "y"), ("input", "labels"), ("images", "labels"), ("data", "y")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(compress, cnn, rng, names, save):
    x = normal(rng, 40)
    y = labels_with(cnn, x, 0.7, rng)
    path = cnn.parent / "data.npz"
    save(path, **{names[0]: x, names[1]: y})
    expect(accuracy(compress, cnn, "--eval", path), cnn, x, y)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8, np.int32])
def test_npz_of_other_types(compress, cnn, rng, dtype):
    x = (normal(rng, 30) * 50 + 100).clip(0, 255).astype(dtype)
    y = labels_with(cnn, x.astype(np.float32), 0.6, rng).astype(np.uint8).reshape(-1, 1)
    path = cnn.parent / "data.npz"
    np.savez(path, x=x, y=y)
    expect(accuracy(compress, cnn, "--eval", path), cnn, x.astype(np.float32), y[:, 0])


def test_npy_has_no_labels(compress, cnn, rng):
    path = cnn.parent / "data.npy"
    np.save(path, normal(rng, 23))
    found = accuracy(compress, cnn, "--eval", path)
    # The classifier of random weights gives one class to all of them.
    assert (found["metric"], found["samples"], found["agreement"]) == ("sqnr", 23, None)
    assert found["before"] is None and found["drop"] is None and "same" in found["reason"]


def write_idx(folder, prefix, pictures, labels, pack=True):
    """An IDX pair, as MNIST is published."""
    for kind, array in (("images-idx3", pictures), ("labels-idx1", labels)):
        data = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
        data += array.astype(np.uint8).tobytes()
        name = f"{prefix}-{kind}-ubyte" + (".gz" if pack else "")
        (folder / name).write_bytes(gzip.compress(data, mtime=0) if pack else data)


@pytest.mark.parametrize("pack", [True, False])
def test_idx(compress, grey, rng, pack):
    pictures = rng.integers(0, 256, (50, SIZE, SIZE)).astype(np.uint8)
    x = ((pictures[:, None] / 255 - 0.25) / 0.5).astype(np.float32)
    y = labels_with(grey, x, 0.5, rng)
    folder = grey.parent / "idx"
    folder.mkdir()
    write_idx(folder, "mine-train", pictures, y, pack)
    how = ["--preprocess", "scale=255,mean=0.25,std=0.5"]
    file = folder / ("mine-train-images-idx3-ubyte" + (".gz" if pack else ""))
    for path in (folder, folder / "mine-train", file):
        expect(accuracy(compress, grey, "--eval", path, *how), grey, x, y)
    # Two sets with one beginning: the user has to say which.
    write_idx(folder, "mine-test", pictures[:9], y[:9], pack)
    assert accuracy(compress, grey, "--eval", folder / "mine-test", *how)["samples"] == 9
    for path in (folder, folder / "mine"):
        assert "2 sets" in compress(grey, "--force", "--eval", path, code=7).err


def test_picture_folders_are_classes(compress, cnn, rng):
    pictures = rng.integers(0, 256, (20, SIZE, SIZE, 3)).astype(np.uint8)
    folder = cnn.parent / "pictures"
    y = np.repeat(np.arange(CLASSES), 4)
    for i, (picture, label) in enumerate(zip(pictures, y)):
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i:03}.{'png' if i % 2 else 'bmp'}")
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    x = ((pictures / np.float32(255) - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
    how = ["--preprocess", "scale=255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"]
    found = accuracy(compress, cnn, "--eval", folder, *how)
    assert found["samples"] == 20 and found["metric"] == "top1"
    right = (run_onnx(cnn, {"input": x})[0].argmax(1) == y).mean()
    assert found["before"] == pytest.approx(right)
    # Blue first, whole numbers.
    x = pictures[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32)
    right = (run_onnx(cnn, {"input": x})[0].argmax(1) == y).mean()
    assert accuracy(compress, cnn, "--eval", folder, "--preprocess", "scale=1,bgr")["before"] == pytest.approx(right)


def test_pictures_are_cut_to_size(compress, cnn, rng):
    folder = cnn.parent / "pictures"
    folder.mkdir()
    for i in range(6):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype(np.uint8)).save(folder / f"{i}.png")
    assert "40x30" in compress(cnn, "--eval", folder, code=7).err
    assert accuracy(compress, cnn, "--eval", folder, "--preprocess", f"resize=16,crop={SIZE}")["samples"] == 6


def test_onnx_test_data_sets(compress, cnn, rng):
    folder = cnn.parent / "data"
    for i in range(12):
        place = folder / f"test_data_set_{i}"
        place.mkdir(parents=True)
        onnx.save_tensor(numpy_helper.from_array(normal(rng, 2), "input"), place / "input_0.pb")
    found = accuracy(compress, cnn, "--eval", folder)
    assert (found["samples"], found["meaning"]) == (24, "class scores")
    assert accuracy(compress, cnn, "--eval", folder / "test_data_set_3")["samples"] == 2
    report = compress(cnn, "--int8", "--data", folder, "--force", "--json").json()
    assert report["accuracy"]["samples"] == 4


def test_several_inputs(compress, tmp_path, rng):
    made = small.model(
        [small.node("MatMul", "a w", "h"), small.node("Add", "h b", "y")],
        [("a", ["n", 6]), ("b", ["n", 4])],
        [("y", ["n", 4])],
        {"w": small.floats(1, 6, 4)},
    )
    path = small.save(made, tmp_path)
    a, b = rng.standard_normal((30, 6)).astype(np.float32), rng.standard_normal((30, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", a=a, b=b, y=run_onnx(path, {"a": a, "b": b})[0].argmax(1))
    assert accuracy(compress, path, "--eval", tmp_path / "data.npz")["before"] == 1
    np.savez(tmp_path / "data.npz", a=a)
    assert "`b`" in compress(path, "--force", "--eval", tmp_path / "data.npz", code=7).err
    np.savez(tmp_path / "data.npz", a=a, b=b[:7])
    compress(path, "--force", "--eval", tmp_path / "data.npz", code=7)


def masked():
    """A mask [S, T], shared by all samples, beside sequences [B, S, 4]."""
    nodes = [small.node("ReduceMax", "mask", "m", axes=[1]), small.node("Add", "x m", "y")]
    return small.model(nodes, [("mask", ["S", "T"]), ("x", ["B", "S", 4])], [("y", ["B", "S", 4])])


def with_state():
    """A state [2, B, 4], in which the batch is not the first axis."""
    nodes = [small.node("ReduceMean", "state", "s", axes=[0], keepdims=0), small.node("Add", "x s", "y")]
    return small.model(nodes, [("x", ["B", 4]), ("state", [2, "B", 4])], [("y", ["B", 4])])


@pytest.mark.parametrize("model", [masked, with_state])
def test_made_up_inputs_agree_on_axes_of_the_same_name(compress, tmp_path, model):
    path = small.save(model(), tmp_path)
    assert compress("bench", path, "--batch", 8, "--runs", 1, "--json").json()["batch"] == 8
    compress(path, "--bisect")
    report = compress(path, "--batch", 3, "--json").json()
    assert report["accuracy"]["sqnr_db"] is None and report["speed"]["batch"] == 3


def bad_sets(rng):
    """Sets that are wrong for the model, and what has to be said of each."""
    x = normal(rng, 20)
    nan, infinite = x.copy(), x.copy()
    nan[3, 0, 2, 2], infinite[4, 1, 0, 0] = np.nan, np.inf
    return {
        "shape": (dict(x=x[:, :, :5]), "12, 12"),
        "channels": (dict(x=x[:, :1]), "[N, 3, 12, 12]"),
        "channels_last": (dict(x=x.transpose(0, 2, 3, 1).copy()), "transpose"),
        "rank": (dict(x=x[:, 0, 0]), "12"),
        "nan": (dict(x=nan), "NaN"),
        "infinite": (dict(x=infinite), "infinity"),
        "empty": (dict(x=x[:0]), "no samples"),
        "label_count": (dict(x=x, y=np.zeros(19, np.int64)), "19"),
        "label_type": (dict(x=x, y=np.zeros(20)), "labels"),
        "label_shape": (dict(x=x, y=np.zeros((20, 5), np.int64)), "one class"),
        "names": (dict(pictures=x), "`input`"),
        "text": (dict(x=np.array(["a", "b"])), "type"),
        "records": (dict(x=np.zeros(20, [("a", "<f4")])), "records"),
        "complex": (dict(x=x.astype(np.complex64)), "type"),
        "big_endian": (dict(x=x.astype(">f4")), "big-endian"),
        "fortran": (dict(x=np.asfortranarray(x)), "Fortran"),
        "scalar": (dict(x=np.float32(3)), "number"),
        "objects": (dict(x=np.array([None, {}], object)), "type"),
    }


@pytest.mark.parametrize("name", bad_sets(np.random.default_rng(0)))
def test_bad_data_is_7(compress, cnn, rng, name):
    arrays, says = bad_sets(rng)[name]
    path = cnn.parent / "data.npz"
    np.savez(path, **arrays)
    before = listing(cnn.parent)
    for args in (["--eval", path], ["--int8", "--data", path]):
        result = compress(cnn, *args, code=7)
        assert "data.npz" in result.err and says in result.err, result.err
        assert listing(cnn.parent) == before
    compress("check", cnn, "--against", cnn, "--data", path, code=7)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.npz", b"no archive"),
        ("data.npz", b""),
        ("data.npy", b"\x93NUMPY\x01\x00\xff\xff{'descr'"),
        ("data.npy", b""),
        ("train-images-idx3-ubyte.gz", b"\x1f\x8b\x08\x00garbage"),
        ("train-images-idx3-ubyte", struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 2**31, 2**31)),
        ("data.csv", b"1,2,3\n"),
        ("input_0.pb", b"\x08\x01"),
    ],
)
def test_damaged_data_is_7(compress, cnn, name, content):
    path = cnn.parent / name
    path.write_bytes(content)
    before = listing(cnn.parent)
    assert name in compress(cnn, "--int8", "--data", path, code=7).err
    assert listing(cnn.parent) == before


def test_truncated_npz_is_7(compress, cnn, rng):
    path = cnn.parent / "data.npz"
    np.savez(path, x=normal(rng, 20))
    whole = path.read_bytes()
    for share in (0.2, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        compress(cnn, "--int8", "--data", path, code=7)


def test_missing_data_is_6(compress, cnn):
    before = listing(cnn.parent)
    for flag in ("--data", "--eval"):
        assert "nowhere.npz" in compress(cnn, flag, cnn.parent / "nowhere.npz", code=6).err
    assert listing(cnn.parent) == before
    (cnn.parent / "empty").mkdir()
    compress(cnn, "--data", cnn.parent / "empty", code=7)


def test_one_sample_is_too_few_to_hold_out(compress, cnn, rng):
    path = cnn.parent / "data.npz"
    np.savez(path, x=normal(rng, 1))
    assert "hold out" in compress(cnn, "--int8", "--data", path, code=7).err
    np.savez(path, x=normal(rng, 2))
    assert compress(cnn, "--int8", "--data", path, "--json").json()["accuracy"]["samples"] == 1


@pytest.mark.parametrize(
    ("count", "says", "help"),
    [
        ("3", "the model takes 8 samples at once, and --validation-samples 3 fills no batch", "give 8 or more"),
        ("30", "leaves 2 of the 32 samples to calibrate or train on, and the model takes 8 at once", "a lower number"),
    ],
)
def test_samples_that_validate_or_train_fill_a_fixed_batch(compress, tmp_path, rng, count, says, help):
    model = small.save(small.cnn(batch=8), tmp_path)
    np.savez(tmp_path / "x.npz", input=normal(rng, 32))
    np.savez(tmp_path / "y.npz", input=normal(rng, 16))
    data = ("--data", tmp_path / "x.npz", "--eval", tmp_path / "y.npz")
    err = compress(model, "--int8", *data, "--validation-samples", count, code=7).err
    assert says in err and help in err
    compress(model, "--int8", *data, "--validation-samples", "8", "--no-check")


def test_a_fifth_is_held_out_and_never_calibrated_on(compress, tmp_path):
    """Five samples, each ten times as large as the one before, of which only the last is labelled
    rightly. The held-out one shows in the accuracy, those calibrated on in the input's scale."""
    path = small.save(small.mlp(), tmp_path)
    x = np.stack([small.floats(0, 8) * 10**i for i in range(5)])
    said = run_onnx(path, {"input": x})[0].argmax(1)
    y = (said + 1) % 4
    y[4] = said[4]
    data = tmp_path / "data.npz"
    np.savez(data, x=x, y=y)
    seen = set()
    for seed in range(16):
        args = ["--int8", "--data", data, "--calibration", "minmax", "--seed", seed, "--force", "--json"]
        accuracy = compress(path, *args).json()["accuracy"]
        output = onnx.load(tmp_path / "model.compressed.onnx")
        first = next(n for n in output.graph.node if n.op_type == "QuantizeLinear")
        scale = small.initializers(tmp_path / "model.compressed.onnx")[first.input[1]]
        largest = scale * 255 > 0.5 * (x[4].max() - x[4].min())
        assert accuracy["samples"] == 1
        assert (accuracy["before"] == 1) == (not largest)
        seen.add(accuracy["before"])
    assert seen == {0, 1}, "no seed held out the last sample, or all did"


def test_separate_sets_are_used_whole(compress, cnn, rng):
    data, evaluation = cnn.parent / "a.npz", cnn.parent / "b.npz"
    np.savez(data, x=normal(rng, 30))
    x = normal(rng, 40)
    np.savez(evaluation, x=x, y=labels_with(cnn, x, 0.7, rng))
    report = compress(cnn, "--int8", "--data", data, "--eval", evaluation, "--json").json()
    assert report["accuracy"]["samples"] == 40 and len(report["recipe"]["data"]) == 64
    # check calibrates nothing, so all is measured on.
    found = compress("check", cnn, "--against", cnn, "--data", data, "--json").json()
    assert found["accuracy"]["samples"] == 30
