"""Times that are kept on disk: the same job decides as it did the last time."""

import os
import subprocess

from support import ROOT, binary

DIGITS = ROOT / "models/digits"
CUT = ["--prune-channels", "0.3", "--epochs", "0", "--no-check", "--data", DIGITS / "train.npz"]


def test_a_cut_decides_by_the_times_that_were_measured_before(compress, tmp_path):
    env = {"COMPRESS_CACHE": str(tmp_path / "cache")}

    def cut(name, env):
        out = tmp_path / f"{name}.onnx"
        report = compress(DIGITS / "digits.onnx", *CUT, "-o", out, "--json", env=env).json()
        return out.read_bytes(), [w for w in report["warnings"] if "measured on this machine before" in w]

    first, notes = cut("first", env)
    (file,) = (tmp_path / "cache").iterdir()
    lines = file.read_text().splitlines()
    assert not notes and lines
    again, (note,) = cut("again", env)
    assert again == first and str(file) in note
    assert file.read_text().splitlines() == lines, "nothing was measured anew"
    # Another number of threads is another machine.
    cut("threads", env)
    compress(DIGITS / "digits.onnx", *CUT, "--threads", "1", "-o", tmp_path / "one.onnx", "-q", env=env)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_nothing_is_kept_where_nobody_wants_it_or_it_can_not_be(compress, tmp_path):
    (tmp_path / "file").write_text("no folder")
    for name, folder in (("none", ""), ("blocked", tmp_path / "file/cache")):
        env = {"COMPRESS_CACHE": str(folder), "XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path)}
        compress(DIGITS / "digits.onnx", *CUT, "-o", tmp_path / f"{name}.onnx", "-q", env=env)
    assert not (tmp_path / "xdg").exists() and not (tmp_path / ".cache").exists()
    env = {"XDG_CACHE_HOME": str(tmp_path / "xdg")}
    usual = {name: value for name, value in os.environ.items() if name != "COMPRESS_CACHE"}
    args = [binary(), DIGITS / "digits.onnx", *CUT, "-q", "-o", tmp_path / "usual.onnx"]
    subprocess.run(args, check=True, env={**usual, **env})
    assert list((tmp_path / "xdg/compress").iterdir())
