"""Rows between memory and disk: loops over records of a table that keeps some of its rows there.

Such a record has, behind the low half of its id, a word that says where its row is: 0, nowhere yet,
else a number from 1 of a slot in memory, or with the highest bit a place in the file. The bit below
that of a slot says that the row was used since a hand passed, which goes round all slots for those
whose row may go down. ``owners`` has the record of each slot, negative while the row is needed, or
of a free slot the next that is free. ``freed`` is a stack of free places.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint32
from numba.core import types

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import copy_bytes, prefetch, uint32_at
from hpcdist.ps.row_kernels import ask_for

# What ``book`` holds: slots that have been taken; the first free one, plus 1 (0: none), and how
# many there are; places that have been taken; how many of these are free; where the hand is.
SLOTS, FREE_SLOT, FREE_SLOTS, PLACES, FREED, HAND = range(6)
AHEAD = 8  # records asked for before they are needed
WHERE = 4  # byte of a record at which the word is
ON_DISK, USED = np.uint32(1 << 31), np.uint32(1 << 30)
MOST = (1 << 30) - 2  # slots, and places

# Of the C library: (file, address, bytes, byte of the file); both return how many bytes, or -1.
_OF_FILE = types.int64(types.int32, types.int64, types.int64, types.int64)
_read_bytes = types.ExternalFunction("pread", _OF_FILE)
_write_bytes = types.ExternalFunction("pwrite", _OF_FILE)


@inlined
def _free_slot(book, owners):
    """Return a slot that has no row, -1 if there is none."""
    if book[FREE_SLOTS]:
        slot = book[FREE_SLOT] - 1
        book[FREE_SLOT] = owners[slot]
        book[FREE_SLOTS] -= 1
        return slot
    if book[SLOTS] < len(owners):
        book[SLOTS] += 1
        return book[SLOTS] - 1
    return int64(-1)


@inlined
def _next_to_leave(book, owners):
    """Return the next slot whose row was not used since the hand passed, and is not needed."""
    while True:
        slot = book[HAND]
        book[HAND] = slot + 1 if slot + 1 < len(owners) else int64(0)
        if owners[slot] > 0:
            words = uint32_at(owners[slot] + WHERE)
            if not words[0] & USED:
                return slot
            words[0] &= ~USED


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
    return int64(word & ~USED) - 1 if word < ON_DISK else int64(-1)


@jit
def rows_in_memory(records, bodies, begin, size):
    """Write to ``bodies``, as `raise_rows`, rows that are in memory; return how many are not."""
    missing = 0
    for i in range(len(records)):
        if i + AHEAD < len(records):
            prefetch(records[i + AHEAD] + WHERE)
        bodies[i] = 0
        slot = _slot_of(records[i])
        if slot >= 0:
            words = uint32_at(records[i] + WHERE)
            if not words[0] & USED:
                words[0] |= USED
            bodies[i] = begin + slot * size - 4
            ask_for(bodies[i] + 4, size)  # all will soon be read
        else:
            missing += records[i] != 0
    return missing


@jit
def raise_rows(records, bodies, begin, size, book, owners, freed, down, up):
    """Give rows slots, and write their addresses to ``bodies``; return how many go down, and up.

    bodies: where a row's record would begin, 0 where there is no record; `rows_in_memory` has been
    there. begin: the address of the slots. down, up: int64 [records, 3], slots and places of rows
    that are to be written, then of those to be read, and which record each of these is; place -1:
    it is a new row. No more records than slots. ``freed`` has room for a place of each.
    """
    downs = ups = 0
    for i in range(len(records)):
        slot = _slot_of(records[i])
        if slot >= 0:
            owners[slot] = -records[i]
    for i in range(len(records)):
        if records[i] == 0 or bodies[i]:
            continue
        words = uint32_at(records[i] + WHERE)
        word = words[0]
        if word and word < ON_DISK:  # an id comes again
            bodies[i] = begin + _slot_of(records[i]) * size - 4
            continue
        slot = _free_slot(book, owners)
        if slot < 0:
            slot = _next_to_leave(book, owners)
            place = _free_place(book, freed)
            uint32_at(owners[slot] + WHERE)[0] = uint32(place) | ON_DISK
            down[downs, 0], down[downs, 1] = slot, place
            downs += 1
        up[ups, 0], up[ups, 2] = slot, i
        up[ups, 1] = int64(word & ~ON_DISK) if word else -1
        ups += 1
        words[0], owners[slot] = uint32(slot + 1), -records[i]
        bodies[i] = begin + slot * size - 4
    for i in range(len(records)):
        slot = _slot_of(records[i])
        if slot >= 0:
            owners[slot] = records[i]
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
            word, slot = uint32_at(records[i] + WHERE)[0], _slot_of(records[i])
            if slot >= 0:
                bodies[i] = begin + slot * size - 4
            else:
                up[ups, 0], up[ups, 2] = ups, i
                up[ups, 1] = int64(word & ~ON_DISK) if word else -1
                ups += 1
    return ups


@jit
def drop_rows(records, book, owners, freed):
    """Free the slots and places of rows that the table forgets."""
    for i in range(len(records)):
        words = uint32_at(records[i] + WHERE)
        word = words[0]
        if word >= ON_DISK:
            freed[book[FREED]] = word & ~ON_DISK
            book[FREED] += 1
        elif word:
            slot = _slot_of(records[i])
            owners[slot] = book[FREE_SLOT]
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
