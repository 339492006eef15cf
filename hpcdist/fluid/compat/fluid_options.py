"""Options of Fluid's launchers (paddle.distributed.launch, launch_ps, fleetrun), under MPI.

mpirun or srun starts the processes here. So options that say where are refused, with what to use
instead; those that give numbers are checked; the others keep their meaning.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import LaunchError
from hpcdist.comm.cluster import Cluster

HERE = "127.0.0.1"
_HOSTS = "processes are started by mpirun --host a:2,b:2 or srun"
_SERVERS = "give the number of servers with --pservers P, and their ranks with --role-map"
_HETER = "all trainers are alike; the script chooses the GPU, by its place"
REFUSED = {
    "--ips": _HOSTS,
    "--cluster_node_ips": _HOSTS,
    "--node_ip": _HOSTS,
    "--servers": _SERVERS,
    "--workers": _SERVERS,
    "--endpoints": _SERVERS,
    "--started_port": "nothing binds a port: endpoints are names",
    "--start_port": "nothing binds a port: endpoints are names",
    "--http_port": "ranks find each other through MPI",
    "--heter_workers": _HETER,
    "--heter_worker_num": _HETER,
}


class _Refuse(argparse.Action):
    """Refuses an option and says what to use instead; the address of this host is accepted."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values != HERE:
            name = self.option_strings[0]
            parser.error(f"{name} is an option of Fluid's launcher: {REFUSED[name]}")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options, without help: the same as one of ours share its value."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS}
    unset: dict[str, Any] = {**hidden, "default": argparse.SUPPRESS}
    parser.add_argument("--log_dir", dest="log_dir", **unset)
    parser.add_argument("--server_num", dest="pservers", type=int, **unset)
    parser.add_argument("--worker_num", "--trainer_num", type=int, **hidden)
    parser.add_argument("--nproc_per_node", type=int, **hidden)
    parser.add_argument("--gpus", "--selected_gpus", **hidden)
    parser.add_argument("--print_config", **hidden)
    parser.add_argument("--log_level", type=int, **hidden)
    for name in REFUSED:
        parser.add_argument(name, action=_Refuse, dest="refused", **unset)
    parser.add_argument("--use_paddlecloud", action="store_true", **unset)


def settle(parser: argparse.ArgumentParser, options: dict[str, Any]) -> dict[str, Any]:
    """Return the parsed options without those that take effect at once, such as --gpus."""
    if options.pop("use_paddlecloud", False):
        parser.error(
            "--use_paddlecloud is an option of Fluid's launcher: mpirun or srun knows the hosts"
        )
    options.pop("refused", None)
    config = options.pop("print_config")
    if config is not None:
        if config.lower() not in ("true", "false"):
            parser.error(f"--print_config: expected True or False, got {config!r}")
        options["quiet"] = options["quiet"] or config.lower() == "false"
    selected = options.pop("gpus")
    if selected is not None:
        gpus = settings.VISIBLE_GPUS
        gpus.write(_visible(parser, selected, gpus.read()))
    return options


def _visible(parser: argparse.ArgumentParser, selected: str, visible: str | None) -> str:
    chosen = [gpu.strip() for gpu in selected.split(",")]
    if not all(gpu.isdigit() for gpu in chosen):
        parser.error(f"--gpus: expected numbers separated by commas, got {selected!r}")
    shown = [gpu.strip() for gpu in visible.split(",")] if visible else chosen
    for gpu in chosen:
        if gpu not in shown:
            parser.error(f"--gpus: {gpu} is not among CUDA_VISIBLE_DEVICES={visible}")
    return ",".join(chosen)


def check_counts(
    worker_num: int | None, nproc_per_node: int | None, cluster: Cluster, hosts: Sequence[str]
) -> None:
    """Refuse a job of other numbers than were asked for; ``hosts`` has one name per rank."""
    trainers, servers = len(cluster.trainers), len(cluster.servers)
    if worker_num is not None and worker_num != trainers:
        raise LaunchError(
            f"--worker_num is {worker_num}, but this job has {trainers} trainers: start "
            f"mpirun -n {worker_num + servers}"
        )
    for host in dict.fromkeys(hosts):
        if nproc_per_node is not None and hosts.count(host) != nproc_per_node:
            raise LaunchError(
                f"--nproc_per_node is {nproc_per_node}, but {hosts.count(host)} ranks run on "
                f"{host}: start mpirun -n {nproc_per_node * len(set(hosts))}, or say where by "
                f"mpirun --host {host}:{nproc_per_node},..."
            )
