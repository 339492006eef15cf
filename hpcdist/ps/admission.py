"""Which ids of a push get a row, and which wait: by chance, and by counts of their looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdist.comm.base import Array
from hpcdist.ps.batch import ids_of_parts, owners_of
from hpcdist.ps.looks import chosen_looks
from hpcdist.ps.row_policy import SKETCH_ROWS

if TYPE_CHECKING:
    from hpcdist.ps.policy_table import PolicyTable


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
