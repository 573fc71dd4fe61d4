"""Makes train.txt, valid.txt and test.txt from the project's own words: its documents, and what its sources say of themselves.

    python models/scribe/corpus.py

Each document, and all comments of a source file, is a text. One text in twenty chooses the best epoch, one in twenty is for tests.
"""

import hashlib
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PARTS = 20


def comments(source):
    """The comments that document something, a paragraph for each."""
    paragraphs = [[]]
    for line in source.splitlines():
        said = re.match(r"\s*//[/!] ?(.*)", line)
        if said:
            paragraphs[-1].append(said[1])
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join("\n".join(p) for p in paragraphs if p)


def text(path):
    content = path.read_text(encoding="utf-8")
    return comments(content) if path.suffix == ".rs" else content


def set_of(name):
    part = int(hashlib.sha256(name.encode()).hexdigest(), 16) % PARTS
    return {0: "test", 1: "valid"}.get(part, "train")


if __name__ == "__main__":
    listed = subprocess.run(["git", "ls-files", "*.md", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True)
    sets = {"train": [], "valid": [], "test": []}
    for name in sorted(listed.stdout.split()):
        said = text(ROOT / name).strip()
        if said:
            sets[set_of(name)].append(said)
    for name, texts in sets.items():
        (HERE / f"{name}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        print(f"{name}.txt: {len(texts)} texts, {(HERE / f'{name}.txt').stat().st_size} bytes")
