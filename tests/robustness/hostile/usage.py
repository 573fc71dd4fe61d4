"""Rows 67 and 68: flags that make no sense."""

import os

import small

from hostile import Case


def flags(*given):
    def make(folder):
        return [small.save(small.mlp(), folder), *given]

    return make


def onto_itself(link=None, *more):
    """The output would replace the input, perhaps by another name."""

    def make(folder):
        path = small.save(small.mlp(), folder)
        output = path
        if link:
            output = folder / "other.onnx"
            link(path, output)
        return [path, "-o", output, "--force", *more]

    return make


def untouched(folder, _report):
    assert (folder / "model.onnx").read_bytes() == small.mlp().SerializeToString()


def report_onto_data(folder):
    """The report would take the place of the model: `MODEL.report.json` is the model."""
    path = small.save(small.mlp(), folder, "out.report.json")
    return [path, "-o", folder / "out.onnx", "--force"]


SHARES = ["1.5", "NaN", "nan", "inf", "-0.1", "-inf", "half", "", "1e999"]
CASES = [
    *[Case(67, f"prune={s}", flags(f"--prune={s}"), 2, "--prune") for s in SHARES],
    Case(67, "max_drop_nan", flags("--max-drop=NaN%"), 2, "NaN%"),
    Case(67, "max_size_word", flags("--max-size=much"), 2, "much"),
    Case(67, "min_speedup_negative", flags("--min-speedup=-1"), 2, "--min-speedup"),
    Case(67, "batch_0", flags("--batch=0"), 2, "--batch"),
    Case(67, "exclude_broken_regex", flags("--int8", "--exclude=(["), 2, "--exclude"),
    Case(67, "exclude_huge_regex", flags("--int8", "--exclude=((a{1000}){1000}){1000}"), 2, "--exclude"),
    Case(67, "unknown_device", flags("--device=abacus"), 2, "abacus"),
    Case(68, "output_is_input", onto_itself(), 2),
    Case(68, "output_is_a_link_to_the_input", onto_itself(lambda path, output: output.symlink_to(path)), 2),
    # The name is taken over, the file behind it stays.
    Case(68, "output_is_a_hard_link_to_the_input", onto_itself(os.link), 0, check=untouched),
    Case(68, "report_is_the_input", report_onto_data, 2),
]
