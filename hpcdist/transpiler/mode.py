"""The mode of training with servers (synchronous, GEO, ...), from settings that are checked."""

from __future__ import annotations

from dataclasses import replace

from hpcdist.base.errors import PlanAssertionError, PlanError, PlanTypeError
from hpcdist.ps.plan import SYNCHRONOUS, DistributedMode, UpdateMode, asynchronous, geo
from hpcdist.transpiler.config import DistributeTranspilerConfig, sums_dense

SUMS = "with dense = 'collective' trainers sum gradients in every step"


def choose_mode(config: DistributeTranspilerConfig, sync_mode: bool) -> UpdateMode:
    """Return the mode that `transpile(sync_mode=)` asks for; ``config.sync_mode`` has no say."""
    if config.geo_sgd_mode:
        raise PlanError("config.geo_sgd_mode: use hpcdist.transpiler.GeoSgdTranspiler")
    if sync_mode not in (True, False):
        raise PlanTypeError(f"sync_mode: expected True or False, got {sync_mode!r}")
    if sums_dense(config):
        if not sync_mode:
            raise PlanError(
                f"sync_mode=False: {SUMS}, so servers wait for all of them too: pass "
                "sync_mode=True, or let servers keep all parameters (dense = 'pserver')"
            )
        return replace(_sync(config), dense_summed=True)
    return _sync(config) if sync_mode else _async(config)


def geo_mode(config: DistributeTranspilerConfig) -> UpdateMode:
    """Return the mode of a GeoSgdTranspiler."""
    if sums_dense(config):
        raise PlanError(
            f"GEO mode: {SUMS}, but here they train by themselves: leave it out, or train "
            "synchronously"
        )
    for name in ("enable_dc_asgd", "completely_not_async"):
        if getattr(config, name):
            raise PlanError(f"config.{name} has no meaning in GEO mode: set it to False")
    _unbounded(config)
    return geo(config.geo_sgd_need_push_nums)


def _sync(config: DistributeTranspilerConfig) -> UpdateMode:
    if config.enable_dc_asgd:
        raise PlanAssertionError(
            "config.enable_dc_asgd is for asynchronous training: pass sync_mode=False"
        )
    for name in ("runtime_split_send_recv", "half_async"):
        if getattr(config, name):
            raise PlanError(
                f"config.{name} is for asynchronous training: pass sync_mode=False to transpile()"
            )
    _unbounded(config)
    return SYNCHRONOUS


def _unbounded(config: DistributeTranspilerConfig) -> None:
    if config.max_staleness is not None:
        raise PlanError(
            "config.max_staleness bounds asynchronous training, neither synchronous nor GEO mode: "
            "set it to None"
        )


def _async(config: DistributeTranspilerConfig) -> UpdateMode:
    split = config.runtime_split_send_recv
    joint = split and config.half_async
    if config.completely_not_async:
        if not joint:
            raise PlanError(
                "config.completely_not_async: the communicator averages over trainers, "
                "so config.runtime_split_send_recv and config.half_async must be True as well"
            )
        if config.enable_dc_asgd:
            raise PlanAssertionError(
                "config.enable_dc_asgd is for asynchronous training: "
                "set config.completely_not_async = False"
            )
        _unbounded(config)
        return UpdateMode(DistributedMode.SYNC, lockstep=False, runtime_split=True, joint=True)
    return asynchronous(
        split=split, joint=joint, dc_asgd=config.enable_dc_asgd, ahead=config.max_staleness
    )
