"""Random values: Fluid's seeded streams, bit for bit; a slice takes its part of the whole's stream.

Every operator starts its own stream from its seed: x <- 48271 x mod (2^31 - 1), the minimal
standard generator (Park and Miller, 1993). A slice says where it begins (``offset``, elements) in
the whole variable (``full_size``), and whose stream it takes (``stream``, the whole's name).
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.graph.registry import Meta, define

MODULUS = 2**31 - 1
MULTIPLIER = 48271
SEED_VARIABLE = "HPCDIST_SEED"


def job_seed(stream: str) -> int:
    """Return the seed of an unseeded operator: the same in every process and every run.

    It follows from the environment's HPCDIST_SEED (default "0") and the name of the variable.
    """
    job = os.environ.get(SEED_VARIABLE, "0")
    return zlib.crc32(f"{job}/{stream}".encode()) % (MODULUS - 1) + 1


def start_of(seed: int) -> int:
    """Return the generator's state for a seed, as C++'s ``std::minstd_rand`` sets it."""
    return seed % MODULUS or 1


def jump(state: int, steps: int) -> int:
    """Return the state ``steps`` draws later."""
    return state * pow(MULTIPLIER, steps, MODULUS) % MODULUS


def _infer(shape: Any, dtype: str, **_: Any) -> Meta:
    return Meta(tuple(shape), dtype)


def _bind(
    draw: Callable[..., np.ndarray],
    xp: Any,
    out: Any,
    seed: int,
    stream: str,
    offset: int,
    **a: Any,
) -> Callable[[], Any]:
    state = start_of(seed or job_seed(stream))
    return functools.partial(_fill, draw, out, state, int(offset), a)


def _fill(draw: Any, out: Any, state: int, offset: int, attrs: Any) -> None:
    host = out if isinstance(out, np.ndarray) else np.empty(out.shape, out.dtype)
    host[...] = draw(state, offset, host.size, **attrs).reshape(host.shape)
    if host is not out:
        out.set(host)


def uniform(state: int, offset: int, size: int, min: float, max: float, **_: Any) -> np.ndarray:
    """Draw float32 values from [min, max]; ``offset`` values are skipped first."""
    from hpcdist.ops import random_kernels

    out = np.empty(size, np.float32)
    random_kernels.uniform(jump(state, offset), np.float32(min), np.float32(max), out)
    return out


def normal(state: int, offset: int, size: int, mean: float, std: float, **_: Any) -> np.ndarray:
    """Draw normal float32 values. How far to skip depends on the values: it starts at the first."""
    from hpcdist.ops import random_kernels

    out = np.empty(size, np.float32)
    random_kernels.normal(state, offset, np.float32(mean), np.float32(std), out)
    return out


def truncated_normal(
    state: int, offset: int, size: int, mean: float, std: float, **_: Any
) -> np.ndarray:
    """Draw normal float32 values within two standard deviations."""
    from hpcdist.ops import random_kernels

    out = np.empty(size, np.float32)
    first = jump(state, offset)
    random_kernels.truncated_normal(first, np.float32(mean), np.float32(std), out)
    return out


_COMMON = {
    "shape": (1,),
    "dtype": "float32",
    "seed": 0,
    "stream": "",
    "offset": 0,
    "full_size": 0,
}
_NORMAL = {**_COMMON, "mean": 0.0, "std": 1.0}


def _define(type: str, draw: Callable[..., np.ndarray], attrs: dict[str, Any]) -> None:
    bind = functools.partial(_bind, draw)
    define(type, " -> Out", attrs=attrs, infer=_infer, bind=bind)


_define("uniform_random", uniform, {**_COMMON, "min": -1.0, "max": 1.0})
_define("gaussian_random", normal, _NORMAL)
_define("truncated_gaussian_random", truncated_normal, _NORMAL)
