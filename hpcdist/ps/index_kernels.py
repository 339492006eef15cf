"""id -> record: open addressing in cache lines of eight entries, over segments that split.

An id is mixed into 64 bits (`row_values.mixed`, one to one). The high half, its tag, is in the
index, as ``tag << 32 | row + 1``; the low half is beside the row. So an entry takes 8 bytes, 0
marks a free one whatever the ids are, and segments grow without a look at the rows. The low bits
of a tag choose the segment (through ``directory``), its value the line at which the search begins;
lines are filled from the left, and the search continues while a line is full.

A record is one row: uint32 low half, ``dim`` values, the state, and what tables with a policy keep
of it (`policy_kernels`). Row r is at ``chunks[r >> shift] + (r & (1 << shift) - 1) * stride``.
Those that were removed are used again: a stack has their numbers.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64, uint32, uint64

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import (
    copy_bytes,
    find_entry,
    find_high_half,
    float32_at,
    prefetch,
    uint32_at,
    uint64_at,
)
from hpcdist.ps.row_values import mixed, unmixed, write_initial

# Columns of ``segments``; LIMIT: entries that may be used before it grows.
ADDRESS, LINES, USED, LIMIT, DEPTH, PREFIX = range(6)
# What ``book`` holds: rows that have been numbered; what a kernel that has stopped needs: a
# segment, or NO_ROOM; where the stack of removed rows is, uint32, and how many there are.
ROWS, SEGMENT_TO_GROW, REMOVED, REMOVED_ROWS = range(4)
REUSED_AHEAD = 8  # records asked for before they are used again
NO_ROOM = -1

ENTRIES = 8  # of a line
LINE_BYTES = 64
BLOCK = 128  # ids looked for at once, so that their misses overlap
PIECE = 256  # ids whose rows are read at once

_LOW = uint64(0xFFFFFFFF)
_32 = uint64(32)


@jit
def _line_of(tag, address, lines):
    return address + LINE_BYTES * int64((tag * uint64(lines)) >> _32)


@jit
def _next_line(line, address, lines):
    line += LINE_BYTES
    return address if line == address + LINE_BYTES * lines else line


@jit
def _match(line, tag):
    """Return row + 1 of the first entry of the line that has this tag, 0 if none has."""
    place = find_high_half(line, tag)
    return int64(uint64_at(line)[place] & _LOW) if place < ENTRIES else 0


@jit
def _is_full(line):
    return uint64_at(line)[ENTRIES - 1] != 0


@jit
def _record(row, chunks, shift, stride):
    return chunks[row >> shift] + (row & ((1 << shift) - 1)) * stride


@inlined
def record_at(row, chunks, layout):
    """Return the address of a row's record."""
    return _record(row, chunks, layout[1], layout[2])


@jit
def _search(h, address, lines, chunks, shift, stride):
    """Return (record, line): of the row whose mixed id is ``h``, else 0 and the line it may enter.

    Slow and sure: entries of the same tag are told apart by their records.
    """
    tag = h >> _32
    line = _line_of(tag, address, lines)
    while True:
        if find_high_half(line, tag) < ENTRIES:
            entries = uint64_at(line)
            for k in range(ENTRIES):
                entry = entries[k]
                if entry >> _32 == tag and entry & _LOW:
                    record = _record(int64(entry & _LOW) - 1, chunks, shift, stride)
                    if uint32_at(record)[0] == uint32(h):
                        return record, line
        if not _is_full(line):
            return int64(0), line
        line = _next_line(line, address, lines)


