"""What a push to a table with a policy says of its ids, and which of them get a row or wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.batch import ids_of_parts, owners_of
from hpcdist.ps.row_policy import SKETCH_ROWS

if TYPE_CHECKING:
    from hpcdist.ps.policy_table import PolicyTable


def check_shows(table: PolicyTable, ids: Array, grads: Array) -> None:
    """Raise TableError for shows and clicks that are no finite numbers."""
    shows = grads[:, table.dim :]
    bad = np.flatnonzero(~np.isfinite(shows).all(axis=1))
    if len(bad):
        raise TableError(
            f"table {table.name!r}: shows and clicks of id {ids[bad[0]]} are not finite "
            f"({shows[bad[0]].tolist()}); none of the {len(ids)} rows of this push has been "
            "changed"
        )


def looks_of(table: PolicyTable, grads: Array, firsts: Array, following: Array) -> Array:
    """Return of each id that it is looked up once, with its shows and clicks.

    The result is float32 [len(firsts), 3], or [len(firsts), 1] of rows without a score; only one
    row if it is the same for all.
    """
    from hpcdist.ps.policy_kernels import merged  # numba takes long to import

    count, columns = len(firsts) if table.policy.shows else 1, 3 if table.policy.score else 1
    looks = np.zeros((count, columns), np.float32)
    looks[:, :2] = 1
    if table.policy.shows:
        sums = np.empty((len(firsts), 2), np.float32)
        merged(firsts, following, np.ascontiguousarray(grads[:, table.dim :]), sums)
        looks[:, 1:] = sums
    return looks


def chosen_looks(looks: Array, which: Array | slice) -> Array:
    """Return the looks of the chosen ids."""
    return looks if len(looks) == 1 else looks[which]


def by_chance(table: PolicyTable, ids: Array) -> Array:
    """Return which ids may have a row: bool [n]."""
    from hpcdist.ps.policy_kernels import chosen  # numba takes long to import

    out, policy = np.ones(len(ids), bool), table.policy
    if policy.admit_probability < 1:
        below = np.uint64(max(0, int(policy.admit_probability * (1 << 64)) - 1))
        chosen(ids, table.key, below, out)
    return out


def admitted(
    table: PolicyTable, ids: Array, looks: Array, with_row: Array
) -> tuple[Array, tuple[Array, Array] | None]:
    """Return which ids have a row in this step, and ids that waited, with their metadata."""
    chosen = with_row | by_chance(table, ids)
    if table.policy.admit_after == 1:
        return chosen, None
    new = np.flatnonzero(chosen & ~with_row)
    counts = counted(table, ids[new], chosen_looks(looks, new))
    enough = new[counts >= table.policy.admit_after]
    table._check_room(ids[enough])
    kept = with_row.copy()
    kept[enough] = True
    carried = None
    if table.waiting is not None:
        gone = ids[enough]
        carried = gone, table.waiting.metadata(gone)
        table.waiting._forget(gone, table.waiting._locate(gone, create=False))
    return kept, carried


def counted(table: PolicyTable, ids: Array, looks: Array) -> Array:
    """Count looks of ids without a row; return how many there were of each."""
    from hpcdist.ps.policy_kernels import count_in_sketch

    if table.waiting is not None:
        table.waiting.step, table.waiting.day = table.step, table.day
        records, _ = table.waiting._noted(ids, looks)
        table.waiting._make(ids, records, looks, None)
        return table.waiting._metadata_at(records)[:, 0]
    assert table.sketch is not None
    parts = table.policy.parts_for(0)
    records = table.sketch._locate(ids_of_parts(parts)[owners_of(ids, parts)])
    counts, times = np.empty((2, len(ids)), np.float32)
    times[:] = looks[:, 0]
    depth = np.array([SKETCH_ROWS, table.policy.sketch_width])
    most = np.float32(table.policy.admit_after)
    count_in_sketch(ids, times, records, depth, most, counts)
    return counts
