"""CompiledProgram: a Program on all devices of this process, and on all trainers of its job."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import FleetTypeError, PlanAssertionError, PlanError
from hpcdist.base.nearest import did_you_mean
from hpcdist.executor import control
from hpcdist.executor.backend import CPUPlace, CUDAPlace, Place
from hpcdist.executor.divided_feed import divided, joined, only_feed, samples, used
from hpcdist.executor.reading import parts_read, sources, with_read
from hpcdist.executor.scope import Scope
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import as_names
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.transpiler.data_parallel import RUNNING, DataParallel, data_parallel
from hpcdist.transpiler.group import group_of
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm

logger = logging.getLogger(__name__)

Scale = BuildStrategy.GradientScaleStrategy


@dataclass(frozen=True)
class DividedRun:
    """A Program with its feed and fetches on ``devices`` devices; None: it is not data parallel.

    ``fetch_names`` has the name on every device, one device after the other.
    """

    program: Program
    feed: Mapping[str, Any]
    fetch_names: Sequence[str]
    devices: int | None = None

    def values(self, fetched: list[Any], return_merged: bool) -> list[Any]:
        """Return the fetched values: of each name the devices' values joined, or a list of them."""
        if self.devices is None:
            return fetched
        by_name = [fetched[i : i + self.devices] for i in range(0, len(fetched), self.devices)]
        if not return_merged:
            return by_name
        return [v[0] if self.devices == 1 else joined(v) for v in by_name]


