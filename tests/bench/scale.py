"""What a step of training takes on many ranks: a simulation, and the plan of docs/scale.md that it makes.

    python3 tests/bench/scale.py [--check MEASURED.json]

A step is simulated bucket by bucket, as runtime/src/train/ranks/sum.rs sums: a bucket is complete when the backward pass has found its
gradients; its segments go to their ranks, and their sums to all. Both directions of a link carry one message at a time, and what is
under way at once waits for the latency once. --check compares with steps that were measured: a list of {"ranks", "bytes", "compute_ms",
"backward", "latency_ms", "mbit", "overlap", "ms"}.
"""

import argparse
import json
from dataclasses import dataclass

# Bytes of a bucket, and of a rank's segment where there are many, as there.
BUCKET, SEGMENT = 256 << 10, 64 << 10


@dataclass
class Network:
    """Seconds that a message takes besides its bytes, bytes a second each way, and seconds that a rank spends on each message."""

    latency: float
    rate: float
    message: float = 5e-6


@dataclass
class Job:
    """What a rank computes of a step in seconds, the share of that which is the backward pass, and its gradients in bytes."""

    compute: float
    gradients: float
    backward: float = 0.6
    overlap: bool = True


def step(job, network, ranks):
    """Seconds of a step, and the bytes that a rank sends in it."""
    if ranks == 1:
        return job.compute, 0.0
    buckets = max(1, round(job.gradients / max(BUCKET, ranks * SEGMENT)))
    size = job.gradients / buckets
    sent = size * (ranks - 1) / ranks
    # Seconds in which a rank's link is taken by one half of a bucket.
    taken = sent / network.rate + (ranks - 1) * network.message
    forward = job.compute * (1 - job.backward)
    free, sums = 0.0, []
    for bucket in range(buckets):
        found = job.compute if not job.overlap else forward + job.compute * job.backward * (bucket + 1) / buckets
        free = max(free, found) + taken
        sums.append(free + network.latency)
    ended = 0.0
    for ready in sums:
        free = max(free, ready) + taken
        ended = free + network.latency
    # What ranks tell each other of a step goes with the last bucket.
    return max(job.compute, ended), 2 * sent * buckets


def shown(seconds):
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def gigabytes(count):
    return f"{count / 1e9:,.1f} GB" if count < 1e12 else f"{count / 1e12:,.1f} TB"


# One GPU: what it computes of floats in a second in 16 bits, at the share that training reaches, and its memory.
GPU_RATE, GPU_MEMORY = 400e12, 80e9
# 400 Gbit/s a GPU between machines; what eight GPUs of a machine have among each other.
BETWEEN, WITHIN = Network(10e-6, 50e9), Network(3e-6, 400e9)
GPUS, MACHINE = 1000, 8
PARAMETERS, BYTES = 25e9, 4
TOKENS = 4096
DISK = 2e9


def plan():
    """The tables of docs/scale.md."""
    weights = PARAMETERS * BYTES
    print("| samples of 4,096 tokens a GPU and step | computing | step, all ranks alike | of it waiting | step, in two levels | of it waiting |")
    print("|---|---|---|---|---|---|")
    for samples in (1, 2, 4, 8):
        # Forward, backward, and the forward pass of a teacher of the same size: 8 operations a parameter and token.
        compute = 8 * PARAMETERS * TOKENS * samples / GPU_RATE
        flat, sent = step(Job(compute, weights), BETWEEN, GPUS)
        # Within a machine first: between machines each GPU then has an eighth of the gradients.
        within = 2 * weights * (MACHINE - 1) / MACHINE / WITHIN.rate
        levels, _ = step(Job(compute, weights / MACHINE), BETWEEN, GPUS // MACHINE)
        levels = max(levels, compute * 0.4 + within)
        print(f"| {samples} | {shown(compute)} | {shown(flat)} | {100 * (1 - compute / flat):.0f}% | {shown(levels)} "
              f"| {100 * (1 - compute / levels):.0f}% |")  # fmt: skip
    print(f"\nA rank sends {gigabytes(sent)} a step and receives as much.\n")
    print("| memory of a rank | whole on each | moments divided | gradients too | weights too |")
    print("|---|---|---|---|---|")
    parts = [weights, weights, 2 * weights]
    divided = [sum(parts), parts[0] + parts[1] + parts[2] / GPUS, parts[0] + (parts[1] + parts[2]) / GPUS, sum(parts) / GPUS]
    print("| weights, gradients, moments | " + " | ".join(gigabytes(n) for n in divided) + " |")
    print(f"| fits {gigabytes(GPU_MEMORY)} | " + " | ".join("yes" if n < GPU_MEMORY else "no" for n in divided) + " |")
    print("| bytes that a rank sends a step | " + " | ".join(gigabytes(n * weights) for n in (2, 2, 2, 3)) + " |")
    checkpoint = 4 * weights
    print(f"\nA checkpoint (weights, moments, the best model) has {gigabytes(checkpoint)}: "
          f"{shown(checkpoint / DISK)} by one rank at 2 GB/s, {shown(checkpoint / GPUS / DISK)} by all.")  # fmt: skip


def check(path):
    """Measured steps beside simulated ones."""
    print("| ranks | link | measured, ms | simulated, ms | off by |")
    print("|---|---|---|---|---|")
    for m in json.loads(open(path).read()):
        network = Network(m["latency_ms"] / 1e3, m["mbit"] * 1e6 / 8)
        made = step(Job(m["compute_ms"] / 1e3, m["bytes"], m["backward"], m["overlap"]), network, m["ranks"])[0] * 1e3
        print(f"| {m['ranks']} | {m['latency_ms']} ms, {m['mbit']} Mbit/s{'' if m['overlap'] else ', after the backward pass'} "
              f"| {m['ms']:.1f} | {made:.1f} | {100 * (made / m['ms'] - 1):+.0f}% |")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check")
    args = parser.parse_args()
    check(args.check) if args.check else plan()
