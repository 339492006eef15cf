"""Random values: Fluid's seeded streams, bit for bit, and without a seed new ones in every run.

With a seed, and in initializers, an operator starts its own stream: x <- 48271 x mod (2^31 - 1),
the minimal standard generator (Park and Miller, 1993). A slice has its ``offset`` (elements) in the
complete variable (of ``full_size``), and the name of its ``stream``, that of the variable. Without
a seed, an element's number depends on its position; see `random.counter`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np

from hpcdist.base import settings
from hpcdist.base.device import upload
from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import constant, like_batch
from hpcdist.ops.common import open_shape, shaped_like_batch
from hpcdist.ops.random.counter import Draws, filler, key_of, part_of
from hpcdist.ops.types import ArrayModule, Attrs, Call

MODULUS = 2**31 - 1
MULTIPLIER = 48271


def job_seed(stream: str) -> int:
    """Return the seed of an unseeded operator: the same in every process and every run.

    It follows from HPCDIST_SEED (0) and the name of the variable.
    """
    return zlib.crc32(f"{settings.SEED.read()}/{stream}".encode()) % (MODULUS - 1) + 1


def start_of(seed: int) -> int:
    """Return the generator's state for a seed, as C++'s ``std::minstd_rand`` sets it."""
    return seed % MODULUS or 1


def jump(state: int, steps: int) -> int:
    """Return the state ``steps`` draws later."""
    return state * pow(MULTIPLIER, steps, MODULUS) % MODULUS


def _infer(shape, dtype: str, **_) -> Meta:
    return Meta(open_shape(shape), dtype)


def _uniform_infer(shape, dtype: str, min: float, max: float, **_) -> Meta:
    if min > max:
        raise GraphError(f"uniform_random: expected min of at most max, got {min} and {max}")
    return _infer(shape, dtype)


def _bind(
    draw: Callable[..., np.ndarray],
    xp: ArrayModule,
    out,
    seed: int,
    stream: str,
    offset: int,
    full_size: int,
    state: Draws,
    **a,
) -> Call:
    if not (seed or stream or full_size):
        return _bind_unseeded(draw, out, None, state, a)
    drawn = partial(draw, start_of(seed or job_seed(stream)), int(offset), **a)
    return partial(_fill, out, partial(_with_diagonal, drawn, int(offset), a))


def _bind_unseeded(draw: Callable[..., np.ndarray], out, rows, draws: Draws, attrs) -> Call:
    """Return the generator of new values in every run, those of the ``rows`` that are here."""
    from hpcdist.ops.random import seeded_kernels

    words = filler(np, part_of(out, rows, None), key_of(0, draws.name), draws)
    if draw is uniform:
        low, high = np.float32(attrs["min"]), np.float32(attrs["max"])

        def between(size: int, into: object) -> np.ndarray:
            return seeded_kernels.uniform_of(words(), low, high)

        return partial(_fill, out, partial(_with_diagonal, between, 0, attrs))
    bound = 2.0 if draw is truncated_normal else np.inf
    mean, std = attrs["mean"], attrs["std"]

    def drawn(size: int, into: object) -> np.ndarray:
        return seeded_kernels.normal_of(words().copy(), words(), mean, std, bound)

    return partial(_fill, out, drawn)


def _bind_like(
    draw: Callable[..., np.ndarray], xp: ArrayModule, like, rows, out, seed: int, state: Draws, **a
) -> Call:
    if not seed:
        return _bind_unseeded(draw, out, rows, state, a)
    part, start = part_of(out, rows, None), start_of(seed)
    return partial(_fill, out, lambda size, into: draw(start, part.skipped(), size, into=into, **a))


def _with_diagonal(
    draw: Callable[..., np.ndarray], offset: int, attrs: Attrs, size: int, into: object
) -> np.ndarray:
    """Draw, and set elements 0, step + 1, 2 (step + 1), ... of the complete variable apart."""
    values = draw(size, into=into)
    if number := attrs.get("diag_num", 0):
        places = np.arange(number) * (attrs["diag_step"] + 1) - offset
        values[places[(places >= 0) & (places < size)]] = attrs["diag_val"]
    return values


def _fill(out, drawn: Callable[..., np.ndarray]) -> None:
    host = out if isinstance(out, np.ndarray) else np.empty(out.shape, out.dtype)
    in_place = host.dtype == np.float32 and host.flags.c_contiguous
    into = host.reshape(-1) if in_place else None
    values = drawn(host.size, into=into)
    if values is not into:
        host[...] = values.reshape(host.shape)
    if host is not out:
        upload(out, host)


def uniform(
    state: int, offset: int, size: int, min: float, max: float, into=None, **_
) -> np.ndarray:
    """Draw float32 values from [min, max]; ``offset`` values are skipped first.

    ``into``: the array that they are written into and that is returned, by default a new one.
    """
    from hpcdist.ops.random import seeded_kernels

    out = np.empty(size, np.float32) if into is None else into
    seeded_kernels.uniform(jump(state, offset), np.float32(min), np.float32(max), out)
    return out


def normal(
    state: int, offset: int, size: int, mean: float, std: float, into=None, **_
) -> np.ndarray:
    """Draw normal float32 values. How far to skip depends on the values: it starts at the first."""
    from hpcdist.ops.random import seeded_kernels

    out = np.empty(size, np.float32) if into is None else into
    seeded_kernels.normal(state, offset, np.float32(mean), np.float32(std), out)
    return out


def truncated_normal(
    state: int, offset: int, size: int, mean: float, std: float, into=None, **_
) -> np.ndarray:
    """Draw normal float32 values within two standard deviations."""
    from hpcdist.ops.random import seeded_kernels

    out = np.empty(size, np.float32) if into is None else into
    first = jump(state, offset)
    seeded_kernels.truncated_normal(first, np.float32(mean), np.float32(std), out)
    return out


_SHAPED = {"shape": (1,), "dtype": "float32", "seed": 0}
_LIKE = {**_SHAPED, "input_dim_idx": 0, "output_dim_idx": 0}
_OF_STREAM = {"stream": "", "offset": 0, "full_size": 0}
_UNIFORM = {"min": -1.0, "max": 1.0}
_DIAGONAL = {"diag_num": 0, "diag_step": 0, "diag_val": 1.0}
_NORMAL = {"mean": 0.0, "std": 1.0}


def _define(
    type: str, draw: Callable[..., np.ndarray], attrs: Attrs, signature: str = " -> Out", **parts
) -> None:
    bind = partial(_bind, draw)
    attrs = {**_SHAPED, **_OF_STREAM, **attrs}
    facts = {"infer": _infer, "bind": bind, "state": Draws, **parts}
    define(type, signature, rows=constant, attrs=attrs, **facts)


def _define_like(type: str, draw: Callable[..., np.ndarray], attrs: Attrs) -> None:
    define(
        type,
        "Input, Rows? -> Out",  # Rows: which of a shared batch are here, see `BatchPart`
        rows=like_batch,
        attrs={**_LIKE, **attrs},
        infer=lambda like, rows, **a: shaped_like_batch(like, **a),
        bind=partial(_bind_like, draw),
        shape_only=("Input",),
        state=Draws,
    )


_BY_VALUES = "ShapeTensor?, ShapeTensorList* -> Out"
_GIVEN = {"shape": Given("ShapeTensor", "ShapeTensorList")}
_define(
    "uniform_random",
    uniform,
    {**_UNIFORM, **_DIAGONAL},
    _BY_VALUES,
    given=_GIVEN,
    infer=_uniform_infer,
)
_define("gaussian_random", normal, _NORMAL, _BY_VALUES, given=_GIVEN)
_define("truncated_gaussian_random", truncated_normal, _NORMAL)
_define_like("uniform_random_batch_size_like", uniform, _UNIFORM)
_define_like("gaussian_random_batch_size_like", normal, _NORMAL)
