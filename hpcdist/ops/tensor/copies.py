"""Copies of arrays to others, known when they are bound: of many narrow parts as one call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from hpcdist.base.ufunc_loops import coalesced
from hpcdist.ops.common import in_sequence
from hpcdist.ops.types import ArrayModule, Call, DeviceArray

FEWEST, LEAST_BYTES = 4, 1 << 15  # of what pays; fewer bytes are copied by joined loops
WIDEST = 1 << 10  # bytes of a row; numpy copies wider ones as fast


def copies(
    xp: ArrayModule,
    pairs: Iterable[tuple[DeviceArray, DeviceArray]],
    otherwise: Call | None = None,
) -> Call:
    """Return the call that copies ``source`` to ``target``, for each pair (target, source).

    Of each pair the shape and the dtype are one, and no target overlaps another pair's arrays.
    ``otherwise`` does the same where one compiled call does not pay (default: copy one by one).
    """
    pairs = list(pairs)
    if xp is np and len(pairs) >= FEWEST and sum(to.nbytes for to, _ in pairs) >= LEAST_BYTES:
        blocks = [_block(*pair) for pair in pairs]
        rows = {block[0] for block in blocks}
        if len(rows) == 1 and None not in rows:
            from hpcdist.base.jit import bound  # numba takes 0.3 s to import
            from hpcdist.ops.tensor.copy_kernels import copy_blocks

            table = np.array([block[1:] for block in blocks], np.int64)
            call = bound(copy_blocks, table, rows.pop())
            call.kept = pairs  # type: ignore[attr-defined]  # as long as addresses of them are
            return call
    if otherwise is not None:
        return otherwise
    return in_sequence(*(partial(xp.copyto, target, source) for target, source in pairs))


def _block(target: np.ndarray, source: np.ndarray) -> tuple[int | None, ...]:
    """Return the number of rows and a block of `copy_kernels`; None first if they are no rows."""
    alike = (target.shape, target.dtype) == (source.shape, source.dtype)
    if not alike or np.may_share_memory(target, source):
        return (None,)
    shape, (to, begin) = coalesced([target, source])
    width = target.itemsize
    if to and to[-1] == begin[-1] == width:
        width *= shape.pop()
        to.pop(), begin.pop()
    if len(shape) != 1 or width > WIDEST or min(to[0], begin[0]) < 0:
        return (None,)
    places = (array.__array_interface__["data"][0] for array in (target, source))
    return shape[0], *places, to[0], begin[0], width
