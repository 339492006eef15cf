"""Sparse gradients: which rows of a table an optimizer moves, and how repeated rows count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import GraphError
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.ops.embedding.selected_rows import SelectedRows, library_of
from hpcdist.ops.optimize.update import bind_update
from hpcdist.ops.types import Array, ArrayModule, Attrs, Operands

Apply = Callable[[SelectedRows], None]


def bind_sparse_update(
    xp: ArrayModule,
    type: str,
    attrs: Attrs,
    param,
    rate,
    state: Operands,
    scale: float = 1.0,
    *,
    in_place: bool = True,
) -> Apply:
    """Return the update of ``param`` by ``scale`` times a sparse gradient, of any number of rows.

    Arrays are read and written in place, as in `bind_update`. A gradient without rows changes
    nothing, neither moments nor powers; a part of one that has rows elsewhere moves what is here as
    rows that are not listed move. Unless adam's powers are written ``in_place``, it reads them as
    they were, as Fluid's kernel does.
    """
    moved = OPTIMIZERS[type].sparse(attrs)
    if moved is None:
        raise GraphError(sparse_refusal(type))
    factor = param.dtype.type(scale)
    if moved == "each":
        return partial(_subtract_each, xp, param, rate, factor)
    state, advance = _adams(state, attrs, in_place) if type == "adam" else (state, _nothing)
    moving = (_bind_all if moved == "all" else _bind_listed)(xp, type, attrs, param, rate, state)

    def apply(gradient: SelectedRows) -> None:
        if gradient.moves:
            advance()
            moving(_scaled(gradient, factor))

    return apply


def sparse_refusal(type: str) -> str:
    """Say that an optimizer takes no sparse gradients, and which do."""
    able = sorted(name for name, update in OPTIMIZERS.items() if update.sparse(update.attrs))
    return (
        f"{type} cannot apply a sparse gradient (SelectedRows): use embedding(is_sparse=False) "
        f"or one of {', '.join(able)}"
    )


def _scaled(gradient: SelectedRows, factor) -> SelectedRows:
    if factor == 1:
        return gradient
    return replace(gradient, value=gradient.value * factor)


def _subtract_each(xp: ArrayModule, param, rate, factor, gradient: SelectedRows) -> None:
    """sgd: every listed row by itself, repeats included."""
    if xp is not np:
        totals = _scaled(gradient, factor).totals()
        param[totals.rows] -= rate.reshape(-1)[0] * totals.value
        return
    if not len(gradient.rows):
        return
    from hpcdist.ops.optimize import update_kernels

    values = gradient.value.reshape(len(gradient.rows), -1)
    update_kernels.sgd_rows(param.reshape(-1), gradient.rows, values, factor, rate.reshape(-1))


def _adams(
    state: Operands, attrs: Attrs, in_place: bool
) -> tuple[Sequence[Array], Callable[[], None]]:
    """Advance adam's powers of beta by a step: Fluid's sparse kernel multiplies them first."""
    *moments, power1, power2 = state
    seen1, seen2 = power1.copy(), power2.copy()

    def advance() -> None:
        for power, seen, beta in ((power1, seen1, "beta1"), (power2, seen2, "beta2")):
            before = power.copy()
            power *= power.dtype.type(attrs[beta])
            seen[...] = power if in_place else before

    return [*moments, seen1, seen2], advance


def _nothing() -> None:
    pass


def _bind_all(xp: ArrayModule, type: str, attrs: Attrs, param, rate, state: Operands) -> Apply:
    """Move every row of the table; those not listed by a gradient of zero."""
    dense = xp.zeros(param.shape, param.dtype)
    move = bind_update(xp, type, attrs, param, rate, state, dense[None])
    merge = _totals_as_fluid if misses_rows(type) else SelectedRows.totals

    def apply(gradient: SelectedRows) -> None:
        merged = merge(gradient)
        dense[merged.rows] = merged.value
        move()
        dense[merged.rows] = 0

    return apply


def _bind_listed(xp: ArrayModule, type: str, attrs: Attrs, param, rate, state: Operands) -> Apply:
    """Move the listed rows only, after adding up repeats."""
    per_row = [param, *(s for s in state if s.shape == param.shape)]

    def apply(gradient: SelectedRows) -> None:
        merged = gradient.totals()
        picked = {id(array): array[merged.rows] for array in per_row}
        state_of_rows = [picked.get(id(s), s) for s in state]
        bind_update(xp, type, attrs, picked[id(param)], rate, state_of_rows, merged.value[None])()
        for array in per_row:
            array[merged.rows] = picked[id(array)]

    return apply


# -- Fluid's search ------------------------------------------------------------------------------
def misses_rows(type: str) -> bool:
    """Return whether an optimizer is to miss the rows of unsorted lists that Fluid's misses."""
    return type in ("momentum", "rmsprop") and settings.SPARSE_ROWS.read() == "fluid"


def _totals_as_fluid(gradient: SelectedRows) -> SelectedRows:
    """Return the rows that Fluid's momentum and rmsprop see: some of an unsorted list are lost.

    Fluid 1.8.5 finds a row's gradient by binary search, in a list that it has sorted only if rows
    repeat. Which rows are lost depends on their order, hence on how ranks divide a batch, so this
    is computed only where HPCDIST_SPARSE_ROWS=fluid asks for Fluid's numbers.
    """
    totals = gradient.totals()
    if len(totals.rows) < len(gradient.rows):
        return totals
    seen = are_members(gradient.rows)
    if not isinstance(seen, np.ndarray):  # how many are lost, if any, only the GPU knows
        repeats = totals.rows[1:] == totals.rows[:-1]
        nonzero = seen[library_of(seen).argsort(gradient.rows)] | repeats.any()
        totals.value *= nonzero.reshape(-1, *[1] * (totals.value.ndim - 1))
        return totals
    return SelectedRows(gradient.rows[seen], gradient.value[seen], gradient.height)


def are_members(rows) -> Array:
    """Return for each element whether a binary search of the list, sorted or not, finds it."""
    low = rows * 0
    high = low + len(rows) - 1
    is_member = low > 0
    for _ in range(len(rows).bit_length()):
        middle = (low + high) >> 1
        seen = rows[middle.clip(0, len(rows) - 1)]
        open_ = low <= high
        is_member |= open_ & (seen == rows)
        low, high = (
            low + (middle + 1 - low) * (seen < rows),
            high + (middle - 1 - high) * (seen > rows),
        )
    return is_member
