"""The networks that are timed, as plain numbers. Python 3.7 reads it too, for the real Fluid."""

from collections import namedtuple

import numpy as np

# A perceptron: `hidden` layers of `width` with relu, then one output, mean squared error, SGD.
# Every weight starts at `weight` and every bias at 0, so that all contenders print equal losses.
Case = namedtuple("Case", "title features hidden width batch learning_rate weight")

CASES = {
    "linreg": Case("linear regression 13 -> 1, batch 20", 13, 0, 0, 20, 0.01, 0.0),
    "mlp": Case("MLP of 4 layers of 1024, batch 64", 1024, 4, 1024, 64, 0.001, 1 / 1024),
}


def batches(case, trainer, count=4):
    """Return ``count`` pairs (x [batch, features], y [batch, 1]) of float32, by trainer."""
    rng = np.random.RandomState(trainer)
    pairs = []
    for _ in range(count):
        x = rng.uniform(0, 1, (case.batch, case.features)).astype("float32")
        pairs.append((x, (x[:, :1] + x[:, -1:]).astype("float32")))
    return pairs


def layer_shapes(case):
    """Return the shape of each layer's weight, the output layer last."""
    sizes = [case.features] + [case.width] * case.hidden + [1]
    return [(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)]
