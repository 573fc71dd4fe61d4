"""The space of `compress search` under an optimiser that doesn't know the compressor: Optuna's TPE and NSGA-II, each try a run of the command.

    python tests/bench/search_optuna.py FOLDER [NAME ...] --minutes 10 --seeds 3

FOLDER is as tests/bench/shipped_data.py makes it. Two thirds of the samples of calibration are tried on, and a third chooses, as
`compress search` does it; the evaluation set is used at the end. Prints for each model and optimiser the hypervolume on the evaluation
set, and how many ways were tried. tests/bench/search.py prints those of `compress search`.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import optuna

from search import arguments, hypervolume, objectives, run

FORMS = {
    "float": [],
    "int8": ["--int8"],
    "dynamic": ["--int8=dynamic"],
    "weights-int8": ["--weights", "int8"],
    "weights-int4": ["--weights", "int4"],
}
ZEROS = [0, 30, 50, 60, 70, 80, 90, 95]
CHANNELS = [0, 10, 20, 30, 40, 50, 60, 70, 80]
AIMS = [0, 15, 20, 25, 35, 40]
CALIBRATIONS = ["", "minmax", "percentile-99.999", "percentile", "percentile-99.9", "mse", "entropy"]
EPOCHS = [0, 1, 4, 16]
SAMPLERS = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=12),
}


def split(place, folder):
    """Samples to try on, and samples that choose."""
    with np.load(place / "calibration.npz") as file:
        arrays = dict(file)
    count = len(next(iter(arrays.values())))
    order = np.random.default_rng(0).permutation(count)
    paths = []
    for name, some in (("tried.npz", order[count // 3 :]), ("chose.npz", order[: count // 3])):
        np.savez(folder / name, **{key: array[np.sort(some)] for key, array in arrays.items()})
        paths.append(folder / name)
    return paths


def flags(trial, noisy):
    """The flags of a try."""
    form = trial.suggest_categorical("form", list(FORMS))
    zeros, channels = trial.suggest_categorical("zeros", ZEROS), trial.suggest_categorical("channels", CHANNELS)
    pruned = [*(["--prune", zeros / 100] if zeros else []), *(["--prune-channels", channels / 100] if channels else [])]
    if form != "int8" and not pruned:
        return FORMS[form]
    epochs = trial.suggest_categorical("epochs", EPOCHS)
    made = [*FORMS[form], *pruned]
    if form == "int8":
        for node in noisy[: int(trial.suggest_float("float_layers", 0.0, 0.5) * len(noisy))]:
            made += ["--layer", f"^{node}$=float"]
        if epochs:
            made.append("--qat")
        elif trial.suggest_categorical("effort", ["quick", "normal"]) == "quick":
            made += ["--effort", "quick"]
            calibration = trial.suggest_categorical("calibration", CALIBRATIONS)
            return [
                *made,
                *(["--calibration", calibration] if calibration else []),
                *(["--epochs", 0] if pruned else []),
            ]
        aim = trial.suggest_categorical("aim", AIMS)
        made += ["--aim", aim] if aim else []
    return [*made, *(["--epochs", epochs] if pruned or epochs else [])]


def search(place, sampler, options, seed):
    """The hypervolume on the evaluation set of what an optimiser found, and its tries."""
    how = ["--json", "--force", *(["--threads", options.threads] if options.threads else [])]
    began, tried = time.time(), []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (data, chose), model = split(place, folder), place / "model.onnx"
        given = ["--data", data, "--eval", chose, *how]
        layers = run("sensitivity", model, "--data", data, "-o", folder / "layers.svg", *how)
        layers = [layer for layer in layers["layers"] if layer.get("int8")]
        noisy = [layer["node"] for layer in sorted(layers, key=lambda layer: layer["int8"]["sqnr_db"])]
        first = run(model, *given, "-o", folder / "first.onnx")
        of_share = first["accuracy"]["drop"] is not None
        worst = (1.0 if of_share else 2.0, 2.0, 2.0)
        study = optuna.create_study(directions=["minimize"] * 3, sampler=SAMPLERS[sampler](seed))
        while time.time() - began < 60 * options.minutes:
            trial = study.ask()
            out = folder / f"{trial.number}.onnx"
            report = run(model, *flags(trial, noisy), *given, "--seed", seed, "-o", out)
            reached = objectives(report, of_share)
            # What ended after the time doesn't count.
            if time.time() - began < 60 * options.minutes and reached is not None:
                tried.append((reached, out))
            study.tell(trial, worst if reached is None else reached)
        best = [out for a, out in tried if not any(all(y <= x for x, y in zip(a, b)) and a != b for b, _ in tried)]
        points = []
        for out in best:
            held = ["--data", place / "evaluation.npz", "--json", *how[2:]]
            points.append(objectives(run("check", out, "--against", model, *held), of_share))
        return hypervolume([p for p in points if p], 0.1 if of_share else 0.3), len(tried)


def main():
    options = arguments()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in options.names:
        for sampler in SAMPLERS:
            found = [search(options.folder / name, sampler, options, seed) for seed in range(options.seeds)]
            values, tries = " ".join(f"{v:.3f}" for v, _ in found), "/".join(str(n) for _, n in found)
            print(f"{name}: {sampler} {values} ({tries} ways)", flush=True)


if __name__ == "__main__":
    main()
