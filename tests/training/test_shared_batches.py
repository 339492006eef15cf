"""Steps on batches that trainers share are those of one process; ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import ErrorClipByValue
from hpcdist.errors import FeedError, PlanError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.runtime.batches.analysis import SharedProgram
from tests.support.thread_jobs import ranks_as_threads

SHAPES = [(2, 0), (3, 0), (2, 1)]  # trainers, servers
ROWS = [7, 6, 1, 3]  # in each step: parts of three rows, and of none

Net = Callable[[Any, Any], list[Any]]


def batch(step: int, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    x = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    return {"x": x, "label": rng.integers(0, 2, (rows, 1))}


def training(net: Net, fed: Callable[[Any], Any] = lambda value: value) -> Callable[[], Any]:
    """Return what trains a network, and runs its test program after each step."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, label = layers.data("x", [3]), layers.data("label", [1], dtype="int64")
        loss, *others = net(x, label)
        test = main.clone(for_test=True)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)

    def script() -> list[np.ndarray]:
        exe = Executor()
        exe.run(startup)
        found: list[np.ndarray] = []
        for step, rows in enumerate(ROWS):
            feed = {name: fed(value) for name, value in batch(step, rows).items()}
            for program in (main, test):
                found += exe.run(program, feed=feed, fetch_list=[loss, *others])
        return [np.array(value) for value in found]

    return script


def check(make: Callable[[], Callable[[], Any]], shapes: list[tuple[int, int]] = SHAPES) -> None:
    with scope_guard(Scope()):
        wanted = make()()
    with ranks_as_threads() as run:
        for trainers, servers in shapes:
            scripts = [make() for _ in range(trainers + servers)]
            for results in run(trainers, servers, scripts):
                for got, value in zip(results, wanted, strict=True):
                    where = f"{trainers} trainers, {servers} servers"
                    np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=where)


def crossed(x: Any, label: Any) -> list[Any]:
    """Along the first dimension of three: that of the rows, in a batch of three."""
    return [layers.mean(layers.square(layers.cross(layers.fc(x, 3), x)))]


def normed(x: Any, label: Any) -> list[Any]:
    """With the moments of batches that are computed whole."""
    y = layers.batch_norm(layers.fc(x, 4))
    return [layers.mean(layers.square(layers.tanh(layers.reverse(y, [0])))), y]


def chosen(x: Any, label: Any) -> list[Any]:
    """With the moments of elements whose number only the step knows."""
    positive = layers.gather_nd(layers.fc(x, 3), layers.where(x > 0.0))
    y = layers.batch_norm(layers.fc(layers.reshape(positive, [-1, 1]), 4))
    return [layers.mean(layers.square(layers.tanh(y)))]


def counted(slide_steps: int) -> Net:
    """The test program goes on from the counts of training, and training from the test's."""

    def net(x: Any, label: Any) -> list[Any]:
        chance = layers.fc(x, 2, act="softmax")
        area, of_batch, _ = layers.auc(chance, label, slide_steps=slide_steps)
        return [layers.mean(layers.cross_entropy(chance, label)), area, of_batch]

    return net


def enlarged(x: Any, label: Any) -> list[Any]:
    """As detectors do it: an image of a size that is computed from its shape."""
    image = layers.reshape(layers.fc(x, 4), [-1, 1, 2, 2])
    size = layers.slice(layers.shape(image), axes=[0], starts=[2], ends=[4]) * 2
    larger = layers.resize_nearest(image, scale=2, actual_shape=size)
    return [layers.mean(layers.square(larger))]


@pytest.mark.parametrize("net", [crossed, normed, chosen, counted(1), counted(2), enlarged])
def test_a_job_finds_what_one_process_finds(net):
    check(lambda: training(net))


@pytest.mark.parametrize("first", [2, 0])
def test_extents_beyond_rows_leave_batches_divided(first):
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        image = layers.data("image", [1, 2, 2])
        rows = layers.data("rows", [1])
        extent = layers.slice(layers.shape(image), axes=[0], starts=[first], ends=[first + 1])
        loss = layers.mean(layers.fc(rows * layers.cast(extent, "float32"), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
    why = SharedProgram(main, 2).why_whole
    assert ("'shape' cannot be divided" in why) == (first == 0) == bool(why)


def test_lists_may_be_fed():
    def net(x: Any, label: Any) -> list[Any]:
        return [layers.mean(layers.cross_entropy(layers.fc(x, 2, act="softmax"), label))]

    check(lambda: training(net, np.ndarray.tolist))


@pytest.mark.parametrize("shape", [(2, 0), (2, 1)])
def test_a_wrong_batch_is_told_as_it_was_fed(shape):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.fc(x, 1) - y))
    feed = {"x": np.ones((16, 3), np.float32), "y": np.ones(16, np.float32)}

    def script() -> None:
        exe = Executor()
        exe.run(startup)
        exe.run(main, feed=feed)

    with ranks_as_threads() as run, pytest.raises(FeedError, match=r"'y': .*, got shape \[16\]"):
        run(*shape, [script] * sum(shape))


