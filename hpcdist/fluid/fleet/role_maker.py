"""The role of this process, worker or server, from the environment or from the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hpcdist.base import settings
from hpcdist.base.checks import FLEET, Refused, integer
from hpcdist.base.errors import FleetError, FleetNotImplementedError, FleetTypeError
from hpcdist.base.setting import Setting
from hpcdist.comm.cluster import PSERVER, TRAINER
from hpcdist.fluid.fleet import metrics

LONE_WORKER = "127.0.0.1:6170"  # what a worker without others is called


class Role(IntEnum):
    """What a process does: WORKER (1), a trainer, or SERVER (2)."""

    WORKER = 1
    SERVER = 2


@dataclass(frozen=True)
class Placement:
    """One process of a job: its role, its number among those of that role, and all names."""

    role: Role
    index: int
    worker_num: int
    server_endpoints: tuple[str, ...] = ()
    worker_endpoints: tuple[str, ...] = ()


class RoleMakerBase:
    """Answers who this process is; kinds of role maker say how they find out."""

    is_collective = False

    all_gather = Refused("servers only serve: all_reduce_worker() sums over workers")
    barrier_all = Refused("servers only serve: barrier_worker() lets workers wait for each other")

    def __init__(self) -> None:
        self._placement: Placement | None = None

    def _find(self) -> Placement:
        """Return the role of this process; determined once."""
        raise FleetNotImplementedError(
            f"{type(self).__name__} does not define the role of this process: "
            "use PaddleCloudRoleMaker or UserDefinedRoleMaker"
        )

    def generate_role(self) -> None:
        """Find out who this process is, unless that is known."""
        if self._placement is None:
            self._placement = self._find()

    @property
    def placement(self) -> Placement:
        """Who this process is."""
        self.generate_role()
        assert self._placement is not None
        return self._placement

    def is_worker(self) -> bool:
        """Return whether this process trains."""
        return self.placement.role == Role.WORKER

    def is_server(self) -> bool:
        """Return whether this process serves."""
        return self.placement.role == Role.SERVER

    def is_first_worker(self) -> bool:
        """Return whether this process is worker 0."""
        return self.is_worker() and self.placement.index == 0

    def worker_index(self) -> int:
        """Return the number of this process among those of its role."""
        return self.placement.index

    def server_index(self) -> int:
        """Return the number of this process among those of its role."""
        return self.placement.index

    def worker_num(self) -> int:
        """Return how many workers there are."""
        return self.placement.worker_num

    def server_num(self) -> int:
        """Return how many servers there are."""
        return len(self.placement.server_endpoints)

    def get_trainer_endpoints(self) -> list[str]:
        """Return the endpoints of the workers; an empty list if none were given."""
        return list(self.placement.worker_endpoints)

    def get_pserver_endpoints(self) -> list[str]:
        """Return the servers' names in server order."""
        return list(self.placement.server_endpoints)

    def barrier_worker(self) -> None:
        """Wait until all workers have come here; a server does not wait."""
        if self.is_worker():
            metrics.sum(())

    def all_reduce_worker(self, input: Any, output: Any, mode: str = "sum") -> None:
        """Write what ``input`` is over all workers into ``output``; servers are not asked.

        Both are lists or arrays of one shape; ``mode`` is "sum", "max" or "min".
        """
        reduce = {"sum": metrics.sum, "max": metrics.max, "min": metrics.min}.get(mode)
        if reduce is None:
            raise FleetError(f"all_reduce_worker: mode must be sum, max or min, got {mode!r}")
        if self.is_worker():
            output[:] = reduce(input)

    def get_local_endpoint(self) -> str:
        """Return the endpoint of this process; "" if none was given."""
        placement = self.placement
        names = placement.worker_endpoints if self.is_worker() else placement.server_endpoints
        return names[placement.index] if names else ""

    # Fluid's scripts of metrics call them by these names, scripts of fleet 2 those below.
    _barrier_worker = barrier_worker
    _all_reduce = all_reduce_worker
    _is_worker, _is_server, _is_first_worker = is_worker, is_server, is_first_worker
    _worker_index, _server_index, _role_id = worker_index, server_index, worker_index
    _worker_num, _server_num = worker_num, server_num
    _get_trainer_endpoints, _get_pserver_endpoints = get_trainer_endpoints, get_pserver_endpoints

    def to_string(self) -> str:
        """Return the role of this process, as text for people."""
        placement = self.placement
        workers, servers = list(placement.worker_endpoints), list(placement.server_endpoints)
        return (
            f"role: {placement.role.name.lower()} {placement.index} of {placement.worker_num} "
            f"workers and {len(servers)} servers, worker_endpoints: {workers}, server_endpoints: "
            f"{servers}"
        )


class PaddleCloudRoleMaker(RoleMakerBase):
    """Reads TRAINING_ROLE and its companions, which the launcher sets on every rank.

    Without any of them the process is the only worker, and there is no server: a script that is
    started alone trains alone. Where Paddle's processes would meet (``path=``, ``init_gloo=``, ...)
    is not needed.

    Examples:
        >>> from hpcdist.fleet import PaddleCloudRoleMaker, fleet
        >>> fleet.init(PaddleCloudRoleMaker())
        >>> fleet.worker_num(), fleet.is_first_worker()
        (1, True)
    """

    def __init__(self, is_collective: bool = False, **meeting: Any) -> None:
        super().__init__()
        self.is_collective = is_collective

    def _find(self) -> Placement:
        read = collective_placement if self.is_collective else placement
        return read(settings.role_variables())


