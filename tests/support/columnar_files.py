"""Columnar files of known rows, and what is read of them. Needs pyarrow."""

from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

import hpcdist as fluid

N = 250


def table(first=0, count=N):
    """Return rows with numbers and text."""
    number = np.arange(first, first + count)
    return pa.table(
        {
            "id": number,
            "x": (number / 8).astype(np.float32),
            "word": [f"w{n % 7}" for n in number],
        }
    )


def parquet(folder, counts=(N, 30, 120), group=64):
    """Write Parquet files of uneven sizes, and return a pattern for them."""
    first = 0
    for number, count in enumerate(counts):
        pq.write_table(table(first, count), folder / f"p{number}.parquet", row_group_size=group)
        first += count
    return str(folder / "*.parquet")


def ids(batches):
    """Return the column ``id`` of all batches."""
    return [batch["id"].tolist() for batch in batches]


def joined(batches):
    """Return all rows of the column ``id``."""
    return list(chain(*ids(batches)))


def hashed(word):
    """Return the number of a text, as the documentation says it is made."""
    return int(np.uint64(xxhash.xxh3_64_intdigest(word.encode())).astype(np.int64))


def variables(**dtypes):
    """Return variables of one value in each row."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        return [fluid.data(name, [None, 1], dtype) for name, dtype in dtypes.items()]


def column(rows, name):
    """Return all values of a column."""
    return [value for batch in rows for value in np.ravel(batch[name]).tolist()]
