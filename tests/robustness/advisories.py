"""Writes the list of security advisories for the crates that Cargo.lock names.

    python tests/robustness/advisories.py DB

DB is a checkout of the RustSec advisory database. Its advisories for crates of the lock file go into advisories.toml, with the
versions that are safe; test_dependencies.py holds the lock file against them.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def main(db):
    lock = tomllib.loads((HERE.parents[1] / "Cargo.lock").read_text())
    names = sorted({p["name"] for p in lock["package"] if "source" in p})
    date = subprocess.run(["git", "-C", db, "log", "-1", "--format=%cs"], capture_output=True, text=True, check=True)
    lines = [f"# Written by advisories.py.\ndatabase = {date.stdout.strip()}\n\n[crates]"]
    for name in names:
        found = []
        for file in sorted((db / "crates" / name).glob("*.md")):
            text = re.search(r"```toml\n(.*?)```", file.read_text(), re.S)
            entry = tomllib.loads(text.group(1))
            if "withdrawn" not in entry["advisory"]:
                versions = entry["versions"]
                safe = versions.get("patched", []) + versions.get("unaffected", [])
                found.append(f'  {{ id = "{entry["advisory"]["id"]}", safe = {safe} }},'.replace("'", '"'))
        if found:
            lines.append("\n".join([f"{name} = [", *found, "]"]))
    (HERE / "advisories.toml").write_text("\n".join(lines) + "\n")


main(Path(sys.argv[1]))
