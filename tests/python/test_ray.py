"""Jobs that the workers of a Ray cluster share: the same bytes as without it, also where a worker is lost."""

import json
import textwrap

import pytest
from support import ROOT, run_command

DIGITS = ROOT / "models" / "digits"
SWEEP = ["--sweep", "0.3,0.5,0.7,0.9", "--prune-by", "magnitude", "--epochs", "2", "--data", DIGITS / "train.npz"]
SWEEP += ["--eval", DIGITS / "test.npz"]

HEAD = f"""
import json, os, signal, threading, time
import numpy as np
import compress
from compress import on_ray
import ray

os.environ["RAY_AUTH_MODE"] = "disabled"
ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
digits = {str(DIGITS)!r}
model, data, test = digits + "/digits.onnx", digits + "/train.npz", digits + "/test.npz"
"""


def run(installed, folder, text):
    """Runs a script; the last line that it prints is JSON."""
    if installed.python("import ray").returncode != 0:
        pytest.skip("Ray has no wheel for this Python")
    ran = installed.python(HEAD + textwrap.dedent(text), cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The sweep of the command, without Ray."""
    folder = tmp_path_factory.mktemp("alone")
    run_command(DIGITS / "digits.onnx", *SWEEP, "-o", "out.onnx", cwd=folder)
    return folder


def same_models(folder, alone):
    names = sorted(file.name for file in alone.iterdir())
    assert sorted(file.name for file in folder.iterdir()) == names
    for name in names:
        if not name.endswith(".json"):
            assert (folder / name).read_bytes() == (alone / name).read_bytes(), name


@pytest.mark.slow
def test_a_lost_worker_changes_nothing(installed, alone, tmp_path):
    done = run(
        installed,
        tmp_path,
        """
        killed = []

        def kill():
            # Each part has written its first model, and is at its second: what is there has to be replaced.
            while sum(name.endswith(".onnx") for name in os.listdir(".")) < 2:
                time.sleep(0.1)
            while not killed:
                for pid in filter(str.isdigit, os.listdir("/proc")):
                    try:
                        line = open(f"/proc/{pid}/cmdline").read()
                    except OSError:
                        continue
                    if line.startswith("ray::_part"):
                        os.kill(int(pid), signal.SIGKILL)
                        killed.append(pid)
                        break

        threading.Thread(target=kill, daemon=True).start()
        report = on_ray.sweep(
            model, sweep=[0.3, 0.5, 0.7, 0.9], prune_by="magnitude", shards=2, epochs=2, data=data, eval=test,
            output="out.onnx", progress=False
        )
        print(json.dumps([len(killed), [p["fraction"] for p in report["sweep"]], report["file"]]))
    """,
    )
    assert done == [1, [0.3, 0.5, 0.7, 0.9], "out.report.json"]
    same_models(tmp_path, alone)


@pytest.fixture(scope="module")
def several(installed, tmp_path_factory):
    """A folder in which one program had several jobs done, and what each said."""
    folder = tmp_path_factory.mktemp("several")
    return folder, run(
        installed,
        folder,
        """
        def arrays(path):
            with np.load(path) as all_of_them:
                return {"input": all_of_them["x"], "y": all_of_them["y"]}

        def said(kind, call, *args, **options):
            try:
                call(*args, **options)
            except kind as e:
                return str(e)

        done = {}
        memory = {"data": arrays(data), "eval": arrays(test)}
        quick = {"sweep": [0.3, 0.9], "prune_by": "magnitude", "epochs": 0, **memory}
        swept = on_ray.sweep(model, output="out.onnx", **quick)
        compress.sweep(model, output="alone.onnx", **quick)
        done["swept"] = [swept["recipe"]["run"]["data"], "shard" in swept["recipe"]["run"]]
        done["layers"] = on_ray.sensitivity(model, data=data, shards=3, output="of_all.svg")["layers"]
        done["there"] = said(compress.FileError, on_ray.sensitivity, model, data=data, shards=2, output="of_all.svg")
        done["again"] = compress.merge([f"of_all.{i}-of-2.json" for i in (1, 2)], force=True)["layers"]
        found = on_ray.search(model, data=data, eval=test, trials=3, epochs=0, output="found.onnx")
        done["search"] = [found["tried"], found["output"]["path"]]
        done["answers"] = on_ray.answers(model, data=memory["data"], shards=2, output="answered")
        given = {"sweep": [0.5], "data": data}
        done["errors"] = [
            said(compress.UsageError, on_ray.search, model, data=memory["data"]),
            said(compress.FileError, on_ray.sweep, "none.onnx", **given),
            said(compress.UsageError, on_ray.sweep, model, shards=3, **given),
            said(compress.UsageError, on_ray.sweep, model, shard="1/2", **given),
            said(compress.FileError, on_ray.sweep, model, epochs=0, prune_by="magnitude", output="out.onnx", **given),
            said(compress.GateError, on_ray.sweep, model, epochs=0, prune_by="magnitude", max_size="10kB",
                 output="gated.onnx", **given),
            said(TypeError, on_ray.sweep, model, no_such=1, **given),
            said(compress.UsageError, on_ray.sweep, model, cpus=3, **given),
        ]
        print(json.dumps(done))
    """,
    )


def test_data_in_memory_go_through_ray(several):
    folder, done = several
    assert done["swept"] == ["(given by the program)", False]
    for fraction in (0.3, 0.9):
        made, without = (folder / f"{name}-{fraction}.onnx" for name in ("out", "alone"))
        assert made.read_bytes() == without.read_bytes()


def test_layers_are_judged_by_several(several, tmp_path):
    folder, done = several
    args = ["--data", DIGITS / "train.npz", "-o", tmp_path / "alone.svg", "--json"]
    assert run_command("sensitivity", DIGITS / "digits.onnx", *args).json()["layers"] == done["layers"]
    assert (tmp_path / "alone.svg").read_bytes() == (folder / "of_all.svg").read_bytes()
    assert not list(folder.glob("*-of-3*"))
    # What parts found stays where it can't be put together.
    assert "exists already" in done["there"] and done["again"] == done["layers"]


def test_several_search_at_once(several):
    folder, done = several
    # Both began with floats and INT8.
    assert done["search"][0] in (3, 4) and (folder / done["search"][1]).exists()
    assert {f.name for f in folder.glob("*.search")} == {"found.search", "found.1-of-2.search", "found.2-of-2.search"}


def test_a_teacher_answers_several(several, tmp_path):
    folder, done = several
    assert done["answers"] == [str(folder / f"answered/{i}-of-2.safetensors") for i in (1, 2)]
    run_command(
        "answers", DIGITS / "digits.onnx", "--data", DIGITS / "train.npz", "-o", tmp_path / "alone", "--shard", "2/2"
    )
    body = [
        path.read_bytes()[-4_000:]
        for path in (tmp_path / "alone/2-of-2.safetensors", folder / "answered/2-of-2.safetensors")
    ]
    assert body[0] == body[1]


def test_errors_of_parts_are_those_of_the_job(several):
    path, file, parts, shard, exists, gate, other, cpus = several[1]["errors"]
    assert "from a path" in path and "none.onnx" in file and "there is 1 fraction" in parts
    assert "take their parts themselves" in shard and "exists already" in exists
    assert "none of the 1 models passed" in gate and "no_such" in other
    assert "the cluster has 2 CPU" in cpus and not list(several[0].glob("gated.*-of-*"))
