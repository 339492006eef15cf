"""Creation of values: identity matrices, random numbers, grids, position encodings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hpcdist.base.device import assign
from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import Applied, How, OfRows, by_row, constant, not_on_rows
from hpcdist.graph.sequence_rows import by_row_of_sequence
from hpcdist.ops.common import define_with_grad, fits, open_shape, same
from hpcdist.ops.random.counter import Draw, Draws, SameDraws, filler, key_of, part_of
from hpcdist.ops.random.samplers import MOST, copied, integers, integers_below
from hpcdist.ops.random.seeded import jump, start_of, uniform
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, Call, DeviceArray, Metas, Operands


# -- made of nothing -------------------------------------------------------------------------------
def _eye_bind(xp: ArrayModule, out, num_rows: int, num_columns: int, dtype: str) -> Call:
    identity = (xp.arange(num_rows).reshape(-1, 1) == xp.arange(out.shape[1])).astype(dtype)
    return partial(xp.copyto, out, identity)


define(
    "eye",
    " -> Out",
    rows=constant,
    attrs={"num_rows": 1, "num_columns": -1, "dtype": "float32"},
    infer=lambda num_rows, num_columns, dtype: Meta(
        (num_rows, num_rows if num_columns < 0 else num_columns), dtype
    ),
    bind=_eye_bind,
)


def _range_infer(start: Meta, end: Meta, step: Meta, begin, limit, distance) -> Meta:
    if None in (begin, limit, distance):
        return Meta((-1,), start.dtype)
    if not distance or (limit - begin) * distance < 0:
        raise GraphError(f"expected a step from {begin} towards {limit}, got {distance}")
    kind = np.dtype(start.dtype).type
    count = math.ceil((kind(limit) - kind(begin)) / kind(distance))
    return Meta((max(count, 0),), start.dtype)


def _range(xp: ArrayModule, start, end, step, out, **_) -> None:
    out[...] = xp.arange(len(out), dtype=out.dtype) * step + start


define(
    "range",
    "Start, End, Step -> Out",
    rows=not_on_rows,
    given={
        "begin": Given("Start", read=True),
        "limit": Given("End", read=True),
        "distance": Given("Step", read=True),
    },
    infer=_range_infer,
    kernel=_range,
    folds=True,
)


def _linspace(xp: ArrayModule, start, stop, out, num: int) -> None:
    """Numbers at equal distances, each computed as Fluid does: start + distance * i."""
    distance = (stop - start) / max(num - 1, 1)
    out[...] = start + distance * xp.arange(num, dtype=out.dtype)


define(
    "linspace",
    "Start, Stop, Num -> Out",
    rows=not_on_rows,
    given={"num": Given("Num")},
    ranges={"num": "at least 1"},
    infer=lambda start, stop, num: Meta((-1 if num is None else num,), start.dtype),
    kernel=_linspace,
)


def _words(xp: ArrayModule, like, rows, seed: int, state: Draws) -> Draw:
    draws = SameDraws(state.name) if seed else state
    return filler(xp, part_of(like, rows, None), key_of(seed, state.name), draws)


def _randint_bind(
    xp: ArrayModule, out, shape, low: int, high: int, dtype: str, seed: int, state: Draws
) -> Call:
    if seed > 0 and high - low <= MOST:
        drawn = integers(seed, low, high, out.size).astype(dtype).reshape(out.shape)
        return partial(assign, out, drawn)
    words = _words(xp, out, None, seed, state)
    # The upper bits of a product: as many words for each number, but for one part in 2^32.
    spread = float(high - low) * 2.0**-32

    def run() -> None:
        out[...] = (words() * spread).astype(dtype).reshape(out.shape) + low

    return run


def _randint_infer(shape: Sequence[int | None], low: int, high: int, dtype: str, seed: int) -> Meta:
    if low >= high:
        raise GraphError(f"no integer is at least {low} and less than {high}")
    return Meta(open_shape(shape), dtype)


define(
    "randint",
    "ShapeTensor?, ShapeTensorList* -> Out",
    rows=constant,
    attrs={"shape": (1,), "low": 0, "high": 1, "dtype": "int64", "seed": 0},
    given={"shape": Given("ShapeTensor", "ShapeTensorList")},
    infer=_randint_infer,
    bind=_randint_bind,
    state=Draws,
)


def _randperm_bind(xp: ArrayModule, out, n: int, dtype: str, seed: int, state: Draws) -> Call:
    words = _words(xp, out, None, seed, state)

    def run() -> None:
        out[...] = xp.argsort(words(), kind="stable").astype(dtype)

    return run


define(
    "randperm",
    " -> Out",
    rows=constant,
    attrs={"n": 1, "dtype": "int64", "seed": 0},
    infer=lambda n, dtype, seed: Meta((n,), dtype),
    bind=_randperm_bind,
    state=Draws,
)


# -- drawn for each row ----------------------------------------------------------------------------
def _sampling_id_bind(
    xp: ArrayModule, x, rows, out, min: float, max: float, seed: int, state: Draws
) -> Call:
    words, part = _words(xp, out, rows, seed, state), part_of(out, rows, None)

    def numbers() -> DeviceArray:
        if seed:
            return copied(xp, uniform(start_of(seed), part.skipped(), out.size, min, max))
        return words() * ((max - min) * 2.0**-32) + min

    def run() -> None:
        drawn = numbers().reshape(-1, 1)
        out[...] = xp.minimum((xp.cumsum(x, axis=1) <= drawn).sum(1), x.shape[1] - 1)

    return run


define(
    "sampling_id",
    "X, Rows? -> Out",  # Rows: which of a shared batch are here, see `random.counter.BatchPart`
    rows=by_row("X"),
    attrs={"min": 0.0, "max": 1.0, "seed": 0},
    infer=shaped("X: n classes", lambda x, rows, **_: Meta(x.shape[:1], "int64")),
    bind=_sampling_id_bind,
    state=Draws,
)


def _random_crop_infer(x: Meta, rows: Meta | None, shape: Sequence[int], **_) -> tuple[Meta, Meta]:
    leading = x.shape[: len(x.shape) - len(shape)]
    if not leading or any(0 <= a < b for a, b in zip(x.shape[len(leading) :], shape)):
        raise GraphError(f"cannot crop {list(shape)} from every sample of {x.shape}")
    return Meta((*leading, *shape), x.dtype), Meta((1,), "int64")


def _random_crop_bind(
    xp: ArrayModule,
    x,
    rows,
    out,
    seed_out,
    shape: Sequence[int],
    startup_seed: int,
    given_seed: int | None,
    state: Draws,
) -> Call:
    count = len(shape)
    samples, pieces = x.reshape(-1, *x.shape[-count:]), out.reshape(-1, *shape)
    each = np.empty((len(out), len(pieces) // max(len(out), 1), count))
    key = key_of(startup_seed, state.name)  # other pieces in every run, also with a seed
    words = filler(np, part_of(each, rows, None), key, state)
    room = np.array([a - b + 1 for a, b in zip(x.shape[-count:], shape)])

    def run() -> None:
        if given_seed is None:
            begins = (words().reshape(-1, count) * (room * 2.0**-32)).astype(int)
            last = startup_seed
        else:  # Fluid's, for this seed
            first = jump(start_of(given_seed), part_of(each, rows, None).skipped())
            starts = [jump(first, k * count) for k in range(len(pieces))]
            begins = np.array(
                [integers_below(start, room.tolist())[0] for start in starts]
            ).reshape(-1, count)
            last = jump(starts[-1], count + 1)
        if seed_out is not None:
            seed_out[...] = last
        for sample, piece, begin in zip(samples, pieces, begins):
            piece[...] = sample[tuple(slice(b, b + d) for b, d in zip(begin, shape))]

    return run


define(
    "random_crop",
    "X, Seed?, Rows? -> Out, SeedOut?",
    rows=by_row("X"),
    attrs={"shape": (), "startup_seed": 0},
    given={"given_seed": Given("Seed")},
    infer=_random_crop_infer,
    bind=_random_crop_bind,
    state=Draws,
)


# -- of coordinates --------------------------------------------------------------------------------
def _grid_infer(xs: Sequence[Meta]) -> Metas:
    if any(len(x.shape) != 1 for x in xs):
        raise GraphError(f"a grid is made of vectors, got {[x.shape for x in xs]}")
    shape = tuple(x.shape[0] for x in xs)
    return ([Meta(shape, x.dtype) for x in xs],)


def _along(x, axis: int, rank: int) -> Array:
    return x.reshape([-1 if i == axis else 1 for i in range(rank)])


def _meshgrid(xp: ArrayModule, xs: Operands, outs: Operands) -> None:
    for i, (x, out) in enumerate(zip(xs, outs)):
        if out is not None:
            out[...] = _along(x, i, len(xs))


def _meshgrid_grad(xp: ArrayModule, xs: Operands, douts: Sequence[Array], dxs: Operands) -> None:
    for i, (dout, dx) in enumerate(zip(douts, dxs)):
        if dx is not None:
            dx[...] = dout.sum(tuple(k for k in range(len(xs)) if k != i))


def _grid_rows(op: Applied) -> dict[str, OfRows]:
    return {}  # every vector is repeated along the rows of the others


define_with_grad(
    "meshgrid",
    "X* -> Out*",
    "X*, Out@GRAD* -> X@GRAD*",
    rows=_grid_rows,
    infer=_grid_infer,
    kernel=_meshgrid,
    grad_kernel=_meshgrid_grad,
)


def _encoding_infer(x: Meta, alpha: float, beta: float) -> Meta:
    if len(x.shape) != (2 if x.lod is not None else 3) or x.shape[-1] % 2:
        raise GraphError(f"positions in rows of an even width are encoded, got shape {x.shape}")
    return replace(same(x), lod=x.lod)


def _encoding_bind(xp: ArrayModule, x, out, alpha: float, beta: float, lods) -> Call:
    """out = alpha x + beta (sin | cos)(position / 10000^(k / (half - 1)))."""
    half = x.shape[-1] // 2
    if lods[0] is None:
        position = np.arange(x.shape[1])
    else:
        bounds = np.asarray(lods[0].offsets[-1])
        position = np.arange(len(x)) - np.repeat(bounds[:-1], np.diff(bounds))
    power = np.arange(half) / (half - 1) if half > 1 else np.ones(1)
    angle = position[:, None] / 10000.0**power
    waves = xp.asarray(
        (beta * np.concatenate([np.sin(angle), np.cos(angle)], 1)).astype(x.dtype.name)
    )

    def run() -> None:
        xp.multiply(x, alpha, out=out)
        xp.add(out, waves, out=out)

    return run


def _encoding_rows(op: Applied) -> OfRows:
    ragged = op.operands[0].of.how is How.RAGGED
    return by_row_of_sequence(op) if ragged else by_row()(op)  # type: ignore[return-value]


define_with_grad(
    "add_position_encoding",
    "X -> Out",
    "Out@GRAD -> X@GRAD",
    rows=_encoding_rows,
    attrs={"alpha": 1.0, "beta": 1.0},
    ranges={"alpha": "at least 0", "beta": "at least 0"},
    infer=_encoding_infer,
    kernel=None,
    bind=_encoding_bind,
    grad_kernel=lambda xp, dout, dx, alpha, beta: xp.multiply(dout, alpha, out=dx),
    lods=("X",),
)


# -- about values ----------------------------------------------------------------------------------
define(
    "size",
    "Input -> Out",
    rows=not_on_rows,
    infer=lambda x: Meta((1,), "int64"),
    bind=lambda xp, x, out: partial(out.fill, x.size),
    shape_only=("Input",),
)


def _mean_iou(
    xp: ArrayModule,
    predicted,
    truth,
    wrongs: Operands,
    corrects: Operands,
    means: Operands,
    mean,
    wrong,
    correct,
    num_classes: int,
) -> None:
    """Mean over the classes that occur of |found and true| / |found or true|.

    Counts of other batches are added to those of this one, and so are their means.
    """
    predicted, truth = predicted.reshape(-1), truth.reshape(-1)
    hit = predicted == truth
    hits = xp.bincount(truth[hit], minlength=num_classes)
    missed = xp.bincount(truth[~hit], minlength=num_classes)
    missed = missed + xp.bincount(predicted[~hit], minlength=num_classes)
    hits, missed = sum(corrects, hits), sum(wrongs, missed)
    either = hits + missed
    present = either > 0
    mean[...] = (hits / xp.maximum(either, 1)).sum() / max(int(present.sum()), 1)
    mean[...] = sum(means, mean)
    if wrong is not None:
        wrong[...] = missed
    if correct is not None:
        correct[...] = hits


def _mean_iou_infer(
    predicted: Meta,
    truth: Meta,
    wrongs: Sequence[Meta],
    corrects: Sequence[Meta],
    means: Sequence[Meta],
    num_classes: int,
) -> Metas:
    of_classes = Meta((num_classes,), "int32")
    for slot, metas, expected in (
        ("InWrongs", wrongs, of_classes.shape),
        ("InCorrects", corrects, of_classes.shape),
        ("InMeanIou", means, (1,)),
    ):
        for meta in metas:
            if not fits(meta.shape, expected):
                raise GraphError(f"mean_iou: {slot} must be {list(expected)}, got {meta.shape}")
    return Meta((1,), "float32"), of_classes, of_classes


define(
    "mean_iou",
    "Predictions, Labels, InWrongs*, InCorrects*, InMeanIou* -> OutMeanIou, OutWrong, OutCorrect",
    rows=not_on_rows,
    attrs={"num_classes": 2},
    ranges={"num_classes": "at least 1"},
    infer=_mean_iou_infer,
    kernel=_mean_iou,
)
