"""The lists of a table's parts, and the rows that a full part forgets: loops over them.

``parts`` int64 [parts, 5] says of each part where its list is, how many places there are, how many
of them have been used, how many rows the part has, and its first hole, plus 1 (0: none). A place
is two uint64: the value of a row (`value_of`), and its entry in the index, tag and row. So a row
leaves both without a look at its record. A hole's second is the next one, plus 1.

What a part forgets are its rows of the lowest values. A value in a list may be too low, never too
high: looks raise it, and leave the list alone. So only what the list has among the lowest must be
looked up, and is corrected there.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64, uint32, uint64

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import bit_length, bits_of, float32_at, prefetch, uint32_at, uint64_at
from hpcdist.ps.batch_kernels import owner_of
from hpcdist.ps.index_kernels import (
    ask_behind_full,
    ask_for_entry,
    entry_of,
    record_at,
    remove_entry,
)
from hpcdist.ps.row_values import mixed, unmixed

LIST, ROOM, USED, ROWS, HOLE = range(5)
PLACE_BYTES = 16
AHEAD = 12  # records asked for before they are needed
# Words of a record behind its state: its place in the list, plus 1 (0: it is new), the metadata.
PLACE, KEPT = 0, 1
COUNT, STEP, DAY, SHOW, CLICK, DELTA, WIDE = range(KEPT, KEPT + 7)
RECENT, FREQUENT, SCORE = range(3)
NO_ROW = uint64(0xFFFFFFFFFFFFFFFF)  # the value of a hole: above all others
# Rows are gathered by their value's distance from the lowest one: 32 classes for each power of 2.
FINE, HOLES = 5, 60 << 5  # holes are a class behind all others
DIGIT = 8  # binary digits by which those of the last class are parted at once
_32 = uint64(32)
_LOW = uint64(0xFFFFFFFF)
_SIGN = uint64(1 << 63)


@inlined
def score_of(record, at, coefficients):
    """Return a row's score, float32; not a number of sums that have become too large."""
    floats = float32_at(record + at)
    show, click = floats[SHOW], floats[CLICK]
    return (show - click) * coefficients[0] + click * coefficients[1]


@inlined
def value_of(record, at, keep, coefficients):
    """Return the first two numbers that rows are compared by, as one uint64."""
    words = uint32_at(record + at)
    count, step = uint64(words[COUNT]), uint64(words[STEP])
    if keep == RECENT:
        return (step << _32) | count
    if keep == FREQUENT:
        return (count << _32) | step
    score = score_of(record, at, coefficients)
    if score != score:
        score = float32(-np.inf)
    bits = uint32(0)  # both zeros are equal
    if score != float32(0):
        bits = bits_of(score)
    bits = ~bits if bits >> uint32(31) else bits | uint32(0x80000000)
    return (uint64(bits) << _32) | step


@inlined
def set_value(part, record, at, keep, coefficients, parts):
    """Write the value of a row to the list of its part."""
    place = int64(uint32_at(record + at)[PLACE]) - 1
    uint64_at(parts[part, LIST])[2 * place] = value_of(record, at, keep, coefficients)


@inlined
def _ask_ahead(ids, records, i, at, parts, directory, segments):
    """Ask for what `enter` needs of records that come after the i-th."""
    if i + 2 * AHEAD < len(records):
        prefetch(records[i + 2 * AHEAD] + at)
    i += AHEAD
    if i < len(records) and uint32_at(records[i] + at)[PLACE] == 0:
        ask_for_entry(mixed(ids[i]), directory, segments)
        part = owner_of(ids[i], len(parts))
        place = parts[part, HOLE] - 1 if parts[part, HOLE] else parts[part, USED]
        prefetch(parts[part, LIST] + PLACE_BYTES * place)


