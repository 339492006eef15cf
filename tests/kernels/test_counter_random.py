"""Random numbers by counter: the published generator, its parts, what they depend on."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.executor.states import OperatorStates
from hpcdist.graph.lod import Lod
from hpcdist.graph.pipeline import of_micro_batch
from hpcdist.ops.random import seeded_kernels
from hpcdist.ops.random.counter import (
    BatchPart,
    Draws,
    draw_as_reader,
    filler,
    key_of,
    part_of,
    philox,
)
from tests.support.device import MODULE

# The known answers of Random123, the authors' library: counter, key, words.
ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize("counter, key, words", ANSWERS)
def test_the_generator_is_philox4x32_10(counter, key, words):
    from hpcdist.ops.random import counter_kernels

    first, second = (np.array([number], np.uint64) for number in counter[:2])
    drawn = [int(w[0]) for w in philox(np, (first, second, *counter[2:]), key)]
    assert " ".join(f"{word:08x}" for word in drawn) == words
    out = np.empty(4, np.uint32)
    pieces = np.array([0, 4])
    counter_kernels.words(counter[0] * 4, *counter[1:], *key, pieces, out)
    assert out.tolist() == drawn


def draw(part, xp=np, count=0):
    words = filler(xp, part, key_of(3, "op"), Draws("op", count))()
    return words if isinstance(words, np.ndarray) else words.get()


@pytest.mark.parametrize("xp", [np, MODULE], ids=["loops", "arrays"])
@pytest.mark.parametrize("begin, rows", [(0, 5), (1, 2), (3, 1), (2, 3)])
def test_a_part_of_a_batch_has_its_part_of_the_numbers(xp, begin, rows):
    whole = draw(BatchPart(5 * 7, 7))
    mine = draw(BatchPart(rows * 7, 7, np.array([begin, rows])), xp)
    np.testing.assert_array_equal(mine, whole[begin * 7 : (begin + rows) * 7])


@pytest.mark.parametrize("xp", [np, MODULE], ids=["loops", "arrays"])
def test_sequences_draw_from_their_own_beginnings(xp):
    lengths = [3, 0, 41, 2, 1]
    array = np.zeros((sum(lengths), 5), np.float32)
    whole = draw(part_of(array, None, Lod.of_lengths([lengths])))
    begin = sum(lengths[:2])
    rows = np.array([2, 2])
    mine = draw(part_of(array[begin:46], rows, Lod.of_lengths([lengths[2:4]])), xp)
    np.testing.assert_array_equal(mine, whole[begin * 5 : 46 * 5])
    # Two levels: the outer sequences are the samples.
    nested = draw(part_of(array, None, Lod.of_lengths([[2, 3], lengths])))
    tail = part_of(array[3:], np.array([1, 1]), Lod.of_lengths([[3], lengths[2:]]))
    np.testing.assert_array_equal(draw(tail, xp), nested[3 * 5 :])


def test_far_into_a_large_batch_both_ways_agree():
    part = BatchPart(100, 1, np.array([2**33 + 1, 100]))
    np.testing.assert_array_equal(draw(part), draw(part, MODULE))


def test_numbers_depend_on_seed_operator_reader_and_run(monkeypatch, request):
    part = BatchPart(1000, 1)
    first = draw(part)
    request.addfinalizer(lambda: draw_as_reader(""))
    others = [draw(part, count=1)]
    for key in (key_of(4, "op"), key_of(3, "other")):
        others.append(filler(np, part, key, Draws("op"))().copy())
    draw_as_reader("trainer 1")
    others.append(draw(part))
    for other in others:
        assert (first == other).mean() < 0.01
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    monkeypatch.setenv("HPCDIST_SEED", "3")
    assert key_of(0, "op") == key_of(3, "op")


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="its 2 rows have 3 elements"):
        BatchPart(3, 1, np.array([2, 2])).skipped()


# -- operators -------------------------------------------------------------------------------------
def runs(build, times=3):
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        x = fluid.layers.data("x", [4])
        out = build(x)
    exe = fluid.Executor()
    feed = {"x": np.zeros((500, 4), np.float32)}
    return [exe.run(main, feed, [out])[0] for _ in range(times)]


NOISE = {
    "uniform": lambda seed: lambda x: fluid.layers.uniform_random([500, 4], seed=seed),
    "normal": lambda seed: lambda x: fluid.layers.gaussian_random([500, 4], seed=seed),
    "uniform like": lambda seed: (
        lambda x: fluid.layers.uniform_random_batch_size_like(x, [-1, 4], seed=seed)
    ),
    "normal like": lambda seed: (
        lambda x: fluid.layers.gaussian_random_batch_size_like(x, [-1, 4], seed=seed)
    ),
}


@pytest.mark.parametrize("kind", sorted(NOISE))
def test_noise_without_a_seed_is_new_in_every_run_and_the_same_in_every_process(kind):
    first, second, _ = runs(NOISE[kind](0))
    assert first.shape == (500, 4) and first.dtype == np.float32
    assert (first != second).mean() > 0.99
    np.testing.assert_array_equal(runs(NOISE[kind](0))[1], second)
    spread = 1.0 if "normal" in kind else 1 / np.sqrt(3)
    assert abs(first.mean()) < 0.1 and abs(first.std() / spread - 1) < 0.1
    if "normal" in kind:
        assert np.abs(first).max() > 2.5
    else:
        assert first.min() >= -1 and first.max() < 1


@pytest.mark.parametrize("kind", sorted(NOISE))
def test_noise_with_a_seed_is_fluids_in_every_run(kind):
    first, second, _ = runs(NOISE[kind](9))
    np.testing.assert_array_equal(first, second)
    plain = kind.removesuffix(" like")
    np.testing.assert_array_equal(first, runs(NOISE[plain](9))[0])


def test_noise_of_integers_is_refused():
    with pytest.raises(TypeError, match="dtype must be of float32 or float64, got int64"):
        runs(lambda x: fluid.layers.uniform_random([2], dtype="int64"))


def test_devices_of_one_process_draw_different_masks(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        out = fluid.layers.dropout(fluid.layers.fc(fluid.layers.data("x", [50]), 50), 0.5)
        loss = fluid.layers.mean(out)
        mask = main.global_block().ops[-2].output("Mask")[0]
        fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor()
    exe.run(startup)
    compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
    feed = {"x": np.ones((40, 50), np.float32)}
    (both,) = exe.run(compiled, feed, [mask])
    assert 0.4 < (both[:20] != both[20:]).mean() < 0.6


# -- where operators are ---------------------------------------------------------------------------
def test_positions_are_taken_up_by_name():
    states, op = OperatorStates(), _Op()
    states.of(op, Draws).count = 5
    other = OperatorStates()
    other.load(states.positions(), step=9)
    assert other.of(op, Draws).count == 5
    assert other.positions() == {"dropout:out": 5}
    other.load({"dropout:out": 2}, step=9)
    assert other.of(op, Draws).count == 2


def test_a_test_program_does_not_hide_how_far_micro_batches_are():
    states, micro = OperatorStates(), _Op()
    micro.output_arg_names = (of_micro_batch("out", 0),)
    states.of(micro, Draws).count = 5
    states.of(_Op(), Draws)
    assert states.positions() == {"dropout:out": 5}


def test_positions_of_earlier_versions_go_on_from_the_step():
    states = OperatorStates()
    states.load({"dropout:out": {"counter": [1, 0, 0, 0], "key": [0, 7]}}, step=9)
    assert states.of(_Op(), Draws).count == 9


@pytest.mark.parametrize("position", [-1, 2**63, "x"])
def test_positions_that_cannot_be_are_refused(position):
    with pytest.raises(ValueError):
        OperatorStates().load({"dropout:out": position}, step=0)


class _Op:
    type = "dropout"
    output_arg_names = ("out", "mask")


def test_normal_values_are_those_of_box_and_muller():
    random = np.random.default_rng(0)
    words, others = (random.integers(0, 2**32, 3000, dtype=np.uint32) for _ in range(2))
    edges = np.array([0, 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 2, 2**32 - 1], np.uint32)
    words[: len(edges)], others[-len(edges) :] = edges, edges
    drawn = seeded_kernels.normal_of(words, others, 3.0, 2.0, np.inf)
    radius = np.sqrt(-2 * np.log((words + 1.0) * 2.0**-32))
    wanted = radius * np.cos(2 * np.pi * others * 2.0**-32) * 2 + 3
    np.testing.assert_allclose(drawn, wanted, rtol=2e-7, atol=2e-7)
    assert len(seeded_kernels.normal_of(words[:0], others[:0], 3.0, 2.0, np.inf)) == 0
