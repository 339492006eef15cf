"""Jobs fed with sequences of different lengths compute what one process computes."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.transpiler import GeoSgdTranspiler
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (2, 1), (3, 1), (2, 2)]  # trainers, servers
WORDS = 30
LENGTHS = [[3, 0, 2, 5, 1], [1, 1, 1, 1, 7], [0, 0, 0, 4], [2], [0, 3], [6, 2, 2, 0, 1]]


def build(table):
    """Return Programs of a text model, and what to fetch: a mean, rows of sequences, rows."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    facts = {"is_sparse": table != "dense", "is_distributed": table == "distributed"}
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        words = layers.data("words", [1], dtype="int64", lod_level=1)
        label = layers.data("label", [1], dtype="int64")
        rows = layers.embedding(words, [WORDS, 8], padding_idx=0, param_attr="table", **facts)
        weight = layers.sequence_softmax(layers.fc(rows, 1))
        bag = layers.sequence_pool(layers.elementwise_mul(rows, weight, axis=0), "sum")
        near = layers.sequence_conv(layers.fc(rows, 4, act="tanh"), 4, act="tanh")
        both = layers.sequence_concat([near, layers.sequence_reverse(near)])
        hidden = [bag, layers.sequence_pool(near, "max"), layers.sequence_pool(both, "average")]
        states = {"h_0": layers.fc(bag, 4), "c_0": layers.fc(bag, 4)}
        lstm, _ = layers.dynamic_lstm(layers.fc(rows, 16), 16, **states)
        gru = layers.dynamic_gru(layers.fc(rows, 12), 4, is_reverse=True)
        hidden += [layers.sequence_last_step(lstm), layers.sequence_first_step(gru)]
        cost = layers.cross_entropy(layers.fc(hidden, 3, act="softmax"), label)
        loss, total = layers.mean(cost), layers.reduce_sum(near)
        fluid.optimizer.Adagrad(0.2).minimize(loss)
    return main, startup, [loss, both, cost, total]


def batch(step):
    rng = np.random.default_rng(step)
    lengths = LENGTHS[step]
    words = rng.integers(0, WORDS, (sum(lengths), 1))
    return {
        "words": fluid.create_lod_tensor(words, [lengths]),
        "label": rng.integers(0, 3, (len(lengths), 1)),
    }


def train(table):
    main, startup, fetches = build(table)
    exe = fluid.Executor()
    exe.run(startup)
    found = []
    for step in range(len(LENGTHS)):
        fetched = exe.run(main, batch(step), fetches, return_numpy=False)
        assert fetched[1].recursive_sequence_lengths() == [[2 * n for n in LENGTHS[step]]]
        found += [np.array(value) for value in fetched]
    exe.close()
    return found


@pytest.mark.parametrize("table", ["dense", "sparse", "distributed"])
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_a_plain_script_shares_batches_of_sequences(trainers, servers, table):
    if table == "distributed" and not servers:
        pytest.skip("distributed tables live on servers")
    with alone():
        expected = train(table)
    outcomes = run_job(trainers, servers, lambda role: train(table))
    for found in values(outcomes):
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_one_trainer_of_other_modes_trains_as_one_process_does(mode):
    def script(role):
        main, startup, fetches = build("sparse")
        if mode == "geo":
            config = fluid.DistributeTranspilerConfig()
            config.geo_sgd_need_push_nums = 1
            exe, program = begin(role, 1, 1, main, startup, GeoSgdTranspiler(config))
        else:
            exe, program = begin(role, 1, 1, main, startup, sync_mode=False)
        steps = range(len(LENGTHS))
        found = [exe.run(program, batch(step), fetches[:1])[0] for step in steps]
        exe.close()
        return found

    with alone():
        expected = train("sparse")[::4]
    (found,) = values(run_job(1, 1, script))
    np.testing.assert_allclose(found, expected, rtol=2e-5)
