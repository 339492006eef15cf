"""The compiled loops of `hpcdist.ps.batch`: find the unique ids, copy rows to and from their
places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.jit import jit
from hpcdist.base.raw_memory import copy_bytes, float32_at, prefetch
from hpcdist.comm.base import Array

# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), after a constant of our own, so that
# what a server keeps ids by says nothing of which server they are on.
SALT = np.uint64(0x9D6F_29C3_51E8_B04B)
M1, M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
AHEAD = 12  # ids, of which memory is asked for before it is needed
R27, R30, R31, R32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
R54, R60, R62 = np.uint64(54), np.uint64(60), np.uint64(62)
# The columns of `LookupBatch`'s tables: the first table of the same ids and padding; where its ids
# begin among all, and how many they are; whether it has a padding; the elements of a row; how many
# different ids it has, and where the places of their rows begin.
TWIN, BEGIN, COUNT, PADS, WIDTH, DIFFERENT, WHERE = range(7)
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
        mixed = mix(wanted[i])
        bucket = np.int64(mixed >> R54)
        low, end = begins[bucket], begins[bucket + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if mix(ids[middle]) < mixed:
                low = middle + 1
            else:
                high = middle
        places[i] = low if low < end and ids[low] == wanted[i] else -1


@jit
def owner_of(id: Any, servers: Any) -> Any:
    """Return the server of an id: the upper half of its mix, as a fraction of 2^32."""
    if servers == 1:
        return np.int64(0)
    return np.int64(((mix(id) >> R32) * np.uint64(servers)) >> R32)


@jit
def owners(ids: Array, servers: Array, out: Array) -> None:
    """Write the server of every id.

    ids: int64 [n]; out: integers [n], 0..servers - 1.
    """
    for i in range(len(ids)):
        out[i] = owner_of(ids[i], servers)


@jit
def once_each(
    ids: Array,
    tables: Array,
    padded: Array,
    heads: Array,
    unique: Array,
    places: Array,
    counts: Any,
) -> None:
    """Write each id of each table once, in the order of first occurrence, and count them.

    ``tables`` is `LookupBatch`'s; the columns from DIFFERENT on are written. ids: int64 [n], of
    all tables; ``places[i]`` is where ids[i] stands among its table's in ``unique``, -1 for the
    padding ``padded[t]`` of a table that has one. ``counts``, int64 [tables, servers], are those of
    ids by server. ``heads`` is scratch of 2^k elements, more than twice as many as a table has ids.
    """
    memory = np.int64(heads.ctypes.data)
    end = 0
    for t in range(len(tables)):
        twin, begin, count = tables[t, TWIN], tables[t, BEGIN], tables[t, COUNT]
        tables[t, WHERE] = end
        if twin != t:
            tables[t, DIFFERENT] = tables[twin, DIFFERENT]
            counts[t] = counts[twin]
        else:
            size = 2
            while size <= 2 * count:
                size *= 2
            mask = np.uint64(size - 1)
            heads[:size] = -1
            last = begin + count
            own, first, at = ids[begin:last], unique[begin:last], places[begin:last]
            pads, padding = tables[t, PADS], padded[t]
            n = 0
            for i in range(count):
                id = own[i]
                if i + AHEAD < count:
                    prefetch(memory + 4 * np.int64(mix(own[i + AHEAD]) & mask))
                if pads and id == padding:
                    at[i] = -1
                    continue
                slot = mix(id) & mask
                while True:
                    u = heads[slot]
                    if u < 0:
                        heads[slot] = n
                        first[n] = id
                        at[i] = n
                        n += 1
                        break
                    if first[u] == id:
                        at[i] = u
                        break
                    slot = (slot + np.uint64(1)) & mask
            for u in range(n):
                counts[t, owner_of(first[u], counts.shape[1])] += 1
            tables[t, DIFFERENT] = n
        end += tables[t, DIFFERENT]


@jit
def address(
    unique: Array, tables: Array, next_id: Array, next_row: Array, message: Array, where: Array
) -> None:
    """Write ids behind their server's cursor, and where the row of each begins, in elements.

    ``next_id`` [servers] and ``next_row`` [tables, servers] are the cursors, and are moved on.
    """
    servers = len(next_id)
    for t in range(len(tables)):
        begin, width = tables[t, BEGIN], tables[t, WIDTH]
        for u in range(tables[t, DIFFERENT]):
            id = unique[begin + u]
            server = owner_of(id, servers)
            message[next_id[server]] = id
            next_id[server] += 1
            where[tables[t, WHERE] + u] = next_row[t, server]
            next_row[t, server] += width


@jit
def take_rows(rows: Array, places: Array, where: Array, tables: Array, moves: Array) -> None:
    """Copy every id's row out of the batch's rows; padding gives zeros.

    moves: int64 [look-ups, 4], of `LookupBatch.take`.
    """
    memory = np.int64(rows.ctypes.data)
    for k in range(len(moves)):
        t, address = moves[k, 0], moves[k, 3]
        begin, width, origin = tables[t, BEGIN] + moves[k, 1], tables[t, WIDTH], tables[t, WHERE]
        end = begin + moves[k, 2]
        out = float32_at(address)
        for i in range(begin, end):
            if i + AHEAD < end:
                prefetch(memory + 4 * where[origin + places[i + AHEAD]])
            p, to = places[i], (i - begin) * width
            if p < 0:
                for j in range(width):
                    out[to + j] = 0
            else:
                copy_bytes(address + 4 * to, memory + 4 * where[origin + p], 4 * width)


@jit
def add_rows(rows: Array, places: Array, where: Array, tables: Array, moves: Array) -> None:
    """Add every id's value to its row of the batch, in the order of the moves; not padding's.

    The values of a look-up are where `take_rows` would copy its rows to.
    """
    memory = np.int64(rows.ctypes.data)
    for k in range(len(moves)):
        t, address = moves[k, 0], moves[k, 3]
        begin, width, origin = tables[t, BEGIN] + moves[k, 1], tables[t, WIDTH], tables[t, WHERE]
        end = begin + moves[k, 2]
        for i in range(begin, end):
            if i + AHEAD < end:
                prefetch(memory + 4 * where[origin + places[i + AHEAD]])
            p = places[i]
            if p >= 0:
                # By address: an index that might count from the end is not added in vectors.
                row = float32_at(memory + 4 * where[origin + p])
                value = float32_at(address + 4 * width * (i - begin))
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
