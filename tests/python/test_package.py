"""The Python package: jobs, data in memory, functions that score, errors, Ctrl-C, notebooks, types."""

import json
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from support import ROOT, read_report, started

DIGITS = ROOT / "models" / "digits"
EXAMPLES = ROOT / "python" / "examples"

HEAD = f"""
import sys
import numpy as np
import compress
digits = {str(DIGITS)!r}
train, test = np.load(digits + "/train.npz"), np.load(digits + "/test.npz")
model = digits + "/digits.onnx"
"""


def script(installed, text, *args, cwd=None):
    """Runs a script that has to succeed, and returns what it prints."""
    ran = installed.python(HEAD + textwrap.dedent(text), *args, cwd=cwd)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_example_on_digits(installed, tmp_path):
    out = tmp_path / "digits.int8.onnx"
    ran = installed.run("python", EXAMPLES / "digits.py", out)
    assert ran.returncode == 0, ran.stderr
    assert "gate max_drop: passed" in ran.stdout and "samples of its own" in ran.stdout
    # What the function said is what ONNX Runtime says.
    test = np.load(DIGITS / "test.npz")
    share = {}
    for name, path in [("before", DIGITS / "digits.onnx"), ("after", out)]:
        made = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"input": test["x"]})[0]
        share[name] = np.mean(made.argmax(1) == test["y"])
    accuracy = read_report(out.with_suffix(".report.json"))["accuracy"]
    assert accuracy["metric"] == "score" and accuracy["scored_apart"]
    assert abs(accuracy["before"] - share["before"]) < 1e-12 and abs(accuracy["after"] - share["after"]) < 3e-3


def test_a_function_decides_what_stays_in_floats(installed, tmp_path):
    printed = script(
        installed,
        """
        import json
        # A score that only answers very near those of the original have: the search has to leave layers in floats.
        original = compress.Model(model).run(test["x"][:64])["logits"]
        calls = 0

        def score(predict):
            global calls
            calls += 1
            error = np.abs(predict(input=test["x"][:64])["logits"] - original).max()
            return 1.0 - float(error) / float(np.abs(original).max())

        for limit in (0.5, 0.002):
            report = compress.compress(
                model, output=f"{sys.argv[1]}/{limit}.onnx", int8=True, data=dict(train), eval=dict(test),
                evaluate=score, max_drop=f"{100 * limit}%",
            )
            layers = [layer["node"] for layer in report["layers"] if layer["precision"] == "int8"]
            print(json.dumps({"int8": len(layers), "after": report["accuracy"]["after"], "calls": calls}))
        """,
        tmp_path,
    )
    loose, strict = (json.loads(line) for line in printed.splitlines())
    assert strict["int8"] < loose["int8"], (loose, strict)
    assert strict["after"] >= 0.998 and strict["calls"] > loose["calls"]


def test_data_in_every_form_gives_the_same_bytes(installed, tmp_path):
    printed = script(
        installed,
        """
        import hashlib
        x, y = train["x"], train["y"]
        rows = range(len(x))
        forms = {
            "arrays": {"x": x, "y": y},
            "tuple": (x, y),
            "by name": {"input": x, "labels": y},
            "batches": [(x[i : i + 100], y[i : i + 100]) for i in range(0, len(x), 100)],
            "generator": ({"input": x[i : i + 7], "y": y[i : i + 7]} for i in range(0, len(x), 7)),
            "samples": [{"input": x[i], "y": y[i]} for i in rows],
            "not contiguous": (np.asfortranarray(x), y[::-1][::-1]),
            "more than inputs": [{"x": x, "y": y, "paths": ["a"] * len(x), "meta": None}],
            "big-endian": {"x": x.astype(">f4"), "y": y.astype(">i8")},
        }
        for name, data in forms.items():
            report = compress.compress(model, output=f"{sys.argv[1]}/{name}.onnx", int8=True, data=data, threads=1)
            print(hashlib.sha256(report.output.read_bytes()).hexdigest(), report["recipe"]["data"], name)
        """,
        tmp_path,
    )
    lines = [line.split(maxsplit=2) for line in printed.splitlines()]
    assert len(lines) == 9
    assert len({line[0] for line in lines}) == 1, printed
    # The digest of the data follows from its values alone.
    assert len({line[1] for line in lines}) == 1 and len(lines[0][1]) == 64


