"""The compiled loop that copies many narrow blocks of rows."""

from __future__ import annotations

from hpcdist.base.jit import jit
from hpcdist.base.raw_memory import copy_bytes, float32_at

TARGET, SOURCE, TO_NEXT, FROM_NEXT, WIDTH = range(5)  # the columns of a table of blocks


@jit
def copy_blocks(blocks, rows):
    """Copy ``rows`` rows of every block, row by row of all of them.

    blocks: int64 [n, 5], each the address of its first row where it goes and where it is, the
    bytes from there to the next one, on either side, and the bytes of a row.
    """
    for row in range(rows):
        for k in range(len(blocks)):
            to = blocks[k, TARGET] + row * blocks[k, TO_NEXT]
            begin = blocks[k, SOURCE] + row * blocks[k, FROM_NEXT]
            width = blocks[k, WIDTH]
            if width == 4:
                float32_at(to)[0] = float32_at(begin)[0]
            elif width == 64:
                copy_bytes(to, begin, 64)
            else:
                copy_bytes(to, begin, width)
