"""Calls on a GPU that become one kernel: which do, in what order, and updates of many parameters.

Over the stand-in.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.executor.backend import CupyBackend
from hpcdist.executor.chains import MOST, join_chains, parts_of
from hpcdist.executor.flat_updates import lay_flat
from hpcdist.executor.memory import adjacent, aligned_offsets, carve
from hpcdist.graph.names import grad_name
from hpcdist.ops.common import in_sequence
from tests.support.device import asarray, install
from tests.support.streams import MACHINE

OWNER: Any = None  # nobody asks for the operators here


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    return install(monkeypatch)


def joined(cupy, calls):
    steps, owners = join_chains(cupy, calls, [OWNER] * len(calls))
    assert len(steps) == len(owners)
    return steps


def launched(steps):
    MACHINE.counts.clear()
    for step in steps:
        step()
    return MACHINE.counts.launches


def partial(function, *args, **named):
    return functools.partial(function, *args, **named)


# -- chains ----------------------------------------------------------------------------------------
def test_calls_in_a_row_are_one_kernel_and_give_what_they_gave(cupy):
    rng = np.random.default_rng(0)
    x, bias = (asarray(rng.normal(size=s).astype(np.float32)) for s in ((4, 3), (1, 3)))
    y, mask = cupy.zeros((4, 3), np.float32), cupy.zeros((4, 3), bool)
    calls = [
        in_sequence(partial(cupy.add, x, bias, out=y), partial(cupy.maximum, y, 0, out=y)),
        partial(cupy.greater, y, 0.5, mask),
        partial(cupy.copyto, y, np.float32(7), where=mask),
        partial(cupy.multiply, y, x, x),
    ]
    before = x.get(), bias.get()
    assert launched(joined(cupy, calls)) == 1
    found = [array.get() for array in (y, mask, x)]
    for array, host in zip((x, bias), before):
        array.set(host)
    assert launched(parts_of(in_sequence(*calls))) == 5
    for array, kept in zip((y, mask, x), found):
        assert array.get().tobytes() == kept.tobytes()


def test_memory_that_overlaps_otherwise_is_for_the_next_kernel(cupy):
    memory = cupy.zeros(12, np.float32)
    whole, ahead, folded = memory[:8], memory[2:10], memory[:8].reshape(4, 2)
    other = cupy.zeros(8, np.float32)
    first = partial(cupy.add, whole, whole, out=other)
    assert launched(joined(cupy, [first, partial(cupy.add, other, 1, out=whole)])) == 1
    assert launched(joined(cupy, [first, partial(cupy.add, other, 1, out=ahead)])) == 2
    shifted = [partial(cupy.add, other, 1, out=whole), partial(cupy.add, ahead, 1, out=other)]
    assert launched(joined(cupy, shifted)) == 2
    assert launched(joined(cupy, [first, partial(cupy.add, folded, 1, out=folded)])) == 2
    as_ints = whole.view(np.int32)
    ids = cupy.zeros(8, np.int32)
    written = [partial(cupy.add, other, 1, out=whole), partial(cupy.add, as_ints, 1, out=ids)]
    assert launched(joined(cupy, written)) == 2


def test_what_is_not_element_by_element_stays_between_kernels(cupy):
    x, y, column = (cupy.zeros(s, np.float32) for s in ((4, 4), (4, 4), (4, 1)))
    negate, total = partial(cupy.negative, x, y), partial(y.sum, 1, None, column, True)
    subtract = partial(cupy.subtract, y, column, y)
    product, exp = partial(cupy.dot, y, x, y), partial(cupy.exp, y, y)
    steps = joined(cupy, [negate, total, subtract, exp, product, exp])
    assert steps[0] is negate and steps[1] is total
    assert steps[3:] == [product, exp]
    assert launched(steps) == 5


def test_numbers_have_the_type_of_the_arrays_they_meet(cupy):
    x, ids = cupy.zeros(3, np.float32), cupy.zeros(3, np.int64)
    twice = [partial(cupy.add, x, 0.1, out=x), partial(cupy.multiply, x, 3, out=x)]
    assert launched(joined(cupy, twice)) == 1
    host = (np.zeros(3, np.float32) + np.float32(0.1)) * np.float32(3)
    assert x.get().tobytes() == host.tobytes()
    halves = [partial(cupy.add, ids, ids, out=ids), partial(cupy.greater, ids, 0.5, out=ids)]
    assert launched(joined(cupy, halves)) == 2  # 0.5 is no integer


def test_a_kernel_takes_so_many_arrays(cupy):
    arrays = [cupy.zeros(3, np.float32) for _ in range(MOST + 2)]
    calls = [partial(cupy.add, a, 1, out=a) for a in arrays]
    assert launched(joined(cupy, calls)) == 2
    assert all((a.get() == 1).all() for a in arrays)


def test_nothing_is_joined_that_is_looked_at_one_by_one(cupy, monkeypatch):
    def steps():
        with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
            x = fluid.data("x", [None, 3], "float32")
            out = fluid.layers.relu(fluid.layers.scale(x + x, 2.0))
            exe = fluid.Executor(fluid.CUDAPlace(0))
            feed = {"x": np.ones((2, 3), np.float32)}
            exe.run(fluid.default_main_program(), feed, [out], scope=fluid.Scope())
        return len(exe.forms()[-1].compiled.steps)

    fewer = steps()
    monkeypatch.setenv("FLAGS_check_nan_inf", "1")
    assert fewer < steps() == 3


# -- updates -------------------------------------------------------------------------------------
WIDTHS = (3, 7, 2)


def network(names, seed=1):
    """Return (main, startup, loss): several layers whose parameters are ``names``."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = seed
    with fluid.program_guard(main, startup):
        hidden = fluid.data("x", [None, 5], "float32")
        for name, width in zip(names, WIDTHS):
            hidden = fluid.layers.fc(hidden, width, param_attr=name, bias_attr=f"{name}.bias")
        loss = fluid.layers.mean(hidden)
    return main, startup, loss


