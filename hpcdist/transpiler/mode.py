"""The mode of training with servers (synchronous, GEO, ...), from settings that are checked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcdist.base.errors import PlanAssertionError, PlanError, PlanTypeError
from hpcdist.transpiler.config import (
    DistributedMode,
    DistributeTranspilerConfig,
    sums_dense,
)

SUMS = "with dense = 'collective' trainers sum gradients in every step"


@dataclass(frozen=True)
class UpdateMode:
    """How gradients travel and how servers apply them.

    ``distributed_mode`` is what servers are told. ``lockstep``: trainers run separate barriers
    after sending and after receiving. ``averaged``: servers average over the trainers' gradients,
    so each trainer's has a separate name. ``runtime_split``: full gradients and parameters
    stand in send and recv, and the runtime's communicator cuts and joins them; ``joint``: its
    threads meet at a barrier. ``dc_asgd``: servers compensate the delay of each gradient.
    ``max_staleness``: how many steps ahead of the slowest a trainer may be, None any number.
    ``push_every``: in GEO mode, after how many local steps differences are exchanged.
    ``dense_summed``: parameters that are no distributed tables live on the trainers, which sum
    their gradients; servers keep tables, whose rows' gradients come divided by the trainers.
    """

    distributed_mode: DistributedMode = DistributedMode.SYNC
    lockstep: bool = True
    averaged: bool = True
    runtime_split: bool = False
    joint: bool = False
    dc_asgd: bool = False
    push_every: int = 0
    max_staleness: int | None = None
    dense_summed: bool = False

    @property
    def synchronous(self) -> bool:
        """Whether servers wait for all trainers before they answer."""
        return self.distributed_mode == DistributedMode.SYNC

    @property
    def geo(self) -> bool:
        """Whether trainers update by themselves and exchange differences."""
        return self.distributed_mode == DistributedMode.GEO


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
    return UpdateMode(
        DistributedMode.GEO,
        lockstep=False,
        averaged=False,
        runtime_split=True,
        push_every=config.geo_sgd_need_push_nums,
    )


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
    return UpdateMode()


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
    return UpdateMode(
        DistributedMode.ASYNC if split else DistributedMode.HALF_ASYNC,
        lockstep=False,
        averaged=False,
        runtime_split=split,
        joint=joint,
        dc_asgd=config.enable_dc_asgd,
        max_staleness=config.max_staleness,
    )