class GeneralRoleMaker(PaddleCloudRoleMaker):
    """Reads the same variables."""

    def __init__(self, **meeting: Any) -> None:
        super().__init__()


class MPISymetricRoleMaker(PaddleCloudRoleMaker):
    """Takes the roles that the launcher gave to the ranks, where Fluid takes every second one."""

    def __init__(self) -> None:
        super().__init__()


class UserDefinedRoleMaker(RoleMakerBase):
    """Is told who this process is: ``current_id`` counts workers and servers apart.

    ``worker_num`` may be left out where ``worker_endpoints`` are given. With ``is_collective``
    there are workers only.
    """

    def __init__(
        self,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: list[str] | None = None,
        *,
        worker_endpoints: list[str] | None = None,
        is_collective: bool = False,
        init_gloo: bool = False,
    ) -> None:
        super().__init__()
        self.is_collective = is_collective
        if is_collective:
            self._placement = _collective(current_id, worker_endpoints)
            return
        workers = _endpoints("worker_endpoints", worker_endpoints) if worker_endpoints else ()
        servers = _endpoints("server_endpoints", server_endpoints)
        if role not in tuple(Role):
            raise FleetTypeError(f"role: expected Role.WORKER or Role.SERVER, got {role!r}")
        self._placement = Placement(
            Role(role),
            integer(
                "current_id", current_id, 0, len(servers) if role == Role.SERVER else None, FLEET
            ),
            integer("worker_num", worker_num or len(workers), 1, errors=FLEET),
            servers,
            workers,
        )


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """Is told which of the workers of a collective job this process is."""

    is_collective = True

    def __init__(self, current_id: int = 0, worker_endpoints: list[str] | None = None) -> None:
        super().__init__()
        self._placement = _collective(current_id, worker_endpoints)


# -- from the environment ------------------------------------------------------------------------
def placement(env: Mapping[str, str]) -> Placement:
    """Return the role of the process with this environment, in a job with servers. Pure."""
    if "TRAINING_ROLE" not in env and "PADDLE_PSERVERS_IP_PORT_LIST" not in env:
        return Placement(Role.WORKER, 0, 1)
    servers = tuple(_variable(env, "PADDLE_PSERVERS_IP_PORT_LIST").split(","))
    workers = _count(env, settings.TRAINERS_NUM)
    role = _variable(env, "TRAINING_ROLE")
    names = env.get("PADDLE_TRAINER_ENDPOINTS")
    worker_names = tuple(names.split(",")) if names else ()
    if role == TRAINER:
        index = _count(env, settings.TRAINER_ID)
        if index >= workers:
            raise FleetError(
                f"PADDLE_TRAINER_ID: expected 0..{workers - 1} for {workers} workers, got {index}"
            )
        return Placement(Role.WORKER, index, workers, servers, worker_names)
    if role != PSERVER:
        raise FleetError(f"TRAINING_ROLE: expected {TRAINER} or {PSERVER}, got {role!r}")
    endpoint = f"{_variable(env, 'POD_IP')}:{_variable(env, 'PADDLE_PORT')}"
    if endpoint not in servers:
        raise FleetError(
            f"this server is POD_IP:PADDLE_PORT = {endpoint}, which is none of "
            f"PADDLE_PSERVERS_IP_PORT_LIST = {','.join(servers)}"
        )
    return Placement(Role.SERVER, servers.index(endpoint), workers, servers, worker_names)


def collective_placement(env: Mapping[str, str]) -> Placement:
    """Return which worker of a collective job the process with this environment is. Pure.

    Without PADDLE_TRAINER_ENDPOINTS it is the only one: a script that is started alone.
    """
    if "PADDLE_TRAINER_ENDPOINTS" not in env:
        return Placement(Role.WORKER, 0, 1, (), (LONE_WORKER,))
    workers = tuple(_variable(env, "PADDLE_TRAINER_ENDPOINTS").split(","))
    index = _count(env, settings.TRAINER_ID) if "PADDLE_TRAINER_ID" in env else 0
    return Placement(Role.WORKER, index, len(workers), (), workers)


def _variable(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise FleetError(
            f"PaddleCloudRoleMaker: the environment variable {name} is not set; "
            "mpirun -n 4 python -m hpcdist --pservers 2 train.py sets it on every rank "
            "(without servers: fleet.init(is_collective=True))"
        )
    return env[name]


def _count(env: Mapping[str, str], setting: Setting[int]) -> int:
    _variable(env, setting.name)
    return setting.read(env)


# -- from the user -------------------------------------------------------------------------------
def _collective(current_id: int, worker_endpoints: list[str] | None) -> Placement:
    workers = _endpoints("worker_endpoints", worker_endpoints)
    index = integer("current_id", current_id, 0, len(workers), FLEET)
    return Placement(Role.WORKER, index, len(workers), (), workers)


def _endpoints(argument: str, names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FleetTypeError(f"{argument}: expected a list of strings, got {names!r}")
    if not names:
        raise FleetError(f"{argument}: expected at least one name, got an empty list")
    if len(set(names)) != len(names):
        raise FleetError(f"{argument}: each name may appear only once, got {names}")
    return tuple(names)