def trained(place, make, names="abc", steps=3, before=lambda scope: None):
    """Return the losses, and all parameters and states, after some steps."""
    with fluid.unique_name.guard():
        main, startup, loss = network(names)
        with fluid.program_guard(main, startup):
            make().minimize(loss)
    exe, scope = fluid.Executor(place), fluid.Scope()
    exe.run(startup, scope=scope)
    before(scope)
    feed = {"x": np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)}
    losses = [float(exe.run(main, feed, [loss], scope=scope)[0][0]) for _ in range(steps)]
    kept = [v.name for v in main.global_block().vars.values() if v.persistable]
    values = {n: np.array(scope.find_var(n).get_tensor()) for n in sorted(kept)}
    return losses, values, exe.forms()[-1].compiled


MAKE = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.1),
    "adam": lambda: fluid.optimizer.Adam(0.1),
    "adamax": lambda: fluid.optimizer.Adamax(0.1),
    "ftrl": lambda: fluid.optimizer.Ftrl(0.1, l1=0.01),
    "adadelta": lambda: fluid.optimizer.Adadelta(0.1),
}


@pytest.mark.parametrize("name", MAKE)
def test_all_parameters_move_as_one(name):
    losses, values, compiled = trained(fluid.CUDAPlace(0), MAKE[name])
    on_cpu, host, _ = trained(fluid.CPUPlace(), MAKE[name])
    np.testing.assert_allclose(losses, on_cpu, rtol=1e-5)
    for key, value in host.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    updates = [op for op in compiled.ops if op.type == name]
    assert {op.input("Param")[0] for op in updates} == {"c.bias"}  # the last does all