@jit
def locate(
    ids,
    at,
    stop,
    create,
    records,
    book,
    directory,
    segments,
    chunks,
    layout,
    seed_key,
    kind,
    initial,
):
    """Write the addresses of the records of ``ids[at:stop]`` to ``records``; return where it ended.

    A missing id gets a record if ``create``, else the address 0. If that needs memory it ends
    early, and ``book[SEGMENT_TO_GROW]`` says which. ``layout`` is (dim, shift, stride, the bytes
    that a policy keeps), ``initial`` what `row_values.write_initial` takes; its third number is the
    state's initial value.
    """
    dim, shift, stride = layout[0], layout[1], layout[2]
    mask = uint64(len(directory) - 1)
    beside = 4 * dim if dim else min(stride - 4, LINE_BYTES)  # what is asked for besides the id
    hashes = np.empty(BLOCK, np.uint64)
    lines = np.empty(BLOCK, np.int64)
    addresses = np.empty(BLOCK, np.int64)
    turns = np.empty(BLOCK, np.int64)
    while at < stop:
        count = min(BLOCK, stop - at)
        for i in range(count):
            h = mixed(ids[at + i])
            hashes[i] = h
            segment = directory[(h >> _32) & mask]
            lines[i] = _line_of(h >> _32, segments[segment, ADDRESS], segments[segment, LINES])
            prefetch(lines[i])
            turns[i] = i
        waiting = count
        while waiting:
            # Those whose line is full of others look at the next one together, too.
            again = 0
            for k in range(waiting):
                i = turns[k]
                tag = hashes[i] >> _32
                row = _match(lines[i], tag) - 1
                if row >= 0:
                    addresses[i] = _record(row, chunks, shift, stride)
                    prefetch(addresses[i])
                    prefetch(addresses[i] + beside)
                elif _is_full(lines[i]):
                    segment = directory[tag & mask]
                    lines[i] = _next_line(
                        lines[i], segments[segment, ADDRESS], segments[segment, LINES]
                    )
                    prefetch(lines[i])
                    turns[again] = i
                    again += 1
                else:
                    addresses[i] = 0
            waiting = again
        for i in range(count):
            h, record = hashes[i], addresses[i]
            if record == 0 or uint32_at(record)[0] != uint32(h):
                segment = directory[(h >> _32) & mask]
                # Where the look ended: an id before this one may have come into that line.
                line = lines[i]
                free = find_entry(line, uint64(0))
                if record or free == ENTRIES or find_high_half(line, h >> _32) < ENTRIES:
                    record, line = _search(
                        h,
                        segments[segment, ADDRESS],
                        segments[segment, LINES],
                        chunks,
                        shift,
                        stride,
                    )
                    free = find_entry(line, uint64(0))
                if record == 0 and create:
                    removed, row = book[REMOVED_ROWS], book[ROWS]
                    if removed:
                        row = int64(uint32_at(book[REMOVED])[removed - 1])
                    if segments[segment, USED] >= segments[segment, LIMIT]:
                        book[SEGMENT_TO_GROW] = segment
                        return at + i
                    if row >> shift >= len(chunks) or chunks[row >> shift] == 0:
                        book[SEGMENT_TO_GROW] = NO_ROOM
                        return at + i
                    uint64_at(line)[free] = (h >> _32 << _32) | uint64(row + 1)
                    segments[segment, USED] += 1
                    record = _record(row, chunks, shift, stride)
                    if removed:
                        book[REMOVED_ROWS] = removed - 1
                        _ask_for_removed(removed - REUSED_AHEAD, book, chunks, shift, stride)
                        _fill(record + 4 + 4 * dim, stride // 4 - 1 - dim, 0.0)
                    else:
                        book[ROWS] = row + 1
                    uint32_at(record)[0] = uint32(h)
                    write_initial(record + 4, dim, h, seed_key, kind, initial)
                    if initial[2] != 0.0:  # the memory is zero
                        _fill(record + 4 + 4 * dim, (stride - 4 - layout[3]) // 4 - dim, initial[2])
            records[at + i] = record
        at += count
    return at


@jit
def pull(ids, at, create, out, book, directory, segments, chunks, layout, seed_key, kind, initial):
    """Copy the rows of ``ids[at:]`` to the address ``out``; see `locate`.

    Where there is no record, and none is to be created, the initial values are written.
    """
    dim = layout[0]
    records = np.empty(PIECE, np.int64)
    while at < len(ids):
        # A piece at a time: its records are still in the cache when they are read.
        part = ids[at : at + PIECE]
        located = locate(
            part, 0, len(part), create, records,
            book, directory, segments, chunks, layout, seed_key, kind, initial,
        )  # fmt: skip
        for i in range(located):
            target = out + 4 * dim * (at + i)
            if records[i]:
                copy_bytes(target, records[i] + 4, 4 * dim)
            else:
                h = mixed(part[i])
                write_initial(target, dim, h, seed_key, kind, initial)
        at += located
        if located < len(part):
            break
    return at


@jit
def _fill(address, count, value):
    values = float32_at(address)
    for j in range(count):
        values[j] = float32(value)


@jit
def _ask_for_removed(place, book, chunks, shift, stride):
    """Ask for a record that will soon be used again."""
    if place >= 0:
        record = _record(int64(uint32_at(book[REMOVED])[place]), chunks, shift, stride)
        for line in range(record, record + stride, LINE_BYTES):
            prefetch(line)


@inlined
def _first_line(entry, directory, segments):
    """Return where the search for an entry begins, and its segment."""
    segment = directory[(entry >> _32) & uint64(len(directory) - 1)]
    line = _line_of(entry >> _32, segments[segment, ADDRESS], segments[segment, LINES])
    return line, segment


@inlined
def ask_for_entry(entry, directory, segments):
    """Ask for the line of an entry that will soon be looked for."""
    prefetch(_first_line(entry, directory, segments)[0])


@inlined
def ask_behind_full(entry, directory, segments):
    """Ask for the line behind an entry's, if that is full: `remove_entry` looks there too."""
    line, segment = _first_line(entry, directory, segments)
    if _is_full(line):
        prefetch(_next_line(line, segments[segment, ADDRESS], segments[segment, LINES]))


@jit
def entry_of(h, record, directory, segments, chunks, layout):
    """Return the entry of a record that the index has; ``h``: its mixed id."""
    line, segment = _first_line(h, directory, segments)
    tag = h >> _32
    while True:
        entries = uint64_at(line)
        k = find_high_half(line, tag)  # without branches; others of this tag are rare
        while k < ENTRIES:
            entry = entries[k]
            row = int64(entry & _LOW) - 1
            if entry >> _32 == tag and row >= 0 and record_at(row, chunks, layout) == record:
                return entry
            k += 1
        line = _next_line(line, segments[segment, ADDRESS], segments[segment, LINES])


@inlined
def remove_entry(entry, book, directory, segments, layout):
    """Take an entry out of the index: its id leads nowhere, its record is used again.

    The last entry of the line takes its place. If the line was full, a search for an entry of a
    later line may have passed it: one of these moves here, and leaves a place there. The stack of
    removed rows must have room.
    """
    line, segment = _first_line(entry, directory, segments)
    address, lines = segments[segment, ADDRESS], segments[segment, LINES]
    place = find_entry(line, entry)
    while place == ENTRIES:
        line = _next_line(line, address, lines)
        place = find_entry(line, entry)
    segments[segment, USED] -= 1
    uint32_at(book[REMOVED])[book[REMOVED_ROWS]] = uint32((entry & _LOW) - uint64(1))
    book[REMOVED_ROWS] += 1
    while True:
        entries = uint64_at(line)
        full = _is_full(line)
        last = find_entry(line, uint64(0)) - 1
        entries[place] = entries[last]
        entries[last] = uint64(0)
        if not full:
            return
        later, found = line, False
        while not found:
            later = _next_line(later, address, lines)
            if later == line:
                return
            others = uint64_at(later)
            for k in range(ENTRIES):
                if others[k] == 0:
                    break
                home = _line_of(others[k] >> _32, address, lines)
                # How far its search goes, and how far this line is behind, around the end.
                way = later - home if later >= home else later - home + LINE_BYTES * lines
                back = later - line if later >= line else later - line + LINE_BYTES * lines
                if way >= back:
                    entries[last] = others[k]
                    place = int64(k)
                    found = True
                    break
            if not found and not _is_full(later):
                return
        line = later


@jit
def count_bit(address, lines, bit):
    """Return how many of a segment's entries have a tag with ``bit``."""
    entries = uint64_at(address)
    count = 0
    for k in range(ENTRIES * lines):
        count += ((entries[k] >> _32) & bit) != 0
    return count


@jit
def move_entries(old, old_lines, first, first_lines, second, second_lines, bit):
    """Distribute a segment's entries: those whose tag has ``bit`` go to the second.

    The new segments' memory must be zero, and large enough.
    """
    filled = np.zeros(first_lines + second_lines, np.uint8)
    for i in range(old_lines):
        line = old + LINE_BYTES * i
        entries = uint64_at(line)
        for k in range(find_entry(line, uint64(0))):
            entry = entries[k]
            tag = entry >> _32
            # No branch: half of the entries would take it, in no order.
            other = int64((tag & bit) != 0)
            address = first + other * (second - first)
            lines = first_lines + other * (second_lines - first_lines)
            begin = other * first_lines
            j = int64((tag * uint64(lines)) >> _32)
            while filled[begin + j] == ENTRIES:
                j += 1
                if j == lines:
                    j = 0
            uint64_at(address + LINE_BYTES * j)[int64(filled[begin + j])] = entry
            filled[begin + j] += 1


@jit
def list_records(segments, segment, skip, ids, records, chunks, layout):
    """Fill ``ids`` and ``records`` from the index, beginning ``skip`` entries into a segment."""
    shift, stride = layout[1], layout[2]
    at = -skip
    count = len(ids)
    while at < count:
        for i in range(segments[segment, LINES]):
            entries = uint64_at(segments[segment, ADDRESS] + LINE_BYTES * i)
            for k in range(ENTRIES):
                if entries[k] == 0:
                    break
                if 0 <= at < count:
                    record = _record(int64(entries[k] & _LOW) - 1, chunks, shift, stride)
                    records[at] = record
                    ids[at] = int64(entries[k] >> _32)
                    prefetch(record)
                at += 1
        segment += 1
    for i in range(count):
        h = (uint64(ids[i]) << _32) | uint64(uint32_at(records[i])[0])
        ids[i] = unmixed(h)
