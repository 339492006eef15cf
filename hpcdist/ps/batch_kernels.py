"""The compiled loops of `hpcdist.ps.batch`: find the unique ids, copy rows to and from their
places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.comm.base import Array
from hpcdist.jit import jit
from hpcdist.ps.raw_memory import copy_bytes, float32_at, prefetch

# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), after a constant of our own, so that
# what a server keeps ids by says nothing of which server they are on.
SALT = np.uint64(0x9D6F_29C3_51E8_B04B)
M1, M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
AHEAD = 12  # ids, of which memory is asked for before it is needed
R27, R30, R31, R32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
R54, R60, R62 = np.uint64(54), np.uint64(60), np.uint64(62)
UNDO_M1, UNDO_M2 = np.uint64(0x96DE1B173F119089), np.uint64(0x319642B2D24D8EC3)


@jit
def mix(id: Any) -> Any:
    """Return 64 bits of which each depends on all bits of an id; the same on every machine."""
    x = np.uint64(id) ^ SALT
    x = (x ^ (x >> R30)) * M1
    x = (x ^ (x >> R27)) * M2
    return x ^ (x >> R31)


@jit
def unmix(x: Any) -> Any:
    """Return the id, as 64 bits, that `mix` made ``x`` of."""
    x = (x ^ (x >> R31) ^ (x >> R62)) * UNDO_M2
    x = (x ^ (x >> R27) ^ (x >> R54)) * UNDO_M1
    return x ^ (x >> R30) ^ (x >> R60) ^ SALT


@jit
def to_mix(ids: Array) -> None:
    """Turn ids (uint64) into their mixes."""
    for i in range(len(ids)):
        ids[i] = mix(ids[i])


@jit
def from_mix(mixes: Any) -> None:
    """Turn mixes into their ids (uint64)."""
    for i in range(len(mixes)):
        mixes[i] = unmix(mixes[i])


@jit
def find(wanted: Array, ids: Array, begins: Array, places: Array) -> None:
    """Write where each wanted id stands in ``ids``, which are sorted by their mix; -1: nowhere.

    ``begins[b]`` is the first id whose mix has the upper ten bits b.
    """
    for i in range(len(wanted)):
        key = mix(wanted[i])
        bucket = np.int64(key >> R54)
        low, end = begins[bucket], begins[bucket + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if mix(ids[middle]) < key:
                low = middle + 1
            else:
                high = middle
        places[i] = low if low < end and ids[low] == wanted[i] else -1


@jit
def owners(ids: Array, servers: Array, out: Array) -> None:
    """Write the server of every id: the upper half of its mix, as a fraction of 2^32.

    ids: int64 [n]; out: integers [n], 0..servers - 1.
    """
    n = np.uint64(servers)
    for i in range(len(ids)):
        out[i] = np.int64(((mix(ids[i]) >> R32) * n) >> R32)


@jit
def once_each(
    ids: Array, padding: int, padded: Array, heads: Array, unique: Array, places: Array
) -> Any:
    """Write each id once, in the order of first occurrence; return how many there are.

    ``places[i]`` is where ids[i] stands in ``unique``, -1 for ``padding`` if ids are ``padded``.
    ``heads`` is scratch of 2^k > len(ids) elements.
    """
    mask = np.uint64(len(heads) - 1)
    heads[:] = -1
    memory = np.int64(heads.ctypes.data)
    n = 0
    for i in range(len(ids)):
        id = ids[i]
        if i + AHEAD < len(ids):
            prefetch(memory + 4 * np.int64(mix(ids[i + AHEAD]) & mask))
        if padded and id == padding:
            places[i] = -1
            continue
        slot = mix(id) & mask
        while True:
            u = heads[slot]
            if u < 0:
                heads[slot] = n
                unique[n] = id
                places[i] = n
                n += 1
                break
            if unique[u] == id:
                places[i] = u
                break
            slot = (slot + np.uint64(1)) & mask
    return n


@jit
def address(
    unique: Array,
    owner: Array,
    width: int,
    next_id: Array,
    next_row: Array,
    message: Array,
    where: Array,
) -> None:
    """Write ids behind their server's cursor; ``where[u]`` becomes the element its row begins at.

    ``next_id`` and ``next_row`` are the cursors of the servers, and are moved on.
    """
    for u in range(len(unique)):
        server = owner[u]
        message[next_id[server]] = unique[u]
        next_id[server] += 1
        where[u] = next_row[server]
        next_row[server] += width


@jit
def take_rows(
    rows: Array, places: Array, where: Array, width: int, starts: Array, outs: Array
) -> None:
    """Copy every id's row out of the batch's rows; padding gives zeros.

    Ids ``starts[k]:starts[k + 1]`` are look-up k, whose rows go to the address ``outs[k]``.
    """
    memory = np.int64(rows.ctypes.data)
    for k in range(len(outs)):
        out = float32_at(outs[k])
        for i in range(starts[k], starts[k + 1]):
            if i + AHEAD < len(places):
                prefetch(memory + 4 * where[places[i + AHEAD]])
            p, to = places[i], (i - starts[k]) * width
            if p < 0:
                for j in range(width):
                    out[to + j] = 0
            else:
                copy_bytes(outs[k] + 4 * to, memory + 4 * where[p], 4 * width)


@jit
def add_rows(
    rows: Array, places: Array, where: Array, width: int, starts: Array, values: Array
) -> None:
    """Add every id's value to its row of the batch, in the order of the ids; not padding's.

    The values of look-up k are at the address ``values[k]``, as in `take_rows`.
    """
    memory = np.int64(rows.ctypes.data)
    for k in range(len(values)):
        for i in range(starts[k], starts[k + 1]):
            if i + AHEAD < len(places):
                prefetch(memory + 4 * where[places[i + AHEAD]])
            p = places[i]
            if p >= 0:
                # By address: an index that might count from the end is not added in vectors.
                row = float32_at(memory + 4 * where[p])
                value = float32_at(values[k] + 4 * width * (i - starts[k]))
                for j in range(width):
                    row[j] += value[j]


@jit
def first_not_finite(rows: Array, where: Array, width: int) -> Any:
    """Return the first id, as its place among the unique ones, whose row is not finite; or -1."""
    for u in range(len(where)):
        begin = where[u]
        total = rows[begin] - rows[begin]
        for j in range(1, width):
            total += rows[begin + j] - rows[begin + j]
        if total != 0:  # NaN, as infinity minus itself is, equals nothing
            return u
    return -1
