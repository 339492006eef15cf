"""Who a process of a fleet is, and what it does together with the others."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import FleetError
from hpcdist.fluid.fleet.job_util import UtilBase
from hpcdist.fluid.fleet.role_maker import Role, RoleMakerBase


class FleetRoles:
    """The part of `Fleet` that asks its role maker."""

    _chosen_role_maker: RoleMakerBase | None = None

    @property
    def _role_maker(self) -> RoleMakerBase:
        if self._chosen_role_maker is None:
            raise FleetError("the role of this process is unknown: call fleet.init() first")
        return self._chosen_role_maker

    def is_first_worker(self) -> bool:
        """Return whether this process is worker 0."""
        return self._role_maker.is_first_worker()

    def is_worker(self) -> bool:
        """Return whether this process trains."""
        return self._role_maker.is_worker()

    def is_server(self) -> bool:
        """Return whether this process serves."""
        return self._role_maker.is_server()

    def worker_index(self) -> int:
        """Return which worker this process is; on a server, which server."""
        return self._role_maker.worker_index()

    def worker_num(self) -> int:
        """Return how many workers there are."""
        return self._role_maker.worker_num()

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return the workers' names as a list, or separated by commas."""
        names = self._role_maker.get_trainer_endpoints()
        return ",".join(names) if to_string else names

    def server_index(self) -> int:
        """Return which server this process is; on a worker, which worker."""
        return self._role_maker.server_index()

    def server_num(self) -> int:
        """Return how many servers there are."""
        return len(self._role_maker.get_pserver_endpoints())

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """Return the servers' names as a list, or separated by commas."""
        names = self._role_maker.get_pserver_endpoints()
        return ",".join(names) if to_string else names

    def split_files(self, files: list[str]) -> list[str]:
        """Return this worker's part: consecutive files, the first workers getting one more."""
        return self.util.get_file_shard(files)

    @property
    def util(self) -> UtilBase:
        """Sums and barriers over workers, servers or all ranks, and whose files are whose."""
        return UtilBase(lambda: self._role_maker)

    def is_coordinator(self) -> bool:
        """Return False: no process averages what trainers of federated learning have."""
        return False

    rank, nranks, world_size = worker_index, worker_num, worker_num

    # -- together -----------------------------------------------------------------------------
    def all_reduce(self, input: Any, mode: str = "sum") -> Any:
        """Return the sum ("max", "min") of all workers' values. Collective among workers."""
        self._require(Role.WORKER, "all_reduce")
        return self.util.all_reduce(input, mode)

    def barrier_worker(self) -> None:
        """Wait until all workers have come here. Collective among workers."""
        self._require(Role.WORKER, "barrier_worker")
        self._role_maker.barrier_worker()

    def all_reduce_worker(self, input: Any, output: Any) -> None:
        """Write the sum of all workers' ``input`` into ``output``. Collective among workers."""
        self._require(Role.WORKER, "all_reduce_worker")
        self._role_maker.all_reduce_worker(input, output)

    def _require(self, role: Role, call: str) -> None:
        if self.is_server() != (role == Role.SERVER):
            name = role.name.lower()
            raise FleetError(
                f"{call} is for {name}s, but this process is not a {name} "
                f"({self._role_maker.to_string()}): call it under fleet.is_{name}()"
            )