@jit
def enter(ids, records, begin, at, parts, directory, segments, chunks, layout):
    """Put those records that are new into their parts' lists; return where one had no room."""
    for i in range(begin, len(records)):
        _ask_ahead(ids, records, i, at, parts, directory, segments)
        words = uint32_at(records[i] + at)
        if words[PLACE]:
            continue
        part = owner_of(ids[i], len(parts))
        places, place = uint64_at(parts[part, LIST]), parts[part, HOLE] - 1
        if place >= 0:
            parts[part, HOLE] = int64(places[2 * place + 1])
        else:
            place = parts[part, USED]
            if place == parts[part, ROOM]:
                return i
            parts[part, USED] = place + 1
        entry = entry_of(mixed(ids[i]), records[i], directory, segments, chunks, layout)
        places[2 * place], places[2 * place + 1] = uint64(0), entry
        words[PLACE] = uint32(place + 1)
        parts[part, ROWS] += 1
    return len(records)


@inlined
def _leave(part, place, parts, book, directory, segments, chunks, layout):
    """Take the row at a place out of its part, of the index and of memory."""
    places = uint64_at(parts[part, LIST])
    remove_entry(places[2 * place + 1], book, directory, segments, layout)
    places[2 * place], places[2 * place + 1] = NO_ROW, uint64(parts[part, HOLE])
    parts[part, HOLE] = place + 1
    parts[part, ROWS] -= 1


@jit
def leave(ids, records, at, parts, book, directory, segments, chunks, layout):
    """Remove rows."""
    for i in range(len(records)):
        place = int64(uint32_at(records[i] + at)[PLACE]) - 1
        _leave(
            owner_of(ids[i], len(parts)), place,
            parts, book, directory, segments, chunks, layout,
        )  # fmt: skip


@inlined
def _id_at(places, place, chunks, layout):
    entry = places[2 * place + 1]
    record = record_at(int64(entry & _LOW) - 1, chunks, layout)
    return unmixed((entry >> _32 << _32) | uint64(uint32_at(record)[0]))


@jit
def list_part(part, parts, chunks, layout, ids, records):
    """Write the ids and the records of a part's rows."""
    places, count = uint64_at(parts[part, LIST]), 0
    for place in range(parts[part, USED]):
        if places[2 * place] != NO_ROW:
            record = record_at(int64(places[2 * place + 1] & _LOW) - 1, chunks, layout)
            prefetch(record)
            ids[count], records[count] = place, record
            count += 1
    for i in range(count):
        ids[i] = _id_at(places, ids[i], chunks, layout)


@inlined
def _class_of(distance):
    """Return the class of a value by its distance from the lowest one: the higher, the higher."""
    shift = max(bit_length(distance), FINE + 1) - FINE - 1
    return (shift << FINE) + int64(distance >> uint64(shift))


@inlined
def _gather(chosen, numbers, begin, end, lowest, shift, most):
    """Put those whose digit is at most ``most`` first, without branches; return where they end."""
    for i in range(begin, end):
        number, place = numbers[i], chosen[i]
        numbers[i], chosen[i] = numbers[begin], chosen[begin]
        numbers[begin], chosen[begin] = number, place
        begin += int64(int64((number - lowest) >> shift) <= most)
    return begin


@jit
def _keep_lowest(chosen, numbers, begin, end, wanted):
    """Put those of chosen[begin:end] with the ``wanted`` lowest of their ``numbers`` first.

    Return where those begin and end that equal the wanted-th, or all of which are wanted.
    """
    counts = np.empty(1 << DIGIT, np.int64)
    while end - begin > wanted:
        lowest = highest = numbers[begin]
        for i in range(begin + 1, end):
            lowest, highest = min(lowest, numbers[i]), max(highest, numbers[i])
        if lowest == highest:  # as of rows that were looked up in the same step
            break
        # By the first digit in which they differ: those that have the wanted-th's stay.
        shift = uint64(max(0, bit_length(highest - lowest) - DIGIT))
        counts[:] = 0
        for i in range(begin, end):
            counts[int64((numbers[i] - lowest) >> shift)] += 1
        digit = 0
        while counts[digit] < wanted:
            wanted -= counts[digit]
            digit += 1
        end = _gather(chosen, numbers, begin, end, lowest, shift, digit)
        begin = _gather(chosen, numbers, begin, end, lowest, shift, digit - 1)
    return begin, end


