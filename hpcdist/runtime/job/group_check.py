"""Whether a script's Program was transpiled for the trainers that this job has."""

from __future__ import annotations

from hpcdist.comm.cluster import Cluster, RankRole
from hpcdist.errors import HpcdistError
from hpcdist.transpiler.cluster import Group
from hpcdist.transpiler.hybrid import HybridGroup


def check_group(group: Group, cluster: Cluster, role: RankRole, rank: int) -> None:
    """Refuse a Program that was transpiled for other trainers than those of this job.

    Raises HpcdistError: the job has servers and the Program none, or another trainer is told.
    """
    configured = (group.trainer_id, len(group.endpoints))
    actual = (role.index, len(cluster.trainers))
    if cluster.servers and not isinstance(group, HybridGroup):
        raise HpcdistError(
            f"rank {rank} is {role} of a job with parameter servers, but "
            f"the script transpiles in {group.mode} mode: start it without --pservers"
        )
    if configured != actual:
        raise HpcdistError(
            f"rank {rank} is trainer {actual[0]} of {actual[1]}, but the script "
            f"transpiles for trainer {configured[0]} of {configured[1]}: use PADDLE_TRAINER_ID and "
            "PADDLE_TRAINER_ENDPOINTS of the environment, or start as many ranks"
        )
