"""Loops over the records of a table: read rows, move rows by merged gradients.

Records are given by address; `index_kernels` says what is in one. The passes that move them are
called with (records, states, grads, firsts, following, scale, rate, constants): record u, whose
state is at ``states[u]``, moves by the sum of the rows of ``grads`` that ``firsts[u]`` and the
chain of ``following`` list, times ``scale``.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64, uint64

from hpcdist.base import optimizers
from hpcdist.base.jit import as_tuple, inlined, jit
from hpcdist.base.raw_memory import copy_bytes, float32_at, prefetch
from hpcdist.base.update_rules import RULES, compiled, elementwise
from hpcdist.ps.row_values import mixed, write_initial

AHEAD = 8  # records asked for before they are needed
LINE_BYTES = 64
lamb_rate, lamb_rule = compiled(optimizers.lamb_rate), compiled(optimizers.lamb_rule)
WHOLE, NARROW, WIDENS = range(3)  # how wide a row is in a step
ONE = optimizers.ONE
EXPONENT = np.uint32(0x7F800000)  # all of its bits: infinity, or not a number


@jit
def read_records(records, begin, width, out):
    """Copy ``width`` floats from float ``begin`` of each row to the address ``out``."""
    for i in range(len(records)):
        copy_bytes(out + 4 * width * i, records[i] + 4 + 4 * begin, 4 * width)


@jit
def write_records(records, begin, width, source):
    """Copy ``width`` floats to float ``begin`` of each row from the address ``source``."""
    for i in range(len(records)):
        copy_bytes(records[i] + 4 + 4 * begin, source + 4 * width * i, 4 * width)


@jit
def first_not_finite(bits):
    """Return the index of the first infinity or NaN, given as its bits (uint32 [n]), or -1."""
    for begin in range(0, len(bits), 4096):
        part = bits[begin : begin + 4096]
        bad = False
        for i in range(len(part)):
            bad |= (part[i] & EXPONENT) == EXPONENT
        if bad:
            for i in range(len(part)):
                if (part[i] & EXPONENT) == EXPONENT:
                    return begin + i
    return -1


@jit
def link_repeats(ids, unique, firsts, following):
    """Find equal ids; return how many different ones there are.

    ``unique[u]`` is one of them, ``firsts[u]`` where it stands first, ``following[i]`` where the
    id of place i stands next, or -1.
    """
    # Two sets of hashed bits, small enough for the cache, tell almost all that occur once; only
    # the others need a look at ids that stand elsewhere.
    words = 1
    while 64 * words < 16 * len(ids):
        words *= 2
    once, twice = np.zeros(words, np.uint64), np.zeros(words, np.uint64)
    mask = uint64(words - 1)
    for i in range(len(ids)):
        h = mixed(ids[i])
        bit = uint64(1) << (h >> uint64(58))
        twice[h & mask] |= once[h & mask] & bit
        once[h & mask] |= bit
    others = np.empty(len(ids), np.int32)
    count = repeated = 0
    for i in range(len(ids)):
        h = mixed(ids[i])
        following[i] = -1
        if (twice[h & mask] >> (h >> uint64(58))) & uint64(1):
            others[repeated] = i
            repeated += 1
        else:
            unique[count] = ids[i]
            firsts[count] = i
            count += 1
    return _link(ids, others[:repeated], unique, firsts, following, count)


@jit
def _link(ids, places, unique, firsts, following, count):
    size = 2
    while size < 2 * len(places):
        size *= 2
    slots = np.zeros(size, np.int32)  # numbers from 1 of unique ids
    mask = uint64(size - 1)
    lasts = np.empty(len(places), np.int32)
    before = count
    for k in range(len(places)):
        i = places[k]
        slot = mixed(ids[i]) & mask
        while slots[slot] and unique[slots[slot] - 1] != ids[i]:
            slot = (slot + uint64(1)) & mask
        u = slots[slot] - 1
        if u < 0:
            slots[slot] = count + 1
            unique[count] = ids[i]
            firsts[count] = lasts[count - before] = i
            count += 1
        else:
            following[lasts[u - before]] = i
            lasts[u - before] = i
    return count


@inlined
def _gradient(u, grads, firsts, following, sums):
    """Return the address of the merged gradient of record ``u``: its rows added in their order.

    That of one row is where it is, not copied. ``sums`` is the memory for others.
    """
    memory, nbytes = int64(grads.ctypes.data), 4 * len(sums)
    i = int64(firsts[u])
    first = memory + nbytes * i
    i = int64(following[i])
    if i < 0:
        return first
    row = float32_at(first)
    for j in range(len(sums)):
        sums[j] = row[j]
    while i >= 0:
        row = float32_at(memory + nbytes * i)
        for j in range(len(sums)):
            sums[j] += row[j]
        i = int64(following[i])
    return int64(sums.ctypes.data)


@jit
def write_merged(grads, firsts, following, out):
    """Write the merged gradient of each record to ``out`` [records, width]."""
    sums = np.empty(grads.shape[1], np.float32)
    nbytes = 4 * grads.shape[1]
    for u in range(len(firsts)):
        source = _gradient(u, grads, firsts, following, sums)
        copy_bytes(int64(out.ctypes.data) + nbytes * u, source, nbytes)


@inlined
def ask_for(begin, nbytes):
    """Ask for bytes at any address, none of the lines beside them."""
    for place in range(begin, begin + nbytes, LINE_BYTES):
        prefetch(place)
    prefetch(begin + nbytes - 1)


@jit
def _ahead(records, u, floats):
    """Ask for what will be moved soon."""
    if u + AHEAD < len(records):
        ask_for(records[u + AHEAD] + 4, 4 * floats)


@jit
def clip_rows(grads, limit):
    """Scale those rows of ``grads`` down whose norm is above ``limit``."""
    for u in range(len(grads)):
        norm = np.sqrt(_squares(grads[u]))
        if norm > limit:
            for j in range(grads.shape[1]):
                grads[u, j] = grads[u, j] * limit / norm


@jit
def shrink_records(records, width, part):
    """Take ``part`` of each value of records away."""
    for i in range(len(records)):
        values = float32_at(records[i] + 4)
        for j in range(width):
            values[j] = values[j] - values[j] * part


@jit
def bound_records(records, width, low, high):
    """Raise values of records below ``low`` to it, and lower those above ``high``."""
    for i in range(len(records)):
        values = float32_at(records[i] + 4)
        for j in range(width):
            if values[j] < low:
                values[j] = low
            elif values[j] > high:
                values[j] = high


@jit
def keep_narrow(ids, records, states, turns, width, floats, seed_key, kind, initial):
    """Undo what a step did behind the first column of narrow rows; rows that widen begin there.

    ``turns`` uint8 [n], or [0] for a table without narrow rows; ``floats`` of state in a row;
    ``seed_key``, ``kind``, ``initial``: what whole rows begin with, as `index_kernels.locate` takes
    it.
    """
    for i in range(len(turns)):
        if turns[i] == WHOLE:
            continue
        values = float32_at(records[i] + 4)
        first = values[0]
        if turns[i] == WIDENS:
            write_initial(records[i] + 4, width, mixed(ids[i]), seed_key, kind, initial)
            values[0] = first
        else:
            for j in range(1, width):
                values[j] = float32(0)
        if floats >= width:  # not one number for a row
            state = float32_at(states[i])
            for j in range(floats):
                if j % width:
                    state[j] = float32(initial[2])


@jit
def narrow_gradients(turns, firsts, following, grads):
    """Drop the gradients of narrow rows, also of those that widen now, but for the first column."""
    for u in range(len(turns)):
        i = int64(firsts[u]) if turns[u] != WHOLE else int64(-1)
        while i >= 0:
            for j in range(1, grads.shape[1]):
                grads[i, j] = float32(0)
            i = int64(following[i])


@jit
def _squares(values):
    """Return the sum of squares, in order."""
    total = float32(0)
    for j in range(len(values)):
        total += values[j] * values[j]
    return total


@jit
def _no_states(place, nbytes):
    return ()


@jit
def _one_state(place, nbytes):
    return (float32_at(place),)


@jit
def _two_states(place, nbytes):
    return float32_at(place), float32_at(place + nbytes)


@jit
def _three_states(place, nbytes):
    return float32_at(place), float32_at(place + nbytes), float32_at(place + 2 * nbytes)


_STATES_AT = [_no_states, _one_state, _two_states, _three_states]


@jit
def _plain_rate(rate):
    return rate


def _record_pass(name):
    """Return the pass that moves records by a rule."""
    rule = RULES[name]
    loop, constants, states_at = elementwise(rule), rule.constants, _STATES_AT[rule.states]
    columns, powers, rate_of = 1 + rule.states, rule.powers, rule.rate or _plain_rate

    def move(records, states, grads, firsts, following, scale, rate, hyper):
        rate = rate_of(rate, *as_tuple(hyper[constants:], powers))
        fixed = as_tuple(hyper, constants)
        width = grads.shape[1]
        sums = np.empty(width, np.float32)
        for u in range(len(records)):
            _ahead(records, u, columns * width)
            g = float32_at(_gradient(u, grads, firsts, following, sums))
            of_row = states_at(states[u], 4 * width)
            loop(float32_at(records[u] + 4), g, of_row, width, scale, rate, fixed)

    return jit(move)


@jit
def _row_wise_adagrad(records, states, grads, firsts, following, scale, rate, hyper):
    width = grads.shape[1]
    sums, g = np.empty(width, np.float32), np.empty(width, np.float32)
    for u in range(len(records)):
        _ahead(records, u, width + 1)
        merged = float32_at(_gradient(u, grads, firsts, following, sums))
        for j in range(width):
            g[j] = merged[j] * scale
        p, moment = float32_at(records[u] + 4), float32_at(states[u])
        moment[0] += _squares(g) / float32(width)
        root = np.sqrt(moment[0]) + hyper[0]
        for j in range(width):
            p[j] = p[j] - rate * g[j] / root


@jit
def _lamb(records, states, grads, firsts, following, scale, rate, hyper):
    _move_by_lamb(records, states, grads, firsts, following, scale, rate, hyper, (ONE, ONE))


@jit
def _unbiased_lamb(records, states, grads, firsts, following, scale, rate, hyper):
    wholes = ONE - hyper[7], ONE - hyper[8]
    _move_by_lamb(records, states, grads, firsts, following, scale, rate, hyper, wholes)


@jit
def _move_by_lamb(records, states, grads, firsts, following, scale, rate, hyper, wholes):
    width = grads.shape[1]
    sums, steps, before = (
        np.empty(width, np.float32),
        np.empty(width, np.float32),
        np.empty(width, np.float32),
    )
    constants = as_tuple(hyper, 6)
    for u in range(len(records)):
        _ahead(records, u, 3 * width)
        g = float32_at(_gradient(u, grads, firsts, following, sums))
        p, m = float32_at(records[u] + 4), float32_at(states[u])
        v = float32_at(states[u] + 4 * width)
        for j in range(width):
            before[j] = p[j]
            steps[j], m[j], v[j] = lamb_rule(p[j], g[j] * scale, m[j], v[j], *wholes, *constants)
        own = lamb_rate(rate, hyper[6], np.sqrt(_squares(before)), np.sqrt(_squares(steps)))
        for j in range(width):
            p[j] = p[j] - own * steps[j]


PASSES = {
    **{
        name: _record_pass(name)
        for kind in optimizers.OPTIMIZERS.values()
        for name, formula in kind.formulas.items()
        if kind.rows and formula.last is None
    },
    "row_wise_adagrad": _row_wise_adagrad,
    "lamb": _lamb,
    "unbiased_lamb": _unbiased_lamb,
}
