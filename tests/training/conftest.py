"""A model to train, and its samples."""

import numpy as np
import pytest
import small


@pytest.fixture
def cnn(tmp_path):
    """A small classifier, beside it samples with and without labels."""
    x = small.floats(11, 200, 3, 12, 12)
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "xy.npz", x=x, y=np.arange(200) % 5)
    return small.save(small.cnn(), tmp_path)
