"""Environment variables with the role of a process: Fluid's, or torchrun's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.comm.cluster import COLLECTIVE, PSERVER, TRAINER, Cluster

TORCH_PORT = "29500"  # torchrun's own


def variables(cluster: Cluster, rank: int) -> dict[str, str]:
    """Return the variables of ``rank``, PaddleCloudRoleMaker's included."""
    role = cluster.role_of(rank)
    serves = role.kind == PSERVER
    endpoint = (cluster.endpoints if serves else cluster.trainer_endpoints)[role.index]
    host, _, port = endpoint.rpartition(":")
    kind = TRAINER if role.kind == COLLECTIVE else role.kind  # Fluid has two words
    variables = {
        "PADDLE_TRAINING_ROLE": kind,
        "TRAINING_ROLE": kind,
        # Scripts read it on servers as well, where it means nothing.
        "PADDLE_TRAINER_ID": "0" if serves else str(role.index),
        "PADDLE_TRAINERS": str(len(cluster.trainers)),
        "PADDLE_TRAINERS_NUM": str(len(cluster.trainers)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(cluster.trainer_endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoint,
        "PADDLE_CURRENT_IP": host,
        "POD_IP": host,
        "PADDLE_PORT": port,
    }
    if not cluster.servers:
        return variables
    variables["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(cluster.endpoints)
    hosts, ports = zip(*(name.rsplit(":", 1) for name in cluster.endpoints), strict=True)
    # Two variables cannot say names with several ports; such scripts read the full list.
    if len(set(ports)) == 1:
        variables |= {"PADDLE_PSERVER_IPS": ",".join(hosts), "PADDLE_PSERVER_PORT": ports[0]}
    return variables


def alone() -> dict[str, str]:
    """Return the variables of a script that runs in one process: one trainer, and no role."""
    return {"PADDLE_TRAINERS": "1", "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"}


def of_torchrun(rank: int, hosts: Sequence[str]) -> dict[str, str]:
    """Return the variables that torchrun gives ``rank``; ``hosts`` are those of all trainers.

    The master's port is a name only: nothing binds it.
    """
    nodes = list(dict.fromkeys(hosts))
    on_host = [k for k, host in enumerate(hosts) if host == hosts[rank]]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(on_host.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(on_host)),
        "GROUP_RANK": str(nodes.index(hosts[rank])),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(hosts)),
        "ROLE_NAME": "default",
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": TORCH_PORT,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "hpcdist",
    }
