"""``fluid.contrib.reader``: batches divided among the trainers of a script that feeds its own."""

from __future__ import annotations

from hpcdist.data.reader import Reader, shard

__all__ = ["distributed_batch_reader"]


def distributed_batch_reader(batch_reader: Reader) -> Reader:
    """Return a reader of every n-th batch, for scripts that call ``transpile`` or fleet.

    Batches that are left, too few for all of the trainers, are left out. A plain script, whose
    trainers are all fed the same batches, needs none.
    """
    return shard(batch_reader, uneven="drop")
