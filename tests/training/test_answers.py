"""Answers of a teacher that are found once, in parts, and learnt from by later jobs."""

import json

import numpy as np
import onnx
import pytest
from jobs import STUDENT, TEST, TRAIN, distill
from support import ROOT, run_onnx

SCRIBE = ROOT / "models/scribe/scribe.onnx"
LEARN = ["--from-nothing", "--teacher", STUDENT, "--epochs", 3, "--batch", 32, "--lr", "0.003"]


@pytest.fixture(scope="module")
def found(compress, tmp_path_factory):
    """The folder of answers that three found."""
    folder = tmp_path_factory.mktemp("answers") / "of_digits"
    for i in (2, 3, 1):
        args = ["answers", STUDENT, "--data", TRAIN, "-o", folder, "--shard", f"{i}/3", "--json"]
        report = compress(*args).json()
        assert report["file"] == str(folder / f"{i}-of-3.safetensors") and report["of"] == len(np.load(TRAIN)["y"])
        assert report["outputs"] == ["logits"] and (folder / f"{i}-of-3.safetensors").stat().st_size == report["bytes"]
    return folder


def stored(path):
    """The samples and the answers of a file, as its format says."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]

    def tensor(name, dtype):
        begin, end = header[name]["data_offsets"]
        return np.frombuffer(body[begin:end], dtype).reshape(header[name]["shape"])

    return tensor("samples", np.int64), tensor("output logits", np.float32)


def test_answers_are_those_of_the_teacher(found):
    samples, answers = zip(*(stored(found / f"{i}-of-3.safetensors") for i in (1, 2, 3)))
    samples, answers = np.concatenate(samples), np.concatenate(answers)
    x = np.load(TRAIN)["x"]
    assert samples.tolist() == list(range(len(x)))
    assert np.allclose(answers, run_onnx(STUDENT, {"input": x})[0], atol=1e-4)


@pytest.mark.slow
def test_a_student_learns_the_same_from_them(compress, found, tmp_path):
    _, taught = distill(compress, tmp_path / "taught.onnx", *LEARN)
    _, told = distill(compress, tmp_path / "told.onnx", *LEARN, "--answers", found)
    assert taught["training"]["after"] > taught["training"]["before"] + 0.5, "it learnt something"
    assert (tmp_path / "taught.onnx").read_bytes() == (tmp_path / "told.onnx").read_bytes()
    # They are read, and not found again: others teach something else.
    for file in found.iterdir():
        _, answers = stored(file)
        whole = file.read_bytes()
        (tmp_path / "others").mkdir(exist_ok=True)
        (tmp_path / "others" / file.name).write_bytes(whole[: -answers.nbytes] + np.flip(answers, 1).tobytes())
    _, other = distill(compress, tmp_path / "other.onnx", *LEARN, "--answers", tmp_path / "others")
    assert (tmp_path / "other.onnx").read_bytes() != (tmp_path / "taught.onnx").read_bytes()


def test_a_fixed_batch_answers_every_sample(compress, found, tmp_path):
    model = onnx.load(STUDENT)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 48
    onnx.save(model, tmp_path / "fixed.onnx")
    report = compress("answers", tmp_path / "fixed.onnx", "--data", TRAIN, "-o", tmp_path / "a", "--json").json()
    samples, answers = stored(tmp_path / "a/1-of-1.safetensors")
    assert report["samples"] == len(samples) == report["of"]
    of_digits = np.concatenate([stored(found / f"{i}-of-3.safetensors")[1] for i in (1, 2, 3)])
    assert np.allclose(answers, of_digits, atol=1e-4)


def test_a_decoder_answers_without_its_cache(compress, tmp_path):
    text = tmp_path / "corpus.txt"
    text.write_text("".join(f"Line {i} of a corpus that is long enough for several samples.\n" for i in range(200)))
    args = ["--data", text, "--tokens", 32]
    answers = compress("answers", SCRIBE, *args, "-o", tmp_path / "a", "--json").json()
    assert answers["outputs"] == ["logits"]
    learn = [
        "distill",
        SCRIBE,
        *args,
        "--teacher",
        SCRIBE,
        "--epochs",
        "1",
        "--time",
        "20s",
        "-o",
        tmp_path / "out.onnx",
    ]
    compress(*learn, "--answers", tmp_path / "a")
    shorter = [*learn[:4], "--tokens", 16, *learn[6:]]
    assert "they differ in tokens" in compress(*shorter, "--force", "--answers", tmp_path / "a", code=2).err


def test_answers_that_do_not_fit_are_refused(compress, found, tmp_path):
    def refused(*args, code, data=TRAIN):
        learn = ["distill", STUDENT, "--data", data, "--epochs", "1", "-o", tmp_path / "out.onnx"]
        return compress(*learn, *args, code=code).err

    own = ["--teacher", STUDENT, "--answers", found]
    assert "has other answers than these: they differ in data" in refused(*own, code=2, data=TEST)
    assert "--answers has no answers to samples changed by --augment" in refused(*own, "--augment", "flip", code=2)
    assert "--match" in refused(*own, "--match", "logits=logits", code=2)
    assert "--teacher" in refused("--answers", found, code=2)
    assert "cannot be read" in refused("--teacher", STUDENT, "--answers", tmp_path / "none", code=6)
    (tmp_path / "part").mkdir()
    assert "has no answers" in refused("--teacher", STUDENT, "--answers", tmp_path / "part", code=6)
    part = tmp_path / "part/1-of-3.safetensors"
    part.write_bytes((found / "1-of-3.safetensors").read_bytes())
    missing = refused("--teacher", STUDENT, "--answers", tmp_path / "part", code=7)
    assert "have no answer" in missing and "find the answers of the missing parts" in missing
    part.write_bytes(part.read_bytes()[:-1])
    assert "is damaged" in refused("--teacher", STUDENT, "--answers", tmp_path / "part", code=6)
    args = ["answers", STUDENT, "--data", TRAIN, "-o", found]
    assert "exists already" in compress(*args, "--shard", "1/3", code=6).err
    assert "there are 1438 samples" in compress(*args, "--shard", "1/2000", code=2).err