def test_each_parameter_has_its_own_powers_of_beta():
    def later(scope):
        for name in ("a", "c.bias"):
            (power,) = [n for n in scope.local_var_names() if n.startswith(f"{name}_beta1_pow")]
            scope.find_var(power).get_tensor().set(np.array([0.2], np.float32))

    (_, values, _), (_, host, _) = (
        trained(place, MAKE["adam"], before=later)
        for place in (fluid.CUDAPlace(0), fluid.CPUPlace())
    )
    assert len({float(v[0]) for n, v in host.items() if "beta1_pow" in n}) == 2
    for key, value in host.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def test_parameters_that_share_a_gradient_move_one_by_one():
    def moved(place):
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            a, b, c = (fluid.layers.create_parameter([40], "float32", name=n) for n in "abc")
            loss = fluid.layers.mean(fluid.layers.square(a + b * c))
            (pair, *_) = fluid.backward.append_backward(loss, parameter_list=["a", "b"])
            both = [(p, pair[1]) for p in (a, b)]
            fluid.optimizer.SGD(0.1).apply_gradients(both)
        exe = fluid.Executor(place)
        exe.run(startup, scope=scope)
        for seed, name in enumerate("abc"):
            values = np.random.default_rng(seed).normal(size=40).astype(np.float32)
            scope.find_var(name).get_tensor().set(values)
        for _ in range(2):
            exe.run(main, scope=scope)
        return [np.array(scope.find_var(n).get_tensor()) for n in "ab"]

    for found, expected in zip(moved(fluid.CUDAPlace(0)), moved(fluid.CPUPlace())):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_two_programs_that_share_parameters_do_not_move_them_in_turns():
    exe, scope, compiled = fluid.Executor(fluid.CUDAPlace(0)), fluid.Scope(), []
    feed = {"x": np.ones((2, 5), np.float32)}
    programs = []
    for names in ("abc", "adc", "abc"):
        with fluid.unique_name.guard(names):
            main, startup, loss = network(names)
            with fluid.program_guard(main, startup):
                fluid.optimizer.SGD(0.1).minimize(loss)
        exe.run(startup, scope=scope)
        programs.append(main)
    for _ in range(3):
        for main in programs:
            exe.run(main, feed, scope=scope)
        compiled.append([form.compiled for form in exe.forms()[-3:]])
    assert [id(form) for form in compiled[1]] == [id(form) for form in compiled[2]]


def test_gradients_in_two_buckets_are_two_kernels_and_nothing_is_moved_twice():
    with fluid.unique_name.guard():
        main, startup, loss = network("abc")
        with fluid.program_guard(main, startup):
            fluid.optimizer.SGD(0.1).minimize(loss)
    scope, backend = fluid.Scope(), CupyBackend(0)
    fluid.Executor(fluid.CUDAPlace(0)).run(startup, scope=scope)
    block = main.global_block()
    metas = {v.name: v.meta for v in block.vars.values()}
    updates = [op for op in block.ops if op.type == "sgd"]
    buckets = [["c.bias", "c", "b.bias"], ["b", "a.bias", "a"]]  # in the order of the backward pass
    grads = {}
    for params in buckets:
        names = [grad_name(n) for n in params]
        offsets, nbytes = aligned_offsets([metas[n] for n in names], backend.alignment)
        memory = backend.bytes(nbytes)
        grads.update((n, carve(memory, at, metas[n])) for n, at in zip(names, offsets))

    def laid(placed):
        flat = lay_flat(updates, metas, {}, scope, backend, placed)
        return [run.names("Param") for run in flat.runs], list(flat.offsets)

    assert laid(grads.get) == (buckets, [])
    for params in buckets:
        assert adjacent([scope.find_var(n).value for n in params], backend)
    before = scope.layout
    assert laid(grads.get) == (buckets, [])
    assert laid(lambda name: None) == ([], [])  # all six together: they lie in two pieces
    assert scope.layout == before


def test_sparse_and_dense_gradients_of_one_program():
    def losses(place):
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        main.random_seed = startup.random_seed = 2
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.layers.reshape(fluid.embedding(ids, [9, 4], is_sparse=True), [-1, 4])
            loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(rows, 6), 2))
            fluid.optimizer.Adagrad(0.1).minimize(loss)
        exe = fluid.Executor(place)
        exe.run(startup, scope=scope)
        feed = {"ids": np.array([[3], [8], [3]])}
        return [exe.run(main, feed, [loss], scope=scope)[0][0] for _ in range(4)]

    np.testing.assert_allclose(losses(fluid.CUDAPlace(0)), losses(fluid.CPUPlace()), rtol=1e-5)
