"""What the driver's compiler makes of kernels: registers, spills and shared memory, by ptxas. No GPU is needed.

    python tests/gpu/ptxas.py FOLDER...

It is the one that tests/gpu/on_double installs. Each folder holds modules that the double wrote (CUDA_DOUBLE_RECORD). Kernels are counted by name, without the number that CubeCL adds
for what they are specialised on; of several of a name the worst counts.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parents[2] / "target")
PTXAS = TARGET / "cuda" / "nvidia" / "cu13" / "bin" / "ptxas"
FIGURES = ("registers", "spilled bytes", "shared bytes")


def assemble(module):
    """The kernels of a module: name to figures. Raises with what ptxas says where it refuses it."""
    text = module.read_text(errors="replace").rstrip("\0")
    arch = re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)[1]
    command = [PTXAS, f"-arch={arch}", "--verbose", "--output-file", "/dev/null", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module}: {done.stderr}")
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        name = re.sub(r"_[0-9a-f]{8}$", "", part.split("'")[0])
        registers, spilled = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes spill stores", part)
        # A kernel without shared memory has no such figure; what a launch adds is not in it.
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = [int(registers[1]), int(spilled[1]), int(shared[1]) if shared else 0]
    return found


def kernels(folders):
    """The worst figures of each kernel in the modules of some folders."""
    modules = [module for folder in folders for module in sorted(Path(folder).glob("*.ptx"))]
    worst = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(assemble, modules):
            for name, figures in found.items():
                worst[name] = [max(pair) for pair in zip(figures, worst.get(name, figures), strict=True)]
    return dict(sorted(worst.items()))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"| kernel | {' | '.join(FIGURES)} |\n|---|--:|--:|--:|")
    for name, figures in sorted(kernels(sys.argv[1:]).items(), key=lambda kernel: kernel[1], reverse=True):
        print(f"| `{name}` | {' | '.join(map(str, figures))} |")
