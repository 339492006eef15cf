"""Ids that stand in several places: where each stands first, and where next."""

from __future__ import annotations

import numpy as np

from hpcdist.comm.base import Array


def merged(ids: Array) -> tuple[Array, Array, Array]:
    """Return the different ids, where each stands first, and where each place's id is next."""
    from hpcdist.ps.row_kernels import link_repeats  # numba takes long to import

    count = len(ids)
    unique = np.empty(count, np.int64)
    firsts, following = np.empty(count, np.int32), np.empty(count, np.int32)
    different = link_repeats(ids, unique, firsts, following)
    return unique[:different], firsts[:different], following


def single(ids: Array) -> tuple[Array, Array, Array]:
    """Like `merged`, for ids that are all different."""
    return ids, np.arange(len(ids), dtype=np.int32), np.full(len(ids), -1, np.int32)
