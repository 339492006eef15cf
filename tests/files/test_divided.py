"""What trainers divide: how a Program says so, and what others make of it after a restore."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint.divided import (
    LARGEST,
    OWN,
    SAME,
    SMALLEST,
    SUMMED,
    WINDOWED,
    Combined,
    taken_up,
)
from hpcdist.runtime.kept.divisions import divisions

L = fluid.layers


def build(update):
    """Return a Program that keeps ``state``, which ``update(state, x, probabilities)`` moves."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        p = L.fc(x, 2, act="softmax")
        state = L.create_global_var([1], 0.0, "float32", persistable=True, name="state")
        update(state, x, p)
    return main


def add(state, value):
    L.sums([state, value], out=state)


def add_aside(state, value):
    L.assign(L.elementwise_add(L.reshape(state, [1]), value), state)


def beside(state, x, p):
    """Count steps, and add data to the count where nobody keeps it."""
    L.increment(state)
    L.elementwise_add(state, L.reduce_sum(x))


WAYS = {
    "sum": (lambda s, x, p: add(s, L.reduce_sum(x)), SUMMED),
    "sum of what is computed": (lambda s, x, p: add_aside(s, L.reduce_sum(p)), SUMMED),
    "difference": (
        lambda s, x, p: L.assign(L.elementwise_sub(s, L.reduce_sum(x)), s),
        SUMMED,
    ),
    "turned difference": (
        lambda s, x, p: L.assign(L.elementwise_sub(L.reduce_sum(x), s), s),
        OWN,
    ),
    "two sums": (lambda s, x, p: (add(s, L.reduce_sum(x)), add_aside(s, L.mean(p))), SUMMED),
    "largest": (
        lambda s, x, p: L.assign(L.elementwise_max(s, L.reduce_max(x)), s),
        LARGEST,
    ),
    "smallest": (
        lambda s, x, p: L.assign(L.elementwise_min(L.reduce_min(x), s), s),
        SMALLEST,
    ),
    "sum, then largest": (
        lambda s, x, p: L.assign(L.elementwise_max(s + L.reduce_sum(x), L.reduce_max(x)), s),
        OWN,
    ),
    "moving mean": (lambda s, x, p: L.assign(s * 0.9 + L.mean(x) * 0.1, s), OWN),
    "last": (lambda s, x, p: L.assign(L.reduce_sum(x), s), OWN),
    "steps": (lambda s, x, p: L.increment(s), SAME),
    "steps beside data": (beside, SAME),
    "constant": (lambda s, x, p: L.assign(L.fill_constant([1], "float32", 3.0), s), SAME),
    "twice itself": (lambda s, x, p: L.assign(L.elementwise_add(s, s), s), SAME),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_says_how_its_state_divides(way):
    update, expected = WAYS[way]
    main = build(update)
    assert divisions(main, shared=False)["state"] == expected
    assert divisions(main, shared=True)["state"] == SAME  # computed from whole batches


@pytest.mark.parametrize("shared", [True, False])
def test_counts_of_areas_are_summed_wherever_rows_are(shared):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        y = fluid.data("y", [None, 1], "int64")
        p = L.fc(L.batch_norm(fluid.data("x", [None, 4])), 2, act="softmax")
        _, _, counts = L.auc(p, y)
    found = divisions(main, shared=shared)
    assert [found[v.name] for v in counts] == [WINDOWED, WINDOWED, SUMMED, SUMMED]
    assert found["batch_norm_0.w_1"] == (SAME if shared else OWN)


def resumed(values, kind_then, kind_now, trainers):
    """Return what ``trainers`` take up of what ``values`` were each trainer's."""
    names = ["v", *(f"v@trainer_{k}" for k in range(1, len(values)))]
    saved = dict(zip(names, values))
    out = []
    for k in range(trainers):
        taken = taken_up("v", names, kind_then, kind_now, k, trainers)
        if isinstance(taken, Combined):
            out.append(taken.of([saved[n] for n in taken.names]))
        else:
            out.append(saved[taken])
    return out


@pytest.mark.parametrize("kind", [SUMMED, WINDOWED, LARGEST, SMALLEST, OWN, SAME])
def test_any_chain_of_numbers_of_trainers_keeps_what_the_job_has(kind):
    of_job = {LARGEST: np.max, SMALLEST: np.min, SUMMED: np.sum, WINDOWED: np.sum}
    for chain in itertools.product([1, 2, 3], repeat=4):
        values = [np.array([k + 1, 2 * k, 7]) for k in range(chain[0])]
        if kind == SAME:
            values = [values[0]] * len(values)
        total = of_job.get(kind, lambda v, axis: v[0])(values, axis=0)
        if kind == WINDOWED:
            total[-1] = 7  # of batches, which all have counted
        before = OWN if chain[0] == 1 else kind
        for trainers in chain[1:]:
            now = OWN if trainers == 1 else kind
            values = resumed(values, before, now, trainers)
            got = of_job.get(kind, lambda v, axis: v[0])(values, axis=0)
            if kind == WINDOWED:
                assert all(v[-1] == 7 for v in values)
                got[-1] = 7
            np.testing.assert_array_equal(got, total)
            before = now


@pytest.mark.parametrize("kind", [SUMMED, LARGEST, OWN, SAME])
def test_as_many_trainers_get_their_own_values_back(kind):
    values = [np.array([5]), np.array([3])]
    assert resumed(values, kind, kind, 2) == values


def test_counts_saved_as_sums_stay_sums_where_a_program_no_longer_tells():
    values = [np.array([5]), np.array([3])]
    assert [v.item() for v in resumed(values, SUMMED, OWN, 3)] == [8, 0, 0]
