"""Rows 46 to 57: weights in other files. tests/test_external.py has what goes right, and more."""

import os

import onnx
import small

from hostile import Case

SECRET = b"SECRET!!" * 100


def external(folder, data="weights.bin"):
    """The classifier with its weights in another file; its first tensor is `w1`."""
    path = folder / "bad.onnx"
    onnx.save(small.mlp(), path, save_as_external_data=True, location=data, size_threshold=64)
    return path


def entries(row, name, code=6, says="w1", **new):
    """A case: the entries of the first tensor are these, besides those that are kept."""

    def make(folder):
        (folder.parent / f"{folder.name}-secret.bin").write_bytes(SECRET)
        path = external(folder)
        made = onnx.load(path, load_external_data=False)
        tensor = made.graph.initializer[0]
        old = {e.key: e.value for e in tensor.external_data}
        wanted = {k: v.format(secret=f"{folder.name}-secret.bin") for k, v in new.items() if v is not None}
        del tensor.external_data[:]
        for key, value in (old | wanted).items():
            if new.get(key, "") is not None:
                tensor.external_data.add(key=key, value=value)
        path.write_bytes(made.SerializeToString())
        return [path]

    return Case(row, name, make, code, says)


def link_out(folder):
    path = external(folder)
    outside = folder.parent / f"{folder.name}-outside.bin"
    (folder / "weights.bin").rename(outside)
    (folder / "weights.bin").symlink_to(outside)
    return [path]


def link_to_a_device(folder):
    path = external(folder)
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("/dev/zero")
    return [path]


def link_onto_itself(folder):
    path = external(folder)
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("weights.bin")
    return [path]


def folder_link_out(folder):
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (folder / "sub").mkdir()
    path = external(folder, "sub/weights.bin")
    (folder / "sub/weights.bin").rename(outside / "weights.bin")
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(outside)
    return [path]


def hard_link(folder):
    path = external(folder)
    os.link(folder / "weights.bin", folder.parent / f"{folder.name}-linked.bin")
    return [path]


def two_locations(folder):
    path = external(folder)
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].external_data.add(key="location", value="other.bin")
    path.write_bytes(made.SerializeToString())
    return [path]


def cut_short(folder):
    path = external(folder)
    os.truncate(folder / "weights.bin", 100)
    return [path]


CASES = [
    entries(46, "absolute", location="/etc/hostname"),
    entries(46, "absolute_with_scheme", location="file:///etc/hostname"),
    entries(47, "parent", location="../{secret}"),
    entries(47, "parent_of_a_folder", location="x/../../{secret}"),
    entries(47, "parent_and_back", location="x/../weights.bin"),
    Case(48, "link_out", link_out, 6, "weights.bin"),
    Case(48, "link_to_a_device", link_to_a_device, 6, "weights.bin"),
    Case(48, "link_onto_itself", link_onto_itself, 6, "weights.bin"),
    Case(49, "folder_link_out", folder_link_out, 6, "weights.bin"),
    Case(50, "hard_link", hard_link, 6, "--allow-hardlinks"),
    entries(51, "dot", location="."),
    entries(51, "empty", location=""),
    entries(52, "missing", location="none.bin"),
    entries(53, "negative", offset="-1"),
    entries(53, "word", offset="many"),
    entries(53, "above_63_bits", offset=str(2**63)),
    entries(54, "offset", offset="100000000"),
    entries(54, "offset_wraps", offset=str(2**64 - 8)),
    Case(54, "cut_short", cut_short, 6, "weights.bin"),
    entries(55, "shorter", length="8"),
    entries(55, "longer", length="1024"),
    entries(55, "negative", length="-8"),
    entries(56, "nul", location="weights.bin\0.txt"),
    entries(56, "unknown_key", colour="red"),
    entries(56, "no_location", location=None),
    Case(56, "two_locations", two_locations, 6, "location"),
    # Row 57, a file that is cut short while it is mapped, needs two processes:
    # test_a_file_truncated_while_it_is_mapped in tests/test_external.py.
    Case(57, "cut_before_it_is_mapped", cut_short, 6, "cut short"),
]
