"""Fleet: an object with this process's role and the programs of that role."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base.checks import Refused
from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.executor import control
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.executor import Executor
from hpcdist.fluid import io
from hpcdist.fluid.checkpoints import shrink_tables
from hpcdist.fluid.fleet import metrics
from hpcdist.fluid.fleet.collective_settings import CollectiveSettings, plan_collective
from hpcdist.fluid.fleet.first_values import begin_as_first
from hpcdist.fluid.fleet.fleet_roles import FleetRoles
from hpcdist.fluid.fleet.job_checks import (
    BATCH,
    CHOSEN,
    DELTA,
    WHOLE,
    check_against_job,
    check_mode,
    check_saving,
    checked_strategy,
    collective_settings,
    endpoints_of,
)
from hpcdist.fluid.fleet.optimizer import DistributedOptimizer
from hpcdist.fluid.fleet.role_maker import PaddleCloudRoleMaker, Role, RoleMakerBase
from hpcdist.fluid.fleet.strategy import DistributedStrategy
from hpcdist.fluid.fleet.strategy_v2 import DistributedStrategy as DistributedStrategyV2
from hpcdist.fluid.fleet.table_settings import cache_of, choices_of, set_scores
from hpcdist.fluid.io.hot_rows import save_hot_rows
from hpcdist.fluid.optimizer import AnyOptimizer, Optimizer, OptimizerWrapper
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.variable import Variable
from hpcdist.transpiler import DistributedMode, DistributeTranspiler, GeoSgdTranspiler

logger = logging.getLogger("hpcdist.fleet")

PADDLE_2 = "Paddle 2"
_ONE_KIND_OF_SAVE = "save_persistables saves all rows: docs/checkpoints.md says how"
_ALL_AT_ONCE = "save_persistables and load_model move tables and dense parameters together"
_FEDERATED = "there is no coordinator: parameter servers average what workers send"
_STATIC = "programs are static: fleet.distributed_optimizer distributes them"
_PLACED = "the launcher places ranks on hosts and devices: worker_index and worker_num number them"
_RETURNED = "call minimize of what fleet.distributed_optimizer returns"
_GROUPS = "workers without servers are one group: docs/collective.md says how they sum"


def _refused(instead: str, count: int) -> Iterator[Refused]:
    return (Refused(instead, PADDLE_2) for _ in range(count))


@dataclass(frozen=True)
class Planned:
    """What `minimize` leaves: the programs of this process's role, and what they came from."""

    origin: Program
    main: Program | CompiledProgram
    startup: Program
    strategy: DistributedStrategy | None = None  # of training with servers


