"""A real Slurm of several nodes on this machine: munge, slurmctld, and a slurmd for each node.

Everything lies in one folder, and nothing of the machine's own Slurm is read or changed. It needs
root (each node has a host name of its own) and Debian's packages, see `missing`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PACKAGES = "slurmctld slurmd slurm-client munge libpmix2"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare")
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so")  # what Slurm's plugin loads

CONFIGURATION = """\
ClusterName=lab
FirstJobId={first_job}
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,requeue_delay=1
MpiDefault=pmi2
ReturnToService=2
KillWait=5
SlurmdTimeout=300
MessageTimeout=60
TCPTimeout=30
BatchStartTimeout=120
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n[1-{nodes}] NodeHostname=localhost Port=[{first}-{last}] CPUs=4 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why there can be no Slurm here, or an empty string."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install {PACKAGES}"
    if os.geteuid() != 0:
        return "the nodes of a Slurm on one machine need root"
    done = subprocess.run(["unshare", "-m", "-u", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "this machine does not let root unshare host names"


class Lab:
    """A cluster that runs from ``start`` to ``stop``."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        self._nodes = nodes
        self.environment = {**_clean(os.environ), "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start all daemons; return when every node is idle."""
        folder = self._folder
        (folder / "state").mkdir(parents=True)
        ports = _free_ports(1 + self._nodes)
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=folder,
                nodes=self._nodes,
                controller=ports[0],
                # Of no other lab on this machine: jobs are known by their numbers in /proc and in
                # /dev/shm.
                first_job=100 * ports[0],
                first=ports[1],
                last=ports[-1],
            )
        )
        (folder / "mpi.conf").write_text("PMIxCliTmpDirBase=/run/hpcdist-pmix\n")
        Path("/run/hpcdist-pmix").mkdir(exist_ok=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        # Without --force munged refuses folders that others may write to, as those of tests are.
        self._daemon(
            "munged",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        self._daemon("slurmctld", "-i", "-f", f"{folder}/slurm.conf")
        for number in range(1, self._nodes + 1):
            name = f"n{number}"
            (folder / f"spool.{name}").mkdir()
            # A host name of its own, and a place of its own for PMIx's files.
            script = (
                f"hostname {name}; mount -t tmpfs none /run/hpcdist-pmix; "
                f"exec slurmd -N {name} -f {folder}/slurm.conf"
            )
            self._daemon("unshare", "-m", "-u", "sh", "-c", script)
        self.wait_until(
            lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split().count("idle") == self._nodes,
            "all nodes to be idle",
        )

    def stop(self) -> None:
        """Cancel all jobs and end all daemons."""
        subprocess.run(
            ["scancel", "--full", "--signal=KILL", "-u", "root"],
            env=self.environment,
            capture_output=True,
            check=False,
        )
        for file in [*self._folder.glob("slurm*.pid"), *self._folder.glob("munged.pid")]:
            subprocess.run(["kill", file.read_text().strip()], capture_output=True, check=False)

    def run(self, *command: str) -> str:
        """Return what a command of Slurm's prints; raise if it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, folder: Path, *arguments: str, **variables: str) -> int:
        """Submit a batch script from ``folder``; return the job's number."""
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments],
            cwd=folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split(";")[0].split("+")[0])

    def state(self, job: int) -> str:
        """Return the state of a job, such as RUNNING or COMPLETED."""
        facts = self.run("scontrol", "show", "job", "-o", str(job))
        return facts.split("JobState=")[1].split()[0]

    def await_end(self, job: int, limit_s: float = 500) -> str:
        """Return the state in which a job ends."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self.wait_until(
            lambda: self.state(job) in ended, f"job {job} to end ({self.state(job)})", limit_s
        )
        return self.state(job)

    def wait_until(self, happened: Callable[[], bool], what: str, limit_s: float = 300) -> None:
        """Wait until something has happened; fail with the controller's last words if not."""
        end = time.monotonic() + limit_s
        while not happened():
            if time.monotonic() > end:
                log = (self._folder / "slurmctld.log").read_text()[-3000:]
                raise AssertionError(f"waited {limit_s:g} s for {what}\n{log}")
            time.sleep(0.1)

    def _daemon(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without traces of another job."""
    return {k: v for k, v in environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_COMM"))}


def _free_ports(count: int) -> range:
    """Return consecutive ports that nobody listens on now."""
    # Each process begins elsewhere: two labs that start at once must not find the same.
    for first in range(20000 + os.getpid() % 2500 * count, 60000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return range(first, first + count)
    raise AssertionError("no free ports")
