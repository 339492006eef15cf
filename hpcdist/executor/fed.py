"""Feeds: host arrays, checked against their variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.base.nearest import did_you_mean
from hpcdist.base.warned import warn
from hpcdist.executor.analysis import lengths_read, reads
from hpcdist.executor.fed_dtypes import of_other_dtypes
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.graph.variable import Variable

_FLATTENS = ("mul", "mul_grad")  # the operators of `fc`


@contextmanager
def declared(program: Program, feed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Leave out what the program has no variable for, and tell the user once, as Fluid does.

    An error of what is done with the rest, that a variable is not fed, names what is left out.
    """
    variables = program.global_block().vars
    data = [n for n, v in variables.items() if v.is_data and not n.startswith("@")]
    left_out = [name for name in feed if name not in variables]
    for name in left_out:
        hint = did_you_mean(name, [n for n in data if n not in feed])
        warn(
            f"feed {name!r} is left out: the program has no such variable (it is not declared, or "
            f"pruned); its data variables are {data}{hint}"
        )
    try:
        yield {name: value for name, value in feed.items() if name in variables}
    except FeedError as error:
        if error.lacks and left_out:
            hints = (did_you_mean(name, [error.lacks]) for name in left_out)
            near = next(filter(None, hints), "")
            error.args = (f"{error}, which has {', '.join(map(repr, left_out))} instead{near}",)
        raise


def plain(value: object) -> Any:
    """Return the array of a LoDTensor that has rows and no sequences; anything else as it is."""
    if type(value) is LoDTensor and value.sequences is None and value.value is not None:
        return value.value if value.value.size else value
    return value


def as_flattened(program: Program, name: str, value: Any) -> Any:
    """Return a fed array with the dimensions of its variable, where Fluid flattens it anyway.

    That is where only `fc` reads the variable, and it is of `layers.data`, which takes any array.
    """
    var = program.global_block().vars[name]
    if type(value) is not np.ndarray or value.ndim == len(var.shape) or var.checks_feed:
        return value
    sample = var.shape[1:]
    if not sample or value.ndim < 2 or not value.size or value[0].size != math.prod(sample):
        return value
    readers = [op for b in program.blocks for op in b.ops if name in reads(op)]
    flattens = [
        op.type in _FLATTENS and op.input("X") == [name] and op.attr("x_num_col_dims") == 1
        for op in readers
    ]
    return value.reshape(-1, *sample) if flattens and all(flattens) else value


def as_host(name: str, value: object, program: Program) -> np.ndarray:
    """Turn a list, a number or a tensor into an array of the variable's dtype."""
    var = program.global_block().vars.get(name)
    if isinstance(value, (bool, int, float, np.generic)):
        value = [value]  # one number is an array of one, as in Fluid
    if isinstance(value, (list, tuple)) and var is not None:
        try:
            return np.asarray(value, dtype=var.dtype)
        except ValueError as error:
            raise FeedError(f"feed {name!r}: not an array of {var.dtype}: {error}") from None
    if isinstance(value, LoDTensor):
        if var is not None and not len(value):
            return np.array(value, var.dtype)  # the dtype of no items at all is nobody's choice
        return np.asarray(value.value)
    return np.asarray(value)


def ragged_key(name: str, value: np.ndarray, lod: Lod) -> Any:
    """What a Program is compiled for: numbers of sequences, not of rows."""
    return name, tuple(map(len, lod.offsets)), value.shape[1:], value.dtype


def fed_metas(
    program: Program, values: Mapping[str, np.ndarray], lods: Mapping[str, Lod]
) -> dict[str, Meta]:
    """Return shape, dtype and sequences of what is fed; FeedError where the Program has others.

    ``lods``: the sequences of values that have some. Of lengths the numbers are noted, too.
    """
    others = of_other_dtypes(program, values)
    metas = {
        n: _fed_meta(program, n, value, lods.get(n), n in others) for n, value in values.items()
    }
    for name in lengths_read(program.global_block(), values):
        lengths = Lod.of_lengths([values[name].reshape(-1)])
        metas[name] = replace(metas[name], lengths=lengths)
    return metas


def _fed_meta(
    program: Program, name: str, value: np.ndarray, lod: Lod | None, any_dtype: bool
) -> Meta:
    """Check one fed array against its variable; FeedError says what fits."""
    var = program.global_block().vars[name]
    if lod is not None and lod.rows != len(value):
        raise FeedError(
            f"feed {name!r}: its sequences have {lod.rows} rows together, got {len(value)} rows"
        )
    if value.dtype.name != var.dtype and not any_dtype:
        raise FeedError(
            f"feed {name!r}: expected {_declared_as(var)}, "
            f"got {value.dtype.name}{list(value.shape)}; convert it with .astype({var.dtype!r})"
        )
    # Of `layers.data`, as in Fluid: declared without a shape it takes any; and it takes the very
    # shape it was declared with, without the batch before it.
    free = not var.checks_feed and (not var.shape or value.shape == var.shape[1:])
    if not free and (
        len(value.shape) != len(var.shape) or (var.checks_feed and not _fits(var, value))
    ):
        raise FeedError(
            f"feed {name!r}: expected {_declared_as(var)}, got shape {list(value.shape)}"
        )
    return Meta(value.shape, value.dtype.name, lod=lod)


def _declared_as(var: Variable) -> str:
    return f"{var.dtype}{list(var.shape)}"


def _fits(var: Variable, value: np.ndarray) -> bool:
    """Return whether an array has the extents that its variable was declared with."""
    return all(want in (-1, got) for want, got in zip(var.shape, value.shape))


def of_other_extents(
    program: Program, values: Mapping[str, np.ndarray], error: ValueError
) -> FeedError | None:
    """Return an error that names what was fed with other extents than declared, if anything was.

    `layers.data` lets them differ, as in Fluid: images of other sizes, a last batch that is small.
    """
    variables = program.global_block().vars
    for name, value in values.items():
        if not _fits(variables[name], value):
            return FeedError(
                f"feed {name!r}: expected {_declared_as(variables[name])}, got shape "
                f"{list(value.shape)}, for which the program cannot run: {error}"
            )
    return None
