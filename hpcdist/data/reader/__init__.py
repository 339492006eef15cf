"""``fluid.io``'s readers: functions that return an iterator of samples, and their decorators.

A decorator takes readers and returns a reader, so they nest:
``batch(shuffle(shard(mnist.train()), buf_size=500), batch_size=20)``.
"""

from hpcdist.data.reader.background import buffered, multiprocess_reader, xmap_readers
from hpcdist.data.reader.decorators import (
    ComposeNotAligned,
    Reader,
    batch,
    cache,
    chain,
    compose,
    expect_reader,
    firstn,
    map_readers,
    shard,
    shuffle,
)

__all__ = [
    "ComposeNotAligned",
    "Reader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "expect_reader",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shard",
    "shuffle",
    "xmap_readers",
]