class Fleet(FleetRoles):
    """Every rank makes the same calls: `init`, build, `distributed_optimizer(...).minimize`.

    Then servers call `init_server` and `run_server`, which returns when all workers have left;
    workers call `init_worker`, run ``startup_program`` and ``main_program``, and `stop_worker`.
    """

    metrics = metrics

    save_cache_table, check_save_pre_patch_done = _refused(_ONE_KIND_OF_SAVE, 2)
    save_one_table, load_one_table, save_dense_params = _refused(_ALL_AT_ONCE, 3)
    init_coordinator, make_fl_strategy, get_fl_client = _refused(_FEDERATED, 3)
    distributed_model, distributed_scaler = _refused(_STATIC, 2)
    get_hybrid_communicate_group, collective_perf = _refused(_GROUPS, 2)
    local_rank, rank_in_node, node_num, local_device_ids, world_device_ids = _refused(_PLACED, 5)
    (minimize,) = _refused(_RETURNED, 1)

    def __init__(self) -> None:
        self._chosen_role_maker: RoleMakerBase | None = None
        self._collective = False  # workers only, who sum gradients
        self._strategy: Any = None
        self._of_tables: Any = None  # the strategy that says which rows base models hold
        self._programs: Planned | None = None
        self._executor = Executor(CPUPlace())

    def init(
        self,
        role_maker: RoleMakerBase | None = None,
        is_collective: bool = False,
        strategy: Any = None,
        log_level: int | str = "INFO",
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
        if log_level != "INFO":  # fleet's default, where the launcher has said how much is logged
            logger.setLevel(log_level)
        self._chosen_role_maker = role_maker
        self._collective = is_collective or role_maker.is_collective
        self._strategy = strategy
        self._programs = None
        self._executor = Executor(CPUPlace())

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
                settings.exchanged(optimizer),
                lambda loss: self._plan_collective(loss, settings, strategy),
            )
        chosen = checked_strategy(strategy)
        if not isinstance(strategy, DistributedStrategyV2):
            return DistributedOptimizer(
                optimizer, lambda loss: self._plan(program_of(loss), chosen)
            )
        options = strategy.trainer_desc_configs

        def distribute(loss: Variable) -> None:
            origin = program_of(loss)
            set_scores(origin, strategy)
            self._of_tables = strategy
            self._plan(origin, chosen)
            origin._fleet_opt.update(options)
            if self.is_worker():  # fleet 2's scripts call init_worker after the startup program
                chosen.set_communicator_flags()

        return DistributedOptimizer(strategy.wrapped(optimizer, servers=True), distribute)

    def _plan_collective(
        self, loss: Variable, settings: CollectiveSettings, strategy: object
    ) -> None:
        origin = program_of(loss)
        set_scores(origin, strategy)
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
    def init_server(
        self,
        dirname: str | None = None,
        var_names: Sequence[str] | None = None,
        *,
        model_dir: str | None = None,
    ) -> None:
        """Initialize this server's parameters, from a directory of saved ones if it is given.

        ``dirname`` (fleet 1.8: ``model_dir``) is one of `save_persistables`, or an inference model:
        then optimizers begin anew.
        """
        self._require(Role.SERVER, "init_server")
        if var_names is not None:
            raise FleetError(
                f"init_server: var_names: all variables in {dirname!r} are loaded together, got "
                f"{var_names!r}"
            )
        dirname = dirname or model_dir
        if dirname and not os.path.isdir(dirname):
            raise FleetError(f"init_server: there is no directory {dirname!r}")
        self._executor.run(self.startup_program)
        if not dirname:
            return
        if io.holds_model(dirname):
            io.load_model_on_server(self._executor, dirname, self.main_program)
        else:
            io.load_persistables(self._executor, dirname, self.main_program)

    def run_server(self) -> None:
        """Serve; return when the last worker has stopped."""
        self._require(Role.SERVER, "run_server")
        self._executor.run(self.main_program)

    # -- workers -----------------------------------------------------------------------------
    def init_worker(self, scopes: object = None) -> None:
        """Get ready to train. Not needed without servers.

        Where a communicator runs, its settings become this process's FLAGS_communicator_*: with a
        strategy of fleet 1.8 call it before the startup program runs. With one of fleet 2 all
        workers call it after that, and begin with worker 0's parameters.
        """
        self._require(Role.WORKER, "init_worker")
        if scopes is not None:
            raise FleetError(
                f"init_worker: scopes: programs run in the scope of scope_guard, got {scopes!r}"
            )
        if self._programs is None and not self.server_num():
            return  # what was minimized without fleet is trained here alone
        if self._planned.strategy is not None:
            self._planned.strategy.set_communicator_flags()
        main = self._planned.main
        if self._of_tables is not None and isinstance(main, Program):
            begin_as_first(main)

    def stop_worker(self) -> None:
        """Leave the servers: they continue without this worker, and end after the last one.

        Where nobody waits for its steps it leaves at the end of its script: until then it may save.
        """
        self._require(Role.WORKER, "stop_worker")
        self._executor.close()
        strategy = self._programs.strategy if self._programs else None
        awaited = strategy is None or strategy.mode == DistributedMode.SYNC
        if awaited and (job := control.installed()) is not None:
            job.close()

    # -- saving ------------------------------------------------------------------------------
    def save_persistables(
        self,
        executor: Executor,
        dirname: str,
        main_program: Program | None = None,
        filename: str | int | None = None,
        mode: int = 0,
        **how: Any,
    ) -> None:
        """Save all persistable variables of a distributed program (default: this role's).

        ``filename`` and what else is said of files goes to `fluid.io.save_persistables`. A number
        there is fleet 2's ``mode``: 0, or 3 at the end of a day, everything.
        """
        check_mode("save_persistables", filename if isinstance(filename, int) else mode)
        filename = None if isinstance(filename, int) else filename
        program = self.main_program if main_program is None else main_program
        if isinstance(program, CompiledProgram):
            program = program.program
        check_saving("save_persistables", executor, program)
        if not program._is_distributed and program.on_trainer is not None:
            program = program.on_trainer
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
        target_vars: Sequence[Variable] | Variable,
        main_program: Program | None = None,
        export_for_deployment: bool = True,
        mode: int = 0,
    ) -> None:
        """Save what computes ``target_vars``, cut out of the program that was built.

        ``mode`` 0 saves all rows of its tables; 2, of tables that count shows and clicks, the rows
        of Paddle's base models: ``base_threshold`` and ``delta_keep_days`` of the strategy; 1 those
        of them whose shows and clicks since the last such save come to ``delta_threshold``.
        """
        check_mode("save_inference_model", mode, (WHOLE, BATCH, *CHOSEN))
        program = self._planned.origin if main_program is None else main_program
        check_saving("save_inference_model", executor, program)
        io.save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            export_for_deployment=export_for_deployment,
            choices=choices_of(self._of_tables, delta=mode == DELTA) if mode in CHOSEN else None,
        )

    def save_cache_model(self, dirname: str, *, mode: int = 1, table_id: int = 0) -> int:
        """Save the rows of a base model that are shown most; return how many. Collective.

        Of the tables in the order of their names ``table_id`` is saved, into
        ``dirname/000_cache``; which part of its rows, ``sparse_table_cache_rate`` says.
        """
        check_mode("save_cache_model", mode, CHOSEN)
        self._require(Role.WORKER, "save_cache_model")
        origin = self._planned.origin
        table, choice, share = cache_of(origin, self._of_tables, table_id)
        return save_hot_rows(f"{dirname}/{table_id:03d}_cache", origin, table, choice, share)

    def shrink(self, threshold: float | None = None) -> dict[str, int]:
        """Forget the rows of tables that have expired; see `hpcdist.checkpoint.shrink_tables`.

        Every worker calls this. What goes is said by each table's `RowPolicy`: a ``threshold`` is
        refused, for Paddle does not use it either.
        """
        if threshold is not None:
            raise FleetError(
                f"shrink: threshold {threshold!r}: set it in the policy of a table, "
                "RowPolicy(score=ClickScore(delete_threshold=...))"
            )
        self._require(Role.WORKER, "shrink")
        return shrink_tables(self._planned.origin)

    def load_model(self, path: str, mode: int = 0) -> None:
        """Load what `save_persistables` has saved, on servers too. Collective among workers."""
        self._require(Role.WORKER, "load_model")
        check_mode("load_model", mode)
        io.load_persistables(self._executor, path, self._planned.origin)

    def load_inference_model(self, path: str, mode: int = 0) -> None:
        """Load the parameters of an inference model, on servers too. Collective among workers."""
        self._require(Role.WORKER, "load_inference_model")
        check_mode("load_inference_model", mode)
        io.load_params(self._executor, path, self._planned.origin)
