"""Jobs with loops over ragged batches compute what one process computes."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.runtime.batches.analysis import SharedProgram
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (2, 2)]  # trainers, servers
LENGTHS = [[3, 0, 2, 5, 1], [0, 0, 0, 4], [2], [6, 2, 2, 0, 1]]


def build(need_reorder=True):
    """Return Programs with a DynamicRNN, and what to fetch: a mean, rows of sequences, rows."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        words = layers.data("words", [1], dtype="int64", lod_level=1)
        label = layers.data("label", [1], dtype="int64")
        rows = layers.embedding(words, [30, 8], is_sparse=True)
        bag = layers.sequence_pool(rows, "sum")
        drnn, first = layers.DynamicRNN(), layers.fc(bag, 6)
        with drnn.block():
            row, same = drnn.step_input(rows), drnn.static_input(bag)
            memory = drnn.memory(init=first, need_reorder=need_reorder)
            other = drnn.memory(shape=[2], value=0.1)
            new = layers.fc([row, same, memory, other], 6, act="tanh")
            drnn.update_memory(memory, new)
            drnn.update_memory(other, layers.scale(other, 0.5))
            drnn.output(new)
        hidden = layers.sequence_last_step(drnn())
        cost = layers.cross_entropy(layers.fc(hidden, 3, act="softmax"), label)
        loss = layers.mean(cost)
        fluid.optimizer.SGD(0.5).minimize(loss)
    return main, startup, [loss, drnn(), cost]


def train():
    main, startup, fetches = build()
    exe = fluid.Executor()
    exe.run(startup)
    found = []
    for step, lengths in enumerate(LENGTHS):
        rng = np.random.default_rng(step)
        words = rng.integers(0, 30, (sum(lengths), 1))
        feed = {"words": fluid.create_lod_tensor(words, [lengths])}
        feed["label"] = rng.integers(0, 3, (len(lengths), 1))
        fetched = exe.run(main, feed, fetches, return_numpy=False)
        assert fetched[1].recursive_sequence_lengths() == [lengths]
        found += [np.array(value) for value in fetched]
    exe.close()
    return found


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_a_dynamic_rnn_shares_batches_of_sequences(trainers, servers):
    with alone():
        expected = train()
    outcomes = run_job(trainers, servers, lambda role: train())
    for found in values(outcomes):
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_what_pairs_samples_with_sorted_sequences_is_not_divided():
    main, _, _ = build()
    assert not SharedProgram(main, 2).why_whole
    main, _, _ = build(need_reorder=False)
    assert "need_reorder=True" in SharedProgram(main, 2).why_whole
