"""Fleet: an object with this process's role and the programs of that role."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.executor import control
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.executor import Executor
from hpcdist.fluid import io
from hpcdist.fluid.fleet import metrics
from hpcdist.fluid.fleet.collective_settings import CollectiveSettings, plan_collective
from hpcdist.fluid.fleet.job_checks import (
    check_against_job,
    check_saving,
    checked_strategy,
    collective_settings,
    endpoints_of,
)
from hpcdist.fluid.fleet.optimizer import DistributedOptimizer
from hpcdist.fluid.fleet.role_maker import PaddleCloudRoleMaker, Role, RoleMakerBase
from hpcdist.fluid.fleet.strategy import DistributedStrategy
from hpcdist.fluid.fleet.strategy_v2 import DistributedStrategy as DistributedStrategyV2
from hpcdist.fluid.optimizer import AnyOptimizer, Optimizer, OptimizerWrapper
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.variable import Variable
from hpcdist.transpiler import (
    DistributedMode,
    DistributeTranspiler,
    GeoSgdTranspiler,
)

logger = logging.getLogger("hpcdist.fleet")


@dataclass(frozen=True)
class Planned:
    """What `minimize` leaves: the programs of this process's role, and what they came from."""

    origin: Program
    main: Program | CompiledProgram
    startup: Program
    strategy: DistributedStrategy | None = None  # of training with servers


