"""Loops over text and samples, compiled.

A line of multi-slot text has for each slot the number of its values, then the values:
``2 17 4 1 0 3 0.5 1e-3 2`` has the slots [17, 4], [0] and [0.5, 0.001, 2.0].
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int64, uint64

from hpcdist.base.jit import inlined, jit

# What ``book`` tells: how far `parse` came; what is wrong, in which slot, from which byte on.
LINES, INTS, FLOATS, WRONG, SLOT, BEGIN = range(6)
# What can be wrong.
NOTHING, COUNT, EMPTY, WIDTH, WHOLE, NUMBER, ENDS, MORE, HEAD = range(9)

_SPACE, _TAB, _NEWLINE, _RETURN = 32, 9, 10, 13
_EXACT = 22  # 10**22 is the largest power of ten that float64 holds exactly
_DIGITS = uint64(10**18)  # more digits do not change a float32
_LARGEST = 2**64 - 1
_FITS = 19  # so many digits are less than 2**64
NEAR_ZERO = 1e-6  # as near as Fluid takes for zero


@inlined
def _is_end(byte: int) -> bool:
    return byte in (_SPACE, _TAB, _NEWLINE, _RETURN)


@inlined
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@jit
def _is_below_two_to_64(text, position):
    """Return whether the digits from ``position`` on are a number of 64 bits."""
    integer = uint64(0)
    while _is_digit(text[position]):
        digit = uint64(text[position] - 48)
        if integer > (uint64(_LARGEST) - digit) // uint64(10):
            return False
        integer = integer * uint64(10) + digit
        position += 1
    return True


@jit
def parse(text, are_floats, widths, powers, ints, floats, counts, book):
    """Read the lines of ``text``, uint8, which ends with a newline, into values in their order.

    ``are_floats`` and ``widths`` (0: any number of values) tell of each slot. Integers go to
    ``ints``, the others to ``floats``, and how many each line has of each slot to ``counts``.
    Stops at the first byte that is wrong. ``powers``: 10.0**k.
    """
    n, slots = len(text), len(widths)
    position, line, n_ints, n_floats = 0, 0, 0, 0
    while position < n:
        for slot in range(slots):
            while text[position] == _SPACE or text[position] == _TAB:
                position += 1
            begin = position
            count = int64(0)
            while _is_digit(text[position]) and position - begin < 12:
                count = count * 10 + int64(text[position] - 48)
                position += 1
            wrong = NOTHING
            if begin == position and (text[position] == _NEWLINE or text[position] == _RETURN):
                wrong = ENDS
            elif begin == position or not _is_end(text[position]):
                wrong = COUNT
            elif count == 0:
                wrong = EMPTY
            elif widths[slot] > 0 and count != widths[slot]:
                wrong = WIDTH
            if wrong == NOTHING:
                counts[line, slot] = count
                while count > 0:
                    count -= 1
                    while text[position] == _SPACE or text[position] == _TAB:
                        position += 1
                    begin = position
                    negative = text[position] == 45
                    if negative or text[position] == 43:
                        position += 1
                    if begin == position and _is_end(text[position]):
                        wrong = ENDS
                        break
                    first = position
                    if not are_floats[slot]:
                        integer = uint64(0)
                        while _is_digit(text[position]):
                            integer = integer * uint64(10) + uint64(text[position] - 48)
                            position += 1
                        fits = position - first <= _FITS or _is_below_two_to_64(text, first)
                        if first == position or not _is_end(text[position]) or not fits:
                            wrong = WHOLE
                            break
                        ints[n_ints] = -int64(integer) if negative else int64(integer)
                        n_ints += 1
                        continue
                    digits = uint64(0)
                    exponent = int64(0)
                    any_digit = False
                    while _is_digit(text[position]):
                        any_digit = True
                        if digits < _DIGITS:
                            digits = digits * uint64(10) + uint64(text[position] - 48)
                        else:
                            exponent += 1
                        position += 1
                    if text[position] == 46:
                        position += 1
                        while _is_digit(text[position]):
                            any_digit = True
                            if digits < _DIGITS:
                                digits = digits * uint64(10) + uint64(text[position] - 48)
                                exponent -= 1
                            position += 1
                    if any_digit and (text[position] == 101 or text[position] == 69):
                        position += 1
                        down = text[position] == 45
                        if down or text[position] == 43:
                            position += 1
                        first = position
                        power = int64(0)
                        while _is_digit(text[position]):
                            if power < 10000:
                                power = power * 10 + int64(text[position] - 48)
                            position += 1
                        any_digit = position > first
                        exponent += -power if down else power
                    if not any_digit or not _is_end(text[position]):
                        wrong = NUMBER
                        break
                    value = float64(digits)
                    if digits == 0 or exponent == 0:
                        pass
                    elif -_EXACT <= exponent < 0:
                        value = value / powers[-exponent]
                    elif 0 < exponent <= _EXACT:
                        value = value * powers[exponent]
                    else:
                        value = value * 10.0**exponent
                    single = float32(-value if negative else value)
                    if np.isinf(single):
                        wrong = NUMBER
                        break
                    floats[n_floats] = single
                    n_floats += 1
            if wrong != NOTHING:
                book[LINES], book[WRONG], book[SLOT], book[BEGIN] = line, wrong, slot, begin
                return
        while _is_end(text[position]) and text[position] != _NEWLINE:
            position += 1
        if text[position] != _NEWLINE:
            book[LINES], book[WRONG], book[SLOT], book[BEGIN] = line, MORE, slots, position
            return
        position += 1
        line += 1
    book[LINES], book[INTS], book[FLOATS] = line, n_ints, n_floats


@jit
def take_texts(text, texts, ids, offsets, book):
    """Overwrite the ``texts`` texts that each line begins with, as ``1 text``, by spaces.

    The bytes of the first one go to ``ids``, which is as long as ``text``, and where each line's
    end to ``offsets``. Stops at the first line that does not begin so.
    """
    position, line, n = 0, 0, 0
    while position < len(text):
        for number in range(texts):
            while text[position] == _SPACE or text[position] == _TAB:
                position += 1
            begin = position
            while not _is_end(text[position]):
                position += 1
            one = position - begin == 1 and text[begin] == 49
            text[begin:position] = _SPACE
            while text[position] == _SPACE or text[position] == _TAB:
                position += 1
            first = position
            while not _is_end(text[position]):
                if number == 0:
                    ids[n] = text[position]
                    n += 1
                position += 1
            if not one or first == position:
                book[LINES], book[WRONG], book[SLOT], book[BEGIN] = line, HEAD, number, begin
                return
            text[first:position] = _SPACE
        while text[position] != _NEWLINE:
            position += 1
        position += 1
        line += 1
        offsets[line] = n


@jit
def spread(ints, floats, counts, are_floats, begins, by_slot_ints, by_slot_floats):
    """Put values in the order of the lines side by side by slots, each from ``begins`` on."""
    n_ints, n_floats = 0, 0
    lines, slots = counts.shape
    for line in range(lines):
        for slot in range(slots):
            to, count = begins[slot], counts[line, slot]
            if are_floats[slot]:
                for k in range(count):
                    by_slot_floats[to + k] = floats[n_floats + k]
                n_floats += count
            else:
                for k in range(count):
                    by_slot_ints[to + k] = ints[n_ints + k]
                n_ints += count
            begins[slot] = to + count


@jit
def take_values(values, offsets, order, out, out_offsets):
    """Copy the values of the samples ``order`` to where ``out_offsets`` says."""
    for i in range(len(order)):
        begin, to = offsets[order[i]], out_offsets[i]
        for k in range(out_offsets[i + 1] - to):
            out[to + k] = values[begin + k]


@jit
def put_values(values, places, out, out_offsets):
    """Copy the values of samples, one after the other, to those ``places`` of ``out``."""
    begin = 0
    for i in range(len(places)):
        to, end = out_offsets[places[i]], out_offsets[places[i] + 1]
        for k in range(end - to):
            out[to + k] = values[begin + k]
        begin += end - to


@jit
def without_zeros(values, offsets):
    """Return values and offsets without zeros; a sample with nothing but zeros keeps one."""
    nonzero = np.empty_like(values)
    ends = np.zeros_like(offsets)
    n = 0
    for i in range(len(offsets) - 1):
        begin = n
        for k in range(offsets[i], offsets[i + 1]):
            if abs(float64(values[k])) >= NEAR_ZERO:
                nonzero[n] = values[k]
                n += 1
        if n == begin and offsets[i + 1] > offsets[i]:
            nonzero[n] = 0
            n += 1
        ends[i + 1] = n
    return nonzero[:n].copy(), ends
