"""Which orders of operators compute the same: pairs, what follows, stages."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcdist as fluid
from hpcdist import layers
from hpcdist.transpiler.dependences import (
    Access,
    Stages,
    Swapped,
    access_of,
    following,
    swapped,
)

NAMES = "abcd"
names = st.frozensets(st.sampled_from(NAMES), max_size=2)
accesses = st.lists(st.builds(Access, names, names), min_size=1, max_size=9)


def access(reads: str = "", writes: str = "") -> Access:
    return Access(frozenset(reads), frozenset(writes))


def run(program: list[Access], order: Iterable[int]) -> tuple[dict[str, object], list[object]]:
    """Run operators in an order: what each has read, and what variables hold in the end."""
    values: dict[str, object] = {name: name for name in NAMES}
    read: list[object] = [None] * len(program)
    for i in order:
        read[i] = tuple(values[name] for name in sorted(program[i].reads))
        values |= {name: (i, name, read[i]) for name in program[i].writes}
    return values, read


def in_order(phases: list[int]) -> list[int]:
    return sorted(range(len(phases)), key=lambda i: (phases[i], i))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (access(writes="a"), access("a"), Swapped(0, 1, "a", True)),
        (access("a"), access(writes="a"), Swapped(0, 1, "a", False)),
        (access(writes="a"), access(writes="a"), Swapped(0, 1, "a", True)),
        (access("a"), access("a"), None),
        (access("a", "b"), access("c", "d"), None),
    ],
)
def test_a_pair_may_not_be_swapped_if_one_writes_what_both_use(first, second, found):
    assert swapped([first, second], [1, 0]) == found
    assert swapped([first, second], [0, 1]) is None


@given(accesses, st.data())
def test_phases_that_swap_nothing_compute_what_the_program_does(program, data):
    phases = data.draw(st.lists(st.integers(0, 2), min_size=len(program), max_size=len(program)))
    if swapped(program, phases) is None:
        assert run(program, in_order(phases)) == run(program, range(len(program)))


@given(accesses, st.data())
def test_what_follows_may_run_last(program, data):
    moving = data.draw(st.sets(st.integers(0, len(program) - 1)))
    late = following(program, {i: program[i].writes for i in moving})
    phases = [2 if i in late else int(i in moving) for i in range(len(program))]
    pair = swapped(program, phases)
    assert pair is None or {pair.earlier, pair.later} & moving, "among themselves they may"
    reads_moved = [
        i
        for i, op in enumerate(program)
        if i not in moving
        and any(k < i and program[k].writes & (op.reads | op.writes) for k in moving)
    ]
    assert set(reads_moved) <= late.keys()


@given(accesses, st.data())
def test_stages_compute_what_the_program_does(program, data):
    """As servers run them: those that are ahead first; sums are there one stage later."""
    stages, parts = Stages(), []
    for op in program:
        kind = data.draw(st.sampled_from(["plain", "ahead", "summed", "sum"]))
        stage = stages.stage_of(op, ahead=kind == "ahead")
        if kind in ("summed", "sum"):  # reads now, and again or adds up with the next stage
            assert stage >= 0
            stages.note(op, stage + 1, result_ahead=kind == "sum")
            parts.append(2 * stage + (2 if kind == "sum" else 3))
        else:
            stages.note(op, stage, ahead=kind == "ahead")
            parts.append(2 * stage + (kind != "ahead"))
    assert swapped(program, parts) is None
    assert run(program, in_order(parts)) == run(program, range(len(program)))


def test_a_loop_uses_what_its_block_uses():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        outside = layers.create_global_var([1], 1.0, "float32", persistable=True, name="outside")
        one = layers.fill_constant([1], "float32", 1.0)
        with layers.Switch() as switch, switch.case(one < 2.0):
            layers.assign(outside * 2.0, outside)
        loop = next(op for op in one.block.ops if "sub_block" in op.attrs)
        found = access_of(loop)
    assert "outside" in found.reads and "outside" in found.writes
