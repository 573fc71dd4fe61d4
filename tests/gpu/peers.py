"""PyTorch and ONNX Runtime on the models and the GPU of tests/gpu/run.

    python tests/gpu/peers.py FOLDER RESULT.json [--batches 1,8,64] [--device cuda] [--minutes 3]

Times are milliseconds of a batch, with the copies of inputs and outputs, as those of `compress bench`. PyTorch runs FP32, TF32, bf16 and
f16, and what `torch.compile` makes of each at batch 64, or at the largest; ONNX Runtime runs the files, INT8 too, on its CUDA and TensorRT providers.
What isn't installed, or fails, is said in the result. `--device cpu` is for a look at this script alone.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

RUNS = 20
# As `bench --profile` takes the best of these.
SIZES = (1024, 2048, 4096)
# The batch that compiled models are compared at.
BATCH = 64


def timed(run, until):
    """The median of several runs, after two."""
    for _ in range(2):
        run()
    times = []
    while len(times) < RUNS and (len(times) < 3 or time.monotonic() < until):
        began = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def shapes(model, batch):
    """The sizes of a model's inputs; open ones are samples."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    given = {t.name for t in graph.initializer}
    inputs = [value for value in graph.input if value.name not in given]
    # Some exporters write -1 for an open size.
    return {v.name: [d.dim_value if d.dim_value > 0 else batch for d in v.type.tensor_type.shape.dim] for v in inputs}


def random_inputs(model, batch):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(of, np.float32) for name, of in shapes(model, batch).items()}


def of_torch(model, batches, device, until):
    """Rows of PyTorch's times; what the targets ask for comes first."""
    import torch
    from torch_of import OnnxModule

    rows = []
    kinds = {"bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32, "f16": torch.float16}
    # A graph is compiled for each batch, which takes minutes.
    compiled = [BATCH] if BATCH in batches else batches[-1:]
    for kind, dtype in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
        module = OnnxModule(model).to(device, dtype).eval()
        for how, sizes in (("compiled", compiled), ("eager", batches)):
            row = {"model": model.name, "by": f"PyTorch {torch.__version__}, {how}", "numbers": kind, "ms": {}}
            rows.append(row)
            # It compiles one function a few times alone.
            torch.compiler.reset()
            net = torch.compile(module) if how == "compiled" else module
            for batch in sizes:
                inputs = [torch.from_numpy(x) for x in random_inputs(model, batch).values()]

                def run(net=net, inputs=inputs, dtype=dtype):
                    with torch.inference_mode():
                        # Where a result is on the host, all work is done.
                        return [y.float().cpu() for y in net(*(x.to(device).to(dtype) for x in inputs))]

                if time.monotonic() > until:
                    row["cut"] = "the time was used up"
                    break
                try:
                    row["ms"][batch] = timed(run, until)
                except Exception as error:  # noqa: BLE001
                    row["error"] = why(error)
                    break
    return rows


def why(error):
    """An error in a line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def of_onnxruntime(model, batches, device, until):
    """Rows of ONNX Runtime's times."""
    import onnxruntime

    wanted = {"cuda": ["TensorrtExecutionProvider", "CUDAExecutionProvider"], "cpu": ["CPUExecutionProvider"]}[device]
    rows = []
    for provider in wanted:
        row = {"model": model.name, "by": f"ONNX Runtime {onnxruntime.__version__}, {provider}", "ms": {}}
        row["numbers"] = "int8" if ".int8." in model.name else "as it likes"
        rows.append(row)
        try:
            session = onnxruntime.InferenceSession(str(model), providers=[provider])
        except Exception as error:  # noqa: BLE001
            row["error"] = why(error)
            continue
        # It goes on with the CPU where a provider can't be loaded.
        if session.get_providers()[0] != provider:
            row["error"] = f"{provider} can't be loaded here"
            continue
        for batch in batches:
            if time.monotonic() > until:
                row["cut"] = "the time was used up"
                break
            inputs = random_inputs(model, batch)
            row["ms"][batch] = timed(lambda session=session, inputs=inputs: session.run(None, inputs), until)
    return rows


def products(device, sizes, until):
    """10^12 operations a second of a product of two square matrices that lie on the device: the best of several sizes and runs, by the
    device's clock."""
    import torch

    def seconds(multiply, a):
        if device != "cuda":
            began = time.perf_counter()
            multiply(a)
            return time.perf_counter() - began
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        multiply(a)
        ended.record()
        ended.synchronize()
        return 1e-3 * began.elapsed_time(ended)

    def best(make, multiply):
        speeds = [0.0]
        for size in sizes:
            a = make(size)
            for _ in range(RUNS):
                if time.monotonic() > until:
                    break
                speeds.append(2e-12 * size**3 / seconds(multiply, a))
        return max(speeds)

    found = {}
    for kind, dtype in (
        ("f32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("f16", torch.float16),
    ):
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        found[kind] = best(lambda n, dtype=dtype: torch.randn(n, n, device=device).to(dtype), lambda a: a @ a)
    with suppress(RuntimeError, NotImplementedError):
        codes = best(
            lambda n: torch.randint(-64, 64, (n, n), dtype=torch.int8, device=device), lambda a: torch._int_mm(a, a.t())
        )
        found["int8"] = codes
    return found


def measured(folder, batches, device, minutes, sizes=SIZES, keep=lambda _: None):
    """What peers do with the models of a folder."""
    until = time.monotonic() + 60 * minutes
    result = {"peers": [], "products": {}, "missing": []}
    for name, rows_of in (("torch", of_torch), ("onnxruntime", of_onnxruntime)):
        try:
            __import__(name)
        except ImportError as error:
            result["missing"].append(f"{name}: {error}")
            continue
        if name == "torch":
            import torch

            if device == "cuda" and not torch.cuda.is_available():
                result["missing"].append("torch: it finds no GPU")
                continue
            result["products"] = products(device, sizes, until)
        models = [m for m in sorted(Path(folder).glob("*.onnx")) if name != "torch" or ".int8." not in m.name]
        half = time.monotonic() + (until - time.monotonic()) / (2 if name == "torch" else 1)
        for done, model in enumerate(models):
            now = time.monotonic()
            try:
                result["peers"] += rows_of(model, batches, device, now + (half - now) / (len(models) - done))
            except Exception as error:  # noqa: BLE001
                result["peers"].append({"model": model.name, "by": name, "error": why(error)})
            keep(result)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batches", default="1,8,64", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--minutes", default=3.0, type=float)
    parser.add_argument(
        "--sizes", default=SIZES, type=lambda text: [int(n) for n in text.split(",")], help="of products"
    )
    given = parser.parse_args()

    def keep(result):
        """What was found so far stays, should the rest be cut off."""
        given.result.write_text(json.dumps(result, indent=1) + "\n")

    keep(measured(given.folder, given.batches, given.device, given.minutes, given.sizes, keep))
    return 0


if __name__ == "__main__":
    sys.exit(main())
