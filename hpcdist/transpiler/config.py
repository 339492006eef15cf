"""The settings of a transpiler, with Fluid's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcdist.base import settings
from hpcdist.base.checks import Fields, integer
from hpcdist.base.errors import PlanAssertionError, PlanAttributeError, PlanError, PlanTypeError
from hpcdist.ps.dispatch import PSDispatcher, RoundRobin
from hpcdist.ps.slicing import SMALLEST_BLOCK

MODES = ("pserver", "nccl2", "collective")
DENSE = ("pserver", "collective")


@dataclass
class DistributeTranspilerConfig(Fields):
    """Settings of a DistributeTranspiler; a field that does not exist cannot be set.

    ``split_method`` None means RoundRobin. ``sync_mode`` and ``runtime_split_send_recv`` exclude
    each other. ``wait_port`` is kept for scripts that set it: no ports are opened here.
    ``max_staleness`` (not in Fluid): asynchronous trainers wait when they are so many steps ahead
    of the slowest; None lets them run.
    ``dense`` (not in Fluid): in pserver mode, where parameters live that are no distributed tables:
    on the servers ("pserver"), or on the trainers, which sum their gradients ("collective"); None:
    as ``--dense`` says.

    Examples:
        >>> config = fluid.DistributeTranspilerConfig()
        >>> config.slice_var_up
        True
    """

    slice_var_up: bool = True
    split_method: type[PSDispatcher] | None = None
    min_block_size: int = SMALLEST_BLOCK
    enable_dc_asgd: bool = False
    max_staleness: int | None = None
    dense: str | None = None
    mode: str = "pserver"
    print_log: bool = False
    wait_port: bool = True
    sync_mode: bool = True
    runtime_split_send_recv: bool = False
    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    collective_mode: str | None = None

    def __setattr__(self, name: str, value: object) -> None:
        rivals = {"sync_mode": "runtime_split_send_recv", "runtime_split_send_recv": "sync_mode"}
        if name in rivals:
            if value is None:
                raise PlanError(f"config.{name} cannot be None: expected True or False")
            if value and getattr(self, rivals[name]):
                raise PlanError(
                    f"config.{name} and config.{rivals[name]} exclude each other: "
                    f"set config.{rivals[name]} = False first"
                )
        super().__setattr__(name, value)


def dispatcher_class(config: DistributeTranspilerConfig) -> type[PSDispatcher]:
    """Return the dispatcher to use; refuse what does not derive directly from PSDispatcher."""
    method = config.split_method
    if method is None:
        return RoundRobin
    if not isinstance(method, type):
        raise PlanAttributeError(
            f"config.split_method: expected a class such as RoundRobin or HashName, got {method!r}"
        )
    if method.__bases__[0] is not PSDispatcher:
        raise PlanAssertionError(
            f"config.split_method: {method.__name__} must derive directly from PSDispatcher, "
            f"got {method.__bases__[0].__name__} as its first base"
        )
    return method


def sums_dense(config: DistributeTranspilerConfig) -> bool:
    """Return whether trainers with servers sum dense gradients: the servers keep tables only."""
    return (config.dense or settings.DENSE.read()) == "collective"


def check_config(config: object) -> None:
    """Refuse settings that no mode can use."""
    if not isinstance(config, DistributeTranspilerConfig):
        raise PlanTypeError(
            f"config: expected a DistributeTranspilerConfig, got {type(config).__name__}"
        )
    if config.mode not in MODES:
        raise PlanError(f"config.mode: expected one of {', '.join(MODES)}, got {config.mode!r}")
    if config.dense is not None and config.dense not in DENSE:
        raise PlanError(f"config.dense: expected one of {', '.join(DENSE)}, got {config.dense!r}")
    as_fluid = (PlanTypeError, PlanAssertionError)
    integer("config.min_block_size", config.min_block_size, SMALLEST_BLOCK, errors=as_fluid)
    for name in ("nccl_comm_num", "geo_sgd_need_push_nums"):
        integer(f"config.{name}", getattr(config, name), 1)
    if config.max_staleness is not None:
        integer("config.max_staleness", config.max_staleness, 0)
        if config.enable_dc_asgd:
            raise PlanError("config.max_staleness and config.enable_dc_asgd exclude each other")
    dispatcher_class(config)


def _threads(flag: str) -> Any:
    return field(default_factory=lambda: settings.flag(flag).read())


@dataclass
class ServerRuntimeConfig:
    """Thread counts that listen_and_serv carries for Fluid's sake; a server here has one thread."""

    _rpc_send_thread_num: int = _threads("FLAGS_rpc_send_thread_num")
    _rpc_get_thread_num: int = _threads("FLAGS_rpc_get_thread_num")
    _rpc_prefetch_thread_num: int = _threads("FLAGS_rpc_prefetch_thread_num")
