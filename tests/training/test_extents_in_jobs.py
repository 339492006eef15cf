"""Extents, bounds, depths and k that are fed or computed: on any ranks as in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.thread_jobs import ranks_as_threads

Net = Callable[..., Any]  # of x [rows, 6], ids [rows, 1] and a number that is fed; gives the loss
WIDTH, CLASSES = 6, 4


def total(value: Any) -> Any:
    """Weigh every element in its own way, row by row; to shape [rows, 1]."""
    weighed = layers.elementwise_mul(value, layers.cast(layers.sin(value * 3.0), "float32"))
    return layers.reduce_sum(weighed, 1, keep_dim=True)


def columns(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.slice(h, [1], [0], [n]))


def largest(h: Any, ids: Any, n: Any) -> Any:
    where = layers.cast(layers.topk(h, n)[1], "float32")
    return total(where) * total(h)


def depth(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.one_hot(ids, n + 2)) * total(h)


def groups(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.reduce_max(layers.reshape(h, [0, n, -1]), 2))


def sections(h: Any, ids: Any, n: Any) -> Any:
    first, rest = layers.split(h, [n, -1], 1)
    return total(first) - total(rest) * 2.0


def wider(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.expand(h, [1, n]))


def masked(h: Any, ids: Any, n: Any) -> Any:
    mask = layers.sequence_mask(layers.reshape(ids, [-1]), maxlen=n + 3, dtype="float32")
    return total(mask) * total(h)


def one_column(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.unsqueeze(h[:, n], [1]))


def first_rows(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.slice(h, [0], [0], [n]))


def repeated_rows(h: Any, ids: Any, n: Any) -> Any:
    return total(layers.expand(h, [n, 1]) + layers.slice(h, [0], [0], [1]))


def joined(h: Any, ids: Any, n: Any) -> Any:
    axis = n / n  # 1
    return total(layers.reshape(layers.concat([h, h * 2.0], axis), [-1, 2 * WIDTH]))


def messages(h: Any, ids: Any, n: Any) -> Any:
    sums = layers.fill_constant([n + CLASSES, WIDTH], "float32", 0.0)
    sums.stop_gradient = False
    sums = layers.scatter(sums, layers.reshape(ids, [-1]), h, overwrite=False)
    return total(layers.gather(sums, layers.reshape(ids, [-1]), overwrite=False))


def as_many_as_found(h: Any, ids: Any, n: Any) -> Any:
    count = layers.reduce_max(layers.cast(ids, "int32"))
    return total(layers.slice(h, [1], [0], [layers.reshape(count, [1]) + 1]))


def in_a_branch(h: Any, ids: Any, n: Any) -> Any:
    def part() -> Any:
        return layers.reduce_sum(layers.slice(h, [1], [0], [n]), 1, keep_dim=True)

    def whole() -> Any:
        return layers.reduce_sum(h, 1, keep_dim=True)

    return layers.cond(layers.less_than(n, layers.fill_constant([1], "int32", 3)), part, whole)


def in_a_loop(h: Any, ids: Any, n: Any) -> Any:
    i, end = layers.fill_constant([1], "int32", 1), n + 1
    sums = layers.reduce_sum(h, 1, keep_dim=True)
    sums.stop_gradient = False

    def turn(i: Any, sums: Any) -> Any:
        more = layers.reduce_sum(layers.slice(h, [1], [0], [i]), 1, keep_dim=True)
        return [layers.increment(i, in_place=False), sums + more * 0.5]

    return layers.while_loop(lambda i, _: layers.less_than(i, end), turn, [i, sums])[1]


DIVIDED = [columns, largest, depth, groups, sections, wider, masked, one_column]
WHOLE = [first_rows, repeated_rows, joined, messages, as_many_as_found, in_a_branch, in_a_loop]


def trained(net: Net, optimizer: Any = fluid.optimizer.Adam) -> Callable[[], list[float]]:
    """Build a Program of its own; return what trains it. Ranks that are threads build nothing."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 5])
        ids = fluid.data("ids", [None, 1], dtype="int64")
        n = fluid.data("n", [1], dtype="int32")
        loss = layers.mean(net(layers.fc(x, WIDTH, act="tanh"), ids, n))
        optimizer(0.05).minimize(loss)

    def script() -> list[float]:
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = []
        for step, number in enumerate((2, 3, 1, 2, 3)):
            rng = np.random.default_rng(step)
            feed = {
                "x": rng.normal(size=(6, 5)).astype("float32"),
                "ids": rng.integers(0, min(number + 2, CLASSES), (6, 1)),
                "n": np.array([number], "int32"),
            }
            losses.append(float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]))
        return losses

    return script


def alone(net: Net) -> list[float]:
    with fluid.scope_guard(fluid.Scope()):
        return trained(net)()


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("net", DIVIDED + WHOLE)
def test_extents_of_the_step_train_as_in_one_process(net: Net, servers: int, caplog: Any) -> None:
    wanted = alone(net)
    assert len(set(wanted)) == len(wanted)
    with ranks_as_threads() as run:
        for losses in run(2, servers, [trained(net) for _ in range(2 + servers)]):
            np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    is_whole = "cannot divide a batch" in caplog.text
    assert is_whole == (net in WHOLE)
