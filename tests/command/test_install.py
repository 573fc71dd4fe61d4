"""What is installed beside the command: completions for shells, and the manual."""

import shutil
import subprocess
import tomllib

import pytest
from support import ROOT, binary

JOBS = {
    "answers",
    "bench",
    "check",
    "completions",
    "devices",
    "distill",
    "draft",
    "explain",
    "inspect",
    "man",
    "merge",
    "run",
    "search",
    "sensitivity",
}


def completed(script, *words):
    """What bash offers for the last word."""
    ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _compress compress "${@: -1}" "${@: -2:1}"; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", ask, "bash", script, "compress", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return set(done.stdout.split())


def test_bash_completes_subcommands_flags_and_choices(compress, tmp_path):
    script = tmp_path / "compress.bash"
    script.write_text(compress("completions", "bash").out)
    assert completed(script, "sens") == {"sensitivity"}
    assert completed(script, "") >= JOBS
    assert completed(script, "--prune-c") == {"--prune-channels"}
    assert completed(script, "check", "--against-nothing") == set()
    assert completed(script, "check", "--aga") == {"--against"}
    assert completed(script, "--target", "open") == {"openvino"}


@pytest.mark.parametrize("shell", ["zsh", "fish", "elvish", "powershell"])
def test_other_shells_have_a_script(compress, shell):
    script = compress("completions", shell).out
    assert all(job in script for job in JOBS) and "prune-channels" in script


def test_an_unknown_shell(compress):
    assert "possible values: bash, elvish, fish, powershell, zsh" in compress("completions", "tcsh", code=2).err


def test_the_manual_has_a_page_for_each_subcommand(compress, tmp_path):
    folder = tmp_path / "new" / "man1"
    compress("man", folder)
    assert {page.name for page in folder.iterdir()} == {"compress.1", *(f"compress-{job}.1" for job in JOBS)}
    text = (folder / "compress.1").read_text()
    assert "prune\\-channels" in text and "compress\\-check(1)" in text and "Exit codes" in text
    compress("man", folder)
    blocked = tmp_path / "file"
    blocked.touch()
    assert "cannot be made" in compress("man", blocked, code=6).err


@pytest.mark.parametrize(
    "lint", [["mandoc", "-T", "lint", "-W", "error"], ["groff", "-man", "-ww", "-z"]], ids=lambda lint: lint[0]
)
def test_the_manual_is_well_formed(compress, tmp_path, lint):
    if not shutil.which(lint[0]):
        pytest.skip(f"{lint[0]} is not installed")
    compress("man", tmp_path)
    for page in sorted(tmp_path.iterdir()):
        done = subprocess.run([*lint, page], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr


def test_the_debian_package_has_all_extras(tmp_path):
    subprocess.run([ROOT / "packaging" / "extras", binary(), tmp_path], check=True, timeout=60)
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["metadata"]["deb"]
    packed = {
        file for source, _, _ in package["assets"] for file in tmp_path.glob(source.removeprefix("target/extras/"))
    }
    assert packed == {file for file in tmp_path.rglob("*") if file.is_file()}
    assert all(list(ROOT.glob(source)) for source, _, _ in package["assets"] if not source.startswith("target/"))
