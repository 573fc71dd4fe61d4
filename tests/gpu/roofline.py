"""What bounds the product of `runtime/src/gpu/product.rs` on paper: an estimate from its tiles, not a measurement.

    python tests/gpu/roofline.py

A processor multiplies a chunk (64 bytes of each row of both operands) in the time of what takes longest of: tensor cores, the bytes that
go through its shared memory, the instructions of its schedulers, and its part of the second-level cache. The figures of architectures
are those of NVIDIA's papers, but for the second-level cache of the H100, of which none is published: the A100's stands in for it. That `mma.sync` reaches 0.63 of an H100's tensor cores is from Luo et al., arXiv:2402.13499.
"""

from typing import NamedTuple

CHUNK, CELLS, WARP = 64, 4, 32
SHARED_BYTES, SCHEDULERS = 128, 4
# Planes along rows and columns, and fragments of a plane: TILES of runtime/src/gpu/dense.rs.
TILES = [((2, 2), (4, 4)), ((2, 2), (4, 2)), ((4, 2), (2, 1)), ((1, 4), (2, 1))]


class Card(NamedTuple):
    name: str
    processors: int
    gigahertz: float
    # Operations a clock of a processor in INT8 and in TF32, and what `mma.sync` reaches of them.
    int8: int
    tf32: int
    mma: float


# Bytes a clock of the second-level cache: the A100's; for the H100 none is published.
CACHE_BYTES = 5120
CARDS = [Card("A100", 108, 1.41, 4096, 1024, 1.0), Card("H100", 132, 1.755, 8192, 2048, 0.63)]


def bounds(card, planes, fragments, floats):
    """Clocks that each part needs for a chunk, and the operations of that."""
    rows, columns = planes[0] * fragments[0] * 8, planes[1] * fragments[1] * 16
    warps, parts = planes[0] * planes[1], 3 if floats else 1
    useful = 2 * rows * columns * CHUNK // (4 if floats else 1)
    # A fragment is 8 rows of one operand and 16 columns of the other; a chunk is two instructions of 32 bytes deep.
    pairs = fragments[0] * fragments[1] * 2
    read = (fragments[0] * 8 + fragments[1] * 16) * CHUNK * warps
    loads = fragments[0] + 2 * fragments[1]
    # Splitting a word is a conversion, a difference and a conversion; a sum outside of tensor cores is four additions.
    arithmetic = 12 * loads + 4 * pairs if floats else 0
    copies = 2 * (rows + columns) * CELLS / WARP
    tensor = (card.tf32 if floats else card.int8) * card.mma
    return useful, {
        "tensor cores": parts * useful / tensor,
        "shared memory": (read + (rows + columns) * CHUNK) / SHARED_BYTES,
        "instructions": (warps * (pairs * parts + loads + arithmetic) + copies) / SCHEDULERS,
        "cache": (rows + columns) * CHUNK / (CACHE_BYTES / card.processors),
    }


def main():
    print("| card | numbers | tile | tensor cores | shared memory | instructions | cache | at most, 10^12/s |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for card in CARDS:
        for floats in (False, True):
            # Floats have two sums where codes have one: the largest tile isn't used.
            for planes, fragments in TILES[1:] if floats else TILES:
                useful, clocks = bounds(card, planes, fragments, floats)
                longest = max(clocks.values())
                most = useful / longest * card.processors * card.gigahertz / 1e3
                shown = [f"**{v:.0f}**" if v == longest else f"{v:.0f}" for v in clocks.values()]
                rows, columns = planes[0] * fragments[0] * 8, planes[1] * fragments[1] * 16
                print(
                    f"| {card.name} | {'FP32' if floats else 'INT8'} | {rows} x {columns} | {' | '.join(shown)} | {most:.0f} |"
                )


if __name__ == "__main__":
    main()
