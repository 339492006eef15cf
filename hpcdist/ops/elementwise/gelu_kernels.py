"""Loops of gelu and erf on a CPU: one pass over memory each."""

from __future__ import annotations

import math

import numpy as np

from hpcdist.base.jit import jit

ROOT_HALF, DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)


@jit
def erf(x, out):
    """out = the error function of x."""
    for i in range(len(x)):
        out[i] = math.erf(x[i])


@jit
def gelu(x, out):
    """out = x times the probability that a standard normal number is below x."""
    for i in range(len(x)):
        out[i] = x[i] * (0.5 * (1 + math.erf(x[i] * ROOT_HALF)))


@jit
def gelu_back(x, dout, dx):
    """dx = (probability + x density) dout."""
    for i in range(len(x)):
        chance = 0.5 * (1 + math.erf(x[i] * ROOT_HALF))
        dx[i] = dout[i] * (chance + x[i] * np.exp(-0.5 * x[i] * x[i]) * DENSITY)
