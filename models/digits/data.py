"""Makes train.npz and test.npz from the digits in the scikit-learn package.

    pip install numpy==2.4.6 scikit-learn==1.9.1
    python models/digits/data.py

Each file holds `x`, float32 [N, 1, 8, 8] in 0..1, and `y`, int64 [N], the digit.
"""

import gzip
from pathlib import Path

import numpy as np
import sklearn

SEED = 2026
TEST_SHARE = 0.2


def split(labels):
    """The indices of the training and the test pictures.

    Every digit gives the same share to the test. NumPy's own generator does it, not
    scikit-learn's, so that the split stays the same from one scikit-learn to the next.
    """
    rng = np.random.Generator(np.random.PCG64(SEED))
    train, test = [], []
    for digit in range(10):
        at = rng.permutation(np.flatnonzero(labels == digit))
        cut = round(TEST_SHARE * len(at))
        test.append(at[:cut])
        train.append(at[cut:])
    # Mixed, so that the first samples of a file stand for all of it.
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def main():
    source = Path(sklearn.__file__).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(source, "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    # The values are whole numbers up to 16: sixteenths are exact in float32.
    pictures = (rows[:, :64] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = rows[:, 64].astype(np.int64)
    here = Path(__file__).parent
    for name, at in zip(["train", "test"], split(labels)):
        path = here / f"{name}.npz"
        np.savez_compressed(path, x=pictures[at], y=labels[at])
        counts = np.bincount(labels[at], minlength=10).tolist()
        print(f"{path.name}: {len(at)} pictures, {counts} of each digit, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
