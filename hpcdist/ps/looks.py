"""What a push to a table with a policy says besides gradients: which ids are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array

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