@jit
def _choose(
    part, count, at, keep, coefficients, parts, chunks, layout, firsts, following, chosen, numbers
):
    """Write the places of the ``count`` rows of a part with the lowest values to ``chosen``."""
    places, used = uint64_at(parts[part, LIST]), parts[part, USED]
    lowest = NO_ROW
    for place in range(used):
        lowest = min(lowest, places[2 * place])
    firsts[:] = -1
    for place in range(used):
        k = _class_of(places[2 * place] - lowest)
        k = HOLES if places[2 * place] == NO_ROW else k
        following[place] = firsts[k]
        firsts[k] = place
    asked, k = 0, 0
    while asked < count:
        place = int64(firsts[k])
        while place >= 0:
            prefetch(record_at(int64(places[2 * place + 1] & _LOW) - 1, chunks, layout) + at)
            asked += 1
            place = int64(following[place])
        k += 1
    begin = found = 0
    k = -1
    while found < count:
        k += 1
        begin = found
        place = int64(firsts[k])
        while place >= 0:
            after = int64(following[place])
            record = record_at(int64(places[2 * place + 1] & _LOW) - 1, chunks, layout)
            value = value_of(record, at, keep, coefficients)
            places[2 * place] = value
            now = _class_of(value - lowest)
            if now == k:
                chosen[found] = place
                found += 1
            else:
                following[place] = firsts[now]
                firsts[now] = place
            place = after
    if found == count:
        return
    # Not all of the last class: by value, then by count where that is not part of it, then by id.
    for column in range(3):
        for i in range(begin, found):
            place = int64(chosen[i])
            if column == 0:
                numbers[i] = places[2 * place]
            elif column == 2:
                numbers[i] = uint64(_id_at(places, place, chunks, layout)) ^ _SIGN
            elif keep == SCORE:
                record = record_at(int64(places[2 * place + 1] & _LOW) - 1, chunks, layout)
                numbers[i] = uint32_at(record + at)[COUNT]
            else:
                numbers[i] = uint64(0)
        begin, found = _keep_lowest(chosen, numbers, begin, found, count - begin)
        if found == count:
            return


@jit
def forget_least(
    which, counts, gone, at, keep, coefficients, parts, book, directory, segments, chunks, layout
):
    """Forget the ``counts[k]`` rows of part ``which[k]`` that are worth least.

    gone: int64 [sum of counts], or [0]: where to write their ids. keep: what makes a row's value;
    coefficients: float32 [2], of shows without and with a click.
    """
    most = 0
    for k in range(len(which)):
        most = max(most, parts[which[k], USED])
    firsts = np.empty(HOLES + 1, np.int32)
    following, chosen = np.empty(most, np.int32), np.empty(most, np.int32)
    numbers = np.empty(most, np.uint64)
    written = 0
    for k in range(len(which)):
        part, count = which[k], counts[k]
        _choose(
            part, count, at, keep, coefficients,
            parts, chunks, layout, firsts, following, chosen, numbers,
        )  # fmt: skip
        places = uint64_at(parts[part, LIST])
        if len(gone):
            for i in range(count):
                gone[written] = _id_at(places, int64(chosen[i]), chunks, layout)
                written += 1
        for i in range(count):
            ask_for_entry(places[2 * int64(chosen[i]) + 1], directory, segments)
        for i in range(count):
            ask_behind_full(places[2 * int64(chosen[i]) + 1], directory, segments)
        for i in range(count):
            _leave(part, int64(chosen[i]), parts, book, directory, segments, chunks, layout)
