"""DistributeTranspiler: makes a plan, and returns the programs that follow from it."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import PlanError, PlanKeyError, PlanTypeError
from hpcdist.graph.distribution import VarsDistributed
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.program import Program, default_main_program, default_startup_program
from hpcdist.graph.variable import Variable
from hpcdist.ps.plan import DistributedMode, UpdateMode
from hpcdist.transpiler.collective import rewrite_in_place
from hpcdist.transpiler.config import (
    DistributeTranspilerConfig,
    ServerRuntimeConfig,
    check_config,
)
from hpcdist.transpiler.counters import count_by_trainer
from hpcdist.transpiler.group import (
    Group,
    collective_group,
    group_of,
    nccl2_group,
    pserver_participants,
)
from hpcdist.transpiler.hybrid import (
    hybrid_group,
    hybrid_startup,
    hybrid_trainer,
    tables_alone,
)
from hpcdist.transpiler.mode import choose_mode
from hpcdist.transpiler.own_rates import with_rates_scheduled
from hpcdist.transpiler.placement_records import vars_distributed
from hpcdist.transpiler.plan import ProgramPlan, constants_of, fingerprint, make_plan
from hpcdist.transpiler.pserver import pserver_program
from hpcdist.transpiler.startup import pserver_startup, trainer_startup
from hpcdist.transpiler.table_metadata import with_startup
from hpcdist.transpiler.trainer import trainer_program

logger = logging.getLogger("hpcdist.transpiler")


class DistributeTranspiler:
    """Turns a training program into the programs of trainers and parameter servers.

    Every rank calls `transpile` with the same program and arguments, its own ``trainer_id``
    excepted. The programs it was given stay as they are; the getters may be called in any order
    and as often as one likes, and give new programs each time. In the modes without servers, nccl2
    and collective, Fluid has no getters: there the given programs are rewritten.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = DistributeTranspilerConfig() if config is None else config
        check_config(self.config)
        self.server_config = ServerRuntimeConfig()
        self._plan: ProgramPlan | None = None
        self._group: Group | None = None  # in place of a plan, where there are no servers
        self._main = Program()
        self._served = Program()  # the same, or what servers are to keep of it
        self._startup = Program()

    def _set_server_config(self, server_config: ServerRuntimeConfig | None = None) -> None:
        if server_config is None:
            server_config = ServerRuntimeConfig()
        if not isinstance(server_config, ServerRuntimeConfig):
            raise PlanTypeError(
                f"server_config: expected a ServerRuntimeConfig, got {type(server_config).__name__}"
            )
        self.server_config = server_config

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str = 1,
        sync_mode: bool = True,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
        **older: Any,
    ) -> None:
        """Plan the training; a second call plans afresh.

        ``pservers`` are names, separated by commas: nothing binds their ports. ``sync_mode``
        decides for trainers and servers alike, whatever ``config.sync_mode`` says. ``older`` are
        the arguments that became configuration fields: slice_var_up, split_method, min_block_size.
        From now on a trainer's executor runs `get_trainer_program` and
        `get_trainer_startup_program` when it is given these programs.
        """
        config = _with_older_arguments(self.config, older)
        main = _program("program", program, default_main_program())
        startup = _program("startup_program", startup_program, default_startup_program())
        if config.mode != "pserver":
            group = _group(config, trainer_id, trainers, current_endpoint)
            rewrite_in_place(startup, main, group)
            self._plan, self._group = None, group
            self._main, self._startup = main, startup
            return
        earlier = group_of(main)
        if earlier is not None:
            raise PlanError(
                f"this program has been transpiled in {earlier.mode} mode, which changed it: "
                "build it again for pserver mode"
            )
        participants = pserver_participants(trainer_id, pservers, trainers, current_endpoint)
        mode = self._mode(config, sync_mode)
        scheduled = main if mode.geo else with_rates_scheduled(main)  # GEO: trainers update
        plan = make_plan(_served(scheduled, mode), participants, config, mode)
        tables = with_startup(plan.tables, startup)
        plan = replace(plan, constants=constants_of(startup), tables=tables)
        origin, origin_startup = scheduled.clone(), startup.clone()
        if plan.counter is not None:
            origin, origin_startup = count_by_trainer(
                origin, origin_startup, plan.counter, plan.counters
            )
        served = _served(origin, mode)
        plan = replace(
            plan, fingerprint=fingerprint(origin, plan), records=vars_distributed(served, plan)
        )
        trainer = self._trainer(origin, plan)  # refuses before anything changes
        self._plan, self._group = plan, None
        self._main, self._served, self._startup = origin, served, origin_startup
        main.on_trainer = trainer
        startup.on_trainer = self.get_trainer_startup_program()
        if config.print_log:
            for record in self.vars_overview.distributed_vars:
                logger.info("%s", record)

    # -- what each role runs -----------------------------------------------------------------
    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """Return the trainer's main program.

        ``wait_port`` is accepted and not needed: trainers wait for the servers when they connect.
        """
        if self._group is not None:
            return self._main
        return self._trainer(self._main, self._planned())

    def get_trainer_startup_program(self) -> Program:
        """Return the trainer's startup program: it receives the servers' initial values."""
        if self._group is not None:
            return self._startup
        return self._trainer_startup(self._startup, self._main, self._planned())

    def get_pserver_program(self, endpoint: str) -> Program:
        """Return the main program of the server at ``endpoint``."""
        plan = self._planned(endpoint)
        return self._server(self._served, plan, endpoint)

    def get_startup_program(
        self,
        endpoint: str,
        pserver_program: Program | None = None,
        startup_program: Program | None = None,
    ) -> Program:
        """Return the startup program of the server at ``endpoint``.

        The other arguments are checked and otherwise ignored: the plan knows them.
        """
        _program("pserver_program", pserver_program, self._main)
        _program("startup_program", startup_program, self._startup)
        server = self.get_pserver_program(endpoint)
        return pserver_startup(self._startup, self._served, self._planned(), endpoint, server)

    def get_pserver_programs(self, endpoint: str) -> tuple[Program, Program]:
        """Return main and startup program of the server at ``endpoint``."""
        return self.get_pserver_program(endpoint), self.get_startup_program(endpoint)

    # -- what was planned --------------------------------------------------------------------
    @property
    def param_grad_ep_mapping(self) -> dict[str, dict[str, list[Variable]]]:
        """Blocks by endpoint: parameters, and their gradients as this trainer sends them."""
        plan = self._planned()
        block = self._main.global_block()
        mapping: dict[str, dict[str, list[Variable]]] = {}
        for endpoint in plan.endpoints:
            variables: dict[str, list[Variable]] = {"params": [], "grads": []}
            for route, piece in plan.blocks_on(endpoint):
                facts: dict[str, Any] = {"shape": piece.shape, "dtype": route.dtype}
                kind = VarType.SELECTED_ROWS if route.sparse else VarType.LOD_TENSOR
                gradient = plan.local_gradients(route)[route.slices.index(piece)]
                variables["params"].append(Variable(block, piece.name, persistable=True, **facts))
                variables["grads"].append(Variable(block, gradient, type=kind, **facts))
            mapping[endpoint] = variables
        return mapping

    @property
    def vars_overview(self) -> VarsDistributed:
        """Where every parameter and accumulator lies."""
        records = self._planned().records
        assert records is not None, "transpile makes them"
        return records

    @property
    def distributed_mode(self) -> DistributedMode:
        """How the servers apply gradients."""
        return self._planned().mode.distributed_mode

    @property
    def pserver_endpoints(self) -> list[str]:
        """The servers' endpoints."""
        return list(self._planned().endpoints)

    @property
    def trainer_num(self) -> int:
        """Number of trainers."""
        return len(self._group.endpoints) if self._group else self._planned().trainers

    @property
    def trainer_id(self) -> int:
        """Which trainer this is."""
        return self._group.trainer_id if self._group else self._planned().trainer_id

    # -- how this mode rewrites --------------------------------------------------------------
    def _mode(self, config: DistributeTranspilerConfig, sync_mode: bool) -> UpdateMode:
        return choose_mode(config, sync_mode)

    def _trainer(self, main: Program, plan: ProgramPlan) -> Program:
        if plan.mode.dense_summed:
            return hybrid_trainer(main, hybrid_group(plan, self.config.nccl_comm_num))
        return trainer_program(main, plan)

    def _trainer_startup(self, startup: Program, main: Program, plan: ProgramPlan) -> Program:
        if plan.mode.dense_summed:
            return hybrid_startup(startup, main, hybrid_group(plan, self.config.nccl_comm_num))
        return trainer_startup(startup, main, plan)

    def _server(self, main: Program, plan: ProgramPlan, endpoint: str) -> Program:
        return pserver_program(main, plan, endpoint, self.server_config)

    def _planned(self, endpoint: str | None = None) -> ProgramPlan:
        if self._group is not None:
            raise PlanError(f"mode {self._group.mode!r} has no parameter servers to ask for")
        if self._plan is None:
            raise PlanError("nothing is planned yet: call transpile() before the getters")
        if endpoint is not None and endpoint not in self._plan.endpoints:
            raise PlanKeyError(
                f"unknown endpoint {endpoint!r}: expected one of {', '.join(self._plan.endpoints)}"
            )
        return self._plan


def _served(main: Program, mode: UpdateMode) -> Program:
    """Return the Program of which servers keep the parameters."""
    return tables_alone(main) if mode.dense_summed else main


def _with_older_arguments(
    config: DistributeTranspilerConfig, older: dict[str, Any]
) -> DistributeTranspilerConfig:
    config = copy.copy(config)
    for name, value in older.items():
        if name not in ("slice_var_up", "split_method", "min_block_size"):
            raise PlanTypeError(f"transpile() has no argument {name!r}")
        setattr(config, name, value)
    check_config(config)
    return config


def _program(argument: str, program: object, default: Program) -> Program:
    if program is not None and not isinstance(program, Program):
        raise PlanTypeError(f"{argument}: expected a Program, got {type(program).__name__}")
    return default if program is None else program


def _group(
    config: DistributeTranspilerConfig, trainer_id: object, trainers: object, current_endpoint: str
) -> Group:
    if config.mode == "nccl2":
        in_job = settings.RANK.is_set()
        return nccl2_group(config, trainer_id, trainers, current_endpoint, in_job)
    rings = config.nccl_comm_num
    return collective_group(config.collective_mode, trainer_id, trainers, current_endpoint, rings)
