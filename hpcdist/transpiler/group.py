"""The group of trainers, or the servers and trainers, that `transpile` is given; checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdist.base.checks import integer
from hpcdist.base.errors import PlanAssertionError, PlanAttributeError, PlanError, PlanTypeError
from hpcdist.comm.bucket import Fusing
from hpcdist.graph.distribution import ProgramDistribution
from hpcdist.graph.program import Program
from hpcdist.transpiler.config import DistributeTranspilerConfig

PLAIN = Fusing(memory_mb=32.0)  # for scripts that say nothing: fleet 2.0's default
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
    integer("trainers (in pserver mode the number of trainers)", trainers, 1)
    integer(f"trainer_id, for {trainers} trainers", trainer_id, 0, trainers)
    return Participants(
        split_endpoints("pservers", pservers), trainers, trainer_id, current_endpoint
    )


def split_endpoints(argument: str, text: object) -> tuple[str, ...]:
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
        raise PlanError(f"{argument}: each endpoint may appear only once, repeated: {repeated}")
    return endpoints


@dataclass(frozen=True)
class Group(ProgramDistribution):
    """The trainers that train without servers, by name, and which one this is.

    ``mode`` is nccl2 or one of COLLECTIVE_MODES; ``rings`` the communicators that take turns.
    ``per_node``: ranks on a node, for a hierarchical sum; 0: nodes are found when the job runs.
    ``fusing`` says which gradients are summed together (None: the FLAGS_fuse_parameter_*), unless
    each is summed alone (not ``fused``). ``devices`` of each trainer stand in the program.
    Of local SGD's steps all up to ``begin_step`` average, and then every ``k_steps``-th; if it
    ``adapts_to`` a loss, that is the first distance of many.
    With ``sharded`` trainers divide the state of the optimizer: ``owners`` says, in what they run,
    which trainer holds a variable of it.
    """

    mode: str
    endpoints: tuple[str, ...]
    trainer_id: int
    current_endpoint: str
    rings: int = 1
    hierarchical: bool = False
    per_node: int = 0
    fused: bool = True
    fusing: Fusing | None = None
    devices: int = 1
    k_steps: int = 1
    begin_step: int = 1
    adapts_to: str = ""
    sharded: bool = False
    owners: Mapping[str, int] = field(default_factory=dict, compare=False)

    def fluid_fields(self) -> dict[str, object]:
        if self.mode in COLLECTIVE_MODES:
            return {}
        return {
            "_trainers_endpoints": list(self.endpoints),
            "_nccl_comm_num": self.rings,
            "_use_hierarchical_allreduce": self.hierarchical,
            "_hierarchical_allreduce_inter_nranks": self.per_node,
        }

    @property
    def holder(self) -> int:
        """What ``owners`` calls this rank."""
        return self.trainer_id

    def averages(self, step: int) -> bool:
        """Return whether local SGD averages parameters in a step, counted from 1."""
        return step <= self.begin_step or (step - self.begin_step) % self.k_steps == 0


def group_of(program: Program) -> Group | None:
    """Return the group that trains a Program without servers; None if there is none."""
    group = program.distribution
    return group if isinstance(group, Group) else None


def required_group(program: Program) -> Group:
    """Return the group that trains a Program; PlanError if it was not transpiled for one."""
    group = group_of(program)
    if group is None:
        raise PlanError(
            "this program trains and was not transpiled, but another program of this script was: "
            "transpile every program that trains, or none"
        )
    return group


def nccl2_group(
    config: DistributeTranspilerConfig,
    trainer_id: Any,
    trainers: Any,
    current_endpoint: str,
    in_job: bool,
) -> Group:
    """Check the arguments of nccl2 mode, where ``trainers`` are the trainers' endpoints.

    ``in_job``: this process is a rank, so nodes can be found when that is left open.
    """
    if not isinstance(trainers, str):
        raise PlanAssertionError(
            f"trainers: in nccl2 mode expected the trainers' endpoints in one string, "
            f"separated by commas, got {trainers!r}"
        )
    endpoints = split_endpoints("trainers", trainers)
    per_node = config.hierarchical_allreduce_inter_nranks
    if config.use_hierarchical_allreduce:
        _check_hierarchy(len(endpoints), per_node, in_job)
    _check_rank(trainer_id, endpoints, current_endpoint)
    return Group(
        "nccl2",
        endpoints,
        trainer_id,
        current_endpoint,
        config.nccl_comm_num,
        config.use_hierarchical_allreduce,
        per_node,
    )


def _check_hierarchy(trainers: int, per_node: int, in_job: bool) -> None:
    field = "config.hierarchical_allreduce_inter_nranks"
    if per_node <= 1:
        if in_job:
            return
        raise PlanAttributeError(
            f"{field}: set the number of ranks on a node, got {per_node}; only a rank of a job "
            "(mpirun -n 4 python -m hpcdist ...) finds it by itself"
        )
    if trainers <= per_node or trainers % per_node:
        raise PlanAssertionError(
            f"{field}: expected a divisor of the {trainers} trainers, smaller than that, "
            f"got {per_node}"
        )


def collective_group(
    mode: str | None, trainer_id: Any, trainers: Any, current_endpoint: str, rings: int
) -> Group:
    """Check the arguments of collective mode, where ``trainers`` are the trainers' endpoints."""
    if mode not in COLLECTIVE_MODES:
        raise PlanError(
            f"config.collective_mode: expected one of {', '.join(COLLECTIVE_MODES)}, got {mode!r}"
        )
    if isinstance(trainers, (list, tuple)):
        trainers = ",".join(map(str, trainers))
    if not isinstance(trainers, str):
        raise PlanError(
            f"trainers: in collective mode expected the trainers' endpoints, got {trainers!r}"
        )
    integer("nrings", rings, 1)
    endpoints = split_endpoints("trainers", trainers)
    if len(endpoints) == 1 and mode != "single_process_multi_thread":
        raise PlanError(
            f"trainers: collective mode needs at least two endpoints, got only {trainers!r}"
        )
    _check_rank(trainer_id, endpoints, current_endpoint)
    return Group(mode, endpoints, trainer_id, current_endpoint, rings)


def _check_rank(trainer_id: object, endpoints: tuple[str, ...], current_endpoint: str) -> None:
    integer("trainer_id", trainer_id, 0, len(endpoints))
    if current_endpoint not in endpoints:
        raise PlanError(
            f"current_endpoint: {current_endpoint!r} is none of the trainers {', '.join(endpoints)}"
        )