class CompiledProgram:
    """A Program with settings for running it; ``Executor.run`` takes it in place of the Program.

    After `with_data_parallel` every batch is divided among this process's devices, and, if the
    Program was transpiled in nccl2 mode, gradients are summed over all trainers as well.

    Examples:
        >>> compiled = fluid.CompiledProgram(fluid.default_main_program())
        >>> type(compiled).__name__
        'CompiledProgram'
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None):
        if not isinstance(program_or_graph, Program):
            raise FleetTypeError(
                f"CompiledProgram: expected a Program, got {type(program_or_graph).__name__}"
            )
        self.program = program_or_graph
        self._build = build_strategy or BuildStrategy()
        self._execution = ExecutionStrategy()
        self._parallel = False
        self._places: Sequence[Place] | None = None
        self._by_devices: dict[tuple[int, int], DataParallel] = {}
        # The Program of runs that divide nothing, and what that was decided by.
        self._undivided: tuple[object, Program] | None = None
        self._warned = False  # that ranks take the place of devices

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: object = None,
    ) -> CompiledProgram:
        """Run on several devices: ``places``, or CPU_NUM of a CPU (1), or one GPU. Returns itself.

        ``loss_name`` is needed if the Program trains; as in Fluid, any variable's name will do: the
        Program knows what it minimizes. Programs of one scope share their values anyway, so
        ``share_vars_from`` is only checked.
        """
        if self._parallel:
            raise PlanAssertionError("with_data_parallel: this program is data parallel already")
        if share_vars_from is not None and not isinstance(share_vars_from, CompiledProgram):
            raise FleetTypeError(
                f"share_vars_from: expected a CompiledProgram, got {type(share_vars_from).__name__}"
            )
        if share_vars_from is not None and not share_vars_from._parallel:
            raise PlanError("share_vars_from: that program is not data parallel")
        self._build = build_strategy or self._build
        self._execution = exec_strategy or self._execution
        self._places = None if places is None else _places(places)
        self._check_loss(None if loss_name is None else as_names(loss_name)[0])
        self._parallel = True
        return self

    def _check_loss(self, loss: str | None) -> None:
        if not self._has_backward():
            return
        if not loss:
            raise PlanAssertionError(
                "with_data_parallel: this program trains, so loss_name must be given"
            )
        variables = self.program.global_block().vars
        if loss not in variables:
            hint = did_you_mean(loss, variables, most=3)
            raise PlanError(f"loss_name: the program has no variable {loss!r}{hint}")

    @property
    def _program(self) -> Program:
        """The Program, under the name by which scripts of Fluid take it."""
        return self.program

    def _has_backward(self) -> bool:
        return any(op.role & OpRole.BACKWARD for op in self.program.global_block().ops)

    def begin(self, place: Place, scope: Scope) -> None:
        """Give all trainers the values of trainer 0, if it has them. Collective."""
        job = control.installed()
        self._check_trainers()
        if job is None or group_of(self.program) is None or not self._has_backward():
            return
        variables = [scope.find_var(parameter.name) for parameter in self.program.all_parameters()]
        if all(var is not None and var.value is not None for var in variables):
            job.begin(self._on(_device_count(place)).program, scope)

    # -- running -----------------------------------------------------------------------------
    def divided(
        self, place: Place, feed: Any, fetch_list: Sequence[str], scope: Scope, merged: bool
    ) -> DividedRun:
        """Return the Program for an executor at ``place``, with the feed divided among devices.

        Started readers that the Program reads from give each device a batch. ``merged``: whether
        fetched values are wanted for all devices together.
        """
        devices = self._devices(place)
        if not self._parallel or self._is_shared_by_ranks():
            self._check_read_by_one(devices)
            self._check_scale_by_one(devices)
            self._check_fetched_of_one(devices, merged)
            self._say_ranks_are_devices(devices)
            fed = with_read(self.program, only_feed(feed))
            return DividedRun(self.program, fed, fetch_list, 1 if self._parallel else None)
        if devices == 1:
            feed = with_read(self.program, only_feed(feed))
            if not sources(self.program):
                self._undivided = self._facts(place), self._on(1).program
        elif sources(self.program):
            feed = parts_read(self.program, feed, devices)
            self._check_complete(len(feed), devices)
            devices = len(feed)
        elif feed and not self._has_backward():  # the last batches of an evaluation
            if isinstance(feed, Mapping):
                devices = used(min(map(samples, feed.values())), devices)
            else:
                devices = min(len(feed), devices)
        with control.turn():
            parallel = self._on(devices)
            for first, copies in parallel.copied.items():
                _begin_alike(scope, first, copies)
        fed = divided(feed, parallel)
        names = [name for fetched in fetch_list for name in parallel.names(fetched)]
        return DividedRun(parallel.program, fed, names, devices)

    def undivided(self, place: Place) -> Program | None:
        """Return the Program that takes this one's feeds and fetches as they are, on one device.

        None where that is not so, or nothing is known of it: then `divided` decides.
        """
        known = self._undivided
        return known[1] if known is not None and known[0] == self._facts(place) else None

    def _facts(self, place: Place) -> object:
        """Return the facts that decide how a run is divided; all of them may change."""
        program = self.program
        of_program = program.version, program.distribution, Variable.sources_set
        return type(place), self._devices(place), control.installed(), of_program

    def _devices(self, place: Place) -> int:
        return len(self._places) if self._places else _device_count(place)

    def _check_read_by_one(self, devices: int) -> None:
        """Refuse several devices where ranks share a batch: one process reads a batch for each."""
        if self._parallel and devices > 1 and sources(self.program):
            raise PlanError(
                f"the program reads from {sources(self.program)[0].name}: one process would read a "
                f"batch for each of its {devices} devices, ranks that share batches read one: set "
                "CPU_NUM=1 (or places to one), and start more ranks"
            )

    def _check_scale_by_one(self, devices: int) -> None:
        """Refuse other scales of the gradient where ranks share a batch: they take its mean."""
        scale = self._build.gradient_scale_strategy
        if not self._parallel or scale is Scale.CoeffNumDevice or not self._has_backward():
            return
        if scale is Scale.Customized or devices > 1:
            raise PlanError(
                f"gradient_scale_strategy is {scale.name} for {devices} devices: ranks that share "
                "batches take the gradient of the mean; leave CoeffNumDevice, or transpile the "
                "program in nccl2 mode"
            )

    def _check_fetched_of_one(self, devices: int, merged: bool) -> None:
        """Refuse the values of several devices where ranks share a batch: they have none apart."""
        if self._parallel and devices > 1 and not merged:
            raise PlanError(
                f"return_merged=False asks for the values of each of {devices} devices: ranks that "
                "share batches have those of the complete batch only: leave return_merged=True, or "
                "set CPU_NUM=1 (or places to one)"
            )

    def _say_ranks_are_devices(self, devices: int) -> None:
        if not self._parallel or devices == 1 or self._warned:
            return
        self._warned = True
        logger.warning(
            "%d devices requested, but ranks that share batches count as one device: fetched "
            "values, sums and batch_norm cover the whole batch instead of each device's part "
            "(with CPU_NUM=1, or one place, one process gives the same)",
            devices,
        )

    def _check_complete(self, batches: int, devices: int) -> None:
        if batches < devices and self._has_backward():
            raise PlanError(
                f"{batches} batches are left for {devices} devices: a program that trains needs "
                "one for each, make the loader with drop_last=True"
            )

    def _is_shared_by_ranks(self) -> bool:
        """Return whether this trains in a plain script: the job divides its batches among ranks."""
        if control.installed() is None or group_of(self.program) is not None:
            return False
        self._check_trainers()
        return self.program.trains

    def _on(self, devices: int) -> DataParallel:
        key = (devices, self.program.version)
        if key not in self._by_devices:
            self._check_trainers()
            scaling = self._build.gradient_scale_strategy
            self._by_devices[key] = self._rewritten(devices, scaling)
        return self._by_devices[key]

    def _rewritten(self, devices: int, scaling: Scale) -> DataParallel:
        group = group_of(self.program)
        if group is not None and group.mode != "nccl2":
            if devices > 1:
                raise PlanError(
                    f"a program of {group.mode} mode runs on one device, got {devices}: "
                    "set CPU_NUM=1, or transpile it in nccl2 mode"
                )
            return DataParallel(self._synchronized(self.program), 1, {}, {})
        factor = 1.0 if scaling is Scale.One else None
        if devices > 1 and self._build.sync_batch_norm:
            raise PlanError(
                f"sync_batch_norm sums moments over ranks, got {devices} devices of one process: "
                f"set CPU_NUM=1 and start more ranks"
            )
        program = self._synchronized(self.program)
        parallel = data_parallel(program, devices, factor, scaling is Scale.Customized)
        if group is not None:
            fused = self._build.fuse_all_reduce_ops
            running = replace(group, mode=RUNNING, devices=devices, fused=fused)
            parallel.program.distribution = running
        return parallel

    def _synchronized(self, program: Program) -> Program:
        """Return a Program whose batch_norm takes the moments of all trainers, if that is asked."""
        if not self._build.sync_batch_norm or group_of(program) is None:
            return program
        new = program.clone()
        synchronize_batch_norm(new.global_block())
        return new

    def _check_trainers(self) -> None:
        group = group_of(self.program)
        num_trainers, trainer_id = self._build.num_trainers, self._build.trainer_id
        if num_trainers > 1 and group is None:
            raise PlanError(
                f"num_trainers is {num_trainers}, but the program is not transpiled for so many: "
                "set DistributeTranspilerConfig.mode = 'nccl2' and call transpile() first"
            )
        if group is None or group.mode == RUNNING:
            return
        trainers = len(group.endpoints)
        if num_trainers > 1 and num_trainers != trainers:
            raise PlanAssertionError(
                f"num_trainers: expected {trainers}, as many as transpile() was given endpoints, "
                f"got {num_trainers}"
            )
        if num_trainers > 1 and trainer_id != group.trainer_id:
            raise PlanError(
                f"trainer_id: transpile() was told {group.trainer_id}, got {trainer_id}"
            )


def _places(value: Any) -> list[Place]:
    places = list(value) if isinstance(value, (list, tuple)) else [value]
    for place in places:
        if not isinstance(place, (CPUPlace, CUDAPlace)):
            raise FleetTypeError(f"places: expected CPUPlace() or CUDAPlace(i), got {place!r}")
    if sum(isinstance(place, CUDAPlace) for place in places) > 1:
        raise PlanError(
            f"places: a process computes on one GPU, got {len(places)} places: start one rank "
            "for each GPU, mpirun -n N python -m hpcdist"
        )
    if not places:
        raise PlanError("places: expected at least one")
    return places


def _device_count(place: Place) -> int:
    return settings.CPU_NUM.read() if isinstance(place, CPUPlace) else 1


def _begin_alike(scope: Scope, first: str, copies: Sequence[str]) -> None:
    """Initialize a device's own state as on the first device."""
    source = scope.find_var(first)
    for name in copies:
        copy = scope.find_var(name) or scope.var(name)
        if copy.value is None and source is not None and source.value is not None:
            copy.hold(source.value.copy())