def test_arrays_that_nothing_reads_are_told(installed, tmp_path):
    printed = script(
        installed,
        """
        how = {"against": model, "max_drop": "1%"}
        report = compress.check(model, eval={"x": test["x"], "label": test["y"]}, **how)
        print(any("nothing reads `label`" in w for w in report["warnings"]), report["accuracy"]["metric"])
        try:
            compress.check(model, eval={"x": test["x"], "y": test["y"].astype(str)}, **how)
        except TypeError as error:
            print("labels are numbers of classes" in str(error))
        """,
    )
    assert printed.split() == ["True", "agreement", "True"]


def test_data_is_not_copied(installed, tmp_path):
    printed = script(
        installed,
        """
        import resource
        # 400 MB, of which a copy would show.
        x = np.random.default_rng(0).standard_normal((1_600_000, 1, 8, 8), dtype=np.float32)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        compress.compress(model, output=sys.argv[1] + "/out.onnx", int8=True, data=x, effort="quick", check="none")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print((after - before) // 1024)
        """,
        tmp_path,
    )
    assert int(printed) < 200, f"{printed} MB more"


def test_errors_are_exceptions_of_their_kind(installed, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((DIGITS / "digits.onnx").read_bytes()[:1000])
    printed = script(
        installed,
        """
        def fails(kind, job):
            try:
                job()
            except kind as e:
                print(type(e).__module__ + "." + type(e).__name__, "|", str(e).replace("\\n", " "))
            else:
                raise AssertionError("it did not fail")

        x, y = train["x"], train["y"]
        out = sys.argv[1] + "/out.onnx"
        fails(compress.FileError, lambda: compress.compress("nowhere.onnx"))
        fails(compress.MalformedError, lambda: compress.compress(sys.argv[1] + "/broken.onnx", output=out))
        fails(compress.UsageError, lambda: compress.compress(model, output=out, prune=1.5))
        fails(compress.UsageError, lambda: compress.compress(model, output=out, effort="best"))
        fails(compress.DataError, lambda: compress.compress(model, output=out, int8=True, data=[x, x[:, 0, :3]]))
        fails(compress.DataError, lambda: compress.compress(model, output=out, int8=True, data=[]))
        fails(compress.DataError, lambda: compress.compress(model, output=out, int8=True, data={"z": x}))
        fails(compress.DataError, lambda: compress.compress(model, output=out, int8=True, data=(x, y[:5])))
        fails(compress.DataError, lambda: compress.compress(model, output=out, int8=True, data=[{"x": x}, {"x": x, "y": y}]))
        fails(TypeError, lambda: compress.compress(model, output=out, int8=True, data=3))
        fails(TypeError, lambda: compress.compress(model, output=out, int9=True))
        fails(TypeError, lambda: compress.compress(model, output=out, int8=True, data=[np.array(["a", "b"])]))
        fails(compress.GateError, lambda: compress.compress(model, output=out, check="none", max_size="20kB"))
        fails(compress.DataError, lambda: compress.Model(model).run(x[0, 0]))
        fails(KeyError, lambda: compress.Model(model).run(picture=x))
        """,
        tmp_path,
    )
    kinds = [line.split(" | ")[0] for line in printed.splitlines()]
    assert kinds == [
        "compress.FileError",
        "compress.MalformedError",
        "compress.UsageError",
        "compress.UsageError",
        "compress.DataError",
        "compress.DataError",
        "compress.DataError",
        "compress.DataError",
        "compress.DataError",
        "builtins.TypeError",
        "builtins.TypeError",
        "builtins.TypeError",
        "compress.GateError",
        "compress.DataError",
        "builtins.KeyError",
    ]
    # Options are named as Python code has them.
    assert "--" not in printed


def test_an_exception_in_a_function_ends_the_job_and_reaches_the_caller(installed, tmp_path):
    printed = script(
        installed,
        """
        import os
        def score(predict):
            raise ZeroDivisionError("mine")
        try:
            compress.compress(model, output=sys.argv[1] + "/out.onnx", int8=True, data=dict(train), evaluate=score)
        except ZeroDivisionError as e:
            print(e, os.listdir(sys.argv[1]))
        # The next job is none the wiser.
        print(compress.compress(model, output=sys.argv[1] + "/next.onnx", int8=True, data=dict(train)).passed)
        """,
        tmp_path,
    )
    assert printed.splitlines() == ["mine []", "True"]


def test_a_model_that_is_evaluated_may_be_run_by_threads_and_not_later(installed, tmp_path):
    printed = script(
        installed,
        """
        from concurrent.futures import ThreadPoolExecutor
        kept = []

        def score(predict):
            for old in kept:
                try:
                    old(test["x"])
                except RuntimeError as e:
                    assert "is over" in str(e)
                else:
                    raise AssertionError("a model that is gone answers")
            kept.append(predict)
            alone = [predict(test["x"][i : i + 1 + i % 3])["logits"] for i in range(60)]
            with ThreadPoolExecutor(8) as pool:
                made = list(pool.map(lambda i: predict(test["x"][i : i + 1 + i % 3])["logits"], range(60)))
            return float(all(np.array_equal(a, b) for a, b in zip(alone, made)))

        report = compress.compress(model, output=sys.argv[1] + "/out.onnx", int8=True, data=dict(train), evaluate=score)
        print(report["accuracy"]["before"], report["accuracy"]["after"], len(kept))
        """,
        tmp_path,
    )
    assert printed.split()[:2] == ["1.0", "1.0"] and int(printed.split()[2]) >= 2


def test_ctrl_c_just_after_a_score_does_not_hang(installed, tmp_path):
    printed = script(
        installed,
        """
        import os, signal, threading, time
        for delay in (0.0, 0.0001, 0.0002, 0.0003, 0.0005, 0.001):
            def score(predict):
                def interrupt():
                    time.sleep(delay)
                    os.kill(os.getpid(), signal.SIGINT)
                threading.Thread(target=interrupt).start()
                return 1.0
            try:
                compress.compress(model, output=sys.argv[1] + "/out.onnx", int8=True, data=dict(train), evaluate=score, max_drop=0.01)
            except KeyboardInterrupt:
                print("interrupted")
        """,
        tmp_path,
    )
    assert printed.splitlines() == ["interrupted"] * 6


def test_ctrl_c_stops_a_job_and_leaves_no_file(installed, tmp_path):
    code = HEAD + textwrap.dedent(
        """
        print("begins", flush=True)
        try:
            compress.compress(model, output=sys.argv[1] + "/out.onnx", prune=0.9, data=dict(train), epochs=100000)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            # The job is over: the interpreter runs on.
            print(compress.Model(model).run(test["x"])["logits"].shape, flush=True)
        """
    )
    job = started(
        [installed.folder / "bin" / "python", "-c", code, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout.readline() == "begins\n"
    time.sleep(3)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=60)
    assert out.splitlines() == ["interrupted", "(359, 10)"], out + err
    assert list(tmp_path.iterdir()) == []


def test_a_training_job_yields_its_metrics(installed, tmp_path):
    out = tmp_path / "trained.onnx"
    ran = installed.run("python", EXAMPLES / "distill.py", out)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("epoch")]
    assert (
        len(lines) == 13 and lines[0].startswith("epoch 0 of 12: loss None") and lines[-1].startswith("epoch 12 of 12")
    )
    assert out.exists()


def test_a_training_job_that_fails_says_so_at_its_end(installed, tmp_path):
    printed = script(
        installed,
        """
        try:
            for metrics in compress.Distill("none.onnx", data=dict(train), output=sys.argv[1] + "/out.onnx"):
                print(metrics)
        except compress.FileError as error:
            print("none.onnx" in str(error))
        """,
        tmp_path,
    )
    assert printed == "True\n"


def test_a_training_job_that_is_left_can_go_on(installed, tmp_path):
    printed = script(
        installed,
        """
        options = dict(
            output=sys.argv[1] + "/out.onnx", from_nothing=True, data=dict(train), eval=dict(test), epochs=6, batch=64,
            threads=1,
        )
        for metrics in compress.Distill(model, **options):
            if metrics.epoch == 3:
                break
        for metrics in compress.Distill(model, resume=True, **options):
            print(metrics.epoch, metrics.metric, metrics.score > 0.5)
        """,
        tmp_path,
    )
    assert printed.splitlines()[-1] == "6 top1 True"


def test_progress_goes_to_tqdm(installed, tmp_path):
    job = "compress.compress(model, output=sys.argv[1] + '/{0}.onnx', int8=True, data=dict(train), progress={0})"
    shown = installed.python(HEAD + job.format(True), tmp_path)
    assert shown.returncode == 0 and "evaluate" in shown.stderr, shown.stderr
    hidden = installed.python(HEAD + job.format(False), tmp_path)
    assert hidden.returncode == 0 and hidden.stderr == "", hidden.stderr


def test_the_command_comes_with_the_module(installed, tmp_path):
    out = tmp_path / "out.onnx"
    ran = installed.run("compress", DIGITS / "digits.onnx", "-o", out, "--no-check", "--max-size", "20kB")
    assert ran.returncode == 9 and out.exists()
    assert "gate --max-size: FAILED" in ran.stdout and "error: gate failed" in ran.stderr
    assert installed.run("python", "-m", "compress", "nowhere.onnx").returncode == 6
    assert installed.run("compress", "--int9").returncode == 2


def test_a_notebook_shows_reports_as_tables(installed, tmp_path):
    cells = [
        f"import numpy as np, compress\ntrain = dict(np.load({str(DIGITS / 'train.npz')!r}))",
        f"compress.compress({str(DIGITS / 'digits.onnx')!r}, output='out.onnx', int8=True, data=train)",
    ]
    code = [
        {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": c, "id": f"c{i}"}
        for i, c in enumerate(cells)
    ]
    book = tmp_path / "book.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.write_text(json.dumps({"cells": code, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))
    ran = installed.run("jupyter", "nbconvert", "--to", "notebook", "--execute", "--output", "done", book, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    cell = json.loads((tmp_path / "done.ipynb").read_text())["cells"][1]
    [shown] = [o for o in cell["outputs"] if o["output_type"] == "execute_result"]
    table = "".join(shown["data"]["text/html"])
    assert table.startswith("<table") and '<th scope="row">size</th><td>237.3 kB</td>' in table


def test_types_are_complete(installed):
    checked = installed.run("mypy", "--strict", "--cache-dir", "/dev/null", EXAMPLES, ROOT / "python" / "compress")
    assert checked.returncode == 0, checked.stdout


def test_every_job_of_the_command_is_a_function(installed):
    printed = script(
        installed,
        """
        import inspect
        from compress import _jobs
        jobs = {name for name, job in inspect.getmembers(_jobs) if getattr(job, "__module__", "") == _jobs.__name__}
        assert "merge" in jobs and jobs <= set(compress.__all__), jobs - set(compress.__all__)
        assert all(getattr(compress, name) is getattr(_jobs, name) for name in jobs)
        print("fine")
        """,
    )
    assert printed == "fine\n"


def test_a_sweep_passes_where_one_of_its_models_does(installed, tmp_path):
    printed = script(
        installed,
        """
        options = {"data": dict(train), "eval": dict(test), "epochs": 0, "prune_by": "magnitude", "max_drop": "5%", "force": True}
        for fractions in ([0.3, 0.99], [0.99]):
            try:
                print(compress.sweep(model, sweep=fractions, output=sys.argv[1] + "/out.onnx", **options).passed)
            except compress.GateError as error:
                print(error.report.passed)
        """,
        tmp_path,
    )
    assert printed.split() == ["True", "False"]


def test_every_option_has_a_docstring_and_a_type(installed):
    printed = script(
        installed,
        """
        import inspect
        for job in (compress.compress, compress.check, compress.bench, compress.sweep, compress.Distill.__init__):
            for name, parameter in inspect.signature(job).parameters.items():
                assert name == "self" or f"{name}: " in job.__doc__, (job, name)
                assert name == "self" or parameter.annotation is not inspect.Parameter.empty, (job, name)
        print("fine")
        """,
    )
    assert printed == "fine\n"


def test_the_wheel_was_tested_without_rust(installed):
    assert installed.python("import shutil; assert shutil.which('cargo') is None").returncode == 0


def test_onnxruntime_is_found_by_the_interpreter_that_runs(installed, tmp_path):
    """Its environment is not active: what Python would import counts."""
    (tmp_path / "onnxruntime").symlink_to(Path(ort.__file__).parent)
    text = """
        import json, sys
        sys.path.insert(0, sys.argv[1])
        import compress
        digits = sys.argv[2]
        report = compress.check(digits + "/digits.onnx", against=digits + "/digits.onnx", data=digits + "/test.npz")
        explained = compress.explain(digits + "/digits.onnx")
        print(json.dumps([report["deployed"]["engine"], explained["onnxruntime"]["engine"]]))
    """
    ran = installed.run("python", "-c", textwrap.dedent(text), tmp_path, DIGITS)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == ["onnxruntime", "onnxruntime"]
