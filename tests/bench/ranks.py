"""Training by several ranks: `compress distill` over MPI beside PyTorch's DistributedDataParallel over gloo, in one run.

    TORCH_PYTHON -m pip install torch numpy onnx      (not by tests/run)
    TORCH_PYTHON tests/bench/ranks.py [--model resnet20] [--batch 64] [--steps 40] [--slow] [--turns N]

Without --slow on this machine alone: 1, 2 and 4 ranks, one thread each. With --slow two ranks behind a link of 20 ms and 100 Mbit/s each
way (slow_link.py; needs root). Milliseconds a step, the least of the turns: of ours what the report calls training, of PyTorch's whole
steps on samples in memory, the first five left out. The command is COMPRESS_MPI_BIN, built with `--features mpi`, or
target/release/compress.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from slow_link import ADDRESSES, Link

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("COMPRESS_MPI_BIN", str(ROOT / "target/release/compress"))
# Open MPI refuses root and more ranks than cores otherwise.
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
DELAY, RATE = 0.02, 100e6
WARM = 5


def worker(name, data, batch, steps, overlap):
    """One rank of PyTorch's, started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    import torch
    import torch.distributed as dist
    import torch_models
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    loaded = np.load(data)
    x, y = torch.from_numpy(loaded["x"]), torch.from_numpy(loaded["y"])
    torch.manual_seed(0)
    model = DistributedDataParallel(torch_models.MODELS[name][0](), bucket_cap_mb=1)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    own = batch // count
    times = []
    for step in range(steps):
        began = time.perf_counter()
        rows = slice(step * batch % (len(x) - batch) + rank * own, step * batch % (len(x) - batch) + (rank + 1) * own)
        optimiser.zero_grad()
        if overlap:
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        else:
            with model.no_sync():
                torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            gradients = [p.grad for p in model.parameters()]
            flat = torch.cat([g.flatten() for g in gradients]) / count
            dist.all_reduce(flat)
            for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                g.copy_(part.view_as(g))
        optimiser.step()
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps({"ms": 1e3 * sum(times[WARM:]) / (steps - WARM)}))
    dist.destroy_process_group()


def theirs(args, data, count, overlap, link=None):
    """Milliseconds of a step of PyTorch's."""
    command = [sys.executable, __file__, "--worker", args.model, data, args.batch, args.steps, int(overlap)]
    command = [str(c) for c in command]
    ranks = []
    for rank in range(count):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": ADDRESSES["a"] if link else "127.0.0.1",
            "MASTER_PORT": "29555",
            "OMP_NUM_THREADS": "1",
        }
        if link:
            env["GLOO_SOCKET_IFNAME"] = f"slow{'ab'[rank]}"
            ranks.append(link.start("ab"[rank], command, env=env, stdout=subprocess.PIPE, text=True))
        else:
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [rank.communicate()[0] for rank in ranks]
    return json.loads(said[0])["ms"]


def agent(folder):
    """What starts Open MPI's daemons on the other side, in the place of ssh."""
    path = Path(folder) / "agent"
    sides = "\n".join(f"  {address}) side={side};;" for side, address in ADDRESSES.items())
    path.write_text(
        f'#!/bin/sh\nhost="$1"; shift\ncase "$host" in\n{sides}\nesac\nexec ip netns exec slow-$side sh -c "$*"\n'
    )
    path.chmod(0o755)
    return path


def ours(args, model, data, folder, count, wait=False, link=None, replicas=None):
    """Milliseconds of a step of ours, the share that it waited for others, and the loss of the epoch."""
    out = Path(folder) / "out.onnx"
    threads = ["--replicas", replicas, "--threads", replicas] if replicas else ["--threads", 1]
    job = [BINARY, "distill", model, "--data", data, "--epochs", 1, "--batch", args.batch, *threads, "--json",
           "--force", "--checkpoint", Path(folder) / "job", "-o", out]  # fmt: skip
    env = {**os.environ, **ALLOWED, **({"COMPRESS_RANKS_WAIT": "1"} if wait else {})}
    # Open MPI would bind the only rank of each of two "machines" to the same core.
    command = ["mpirun", "--bind-to", "none", "-n", count]
    said = {"env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if link:
        command += ["--host", ",".join(ADDRESSES.values()), "--mca", "plm_rsh_agent", agent(folder)]
        # Messages beyond this limit are announced first, which costs a round trip of the link.
        command += ["--mca", "btl_tcp_eager_limit", 1 << 20]
        command += ["--mca", "btl", "tcp,self", *(["-x", "COMPRESS_RANKS_WAIT"] if wait else [])]
        done = link.run("a", command + job, **said)
    else:
        done = subprocess.run([str(c) for c in [*command, "--oversubscribe", *job]], **said)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    training = json.loads(done.stdout)["training"]
    spent = training["spent"]
    seconds = spent["data"] + spent["teacher"] + spent["compute"] + spent["exchange"]
    return 1e3 * seconds / training["steps"], spent["exchange"] / seconds, training["course"][-1]["loss"]


def main(args):
    import torch_models

    with tempfile.TemporaryDirectory() as folder:
        make, shape = torch_models.MODELS[args.model]
        model, data = Path(folder) / "model.onnx", Path(folder) / "data.npz"
        torch_models.export(make(), shape, str(model))
        rng = np.random.default_rng(0)
        # A fifth is held out.
        n = args.steps * args.batch * 5 // 4 + args.batch
        np.savez(data, x=rng.standard_normal((n, *shape), np.float32), y=rng.integers(0, 10, n))
        if not args.slow:
            print(
                "| ranks | PyTorch, ms a step | compress, ms a step | ratio | samples/s | waits for ranks | loss, 4 replicas |"
            )
            print("|---|---|---|---|---|---|---|")
            for count in (1, 2, 4):
                a = min(theirs(args, data, count, True) for _ in range(args.turns))
                ms, share, _ = min(ours(args, model, data, folder, count) for _ in range(args.turns))
                loss = ours(args, model, data, folder, count, replicas=4)[2]
                print(f"| {count} | {a:.1f} | {ms:.1f} | {ms / a:.2f} | {1e3 * args.batch / ms:.0f} | {100 * share:.0f}% "
                      f"| {loss!r} |", flush=True)  # fmt: skip
            return
        print(
            "| 2 ranks behind 20 ms, 100 Mbit/s | PyTorch, ms a step | compress, ms a step | ratio | waiting for ranks |"
        )
        print("|---|---|---|---|---|")
        for overlap in (False, True):
            times = []
            for _ in range(args.turns):
                with Link(DELAY, RATE) as link:
                    a = theirs(args, data, 2, overlap, link)
                with Link(DELAY, RATE) as link:
                    times.append((a, *ours(args, model, data, folder, 2, wait=not overlap, link=link)[:2]))
            a, (ms, share) = min(t[0] for t in times), min(t[1:] for t in times)
            name = "while it computes" if overlap else "after it has computed"
            print(f"| {name} | {a:.1f} | {ms:.1f} | {ms / a:.2f} | {100 * share:.0f}% |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--model", default="resnet20")
        parser.add_argument("--batch", type=int, default=64)
        parser.add_argument("--steps", type=int, default=40)
        parser.add_argument("--turns", type=int, default=3)
        parser.add_argument("--slow", action="store_true")
        main(parser.parse_args())