class Fleet:
    """Every rank makes the same calls: `init`, build, `distributed_optimizer(...).minimize`.

    Then servers call `init_server` and `run_server`, which returns when all workers have stopped;
    workers call `init_worker`, run ``startup_program`` and ``main_program``, and `stop_worker`.
    """

    metrics = metrics

    def __init__(self) -> None:
        self._chosen_role_maker: RoleMakerBase | None = None
        self._collective = False  # workers only, who sum gradients
        self._strategy: Any = None
        self._programs: Planned | None = None
        self._executor = Executor(CPUPlace())

    def init(
        self,
        role_maker: RoleMakerBase | None = None,
        is_collective: bool = False,
        strategy: Any = None,
    ) -> None:
        """Say who this process is; a second call starts over.

        ``is_collective``: there are workers only. ``strategy`` is for `distributed_optimizer`s that
        are given none.

        Without a role maker, the environment says it. In a job, what the role maker says must be
        what the launcher decided, except for the servers' names: they are names only.
        """
        if role_maker is None:
            role_maker = PaddleCloudRoleMaker(is_collective)
        if not isinstance(role_maker, RoleMakerBase):
            raise FleetTypeError(
                f"role_maker: expected a PaddleCloudRoleMaker or another role maker, "
                f"got {role_maker!r}"
            )
        role_maker.generate_role()
        check_against_job(role_maker)
        self._chosen_role_maker = role_maker
        self._collective = is_collective or role_maker.is_collective
        self._strategy = strategy
        self._programs = None
        self._executor = Executor(CPUPlace())

    # -- roles -----------------------------------------------------------------------------
    @property
    def _role_maker(self) -> RoleMakerBase:
        if self._chosen_role_maker is None:
            raise FleetError("the role of this process is unknown: call fleet.init() first")
        return self._chosen_role_maker

    def is_first_worker(self) -> bool:
        """Return whether this process is worker 0."""
        return self._role_maker.is_first_worker()

    def is_worker(self) -> bool:
        """Return whether this process trains."""
        return self._role_maker.is_worker()

    def is_server(self) -> bool:
        """Return whether this process serves."""
        return self._role_maker.is_server()

    def worker_index(self) -> int:
        """Return which worker this process is; on a server, which server."""
        return self._role_maker.worker_index()

    def worker_num(self) -> int:
        """Return how many workers there are."""
        return self._role_maker.worker_num()

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return the workers' names as a list, or separated by commas."""
        names = self._role_maker.get_trainer_endpoints()
        return ",".join(names) if to_string else names

    def server_index(self) -> int:
        """Return which server this process is; on a worker, which worker."""
        return self._role_maker.server_index()

    def server_num(self) -> int:
        """Return how many servers there are."""
        return len(self._role_maker.get_pserver_endpoints())

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return the servers' names as a list, or separated by commas."""
        names = self._role_maker.get_pserver_endpoints()
        return ",".join(names) if to_string else names

    def split_files(self, files: list[str]) -> list[str]:
        """Return this worker's part: consecutive files, the first workers getting one more."""
        if not isinstance(files, list):
            raise FleetTypeError(f"files: expected a list of files, got {files!r}")
        index, workers = self.worker_index(), self.worker_num()
        per_worker, over = divmod(len(files), workers)
        begin = index * per_worker + min(index, over)
        return files[begin : begin + per_worker + (index < over)]

    # -- what is run -------------------------------------------------------------------------
    @property
    def _planned(self) -> Planned:
        if self._programs is None:
            raise FleetError(
                "fleet has no programs yet: call "
                "fleet.distributed_optimizer(optimizer, strategy).minimize(loss) first"
            )
        return self._programs

    @property
    def main_program(self) -> Program | CompiledProgram:
        """The main program of this process's role; without servers a CompiledProgram."""
        return self._planned.main

    @property
    def _origin_program(self) -> Program:
        """The Program that the loss is in: scripts of Fluid's save it, and clone it for a test."""
        return self._planned.origin

    @property
    def startup_program(self) -> Program:
        """The startup program of this process's role."""
        return self._planned.startup

    def distributed_optimizer(
        self, optimizer: AnyOptimizer, strategy: Any = None
    ) -> DistributedOptimizer:
        """Return an optimizer whose `minimize` also makes the programs of this process's role.

        ``strategy`` comes from StrategyFactory (None: synchronous), or is a
        DistributeTranspilerConfig, or fleet 2.0's DistributedStrategy. After
        ``init(is_collective=True)`` it is that one, or the DistributedStrategy of fleet.collective.
        """
        if not isinstance(optimizer, (Optimizer, OptimizerWrapper)):
            raise FleetError(f"optimizer: expected an optimizer, got {optimizer!r}")
        _ = self._role_maker
        strategy = self._strategy if strategy is None else strategy
        if self._collective:
            settings = collective_settings(strategy)
            return DistributedOptimizer(
                settings.exchanged(optimizer), lambda loss: self._plan_collective(loss, settings)
            )
        chosen = checked_strategy(strategy)
        if isinstance(strategy, DistributedStrategyV2):
            optimizer = strategy.wrapped(optimizer)
        return DistributedOptimizer(optimizer, lambda loss: self._plan(program_of(loss), chosen))

    def _plan_collective(self, loss: Variable, settings: CollectiveSettings) -> None:
        origin = program_of(loss)
        startup = origin.startup
        assert startup is not None, "minimize sets it"
        untouched = origin.clone()
        main = plan_collective(loss, startup, settings, self._role_maker)
        self._programs = Planned(untouched, main, startup)

    def _plan(self, origin: Program, strategy: DistributedStrategy) -> None:
        """Make the programs of this role; with no server at all, those that were built."""
        startup = origin.startup
        assert startup is not None, "minimize sets it"
        endpoints = endpoints_of(self._role_maker)
        if not endpoints:
            logger.info("no servers: this process trains alone")
            self._programs = Planned(origin, origin, startup, strategy)
            return
        config = strategy.transpiler_config()
        geo = strategy.mode == DistributedMode.GEO
        transpiler = GeoSgdTranspiler(config) if geo else DistributeTranspiler(config)
        transpiler._set_server_config(strategy.get_server_runtime_config())
        main: Program | None
        first: Program | None
        serves = self.is_server()
        location = {"current_endpoint": endpoints[self.server_index()]} if serves else {}
        transpiler.transpile(
            0 if serves else self.worker_index(),
            program=origin,
            pservers=",".join(endpoints),
            trainers=self.worker_num(),
            sync_mode=config.sync_mode,
            startup_program=startup,
            **location,
        )
        if serves:
            main, first = transpiler.get_pserver_programs(endpoints[self.server_index()])
        else:
            main, first = origin.on_trainer, startup.on_trainer
        assert main is not None and first is not None, "transpile leaves them on a trainer"
        self._programs = Planned(origin, main, first, strategy)

    # -- servers -----------------------------------------------------------------------------
    def init_server(self, model_dir: str | None = None) -> None:
        """Initialize this server's parameters, from a directory of saved ones if it is given."""
        self._require(Role.SERVER, "init_server")
        if model_dir and not os.path.isdir(model_dir):
            raise FleetError(f"init_server: there is no directory {model_dir!r}")
        self._executor.run(self.startup_program)
        if model_dir:
            io.load_persistables(self._executor, model_dir, self.main_program)

    def run_server(self) -> None:
        """Serve; return when the last worker has stopped."""
        self._require(Role.SERVER, "run_server")
        self._executor.run(self.main_program)

    # -- workers -----------------------------------------------------------------------------
    def init_worker(self) -> None:
        """Get ready to train; call it before the startup program runs. Not needed without servers.

        Where a communicator runs, its settings become this process's FLAGS_communicator_*.
        """
        self._require(Role.WORKER, "init_worker")
        strategy = self._planned.strategy
        if strategy is None:
            return
        flags = strategy.get_trainer_runtime_config().get_communicator_flags()
        if strategy.mode != DistributedMode.SYNC:
            for name, text in flags.items():
                flag = settings.flag(f"FLAGS_{name}")
                flag.write(flag.parse(text))

    def barrier_worker(self) -> None:
        """Wait until all workers have come here. Collective among workers."""
        self._require(Role.WORKER, "barrier_worker")
        self._role_maker.barrier_worker()

    def all_reduce_worker(self, input: Any, output: Any) -> None:
        """Write the sum of all workers' ``input`` into ``output``. Collective among workers."""
        self._require(Role.WORKER, "all_reduce_worker")
        self._role_maker.all_reduce_worker(input, output)

    def stop_worker(self) -> None:
        """Leave the servers: they continue without this worker, and end after the last one."""
        self._require(Role.WORKER, "stop_worker")
        self._executor.close()
        if (job := control.installed()) is not None:
            job.close()

    # -- saving ------------------------------------------------------------------------------
    def save_persistables(
        self,
        executor: Executor,
        dirname: str,
        main_program: Program | None = None,
        filename: str | None = None,
        **how: Any,
    ) -> None:
        """Save all persistable variables of a distributed program (default: this role's).

        ``filename`` and what else is said of files goes to `fluid.io.save_persistables`.
        """
        program = self.main_program if main_program is None else main_program
        if isinstance(program, CompiledProgram):
            program = program.program
        check_saving("save_persistables", executor, program)
        if not program._is_distributed and self.server_num():
            raise FleetError(
                "save_persistables: main_program is a local program: pass fleet.main_program, "
                "or save it with fluid.io.save_persistables"
            )
        io.save_persistables(executor, dirname, program, filename, **how)

    def save_inference_model(
        self,
        executor: Executor,
        dirname: str,
        feeded_var_names: Sequence[str],
        target_vars: Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> None:
        """Save what computes ``target_vars``, cut out of the program that was built."""
        program = self._planned.origin if main_program is None else main_program
        check_saving("save_inference_model", executor, program)
        io.save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            export_for_deployment=export_for_deployment,
        )

    def _require(self, role: Role, call: str) -> None:
        if self.is_server() != (role == Role.SERVER):
            name = role.name.lower()
            raise FleetError(
                f"{call} is for {name}s, but this process is not a {name} "
                f"({self._role_maker.to_string()}): call it under fleet.is_{name}()"
            )
