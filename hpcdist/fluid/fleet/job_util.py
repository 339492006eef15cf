"""``fleet.util``: what ranks of a job tell each other, and which files are whose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.checks import FLEET, integer
from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.comm.cluster import Ranks
from hpcdist.fluid.fleet import metrics
from hpcdist.fluid.fleet.role_maker import RoleMakerBase

_REDUCE: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}


class UtilBase:
    """Sums, barriers and files over workers, servers, or all ranks of a job.

    Each call is collective among the ranks that ``comm_world`` names: "worker", "server" or "all".
    Servers call before they serve.
    """

    def __init__(self, role_maker: Callable[[], RoleMakerBase]) -> None:
        self._role_maker = role_maker

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> np.ndarray:
        """Reduce lists or arrays of one shape over ranks, element by element.

        ``mode``: "sum", "max" or "min".
        """
        if mode not in _REDUCE:
            raise FleetError(f"all_reduce: mode must be sum, max or min, got {mode!r}")
        reduce = _REDUCE[mode]
        reduced = reduce(metrics.everyones(input, among=_among(comm_world)), axis=0)
        return np.reshape(reduced, np.shape(input))

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """Return every rank's number in a list, workers' before servers'."""
        gathered = metrics.everyones(input, among=_among(comm_world))
        return [value.reshape(np.shape(input)).tolist() for value in gathered]

    def barrier(self, comm_world: str = "worker") -> None:
        """Wait until all these ranks have come here."""
        metrics.everyones((), among=_among(comm_world))

    def get_file_shard(self, files: list[str]) -> list[str]:
        """Return this worker's part: consecutive files, the first workers getting one more."""
        if not isinstance(files, list):
            raise FleetTypeError(f"files: expected a list of files, got {files!r}")
        index, workers = self._role_maker().worker_index(), self._role_maker().worker_num()
        per_worker, over = divmod(len(files), workers)
        begin = index * per_worker + min(index, over)
        return files[begin : begin + per_worker + (index < over)]

    def print_on_rank(self, message: object, rank_id: int) -> None:
        """Print on this worker, or on the server of this number."""
        if self._role_maker().worker_index() == integer("rank_id", rank_id, 0, errors=FLEET):
            print(message, flush=True)


def _among(comm_world: str) -> Ranks:
    named: Sequence[str] = [ranks.value for ranks in Ranks]
    if comm_world not in named:
        raise FleetError(f"comm_world: expected one of {named}, got {comm_world!r}")
    return Ranks(comm_world)
