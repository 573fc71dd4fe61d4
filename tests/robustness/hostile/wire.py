"""Rows 1 to 12: what isn't a model on the wire."""

import gzip
import os

import numpy as np
import small

from hostile import Case, bad

MODEL = small.cnn().SerializeToString()


def varint(n):
    """A number on the wire."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def field(number, payload):
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def graph(payload):
    """A model of IR version 8 with that graph."""
    return b"\x08\x08" + field(7, payload)


def nested(depth):
    """Subgraphs in subgraphs."""
    inner = b""
    for _ in range(depth):
        inner = field(1, field(5, field(6, inner)))
    return graph(inner)


def spoiled(change):
    def make():
        made = small.mlp()
        change(made)
        return made

    return make


def version(n):
    def change(m):
        m.ir_version = n

    return spoiled(change)


def renamed(old: bytes, new: bytes):
    """The classifier with a name that isn't text, of the same length."""
    assert len(old) == len(new)
    return lambda: small.mlp().SerializeToString().replace(old, new)


def directory(folder):
    (folder / "bad.onnx").mkdir()
    return [folder / "bad.onnx"]


def fifo(folder):
    os.mkfifo(folder / "bad.onnx")
    return [folder / "bad.onnx"]


def endless(folder):
    (folder / "bad.onnx").symlink_to("/dev/zero")
    return [folder / "bad.onnx"]


GARBAGE = {
    "newline": b"\n",
    "text": b"This is a text file, not a model.\n" * 20,
    "json": b'{"ir_version": 8}',
    "png": b"\x89PNG\r\n\x1a\n" + bytes(200),
    "gzip": gzip.compress(MODEL, mtime=0),
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "noise": np.random.default_rng(5).bytes(5000),
}
SHARES = [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999]

CASES = [
    bad(1, "empty", b"", 3, "empty"),
    *[bad(2, f"truncated_{s}", MODEL[: max(1, int(len(MODEL) * s))], 3) for s in SHARES],
    *[bad(3, name, data, 3) for name, data in GARBAGE.items()],
    bad(4, "trailing_zero", MODEL + b"\0", 3),
    bad(4, "trailing_zeros", MODEL + bytes(1000), 3),
    bad(4, "trailing_text", MODEL + b"</html>\n", 3),
    Case(5, "directory", directory, 6, "directory"),
    Case(5, "fifo", fifo, 6),
    Case(5, "endless_device", endless, 6),
    bad(6, "groups", b"\x0b" * 200_000 + b"\x0c" * 200_000, 3),
    bad(6, "groups_in_the_graph", graph(b"\x0b" * 100_000), 3),
    bad(7, "subgraphs_2000_deep", nested(2000), 4, "deep"),
    bad(7, "subgraphs_40_deep", nested(40), 4, "deep"),
    bad(8, "empty_nodes", lambda: graph(field(1, b"") * 1_000_000), 4),
    bad(8, "empty_dimensions", lambda: graph(field(11, field(2, field(1, field(2, field(1, b"") * 6_000_000))))), 4),
    bad(9, "unknown_fields", lambda: MODEL + field(999, b"") * 2_000_000, (0, 3, 4)),
    bad(9, "unknown_numbers_in_a_node", lambda: graph(field(1, b"\xb8\x3e\x01" * 3_000_000)), (3, 4)),
    bad(10, "20_bytes", b"\x08" + b"\x80" * 20 + b"\x01", 3),
    bad(10, "above_64_bits", b"\x08" + b"\xff" * 9 + b"\x7f", 3),
    bad(10, "length_of_2_64", b"\x3a" + b"\xff" * 9 + b"\x01" + b"abc", 3),
    bad(11, "operator_not_text", renamed(b"Relu", b"Re\xffu"), 3, "UTF-8"),
    bad(11, "node_not_text", renamed(b"second", b"sec\xc0nd"), 3, "UTF-8"),
    bad(11, "half_a_surrogate", renamed(b"second", b"\xed\xa0\x80abc"), 3, "UTF-8"),
    bad(12, "ir_version_0", version(0), 3, "ir_version"),
    bad(12, "ir_version_999", version(999), 3, "ir_version 999"),
    bad(12, "ir_version_negative", version(-1), 3, "ir_version"),
    bad(12, "no_ir_version", spoiled(lambda m: m.ClearField("ir_version")), 3, "ir_version"),
]
