"""Rows between memory and disk: loops over records of a table that keeps some of its rows there.

Such a record has, behind the low half of its id, a word that says where its row is: 0, nowhere yet,
else a number from 1 of a slot in memory, or with the highest bit a place in the file. Slots in use
are a ring, the one used last first; ``before`` and ``after`` are its links, and the last element of
both is where it begins. Free slots are a chain by ``after``. ``freed`` is a stack of free places.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint32
from numba.core import types

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import copy_bytes, prefetch, uint32_at

# What ``book`` holds: slots that have been used; the first free one, plus 1 (0: none), and how many
# there are; places that have been used; how many of these are free.
SLOTS, FREE_SLOT, FREE_SLOTS, PLACES, FREED = range(5)
AHEAD = 8  # records asked for before they are needed
WHERE = 4  # byte of a record at which the word is
ON_DISK = np.uint32(1 << 31)
MOST = (1 << 31) - 2  # slots, and places

# Of the C library: (file, address, bytes, byte of the file); both return how many bytes, or -1.
_OF_FILE = types.int64(types.int32, types.int64, types.int64, types.int64)
_read_bytes = types.ExternalFunction("pread", _OF_FILE)
_write_bytes = types.ExternalFunction("pwrite", _OF_FILE)


@inlined
def _unlink(slot, before, after):
    after[before[slot]] = after[slot]
    before[after[slot]] = before[slot]


@inlined
def _link_first(slot, before, after):
    ring = len(before) - 1
    first = after[ring]
    before[slot], after[slot] = uint32(ring), first
    before[first] = after[ring] = uint32(slot)


@inlined
def _free_slot(book, after):
    """Return a slot that has no row, -1 if there is none."""
    if book[FREE_SLOTS]:
        slot = book[FREE_SLOT] - 1
        book[FREE_SLOT] = int64(after[slot])
        book[FREE_SLOTS] -= 1
        return slot
    if book[SLOTS] < len(after) - 1:
        book[SLOTS] += 1
        return book[SLOTS] - 1
    return int64(-1)


@inlined
def _free_place(book, freed):
    if book[FREED]:
        book[FREED] -= 1
        return int64(freed[book[FREED]])
    book[PLACES] += 1
    return book[PLACES] - 1


@inlined
def _slot_of(record):
    """Return the slot in which a record's row is, -1 if it has none."""
    if record == 0:
        return int64(-1)
    word = uint32_at(record + WHERE)[0]
    return int64(word) - 1 if word < ON_DISK else int64(-1)


@inlined
def _ask_ahead(records, i, begin, size, before, after):
    """Ask for what later records need to come first in the ring: links, then those beside them."""
    links, others = int64(before.ctypes.data), int64(after.ctypes.data)
    if i + 3 * AHEAD < len(records):
        prefetch(records[i + 3 * AHEAD] + WHERE)
    slot = _slot_of(records[i + 2 * AHEAD]) if i + 2 * AHEAD < len(records) else int64(-1)
    if slot >= 0:
        prefetch(links + 4 * slot)
        prefetch(others + 4 * slot)
    slot = _slot_of(records[i + AHEAD]) if i + AHEAD < len(records) else int64(-1)
    if slot >= 0:
        prefetch(links + 4 * int64(after[slot]))
        prefetch(others + 4 * int64(before[slot]))
        prefetch(begin + slot * size)


@jit
def raise_rows(records, bodies, begin, size, book, owners, before, after, freed, down, up):
    """Give rows slots, and write their addresses to ``bodies``; return how many go down, and up.

    bodies: where a row's record would begin, 0 where there is no record. begin: the address of the
    slots. down, up: int64 [records, 3], slots and places of rows that are to be written, then of
    those to be read, and which record each of these is; place -1: it is a new row. No more records
    than slots. ``freed`` has room for a place of each.
    """
    downs = ups = 0
    for i in range(len(records)):
        _ask_ahead(records, i, begin, size, before, after)
        bodies[i] = 0
        slot = _slot_of(records[i])
        if slot >= 0:
            _unlink(slot, before, after)
            _link_first(slot, before, after)
            bodies[i] = begin + slot * size - 4
    for i in range(len(records)):
        if records[i] == 0 or bodies[i]:
            continue
        words = uint32_at(records[i] + WHERE)
        word = words[0]
        if word and word < ON_DISK:  # an id comes again
            bodies[i] = begin + (int64(word) - 1) * size - 4
            continue
        slot = _free_slot(book, after)
        if slot < 0:
            slot = int64(before[len(before) - 1])
            _unlink(slot, before, after)
            place = _free_place(book, freed)
            uint32_at(owners[slot] + WHERE)[0] = uint32(place) | ON_DISK
            down[downs, 0], down[downs, 1] = slot, place
            downs += 1
        up[ups, 0], up[ups, 2] = slot, i
        up[ups, 1] = int64(word & ~ON_DISK) if word else -1
        ups += 1
        words[0] = uint32(slot + 1)
        owners[slot] = records[i]
        _link_first(slot, before, after)
        bodies[i] = begin + slot * size - 4
    for k in range(ups):  # not before: what goes down is written first
        if up[k, 1] >= 0:
            freed[book[FREED]] = uint32(up[k, 1])
            book[FREED] += 1
    return downs, ups


@jit
def find_rows(records, bodies, begin, size, up):
    """Write where rows are in memory to ``bodies``; return how many are elsewhere, and note them.

    ``up``: see `raise_rows`, without slots. Nothing is changed.
    """
    ups = 0
    for i in range(len(records)):
        bodies[i] = 0
        if records[i]:
            word = uint32_at(records[i] + WHERE)[0]
            if word and word < ON_DISK:
                bodies[i] = begin + (int64(word) - 1) * size - 4
            else:
                up[ups, 0], up[ups, 2] = ups, i
                up[ups, 1] = int64(word & ~ON_DISK) if word else -1
                ups += 1
    return ups


@jit
def drop_rows(records, book, before, after, freed):
    """Free the slots and places of rows that the table forgets."""
    for i in range(len(records)):
        words = uint32_at(records[i] + WHERE)
        word = words[0]
        if word >= ON_DISK:
            freed[book[FREED]] = word & ~ON_DISK
            book[FREED] += 1
        elif word:
            slot = int64(word) - 1
            _unlink(slot, before, after)
            after[slot] = uint32(book[FREE_SLOT])
            book[FREE_SLOT] = slot + 1
            book[FREE_SLOTS] += 1
        words[0] = uint32(0)


@jit
def transfer(file, rows, begin, size, buffer, write):
    """Copy rows between slots and places, which ascend; return how many before one that failed.

    rows: int64 [n, 3], slots and places. Places that follow each other are one piece, as many as
    ``buffer`` holds.
    """
    most = len(buffer) // size
    memory, at = int64(buffer.ctypes.data), 0
    while at < len(rows):
        end = at + 1
        while end < len(rows) and end - at < most and rows[end, 1] == rows[end - 1, 1] + 1:
            end += 1
        nbytes, first = (end - at) * size, rows[at, 1] * size
        if write:
            for k in range(at, end):
                copy_bytes(memory + (k - at) * size, begin + rows[k, 0] * size, size)
            if _write_bytes(file, memory, nbytes, first) != nbytes:
                return at
        else:
            if _read_bytes(file, memory, nbytes, first) != nbytes:
                return at
            for k in range(at, end):
                copy_bytes(begin + rows[k, 0] * size, memory + (k - at) * size, size)
        at = end
    return at
