"""Fluid's collective transpilers: a trainer's two programs rewritten in place, without servers."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import PlanError
from hpcdist.graph.program import (
    Program,
    ProgramCache,
    default_main_program,
    default_startup_program,
)
from hpcdist.transpiler.grad_allreduce import (
    SNAPSHOT,
    all_devices_startup,
    allreduce_gradients,
    average_parameters,
    collective_startup,
    local_sgd_startup,
    nccl2_startup,
)
from hpcdist.transpiler.group import Group, collective_group
from hpcdist.transpiler.made_of_gradients import refuse_losses_of_gradients

# What a program was before it was transpiled in place, and the version that this made of it.
_origins: ProgramCache[tuple[Program, int]] = ProgramCache(lasting=True)


class Collective:
    """What Fluid's collective transpilers have in common: they change the given programs."""

    mode = ""

    def __init__(self, nrings: int) -> None:
        self.nrings = nrings
        self.startup_program: Program | None = None
        self.main_program: Program | None = None

    def transpile(
        self,
        startup_program: Program | None,
        main_program: Program | None,
        rank: int,
        endpoints: str | Sequence[str],
        current_endpoint: str,
        wait_port: bool = True,
    ) -> None:
        """Rewrite both programs (None: the default ones) in place; ``wait_port`` is not needed."""
        group = collective_group(self.mode, rank, endpoints, current_endpoint, self.nrings)
        startup = default_startup_program() if startup_program is None else startup_program
        main = default_main_program() if main_program is None else main_program
        rewrite_in_place(startup, main, group)
        self.startup_program, self.main_program = startup, main


class GradAllReduce(Collective):
    """Gradients are averaged over the trainers, and each of them updates."""

    mode = "grad_allreduce"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)


class LocalSGD(Collective):
    """Each trainer updates, then parameters are averaged."""

    mode = "local_sgd"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)
        self.snapshot_key = SNAPSHOT

    def snapshot_name(self, param_name: str) -> str:
        """Return the name under which the parameter that all had is kept."""
        return param_name + SNAPSHOT


class SingleProcessMultiThread(Collective):
    """Gradients are averaged over the devices of one process."""

    mode = "single_process_multi_thread"

    def __init__(self) -> None:
        super().__init__(1)


def rewritten(startup: Program, main: Program, group: Group) -> tuple[Program, Program]:
    """Return the startup and the main program of a trainer of this group."""
    if group.mode == "nccl2":
        new_startup, new = nccl2_startup(startup, group), main.clone()
    elif group.mode == "local_sgd":
        new_startup = local_sgd_startup(startup, main, group)
        new = average_parameters(main, group)
    elif group.mode == "single_process_multi_thread":
        new_startup, new = all_devices_startup(startup), allreduce_gradients(main, group)
    else:
        new_startup = collective_startup(startup, main, group)
        new = allreduce_gradients(main, group)
    new_startup.distribution = new.distribution = group
    new_startup.initialize_as(startup)
    new_startup.main = new
    return new_startup, new


def rewrite_in_place(startup: Program, main: Program, group: Group) -> None:
    """Make of both programs what `rewritten` returns; programs as they came out start over."""
    first, second = _origin_of(startup), _origin_of(main)
    if group.mode != "local_sgd":
        refuse_losses_of_gradients(second)
    new_startup, new = rewritten(first, second, group)
    for program, origin, replacement in ((startup, first, new_startup), (main, second, new)):
        program.become(replacement)
        _origins.put(program, (origin, program.version))
    startup.main = main


def _origin_of(program: Program) -> Program:
    """Return a program as it was before it was transpiled; a copy of it if it was not."""
    before = _origins.get(program)
    if before is None:
        return program.clone()
    origin, version = before
    if version != program.version:
        raise PlanError(
            "transpile: this program has been transpiled and then changed: build it again, or "
            "transpile it last"
        )
    return origin
