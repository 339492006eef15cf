"""What servers move and trainers have held once: it is read as in one process, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.world import mpi_world
from hpcdist.errors import FeedError, GraphError
from tests.mpi.plain_models import batch, embedded
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

COUNTER, TABLE = "@LR_DECAY_COUNTER@", "table"
Read = dict[tuple[str, str], Any]  # by variable and way; an error's text where it was refused


class Reading:
    """A script that trains, and reads all that its Program keeps in every way, now and then."""

    def __init__(
        self, optimizer: Callable[[Any], Any], by_hand: bool, fetches: bool = True, **asked: Any
    ) -> None:
        self.optimizer, self.by_hand, self.asked = optimizer, by_hand, asked
        self.fetched = (COUNTER, TABLE) if fetches else ()

    def __call__(self, role: Any = None) -> list[Read]:
        self.main, startup = fluid.Program(), fluid.Program()
        self.main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(self.main, startup):
            loss = embedded()[0]
            self.test = self.main.clone(for_test=True)
            self.optimizer(layers.noam_decay(16, 4)).minimize(loss)
        program = self.main
        if role is not None and self.by_hand:
            self.exe, program = begin(role, 1, 1, self.main, startup, **self.asked)
        else:
            self.exe = fluid.Executor()
            self.exe.run(startup)
        feed = {n: v for n, v in batch(0, 6).items() if self.main.global_block().has_var(n)}
        self.exe.run(self.test, feed=feed)  # it looks rows up, and leaves what can be read
        found = [self.read()]
        for step in range(3):
            feed = {n: v for n, v in batch(step, 6).items() if self.main.global_block().has_var(n)}
            self.exe.run(program, feed=feed, fetch_list=[loss])
            found.append(self.read())
        for name in self.fetched:
            (value,) = self.exe.run(program, feed=feed, fetch_list=[name])
            found[-1][name, "fetched"] = value
        return found

    def kept(self) -> list[Any]:
        return [var for var in self.main.list_vars() if var.persistable]

    def read(self) -> Read:
        found = {}
        for var in self.kept():
            variable = fluid.global_scope().var(var.name)
            ways = {
                "array": lambda variable=variable: np.array(variable.get_tensor()),
                "element": lambda variable=variable: variable.get_tensor()._get_float_element(0),
                "tensor": lambda variable=variable: np.array(variable.as_tensor()),
                "program": lambda var=var: self.twice(var),
            }
            found |= {(var.name, way): answer(ask) for way, ask in ways.items()}
        return found

    def twice(self, var: Any) -> Any:
        """Run a Program that reads a kept value."""
        program = fluid.Program()
        program.global_block().create_var(
            name=var.name, shape=var.shape, dtype=var.dtype, persistable=True
        )
        with fluid.unique_name.guard("other"), fluid.program_guard(program):
            double = layers.scale(program.global_block().var(var.name), 2.0)
        return self.exe.run(program, fetch_list=[double])[0]


def answer(ask: Callable[[], Any]) -> Any:
    try:
        return np.array(ask())
    except (FeedError, GraphError) as error:
        return str(error)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "Momentum"])
def test_no_way_to_read_gives_an_old_value(kind, by_hand):
    more = {"momentum": 0.9} if kind == "Momentum" else {}
    optimizer = getattr(fluid.optimizer, kind)
    script = Reading(lambda rate: optimizer(rate, **more), by_hand)
    with alone():
        wanted = script()
    (got,) = values(run_job(1, 1, script))
    read = set()
    for step, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        for asked, value in theirs.items():
            if not isinstance(ours[asked], str) and not isinstance(value, str):
                np.testing.assert_allclose(ours[asked], value, rtol=1e-4, err_msg=f"{step} {asked}")
                read.add(asked)
    ways = ("array", "element", "tensor", "program", "fetched")
    assert {(name, way) for name in (COUNTER, TABLE) for way in ways} <= read


def test_two_trainers_fetch_a_table_as_of_the_step():
    def script(role: Any = None) -> list[Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = embedded()[0]
            fluid.optimizer.Adam(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        found = []
        for step in range(3):
            feed = {n: v for n, v in batch(step, 6).items() if main.global_block().has_var(n)}
            found.append(exe.run(main, feed=feed, fetch_list=[TABLE, loss]))
        return found

    with alone():
        wanted = script()
    for got in values(run_job(2, 1, script)):
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-6)


def test_in_asynchronous_modes_they_are_refused_after_the_first_step():
    script = Reading(fluid.optimizer.Adam, by_hand=True, fetches=False, sync_mode=False)
    (got,) = values(run_job(1, 1, script))
    for found in got[1:]:
        refused = [(asked, value) for asked, value in found.items() if asked[0] in (COUNTER, TABLE)]
        assert refused and all(isinstance(value, str) for _, value in refused), refused


def test_what_is_loaded_on_a_trainer_is_not_read_there_either(tmp_path):
    shared = mpi_world().allgather_bytes(str(tmp_path).encode())[0].decode()
    script = Reading(lambda rate: fluid.optimizer.Momentum(rate, 0.9), by_hand=False)

    def loads(role: Any = None) -> list[Read]:
        found = script(role)
        folder = str(tmp_path / "alone") if role is None else f"{shared}/job"
        fluid.io.save_persistables(script.exe, folder, script.main)
        feed = {n: v for n, v in batch(0, 6).items() if script.main.global_block().has_var(n)}
        script.exe.run(script.main, feed=feed)
        fluid.io.load_persistables(script.exe, folder, script.main)
        found = [script.read()]
        script.exe.run(script.main, feed=feed)
        return [*found, script.read()]

    with alone():
        wanted = loads()
    (got,) = values(run_job(1, 1, loads))
    for ours, theirs in zip(got, wanted, strict=True):
        for asked, value in theirs.items():
            if not isinstance(ours[asked], str):
                np.testing.assert_allclose(ours[asked], value, rtol=1e-4, err_msg=str(asked))


def test_a_program_that_sets_a_counter_is_read_before_the_next_step():
    def script(role: Any = None) -> Any:
        reading = Reading(fluid.optimizer.Adam, by_hand=False)
        reading(role)
        program = fluid.Program()
        block = program.global_block()
        block.create_var(name=COUNTER, shape=[1], dtype="int64", persistable=True)
        with fluid.program_guard(program):
            layers.fill_constant([1], "int64", 40, out=block.var(COUNTER))
        reading.exe.run(program)
        return np.array(fluid.global_scope().find_var(COUNTER).get_tensor()).item()

    assert values(run_job(1, 1, script)) == [40]
