"""ParallelExecutor: Fluid's older way to run a Program on many devices and trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import FleetTypeError
from hpcdist.executor.backend import CPUPlace, CUDAPlace, selected_gpus
from hpcdist.executor.compiled_program import CompiledProgram, _device_count
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.graph.program import Program, default_main_program


class ParallelExecutor:
    """An Executor with a CompiledProgram; every trainer makes one, and runs it in step.

    Trainers begin with the values of trainer 0: they are sent here, or, if the startup program has
    not run yet, when the first step is run.
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise FleetTypeError(
                "share_vars_from: expected a ParallelExecutor, got "
                f"{type(share_vars_from).__name__}"
            )
        build_strategy = build_strategy or BuildStrategy()
        if num_trainers != 1:
            build_strategy.num_trainers = num_trainers
        if trainer_id != 0:
            build_strategy.trainer_id = trainer_id
        self._scope = scope if scope is not None else global_scope()
        self._compiled: CompiledProgram = CompiledProgram(
            main_program if main_program is not None else default_main_program()
        ).with_data_parallel(
            loss_name,
            build_strategy,
            exec_strategy,
            share_vars_from._compiled if share_vars_from is not None else None,
        )
        self._executor = Executor(CUDAPlace((*selected_gpus(), 0)[0]) if use_cuda else CPUPlace())
        self._compiled.begin(self._executor.place, self._scope)

    @property
    def device_count(self) -> int:
        """How many devices of this process a batch is divided among."""
        return _device_count(self._executor.place)

    def run(
        self,
        fetch_list: Sequence[Any],
        feed: object = None,
        feed_dict: object = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run a step; ``feed`` is a dict, divided among the devices, or a list of one dict each.

        What is fetched stands one device after the other. ``feed_dict`` is the older name.
        """
        feed = feed if feed is not None else feed_dict
        return self._executor.run(
            self._compiled, feed, fetch_list, scope=self._scope, return_numpy=return_numpy
        )

    def drop_local_exe_scopes(self) -> None:
        """Free nothing: temporaries are one buffer, used again in every step."""
