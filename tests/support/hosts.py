"""Several hosts on one machine: network namespaces with hostnames of their own, joined by a bridge.

Needs root, iproute2 and Open MPI's mpirun. Ranks of different hosts find no memory in common and
talk over the bridge. Links are limited in both directions, and ``link_bytes`` counts on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.jobs import MPIRUN, ROOT, needs_mpirun

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")

MAPPING = "PRTE_MCA_rmaps_default_mapping_policy"  # with :oversubscribe the first host takes all

# Open MPI's "ssh": runs the command in the host's network, under the host's name.
AGENT = """#!/bin/bash
while [[ "$1" == -* ]]; do case "$1" in -l|-p|-o) shift 2;; *) shift;; esac; done
host=$1; shift
exec ip netns exec {prefix}${{host##*.}} unshare -u sh -c "hostname h${{host##*.}}; $*"
"""


def link_bytes() -> int:
    """Return how many bytes this rank's host has sent over its link."""
    return int(SENT.read_text())


def missing() -> str:
    """Return why no hosts can be made here, or an empty string."""
    if needs_mpirun.args[0]:
        return "a job starts mpirun itself: needs one, and a process that mpirun has not started"
    if os.geteuid():
        return "making network namespaces needs root"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    version = subprocess.run(
        [str(MPIRUN), "--version"], capture_output=True, text=True, check=False
    )
    if "Open MPI" not in version.stdout or " 4." in version.stdout:
        return "the launching is written for Open MPI 5"
    name = f"hp{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "ip netns add is refused"
    _ip("netns", "del", name)
    return ""


@dataclass(frozen=True)
class Hosts:
    """Hosts that are up; ``addresses`` are their names to mpirun."""

    addresses: tuple[str, ...]
    agent: str

    def run(
        self,
        per_host: Sequence[int],
        *arguments: str,
        limit_s: int = 400,
        codes: Sequence[int] = (0,),
    ) -> str:
        """Run Python with so many ranks on each host; return what it printed.

        ``arguments`` are Python's, such as a script. Raises AssertionError with the output, unless
        the exit code is one of ``codes``.
        """
        hosts = ",".join(f"{a}:{n}" for a, n in zip(self.addresses, per_host) if n)
        env = {k: v for k, v in os.environ.items() if k != MAPPING} | {
            "PRTE_MCA_plm_ssh_agent": self.agent,
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_osc": "^ucx",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        names = ("PYTHONPATH", "PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        forward = [word for name in names for word in ("-x", name)]
        python = [sys.executable, *arguments]
        done = subprocess.run(
            [str(MPIRUN), "--host", hosts, "-n", str(sum(per_host)), *forward, *python],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode in codes, done.stdout
        return done.stdout


@contextmanager
def hosts(
    count: int, rate: str = "1gbit", slow: Mapping[int, str] | None = None
) -> Iterator[Hosts]:
    """Make ``count`` hosts whose links carry ``rate`` each way; take them down at the end.

    ``slow``: the rates of some hosts' links, which are numbered from 1.
    """
    net = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    prefix = f"h{os.getpid()}-"
    bridge = f"b{os.getpid()}"
    made: list[tuple[str, ...]] = []

    def make(words: str, undo: str) -> None:
        _ip(*words.split())
        made.append(tuple(undo.split()))

    try:
        make(f"link add {bridge} type bridge", f"link del {bridge}")
        _ip("addr", "add", f"{net}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for i in range(1, count + 1):
            space, link = f"{prefix}{i}", f"v{prefix}{i}"
            make(f"netns add {space}", f"netns del {space}")
            make(f"link add {link} type veth peer name eth0 netns {space}", f"link del {link}")
            _ip("link", "set", link, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{net}.{i}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "route", "add", "default", "via", f"{net}.254")
            own = (slow or {}).get(i, rate)
            limit = f"root tbf rate {own} burst 256kb latency 20ms".split()
            _run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", *limit)
            _run("tc", "qdisc", "add", "dev", link, *limit)
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "rsh"
            agent.write_text(AGENT.format(prefix=prefix))
            agent.chmod(0o755)
            yield Hosts(tuple(f"{net}.{i}" for i in range(1, count + 1)), str(agent))
    finally:
        for undo in reversed(made):  # links before their namespaces
            subprocess.run(["ip", *undo], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
