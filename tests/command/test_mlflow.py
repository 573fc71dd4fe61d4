"""Runs in a tracking server of MLflow, for which a server in this process stands in."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from support import ROOT, read_report

DIGITS = ROOT / "models" / "digits"
CHECK = ("check", DIGITS / "digits.onnx", "--against", DIGITS / "digits.onnx", "--eval", DIGITS / "test.npz")
API = "/api/2.0/mlflow/"
# Nothing of the environment of the tests counts.
PLAIN = {name: "" for name in ("EXPERIMENT_NAME", "TRACKING_TOKEN", "TRACKING_USERNAME", "TRACKING_PASSWORD")}
PLAIN = {f"MLFLOW_{name}": value for name, value in PLAIN.items()} | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


class Server(ThreadingHTTPServer):
    """Answers as MLflow does, and keeps what it is asked: method, path under the API, and body or query."""

    def __init__(self, refuses=(), **experiments):
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls, self.headers, self.refuses, self.experiments = [], [], refuses, experiments

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def of(self, method):
        """The bodies with which a method was called."""
        return [body for name, body in self.calls if name == method]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})

    def do_POST(self):
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, body):
        method = urlsplit(self.path).path.removeprefix(API)
        self.server.calls.append((method, body))
        self.server.headers.append(self.headers["Authorization"])
        status, answer = self.answer(method, body)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, method, body):
        if method in self.server.refuses:
            return self.server.refuses[method]
        known = self.server.experiments
        match method:
            case "experiments/get-by-name" if body["experiment_name"] not in known:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "there is none"}
            case "experiments/get-by-name":
                stage = known[body["experiment_name"]]
                return 200, {"experiment": {"experiment_id": "7", "lifecycle_stage": stage}}
            case "experiments/create":
                known[body["name"]] = "active"
                return 200, {"experiment_id": "7"}
            case "runs/create":
                return 200, {"run": {"info": {"run_id": "abc"}}}
            case "runs/log-batch" | "runs/update":
                return 200, {}
        return 404, b"<html>"

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """Starts servers, which end with the test."""
    running = []

    def start(**how):
        server = Server(**how)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_a_check_becomes_a_run(compress, serve, tmp_path):
    server, metrics = serve(), tmp_path / "metrics.txt"
    args = ("--max-drop", "1%", "--mlflow", server.url + "/", "--openmetrics", metrics, "--json")
    report = compress(*CHECK, *args, env=PLAIN).json()
    # Before the job, the experiment is made; after it, found.
    assert [name for name, _ in server.calls] == [
        "experiments/get-by-name", "experiments/create", "experiments/get-by-name",
        "runs/create", "runs/log-batch", "runs/log-batch", "runs/log-batch", "runs/update",
    ]  # fmt: skip
    assert server.of("experiments/create") == [{"name": "compress"}] and set(server.headers) == {None}
    [run] = server.of("runs/create")
    assert run["experiment_id"] == "7" and run["run_name"] == "digits.onnx" and run["start_time"] > 1.7e12
    params, logged, rest = server.of("runs/log-batch")
    assert params["run_id"] == logged["run_id"] == rest["run_id"] == "abc"
    assert {p["key"]: p["value"] for p in params["params"]}["against"] == str(DIGITS / "digits.onnx")
    # The figures are those of OpenMetrics.
    written = dict(line.split(" ") for line in metrics.read_text().splitlines() if not line.startswith("#"))
    found = {f'compress_{m["key"]}{{model="{DIGITS / "digits.onnx"}"}}': m["value"] for m in logged["metrics"]}
    assert found == {name: float(value) for name, value in written.items()}
    tags = {t["key"]: t["value"] for t in rest["tags"]}
    assert tags["compress.accuracy.metric"] == "top1" and tags["compress.input.sha256"] == report["input"]["sha256"]
    assert tags["mlflow.note.content"].startswith("### `")
    [end] = server.of("runs/update")
    assert end["status"] == "FINISHED" and end["end_time"] >= run["start_time"]


def test_a_training_becomes_a_run_with_its_course(compress, serve, tmp_path):
    server, out = serve(compress="active"), tmp_path / "out.onnx"
    args = ("--data", DIGITS / "train.npz", "--eval", DIGITS / "test.npz", "--epochs", 2, "--batch", 32, "-o", out)
    job = ("distill", DIGITS / "digits.onnx", *args, "--mlflow", server.url)
    compress(*job, env=PLAIN)
    batches = server.of("runs/log-batch")
    assert all(len(b.get("metrics", [])) <= 1000 for b in batches)
    metrics = [m for b in batches for m in b.get("metrics", [])]
    course = [json.loads(line) for line in (tmp_path / "out.job" / "metrics.jsonl").read_text().splitlines()]
    for key in ("loss", "rate", "score", "samples_per_second"):
        assert [(m["step"], m["value"]) for m in metrics if m["key"] == key] == [
            (r["step"], r[key]) for r in course if key in r
        ]
    training = read_report(out.with_suffix(".report.json"))["training"]
    last = {m["key"]: (m["step"], m["value"]) for m in metrics}
    assert last["score_after"] == (training["steps"], training["after"]) and last["score_before"] == (
        0,
        training["before"],
    )
    assert {p["key"]: p["value"] for b in batches for p in b.get("params", [])}["epochs"] == "2"
    tags = {t["key"]: t["value"] for b in batches for t in b.get("tags", [])}
    assert tags["compress.score.metric"] == "top1" and tags["mlflow.note.content"].startswith("bound by")
    # What was done before is not logged once more.
    calls = len(server.of("runs/create"))
    assert (
        "is done already" in compress(*job, "--resume", env=PLAIN).out and len(server.of("runs/create")) == calls == 1
    )


def test_a_failed_gate_is_a_failed_run(compress, serve):
    server = serve(mine="active")
    compress(
        *CHECK, "--max-size", "1kB", "--mlflow", server.url, env=PLAIN | {"MLFLOW_EXPERIMENT_NAME": "mine"}, code=9
    )
    assert server.of("runs/update")[0]["status"] == "FAILED" and not server.of("experiments/create")


def test_the_server_knows_the_user(compress, serve):
    server = serve(compress="active")
    compress(*CHECK, "--mlflow", server.url, env=PLAIN | {"MLFLOW_TRACKING_TOKEN": "secret"})
    assert set(server.headers) == {"Bearer secret"}
    server = serve(compress="active")
    both = {"MLFLOW_TRACKING_TOKEN": "secret", "MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "a:b"}
    compress(*CHECK, "--mlflow", server.url, env=PLAIN | both)
    assert set(server.headers) == {"Basic " + base64.b64encode(b"me:a:b").decode()}


def test_values_are_as_short_as_the_server_takes_them(compress, serve, tmp_path):
    server = serve(compress="active")
    regex = "conv1|" + "é" * 400
    args = (DIGITS / "digits.onnx", "--int8", "--exclude", regex, "--no-check", "-o", tmp_path / "out.onnx")
    compress(*args, "--mlflow", server.url, env=PLAIN)
    batches = server.of("runs/log-batch")
    assert all(len(b.get("params", [])) <= 100 and len(b.get("tags", [])) <= 100 for b in batches)
    exclude = next(p["value"] for b in batches for p in b.get("params", []) if p["key"] == "exclude")
    assert 490 < len(exclude.encode()) <= 500 and "éé" in exclude
    assert all(len(t["value"].encode()) <= 5000 for b in batches for t in b.get("tags", []))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"refuses": {"experiments/get-by-name": (401, b"")}}, "refuses the user"),
        (
            {"refuses": {"experiments/get-by-name": (404, b"<html>")}},
            "not an MLflow server: it answers with status 404",
        ),
        ({"refuses": {"experiments/create": (200, {})}}, "its answer lacks an id"),
        ({"refuses": {"experiments/create": (400, {"message": "bad name"})}}, "the MLflow server refuses: bad name"),
        ({"compress": "deleted"}, "the experiment `compress` is deleted"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_server_that_refuses_costs_no_job(compress, serve, tmp_path, how, says):
    server, out = serve(**how), tmp_path / "out.onnx"
    said = compress(DIGITS / "digits.onnx", "-o", out, "--mlflow", server.url, env=PLAIN, code=6).err
    assert says in said and server.url in said and "help: " in said and not out.exists()


def test_a_server_that_is_away_costs_no_job(compress, serve, tmp_path):
    server, out = serve(), tmp_path / "out.onnx"
    server.shutdown()
    server.server_close()
    said = compress(DIGITS / "digits.onnx", "-o", out, "--mlflow", server.url, env=PLAIN, code=6).err
    assert "can't be reached" in said and "--mlflow" in said and not out.exists()


@pytest.mark.parametrize("method", ["runs/create", "runs/log-batch", "runs/update"])
def test_a_run_that_is_refused_leaves_the_result(compress, serve, tmp_path, method):
    server, out = (
        serve(compress="active", refuses={method: (500, {"message": "the disk is full"})}),
        tmp_path / "out.onnx",
    )
    done = compress(DIGITS / "digits.onnx", "-o", out, "--mlflow", server.url, env=PLAIN, code=6)
    assert "the job is done, but its run is not logged: the MLflow server refuses: the disk is full" in done.err
    assert "operators" in done.out and out.exists() and read_report(out.with_suffix(".report.json"))["gates"] == []
    ended = [end["status"] for end in server.of("runs/update")]
    assert ended == {"runs/create": [], "runs/log-batch": ["FAILED"], "runs/update": ["FINISHED"]}[method]


@pytest.mark.parametrize(
    "url", ["localhost:5000", "file:///tmp/runs", "http://", "http://me:secret@127.0.0.1", "sqlite:///x"]
)
def test_a_wrong_url(compress, url):
    said = compress(*CHECK, "--mlflow", url, env=PLAIN, code=2).err
    assert "error: usage: " in said and ("secret" not in said or "user name" in said)


def test_other_jobs_have_no_run(compress, tmp_path):
    args = (DIGITS / "digits.onnx", "--sweep", "0.5,0.6", "-o", tmp_path / "out.onnx", "--mlflow", "http://127.0.0.1:1")
    assert "jobs that make one report" in compress(*args, env=PLAIN, code=2).err
