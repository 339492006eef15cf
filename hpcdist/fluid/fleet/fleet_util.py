"""Utilities of Fluid's fleet scripts: ``incubate.fleet.utils.fleet_util``."""

from __future__ import annotations

import logging

import numpy as np

from hpcdist.base.checks import Refused
from hpcdist.base.errors import FleetError
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.fluid.fleet import fleet, metrics

logger = logging.getLogger("hpcdist.fleet")

_OF_PSLIB = """
    check_two_programs check_vars_and_dump draw_from_program draw_from_program_file
    get_global_metrics get_last_save_model get_last_save_xbox get_last_save_xbox_base
    get_online_pass_interval load_fleet_model load_fleet_model_one_table load_model
    parse_program_proto print_global_metrics program_type_trans pull_all_dense_params
    save_batch_model save_cache_base_model save_cache_model save_delta_model save_fleet_model
    save_model save_paddle_inference_model save_paddle_params save_xbox_base_model
    write_cache_donefile write_model_donefile write_xbox_donefile
"""
_POSITIVE, _NEGATIVE = "_generated_var_2", "_generated_var_3"  # of the first layers.auc


class FleetUtil:
    """Says things once in a job, and counts over all workers.

    What moves tables of Fluid's ``pslib`` is not here.
    """

    def __init__(self, mode: str = "pslib") -> None:
        if mode not in ("pslib", "transpiler"):
            raise FleetError(f'FleetUtil: mode must be "pslib" or "transpiler", got {mode!r}')

    def rank0_print(self, s: object) -> None:
        """Print on worker 0."""
        if fleet.worker_index() == 0:
            print(s, flush=True)

    def rank0_info(self, s: object) -> None:
        """Log on worker 0."""
        if fleet.worker_index() == 0:
            logger.info("%s", s)

    def rank0_error(self, s: object) -> None:
        """Log an error on worker 0."""
        if fleet.worker_index() == 0:
            logger.error("%s", s)

    def set_zero(
        self,
        var_name: str,
        scope: Scope | None = None,
        place: object = None,
        param_type: str = "int64",
    ) -> None:
        """Set a variable of this worker's scope to zeros of ``param_type``."""
        variable = (scope or global_scope()).find_var(var_name)
        if variable is None:
            raise FleetError(f"set_zero: the scope has no variable {var_name!r}")
        tensor = variable.get_tensor()
        tensor.set(np.zeros(tensor.shape(), param_type), place)

    def get_global_auc(
        self, scope: Scope | None = None, stat_pos: str = _POSITIVE, stat_neg: str = _NEGATIVE
    ) -> float | None:
        """Return the area under the ROC curve of all workers' rows; None if nothing counts it.

        ``stat_pos``, ``stat_neg`` are the names of the counts of `layers.auc`. Collective.
        """
        scope = scope or global_scope()
        if scope.find_var(stat_pos) is None or scope.find_var(stat_neg) is None:
            self.rank0_print("not found auc bucket")
            return None
        return metrics.auc(stat_pos, stat_neg, scope)

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = _POSITIVE,
        stat_neg: str = _NEGATIVE,
        print_prefix: str = "",
    ) -> None:
        """Print what `get_global_auc` returns, on worker 0. Collective."""
        self.rank0_print(
            f"{print_prefix} global auc = {self.get_global_auc(scope, stat_pos, stat_neg)}"
        )


__all__ = ["FleetUtil"]


for _name in _OF_PSLIB.split():
    _refused = Refused(
        "it moves tables and models of pslib; fluid.io and hpcdist.checkpoint save and load them "
        "(docs/checkpoints.md)"
    )
    _refused.__set_name__(FleetUtil, _name)
    setattr(FleetUtil, _name, _refused)
