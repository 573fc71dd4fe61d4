"""Running the command and ONNX Runtime, and comparing what they say."""

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parent.parent
# Generous: a slow machine must not fail, a hang must not last for ever.
TIMEOUT = 600


def binary() -> Path:
    """The command under test."""
    return Path(os.environ.get("COMPRESS_BIN", ROOT / "target/debug/compress"))


@dataclass
class Result:
    """What a run of the command said."""

    code: int
    out: str
    err: str

    def json(self):
        """The report that it printed."""
        return parsed_report(self.out)


def read_report(path: Path):
    """The report in a file."""
    return parsed_report(path.read_text())


def parsed_report(text: str):
    """A report, which is to have the fields of the schema and no others. Constants that JSON lacks, such as NaN, are an error."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    report = json.loads(text, parse_constant=refuse)
    if not any(kind.is_valid(report) for kind in report_kinds()):
        nearest = min((list(kind.iter_errors(report)) for kind in report_kinds()), key=len)
        raise AssertionError("\n".join(f"{error.json_path}: {error.message[:500]}" for error in nearest))
    return report


@cache
def report_kinds() -> list[Draft202012Validator]:
    """What each kind of report is held against."""
    schema = json.loads((ROOT / "docs/report.schema.json").read_text())
    kinds = closed(schema["$defs"])
    return [Draft202012Validator({**closed(kind), "$defs": kinds}) for kind in schema["anyOf"]]


def closed(schema):
    """A part of a schema, whose objects may have the fields that it names and no others."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) and "type" in schema else {}
    return {name: closed(part) for name, part in schema.items()} | rest


STARTED: list[subprocess.Popen] = []


def started(command, **how) -> subprocess.Popen:
    """A process that ends with its test, whatever that comes to."""
    STARTED.append(subprocess.Popen(command, **how))
    return STARTED[-1]


def run_command(*args, code=0, cwd=None, env=None, **rest) -> Result:
    """Runs the command; its exit code is to be `code`, or one of several."""
    # An active environment may have ONNX Runtime, on which results are then measured too.
    active = {"VIRTUAL_ENV", "CONDA_PREFIX", "ORT_DYLIB_PATH"}
    inherited = {name: value for name, value in os.environ.items() if name not in active}
    done = subprocess.run(
        [binary(), *map(str, args)],
        cwd=cwd,
        # What one test timed another must not decide by.
        env={**inherited, "NO_COLOR": "1", "COMPRESS_CACHE": "", **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
        **rest,
    )
    said = f"compress {' '.join(map(str, args))}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "panicked" not in done.stderr, said
    codes = code if isinstance(code, tuple) else (code,)
    # Models of random weights seldom survive what tests do to them; that they are told so has tests of its own.
    if code == 0 and done.returncode == 9 and "the result is unusable" in done.stderr:
        codes = (9,)
    assert done.returncode in codes, said
    if done.returncode not in (0, 2):
        # One clear message: a single line that begins so, perhaps with advice.
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said
    return Result(done.returncode, done.stdout, done.stderr)


def session(model, optimise=False, save=None):
    """An ONNX Runtime session for a path or a ModelProto, as the file says unless `optimise`."""
    options = ort.SessionOptions()
    # Tests run beside each other; and DynamicQuantizeLSTM divides a batch by threads, each part with a range of its own.
    options.intra_op_num_threads = 1
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    if save:
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(save)
    source = str(model) if isinstance(model, (str, Path)) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_onnx(model, feeds, optimise=False):
    """The outputs of a model in ONNX Runtime. Integer kernels need `optimise`."""
    return session(model, optimise).run(None, feeds)


def assert_close(got, expected, tolerance=1e-5, atol=0.0):
    """Equal but for rounding, seen against the largest number of each output; `atol` is always allowed."""
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        assert g.shape == e.shape and g.dtype == e.dtype
        if g.dtype.kind == "f":
            scale = np.max(np.abs(e[np.isfinite(e)]), initial=0) or 1
            np.testing.assert_allclose(g, e, rtol=tolerance, atol=max(atol, tolerance * scale))
        else:
            np.testing.assert_array_equal(g, e)


def listing(folder: Path):
    """All that is in a folder, with sizes and contents: to see that nothing was left or changed."""
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def sqnr_db(before, after) -> float:
    """The power of `before` beside that of its difference to `after`, in decibels."""
    with np.errstate(divide="ignore"):
        return -10 * np.log10(np.sum((before - after) ** 2) / np.sum(before**2))


def searched(compress, model, data, out, *args, code=0):
    """The report of a compression to INT8."""
    compress(model, "--int8", "--data", data, "-o", out, "--force", *args, code=code)
    return read_report(out.with_suffix(".report.json"))


def tried(report):
    """What the search for a way to quantise tried."""
    return [t for p in report["passes"] for t in p.get("tried", [])]
