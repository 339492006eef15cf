"""What operators draw with a seed: recorded from Fluid 1.8.5, and the same in every run."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.ops.random.samplers import MOST, SeededPairs, SeededWords, integers

RISING = [(k + 1) / 1275 for k in range(50)]


def nce(**options):
    x, label = fluid.data("x", [None, 2]), fluid.data("label", [None, 1], "int64")
    cost = layers.nce(x, label, 50, seed=1, **options)
    (op,) = [op for op in cost.block.ops if op.type == "nce"]
    return cost.block.var(op.output("SampleLabels")[0])


def sampled_softmax():
    scores, label = fluid.data("scores", [None, 20]), fluid.data("label", [None, 1], "int64")
    loss = layers.sampled_softmax_with_cross_entropy(scores, label, 4, seed=3)
    (op,) = [op for op in loss.block.ops if op.type == "sample_logits"]
    return loss.block.var(op.output("Samples")[0])


def sampling_id():
    return layers.sampling_id(fluid.data("chances", [None, 20]), seed=3)


# How a value is made; what Fluid 1.8.5 draws, of the first row or all.
DRAWN = {
    "nce uniform": (lambda: nce(num_neg_samples=5), [0, 6, 6, 22, 1, 17]),
    "nce log-uniform": (
        lambda: nce(num_neg_samples=5, sampler="log_uniform"),
        [0, 0, 0, 4, 0, 2],
    ),
    "nce by chances": (
        lambda: nce(num_neg_samples=12, sampler="custom_dist", custom_dist=RISING),
        [0, 20, 46, 15, 11, 9, 46, 39, 15, 35, 36, 33, 22],
    ),
    "nce of looked-up rows": (
        lambda: nce(num_neg_samples=5, is_sparse=True),
        [0, 6, 6, 22, 1, 17],
    ),
    "sampling_id": (sampling_id, [0, 5, 16, 13]),
    "randint": (lambda: layers.randint(0, 50, [5], seed=3, dtype="int64"), [0, 12, 40, 33, 45]),
}
SEEDED = {
    **{name: make for name, (make, _) in DRAWN.items()},
    "sampled_softmax": sampled_softmax,
    "randperm": lambda: layers.randperm(50, seed=3),
    "randint of many": lambda: layers.randint(0, 2**40, [5], seed=3, dtype="int64"),
}


def run_twice(make):
    """Return what two runs of one Executor draw."""
    feed = {
        "x": np.zeros((3, 2), np.float32),
        "label": np.zeros((3, 1), np.int64),
        "scores": np.zeros((3, 20), np.float32),
        "chances": np.full((4, 20), 0.05, np.float32),
    }
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        drawn = make()
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        block = fluid.default_main_program().global_block()
        fed = {name: value for name, value in feed.items() if block.has_var(name)}
        return [exe.run(feed=fed, fetch_list=[drawn])[0] for _ in range(2)]


@pytest.mark.parametrize("name", DRAWN)
def test_a_seed_draws_what_fluid_draws(name):
    make, expected = DRAWN[name]
    drawn = run_twice(make)[0]
    assert (drawn[0] if drawn.ndim == 2 else drawn).tolist() == expected


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_draws_the_same_in_every_run(name):
    first, second = run_twice(SEEDED[name])
    assert (first == second).all()


def test_a_stream_may_be_read_from_any_place():
    words, pairs = SeededWords(9), SeededPairs(9, 700_000_000)  # of which many words are not used
    assert words(3, 4).tolist() == SeededWords(9)(0, 7)[3:].tolist()
    assert (words(0, 2000) == SeededWords(9)(0, 2000)).all()  # over the end of the state, twice
    places, asides = SeededPairs(9, 700_000_000)(0, 90)
    for read, whole in zip(pairs(50, 40), (places, asides), strict=True):
        assert (read == whole[50:]).all()
    assert places.max() < 700_000_000 and 0 <= asides.min() <= asides.max() < 1


def test_integers_stay_within_their_bounds():
    assert set(integers(5, -3, 4, 500).tolist()) == set(range(-3, 4))
    most = integers(5, 0, MOST, 500)
    assert most.min() >= 0 and MOST // 2 < most.max() < MOST
