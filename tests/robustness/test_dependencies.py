"""What the program is built from: known weaknesses, licences, sources."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKED = [p for p in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"] if "source" in p]
KNOWN = tomllib.loads((Path(__file__).parent / "advisories.toml").read_text())["crates"]

# Advisories for versions that are in use, and why they do no harm.
ACCEPTED = {
    "RUSTSEC-2024-0437": "the parser recurses into groups: compiler/src/onnx/wire.rs refuses files that have any",
    "RUSTSEC-2024-0436": "paste is finished, and no longer maintained; it runs in builds only",
}

LICENCES = {
    "MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "0BSD", "ISC", "Zlib",
    "Unicode-3.0", "Unlicense", "CC0-1.0", "MPL-2.0",
}  # fmt: skip


def numbers(version):
    """What versions are compared by; one before a release, such as 1.0.0-alpha.2, comes before it."""
    release, _, pre = version.strip().split("+")[0].partition("-")
    parts = [int(part) for part in release.split(".")]
    pre = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")] if pre else [(2, 0, "")]
    return tuple(parts + [0] * (3 - len(parts))), pre


def fits(version, requirement):
    """Whether a version meets all parts of a requirement such as `>= 1.2, < 2`."""
    for part in requirement.split(","):
        sign, wanted = re.fullmatch(r"\s*([<>=^]*)\s*(\S+)\s*", part).groups()
        mine, other = numbers(version), numbers(wanted)
        if sign == "^":
            leading = next((i for i, n in enumerate(other[0]) if n), 2)
            same = mine[0][: leading + 1] == other[0][: leading + 1]
            holds = same and mine >= other
        else:
            holds = {"": mine == other, "=": mine == other, "<": mine < other, "<=": mine <= other,
                     ">": mine > other, ">=": mine >= other}[sign]  # fmt: skip
        if not holds:
            return False
    return True


@pytest.mark.parametrize(
    ("version", "requirement", "expected"),
    [
        ("1.2.3", ">= 1.2.3", True),
        ("1.2.3", ">=1.2, < 1.2.3", False),
        ("0.20.3", "^0.20.2", True),
        ("0.21.0", "^0.20.2", False),
        ("2.0.0-alpha.2", ">= 2.0.0-alpha.10", False),
        ("2.0.0-rc.1", "< 2", True),
    ],
)
def test_versions_compare(version, requirement, expected):
    assert fits(version, requirement) == expected


def test_no_known_weakness():
    """None that is not accepted; and none is accepted that is gone."""
    found = {
        advisory["id"]: f"{package['name']} {package['version']}"
        for package in LOCKED
        for advisory in KNOWN.get(package["name"], [])
        if not any(fits(package["version"], safe) for safe in advisory["safe"])
    }
    assert set(found) == set(ACCEPTED), found


def test_every_crate_comes_from_the_registry():
    assert {p["source"] for p in LOCKED} == {"registry+https://github.com/rust-lang/crates.io-index"}
    assert all("checksum" in p for p in LOCKED)


def test_licences():
    """Of what the program links, each crate can be had under a licence that asks nothing of code outside it."""
    tree = ["cargo", "tree", "--locked", "-e", "normal", "--prefix", "none", "--format", "{p}|{l}"]
    lines = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    wrong = set()
    for line in filter(None, lines):
        crate, licence = line.removesuffix(" (*)").split("|")
        every = licence.replace("(", "").replace(")", "").split(" AND ")
        alternatives = (re.split(r" OR |\s*/\s*", one) for one in every)
        if not all(any(a.strip() in LICENCES for a in some) for some in alternatives):
            wrong.add(f"{crate}: {licence}")
    assert not wrong, wrong
