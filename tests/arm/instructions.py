"""Instructions of an inference on 64-bit ARM, of our executor and of ONNX Runtime's, as QEMU counts them (docs/arm.md).

    tests/arm/cargo build --release --workspace
    apt install qemu-user    # 6.0 to 8.2: qemu-user-static takes no plugins
    python tests/arm/instructions.py MODEL[@DATA] ... [--cpu NAME ...]

Both run in `compress bench MODEL --threads 1`, which does each inference twice, to time the whole and to time its parts: of a run with
more inferences and one with fewer, the difference counts. ONNX Runtime is that of its wheel for ARM, which pip downloads. Prints a line
for each model and processor: millions of instructions, those that read or write memory, and the ratios.
"""

import argparse
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target")) / "aarch64-unknown-linux-gnu"
# Later ones don't run under QEMU 7.2.
ONNXRUNTIME = "onnxruntime==1.27.0"
# "max" without SVE and SME, which Apple's M2 doesn't have, and of which most of Arm's cores have narrow units; and one with SDOT alone.
CPUS = ["max,sve=off,sme=off", "neoverse-n1"]
FEWER, MORE = 1, 4
TWICE = 2


def plugin():
    made = TARGET / "count.so"
    made.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", made, HERE / "count.c"], check=True)
    return made


def onnxruntime():
    folder = TARGET / "onnxruntime"
    found = list(folder.glob("onnxruntime/capi/libonnxruntime.so.*"))
    if not found:
        platforms = [part for p in ("2_27", "2_28") for part in ("--platform", f"manylinux_{p}_aarch64")]
        how = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.11", *platforms, "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", *how, ONNXRUNTIME], check=True)
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
        found = list(folder.glob("onnxruntime/capi/libonnxruntime.so.*"))
    return found[0]


def counted(counter, cpu, args, runs):
    out = TARGET / f"count-{os.getpid()}.json"
    emulator = ["qemu-aarch64", "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", "-plugin", f"{counter},out={out}"]
    command = [*emulator, TARGET / "release" / "compress", "bench", *args, "--threads", "1", "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COMPRESS_CACHE": ""})
    if done.returncode != 0:
        raise SystemExit(done.stderr or f"{command[0]} ended with {done.returncode}")
    counts = json.loads(out.read_text())
    out.unlink()
    return counts


def each(counter, cpu, args):
    """Millions of instructions of an inference, and of those that read or write memory."""
    fewer, more = (counted(counter, cpu, args, runs) for runs in (FEWER, MORE))
    of = {kind: (more[kind] - fewer[kind]) / (MORE - FEWER) / TWICE / 1e6 for kind in more}
    return sum(of.values()), of["memory"] + of["vector_memory"]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="+")
    options.add_argument("--cpu", nargs="+", default=CPUS)
    options = options.parse_args()
    counter, library = plugin(), onnxruntime()
    for model in options.models:
        path, _, data = model.partition("@")
        args = [path, *(["--data", data] if data else [])]
        for cpu in options.cpu:
            ours, our_memory = each(counter, cpu, args)
            theirs, their_memory = each(counter, cpu, [*args, "--engine", "onnxruntime", "--ort", library])
            print(
                f"{path}, {cpu}: {ours:.2f} million instructions ({our_memory:.2f} of memory), "
                f"ONNX Runtime {theirs:.2f} ({their_memory:.2f}): {ours / theirs:.3f} ({our_memory / their_memory:.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
