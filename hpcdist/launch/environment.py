"""The variables that tell a script which rank of a job it is, under Fluid's names. Pure."""

from __future__ import annotations

from hpcdist.comm.cluster import COLLECTIVE, PSERVER, TRAINER, Cluster


def variables(cluster: Cluster, rank: int) -> dict[str, str]:
    """Return the variables of ``rank``, PaddleCloudRoleMaker's included."""
    role = cluster.role_of(rank)
    serves = role.kind == PSERVER
    own = (cluster.endpoints if serves else cluster.trainer_endpoints)[role.index]
    host, _, port = own.rpartition(":")
    kind = TRAINER if role.kind == COLLECTIVE else role.kind  # Fluid has two words
    found = {
        "PADDLE_TRAINING_ROLE": kind,
        "TRAINING_ROLE": kind,
        # Scripts read it on servers as well, where it means nothing.
        "PADDLE_TRAINER_ID": "0" if serves else str(role.index),
        "PADDLE_TRAINERS": str(len(cluster.trainers)),
        "PADDLE_TRAINERS_NUM": str(len(cluster.trainers)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(cluster.trainer_endpoints),
        "PADDLE_CURRENT_ENDPOINT": own,
        "PADDLE_CURRENT_IP": host,
        "POD_IP": host,
        "PADDLE_PORT": port,
    }
    if not cluster.servers:
        return found
    found["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(cluster.endpoints)
    hosts, ports = zip(*(name.rsplit(":", 1) for name in cluster.endpoints), strict=True)
    # Two variables cannot say names with several ports; such scripts read the full list.
    if len(set(ports)) == 1:
        found |= {"PADDLE_PSERVER_IPS": ",".join(hosts), "PADDLE_PSERVER_PORT": ports[0]}
    return found


def alone() -> dict[str, str]:
    """Return the variables of a script that runs in one process: one trainer, and no role."""
    return {"PADDLE_TRAINERS": "1", "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"}
