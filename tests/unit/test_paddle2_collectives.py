"""``paddle.distributed`` in static programs: what a process alone gets, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import CommError, GraphError, HpcdistError
from hpcdist.fluid.compat.paddle2 import distributed as dist
from hpcdist.runtime.job import exchanges


def test_a_process_alone_exchanges_with_itself():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [4, 3])
        copies = [fluid.layers.assign(x) for _ in range(5)]
        dist.all_reduce(copies[0])
        dist.reduce(copies[1], 0, dist.ReduceOp.PROD)
        dist.broadcast(copies[2], 0)
        dist.scatter(copies[3], [x])
        dist.reduce_scatter(copies[4], [x])
        gathered, came = [x], []  # type: ignore[var-annotated]
        dist.all_gather(gathered, x)
        dist.alltoall([x], came)
        dist.barrier()
        dist.wait(x)
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    wanted = [*copies, *gathered, *came]
    found = fluid.Executor(fluid.CPUPlace()).run(main, feed={"x": value}, fetch_list=wanted)
    assert len(found) == 7
    for copy in found:
        np.testing.assert_array_equal(copy, value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: dist.all_reduce(3.0), "all_reduce: tensor: expected a Variable .*got 3.0"),
        (lambda x: dist.all_reduce(x, op="sum"), "op: expected ReduceOp.SUM, MAX, .* got 'sum'"),
        (lambda x: dist.all_reduce(x, dist.ReduceOp.AVG), "op: expected ReduceOp.SUM.*got 4"),
        (lambda x: dist.all_reduce(x, group=1), "group: expected None, got 1: in static graphs"),
        (lambda x: dist.all_reduce(x, sync_op=3), "sync_op: expected True or False, got 3"),
        (lambda x: dist.reduce(x, 1), "reduce: dst: expected a trainer below 1, got 1"),
        (lambda x: dist.reduce(x, "0"), "reduce: dst: expected an integer, got '0'"),
        (lambda x: dist.broadcast(x, -1), "broadcast: src: expected a trainer below 1, got -1"),
        (lambda x: dist.all_gather(x, x), "all_gather: tensor_list: expected a list, which gets"),
        (lambda x: dist.scatter(x, [x, x]), "scatter: tensor_list: expected 1 tensors, one for"),
        (lambda x: dist.scatter(x), "scatter: tensor_list: expected a Variable .*got None"),
        (
            lambda x: dist.scatter(x, [fluid.layers.concat([x, x])]),
            r"scatter: tensor: expected float32\[8, 3\], which comes of .*, got float32\[4, 3\]",
        ),
        (lambda x: dist.alltoall([x], [x]), "alltoall: out_tensor_list: expected an empty list"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(call, message):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [4, 3])
        with pytest.raises(HpcdistError, match=message):
            call(x)


def test_no_gradient_goes_through_an_exchange():
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [4, 3]), 1))
        dist.all_reduce(loss)
        with pytest.raises(GraphError, match=r"all_reduce of 'mean_0.*y = paddle.assign\(x\)"):
            fluid.optimizer.SGD(0.1).minimize(loss)


@pytest.mark.parametrize(
    ("came", "message"),
    [
        (
            lambda own: [own, b""],
            r"all_reduce x: float.*: the scripts of trainers \[1\] have ended",
        ),
        (lambda own: [own, own.replace(b"x", b"y")], r"trainers \[1\] exchange something else"),
        (lambda own: [own, own[:-1]], r"trainers \[1\] exchange something else"),
        (lambda own: [own], "expected 2 trainers, 1 are left"),
    ],
)
def test_a_trainer_that_is_not_there_is_named(came, message):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [4, 3])
        dist.all_reduce(x)
        (op,) = fluid.default_main_program().global_block().ops
    values = np.ones((4, 3), np.float32)
    with pytest.raises(CommError, match=message):
        exchanges.everyones(op, values, lambda data, _: came(data), 2)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("send", "all_gather and broadcast"),
        ("spawn", "mpirun -n 2 python -m hpcdist --as-paddle script.py"),
        ("new_group", "all trainers take part"),
        ("all_gather_object", "fleet.util.all_gather"),
        ("DataParallel", "fleet.distributed_optimizer"),
    ],
)
def test_what_is_not_there_says_what_to_use(name: str, advice: str) -> None:
    from hpcdist.fluid.compat.instead import PADDLE, instead

    found: Any = instead(PADDLE, f"paddle.distributed.{name}")
    assert advice in found
