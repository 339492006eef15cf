"""Random Programs cut at random places: stages compute what one process computes, or refuse."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hpcdist.errors import FeedError, PlanError
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph.pipeline import PipelineCut
from hpcdist.transpiler.pipeline_cut import Phase, phase_of
from tests.support.random_programs import RandomProgram, assert_near, build, train
from tests.support.thread_jobs import ranks_as_threads

SEEDS = [0, 3, 6, 7, 9, 12, 14, 16]


def cut(seed: int) -> tuple[RandomProgram, int]:
    """Return the Program of a seed, cut in one place or two, and its number of stages."""
    program, rng = build(seed, ragged=False), random.Random(seed)
    block = program.main.global_block()
    forward = [op for op in block.ops if phase_of(op) is Phase.FORWARD]
    names = [
        n for op in forward[:-3] for n in op.output_arg_names[:1] if not block.is_persistable(n)
    ]
    places = sorted(rng.sample(range(len(names)), 1 + (seed % 3 == 0)))
    cuts = tuple((names[place],) for place in places)
    program.main.pipeline = PipelineCut(cuts, rng.choice([1, 2, 3]))
    return program, len(cuts) + 1


def outcome(seed: int, replicas: int) -> str:
    """Compare the stages of a seed with one process; return "equal" or "refused"."""
    with scope_guard(Scope()):
        wanted = train(build(seed, ragged=False))
    _, stages = cut(seed)
    programs = [cut(seed)[0] for _ in range(stages * replicas)]
    with ranks_as_threads() as run:
        try:
            found = run(len(programs), 0, [lambda p=p: train(p) for p in programs])
        except (PlanError, FeedError) as error:
            assert "pipeline: " in str(error) or "from micro-batches" in str(error)
            return "refused"
    for steps in found:
        for got, expected in zip(steps, wanted, strict=True):
            for one, other in zip(got, expected, strict=True):
                assert_near(one, other, f"seed {seed}, {replicas} replicas")
    return "equal"


@pytest.mark.parametrize("replicas", [1, 2])
def test_stages_of_random_programs_compute_what_one_process_computes(replicas: int) -> None:
    assert Counter(outcome(seed, replicas) for seed in SEEDS)["equal"] >= len(SEEDS) // 2