def test_gradients_cut_on_their_way_are_refused():
    def net(x: Any, label: Any) -> list[Any]:
        hidden = layers.fc(x, 4, act="tanh")
        hidden.error_clip = ErrorClipByValue(0.01)
        return [layers.mean(layers.cross_entropy(layers.fc(hidden, 2, act="softmax"), label))]

    with pytest.raises(PlanError, match="cuts a gradient within the backward pass"):
        check(lambda: training(net))


@pytest.mark.parametrize(("trainers", "servers"), [(2, 1), (1, 0), (2, 0)])
def test_rows_that_are_counted_as_gradients_need_servers(trainers, servers):
    def net(x: Any, label: Any) -> list[Any]:
        chance = layers.fc(layers.data_norm(x), 2, act="softmax")
        return [layers.mean(layers.cross_entropy(chance, label))]

    if servers or trainers == 1:
        check(lambda: training(net), [(trainers, servers)])
        return
    with pytest.raises(PlanError, match="gives numbers of rows as gradients"):
        check(lambda: training(net), [(trainers, servers)])


def following_gradients(
    follow: Callable[[Any, Any, Any], list[Any]], mixes: bool = True
) -> Callable[[], Any]:
    """Return what trains on whole batches, and fetches what ``follow`` makes of gradients."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, label = layers.data("x", [3]), layers.data("label", [1], dtype="int64")
        h = layers.fc(x, 4, act="tanh")
        if mixes:
            h = layers.elementwise_sub(h, layers.reduce_max(h, dim=0, keep_dim=True))
        cost: Any = layers.softmax_with_cross_entropy(layers.fc(h, 2), label)
        loss = layers.mean(cost)
        _, gradients = fluid.optimizer.SGD(0.1).minimize(loss)
        fetched = follow(h, loss, {p.name: g for p, g in gradients}["fc_0.w_0"])

    def script() -> list[np.ndarray]:
        exe = Executor()
        exe.run(startup)
        steps = [exe.run(main, feed=batch(k, 6), fetch_list=[loss, *fetched]) for k in range(3)]
        return [np.array(value) for values in steps for value in values]

    return script


def keep(value: Any) -> Any:
    kept = layers.create_global_var(list(value.shape), 0.0, "float32", persistable=True)
    layers.assign(layers.elementwise_add(kept, value), kept)
    return kept


OF_GRADIENTS = {
    "of the loss": lambda h, loss, of_weight: [f"{loss.name}@GRAD"],
    "on the way": lambda h, loss, of_weight: [f"{h.name}@GRAD"],
    "of a parameter": lambda h, loss, of_weight: [of_weight],
    "its norm": lambda h, loss, of_weight: [layers.reduce_sum(layers.square(of_weight))],
    "times a mixed value": lambda h, loss, of_weight: [
        layers.elementwise_mul(layers.reduce_sum(h), layers.reduce_sum(of_weight))
    ],
}
KEPT = {
    "summed": lambda h, loss, of_weight: [keep(of_weight)],
    "its norm": lambda h, loss, of_weight: [keep(layers.reduce_sum(layers.square(of_weight)))],
}


@pytest.mark.parametrize("follow", OF_GRADIENTS.values(), ids=OF_GRADIENTS)
def test_gradients_of_whole_batches_are_fetched_where_trainers_sum_them(follow):
    check(lambda: following_gradients(follow), [(2, 0)])
    with (
        ranks_as_threads() as run,
        pytest.raises(FeedError, match="cannot fetch .* train without servers"),
    ):
        run(2, 2, [following_gradients(follow) for _ in range(4)])


@pytest.mark.parametrize("follow", KEPT.values(), ids=KEPT)
def test_what_is_kept_of_gradients_is_of_their_sums_and_refused_with_servers(follow):
    check(lambda: following_gradients(follow), [(2, 0)])
    with ranks_as_threads() as run, pytest.raises(PlanError, match="keep different values of"):
        run(2, 1, [following_gradients(follow) for _ in range(3)])


def shown(h: Any, loss: Any, of_weight: Any) -> list[Any]:
    """Show values of rows, of gradients, and of no rows."""
    for value in (h, of_weight, fluid.default_main_program().global_block().var("fc_0.w_0")):
        layers.Print(value)
    return []


@pytest.mark.parametrize("mixes", [True, False], ids=["whole batches", "parts"])
def test_values_that_are_shown_in_part_are_told_of(mixes, caplog):
    with ranks_as_threads() as run:
        run(2, 0, [following_gradients(shown, mixes) for _ in range(2)])
    (told,) = [r.getMessage() for r in caplog.records if "shows the values" in r.getMessage()]
    assert "print of fc_0.w_0@GRAD" in told and "print of fc_0.w_0;" not in told
    assert ("print of fc_0.tmp_2" in told) != mixes
