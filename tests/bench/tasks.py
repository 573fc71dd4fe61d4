"""How near the answers of a quantised model are to those of its original, by what the model is for."""

import numpy as np


def decibels(before, after):
    return 10 * np.log10((before**2).sum() / max(((before - after) ** 2).sum(), 1e-30))


def nearest(before, after, feeds):
    """Parts of the samples whose nearest neighbour, among the originals of the others, is the same."""
    masks = np.stack([feed.get("attention_mask", np.ones((1, 1)))[0] for feed in feeds])[..., None]
    pooled = lambda y: (y * masks).sum(1) / masks.sum(1) if y.ndim == 3 else y
    unit = lambda y: y / np.linalg.norm(y, axis=1, keepdims=True)
    a, b = unit(pooled(before)), unit(pooled(after))
    found = [np.where(np.eye(len(a)), -2, y @ a.T).argmax(1) for y in (a, b)]
    return np.mean(found[0] == found[1])


def lines(before, after, feeds):
    """Lines that are read in the same way: the likeliest character of each place, repetitions and blanks left out."""

    def read(y):
        best = y.argmax(-1)
        return [[c for i, c in enumerate(line) if c and (i == 0 or line[i - 1] != c)] for line in best]

    return np.mean([a == b for a, b in zip(read(before), read(after))])


def mask(before, after, feeds):
    """What two masks share of both together."""
    return overlap(before > 0.3, after > 0.3)


def cells(before, after, feeds):
    """What the cells and classes that a detector finds share of all that are found by one of both."""
    return overlap(before > 0.2, after > 0.2)


def classes(before, after, feeds):
    """Samples of the same class."""
    return np.mean(before.argmax(-1) == after.argmax(-1))


def overlap(a, b):
    return (a & b).sum() / max((a | b).sum(), 1)


# The measure, its name, and which part of the first output it is of.
TASKS = {
    "nearest": (nearest, "nearest neighbour", lambda y: y),
    "lines": (lines, "lines", lambda y: y),
    "mask": (mask, "IoU", lambda y: y),
    # Places in pixels come first; their size would hide the scores.
    "cells": (cells, "cell IoU", lambda y: y[:, 4:]),
    "outputs": (lambda before, after, feeds: np.nan, "task", lambda y: y),
    "classes": (classes, "same class", lambda y: y),
}
