"""GeoSgdTranspiler: the programs of GEO mode."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import PlanError
from hpcdist.graph.op_role import MERGED_STEPS
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.ps.plan import UpdateMode
from hpcdist.transpiler.config import DistributeTranspilerConfig
from hpcdist.transpiler.distribute_transpiler import DistributeTranspiler
from hpcdist.transpiler.geo import geo_server, geo_trainer, geo_trainer_startup, vars_info
from hpcdist.transpiler.mode import geo_mode
from hpcdist.transpiler.plan import ProgramPlan


class GeoSgdTranspiler(DistributeTranspiler):
    """Turns a training program into one that trains by itself and exchanges differences.

    Every ``config.geo_sgd_need_push_nums`` steps a trainer adds (its parameters - the old ones) /
    trainers to the servers' parameters, and takes over what the others have added. Any optimizer
    will do: it runs on the trainers.
    """

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str = 1,
        sync_mode: bool = False,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
        **older: Any,
    ) -> None:
        """Plan the training, as `DistributeTranspiler.transpile` does."""
        if self.config.mode != "pserver":
            raise PlanError(f"config.mode: GEO needs parameter servers, got {self.config.mode!r}")
        super().transpile(
            trainer_id,
            program,
            pservers,
            trainers,
            sync_mode,
            startup_program,
            current_endpoint,
            **older,
        )

    @property
    def vars_info(self) -> dict[str, dict[str, list[str]]]:
        """Where the blocks of each parameter go: var_names, sections, epmap, is_sparse."""
        return vars_info(self._planned())

    def _get_vars_info(self) -> dict[str, dict[str, list[str]]]:
        return self.vars_info

    @property
    def param_opt_ep_mapping(self) -> dict[str, dict[str, list[Variable]]]:
        """Blocks of parameters by endpoint."""
        mapping = super().param_grad_ep_mapping
        return {endpoint: {"params": at["params"]} for endpoint, at in mapping.items()}

    @property
    def param_grad_ep_mapping(self) -> dict[str, dict[str, list[Variable]]]:
        """The same: no gradients are sent."""
        return self.param_opt_ep_mapping

    # -- how this mode rewrites --------------------------------------------------------------
    def _mode(self, config: DistributeTranspilerConfig, sync_mode: bool) -> UpdateMode:
        if sync_mode:
            raise PlanError("GEO mode is asynchronous: pass sync_mode=False to transpile()")
        return geo_mode(config)

    def _trainer(self, main: Program, plan: ProgramPlan) -> Program:
        if any(MERGED_STEPS in op.attrs for op in main.global_block().ops):
            raise PlanError(
                "GEO exchanges what updates have changed, once in several steps: leave gradient "
                "merge out, and set geo_sgd_need_push_nums"
            )
        return geo_trainer(main, plan)

    def _trainer_startup(self, startup: Program, main: Program, plan: ProgramPlan) -> Program:
        return geo_trainer_startup(startup, plan)

    def _server(self, main: Program, plan: ProgramPlan, endpoint: str) -> Program:
        return geo_server(main, plan, endpoint, self.server_config)
