"""Our runtime beside ONNX Runtime on machines with AVX2 and no later instructions, on one thread.

    .venv/bin/python tests/bench/avx2.py MODEL.onnx [MODEL.onnx ...]

Needs a C compiler, objdump and readelf. On a machine that has more than AVX2, ONNX Runtime takes the best there is: so a copy
of its library gets an illegal instruction for each `cpuid`, and a handler of that signal answers as a machine would that has
AVX2, but neither AVX-512 nor VNNI. Our runtime is told by COMPRESS_ISA. Each model is simplified, and quantised by
`--int8 --effort quick` on noise, which is good for a time alone; both runtimes get the same files, in turns, and the least
median of each counts. The command is COMPRESS_BIN, or target/release/compress.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
RUNS = 30
TURNS = 3

HANDLER = r"""
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

static void answer(int signal_number, siginfo_t *info, void *context) {
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  unsigned leaf = r[REG_RAX], part = r[REG_RCX], a, b, c, d;
  if (*(unsigned short *)r[REG_RIP] != 0x0b0f) {
    signal(SIGILL, SIG_DFL);
    return;
  }
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) {
    b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
    c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
    d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24);
  }
  if (leaf == 7 && part == 1) {
    a &= ~(1u << 4 | 1u << 5);
    d &= ~(1u << 4 | 1u << 5 | 1u << 10);
  }
  r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d, r[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGILL, &action, 0);
}
"""

# What a fresh process runs: its folder, the model.
THEIRS = """
import ctypes, sys, time
ctypes.CDLL(sys.argv[1] + "/handler.so")
sys.path.insert(0, sys.argv[1])
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
feeds = dict(np.load(sys.argv[3]))
times = []
for _ in range(int(sys.argv[4]) + 3):
    start = time.perf_counter()
    session.run(None, feeds)
    times.append(time.perf_counter() - start)
print(1000 * np.median(times[3:]))
"""


def said(*command, **environment):
    """What a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def without_later_instructions(folder):
    """Puts a copy of ONNX Runtime into a folder that takes the machine for one with AVX2 at best, and the handler."""
    import onnxruntime

    copy = shutil.copytree(Path(onnxruntime.__file__).parent, folder / "onnxruntime")
    [library] = copy.glob("capi/onnxruntime_pybind11_state*.so")
    lines = [line.split() for line in said("readelf", "-lW", library).splitlines() if line.strip().startswith("LOAD")]
    segments = [(int(line[1], 16), int(line[2], 16), int(line[4], 16)) for line in lines]
    code = bytearray(library.read_bytes())
    for found in re.finditer(r"^\s*([0-9a-f]+):\s+cpuid", said("objdump", "-d", "--no-show-raw-insn", library), re.M):
        address = int(found[1], 16)
        [place] = [offset + address - start for offset, start, size in segments if start <= address < start + size]
        assert code[place : place + 2] == b"\x0f\xa2", hex(address)
        code[place : place + 2] = b"\x0f\x0b"
    library.write_bytes(code)
    (folder / "handler.c").write_text(HANDLER)
    said("cc", "-O2", "-shared", "-fPIC", folder / "handler.c", "-o", folder / "handler.so")


def main(folder):
    import numpy as np
    import onnxruntime as ort

    without_later_instructions(folder)
    print("| model | precision | ORT ms | ours ms | ours/ORT |\n|---|---|---|---|---|")
    for model in sys.argv[1:]:
        files = {"FP32": folder / "fp32.onnx", "INT8": folder / "int8.onnx"}
        for path, flags in ((files["FP32"], ()), (files["INT8"], ("--int8", "--effort", "quick"))):
            said(BINARY, model, "-o", path, "--force", "-q", "--no-check", *flags)
        rng, feeds = np.random.default_rng(0), {}
        for i in ort.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs():
            shape = [d if isinstance(d, int) and d > 0 else 1 for d in i.shape]
            floats = i.type == "tensor(float)"
            whole = np.int32 if "int32" in i.type else np.int64
            feeds[i.name] = rng.standard_normal(shape, np.float32) if floats else rng.integers(0, 2, shape, whole)
        np.savez(folder / "feeds.npz", **feeds)
        sizes = [f"--shape={name}={'x'.join(map(str, x.shape))}" for name, x in feeds.items()]
        for precision, path in files.items():
            theirs, ours = [], []
            for _ in range(TURNS):
                arguments = (folder, path, folder / "feeds.npz", RUNS)
                theirs.append(float(said(sys.executable, "-c", THEIRS, *map(str, arguments))))
                command = (BINARY, "bench", path, "--json", "--threads", "1", "--runs", str(RUNS), *sizes)
                ours.append(json.loads(said(*command, COMPRESS_ISA="avx2"))["median_ms"])
            ms, beside = min(ours), min(theirs)
            print(f"| {Path(model).stem} | {precision} | {beside:.3f} | {ms:.3f} | {ms / beside:.2f} |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
