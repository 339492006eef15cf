"""Who takes part, by name: what `transpile` is told about servers and trainers, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdist.errors import PlanAssertionError, PlanAttributeError, PlanError, PlanTypeError
from hpcdist.transpiler.config import DistributeTranspilerConfig

COLLECTIVE_MODES = ("grad_allreduce", "local_sgd", "single_process_multi_thread")


@dataclass(frozen=True)
class Participants:
    """The servers' endpoints, which are names, the number of trainers, and which one we are."""

    endpoints: tuple[str, ...]
    trainers: int
    trainer_id: int
    current_endpoint: str


def pserver_participants(
    trainer_id: Any, pservers: Any, trainers: Any, current_endpoint: str
) -> Participants:
    """Check the arguments of pserver mode."""
    if not isinstance(trainers, int) or isinstance(trainers, bool):
        raise PlanTypeError(
            f"trainers: in pserver mode expected the number of trainers, got {trainers!r}"
        )
    if trainers < 1:
        raise PlanError(f"trainers: expected at least 1, got {trainers}")
    _check_trainer_id(trainer_id, trainers)
    return Participants(
        split_endpoints("pservers", pservers), trainers, trainer_id, current_endpoint
    )


def split_endpoints(argument: str, text: Any) -> tuple[str, ...]:
    """Split ``"ps0:6174,ps1:6174"``; refuse empty and repeated endpoints."""
    if not isinstance(text, str):
        raise PlanTypeError(
            f"{argument}: expected endpoints in one string, separated by commas, got {text!r}"
        )
    endpoints = tuple(endpoint.strip() for endpoint in text.split(","))
    if not all(endpoints):
        raise PlanError(f"{argument}: expected endpoints separated by commas, got {text!r}")
    repeated = sorted({e for e in endpoints if endpoints.count(e) > 1})
    if repeated:
        raise PlanError(f"{argument}: each endpoint may stand only once, repeated: {repeated}")
    return endpoints


def check_nccl2(
    config: DistributeTranspilerConfig, trainer_id: Any, trainers: Any, current_endpoint: str
) -> None:
    """Check the arguments of nccl2 mode, where ``trainers`` are the trainers' endpoints."""
    if not isinstance(trainers, str):
        raise PlanAssertionError(
            f"trainers: in nccl2 mode expected the trainers' endpoints in one string, "
            f"separated by commas, got {trainers!r}"
        )
    endpoints = split_endpoints("trainers", trainers)
    if config.use_hierarchical_allreduce:
        _check_hierarchy(len(endpoints), config.hierarchical_allreduce_inter_nranks)
    _check_rank(trainer_id, endpoints, current_endpoint)


def _check_hierarchy(trainers: int, per_node: int) -> None:
    field = "config.hierarchical_allreduce_inter_nranks"
    if per_node <= 1:
        raise PlanAttributeError(f"{field}: set the number of ranks on a node, got {per_node}")
    if trainers <= per_node or trainers % per_node:
        raise PlanAssertionError(
            f"{field}: expected a divisor of the {trainers} trainers, smaller than that, "
            f"got {per_node}"
        )


def check_collective(
    config: DistributeTranspilerConfig, trainer_id: Any, trainers: Any, current_endpoint: str
) -> None:
    """Check the arguments of collective mode, where ``trainers`` are the trainers' endpoints."""
    mode = config.collective_mode
    if mode not in COLLECTIVE_MODES:
        raise PlanError(
            f"config.collective_mode: expected one of {', '.join(COLLECTIVE_MODES)}, got {mode!r}"
        )
    if mode == "single_process_multi_thread":
        return
    if isinstance(trainers, (list, tuple)):
        trainers = ",".join(trainers)
    if not isinstance(trainers, str):
        raise PlanError(
            f"trainers: in collective mode expected the trainers' endpoints, got {trainers!r}"
        )
    endpoints = split_endpoints("trainers", trainers)
    if len(endpoints) == 1:
        raise PlanError(
            f"trainers: collective mode needs at least two endpoints, got only {trainers!r}"
        )
    _check_rank(trainer_id, endpoints, current_endpoint)


def _check_rank(trainer_id: Any, endpoints: tuple[str, ...], current_endpoint: str) -> None:
    _check_trainer_id(trainer_id, len(endpoints))
    if current_endpoint not in endpoints:
        raise PlanError(
            f"current_endpoint: {current_endpoint!r} is none of the trainers {', '.join(endpoints)}"
        )


def _check_trainer_id(trainer_id: Any, trainers: int) -> None:
    if not isinstance(trainer_id, int) or isinstance(trainer_id, bool):
        raise PlanTypeError(f"trainer_id: expected an integer, got {trainer_id!r}")
    if not 0 <= trainer_id < trainers:
        raise PlanError(
            f"trainer_id: expected 0..{trainers - 1} for {trainers} trainers, got {trainer_id}"
        )
