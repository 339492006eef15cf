"""Race one training script: the real Fluid 1.8.5, hpcdist, and a loop written by hand in mpi4py.

    python benchmarks/vs_fluid.py --fluid-python /path/to/python3.7/bin/python

Each job is 2 parameter servers and 2 trainers on this machine, in synchronous mode. All three
run in turn, several rounds; the result is the median of steps per second of trainer 0 after a
warm-up, every step fetching the loss. Before that, their losses must agree. The real Fluid:

    python3.7 -m venv fluid && fluid/bin/pip install paddlepaddle==1.8.5 "protobuf<3.21"

Without --fluid-python that column is left out. Run it with the Python that has hpcdist.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from cases import CASES
from rounds import (
    BARE,
    FROM_CHECKOUT,
    HERE,
    Contender,
    Failed,
    Target,
    arguments,
    environment,
    finish,
    json_line,
    race,
    run_child,
)

SERVERS, TRAINERS = 2, 2
LIMIT_S = 300.0
TOLERANCE = 1e-4  # float32 sums in different orders
# Steps that take a few seconds here; (warm-up, timed).
STEPS = {
    "linreg": {"fluid": (50, 500), "hpcdist": (2000, 20000), BARE: (2000, 20000)},
    "mlp": {"fluid": (10, 40), "hpcdist": (10, 100), BARE: (10, 100)},
}
TARGETS = {
    "linreg": (Target("hpcdist", "fluid", 30.0), Target("hpcdist", BARE, 0.7)),
    "mlp": (Target("hpcdist", "fluid", 2.0), Target("hpcdist", BARE, 0.7)),
}
# More ranks than cores must work, as root too (Open MPI 5, Open MPI 4, MPICH).
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_osc": "^ucx",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
}


def counts(case: str, name: str, scale: float) -> list[str]:
    """Return the options that say how many steps a contender makes."""
    warmup, steps = (max(10, round(n * scale)) for n in STEPS[case][name])
    return ["--case", case, "--warmup", str(warmup), "--steps", str(steps)]


def mpirun() -> str:
    """Return the mpirun beside this Python, else the one on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise Failed("there is no mpirun beside this Python and none on PATH")
    return found


def run_bare(case: str, scale: float) -> dict[str, Any]:
    """Run the loop by hand on 4 ranks."""
    command = [mpirun(), "-n", str(SERVERS + TRAINERS), sys.executable, HERE / "bare_mpi.py"]
    return run_child(command + counts(case, BARE, scale), MPI_ENVIRONMENT, LIMIT_S)


def run_hpcdist(case: str, scale: float) -> dict[str, Any]:
    """Run the script under hpcdist on 4 ranks."""
    command = [mpirun(), "-n", str(SERVERS + TRAINERS), sys.executable, "-m", "hpcdist"]
    command += ["--pservers", str(SERVERS), str(HERE / "train.py")]
    variables = MPI_ENVIRONMENT | FROM_CHECKOUT
    return run_child(command + counts(case, "hpcdist", scale), variables, LIMIT_S)


def free_port(hosts: list[str]) -> int:
    """Return a port that nobody listens on, on any of the hosts."""
    while True:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in hosts]
            sockets[0].bind((hosts[0], 0))
            port: int = sockets[0].getsockname()[1]
            with contextlib.suppress(OSError):
                for host, other in zip(hosts[1:], sockets[1:]):
                    other.bind((host, port))
                return port


@contextlib.contextmanager
def fluid_process(
    python: str, command: list[str], variables: dict[str, str], output: IO[str]
) -> Iterator[subprocess.Popen[str]]:
    """Start one role under the real Fluid; kill it on leaving (its servers never exit)."""
    process = subprocess.Popen(
        [python, *command],
        env=environment(variables | {"BENCHMARK_API": "fluid", "FLAGS_rpc_deadline": "60000"}),
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_fluid(python: str | None, case: str, scale: float) -> dict[str, Any]:
    """Run the script under the real Fluid: 4 processes that talk gRPC."""
    command = [str(HERE / "train.py"), *counts(case, "fluid", scale)]
    return json_line(run_roles(python, command, roles()))


def roles() -> list[dict[str, str]]:
    """Return the environment of each process of the real Fluid, servers first."""
    # A host of its own for each server: the script knows one port and several hosts.
    hosts = [f"127.0.0.{i + 1}" for i in range(SERVERS)]
    common = {
        "PADDLE_PSERVER_IPS": ",".join(hosts),
        "PADDLE_PSERVER_PORT": str(free_port(hosts)),
        "PADDLE_TRAINERS": str(TRAINERS),
    }
    found = [{"PADDLE_TRAINING_ROLE": "PSERVER", "PADDLE_CURRENT_IP": host} for host in hosts]
    found += [
        {"PADDLE_TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)} for i in range(TRAINERS)
    ]
    return [common | role for role in found]


def run_roles(python: str | None, command: list[str], roles: list[dict[str, str]]) -> str:
    """Run one process of the real Fluid for each role, servers first; return trainer 0's output."""
    if python is None:
        raise Failed("no --fluid-python given")
    if shutil.which(python) is None:
        raise Failed(f"{python} cannot be run")
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in roles]
        processes = [
            stack.enter_context(fluid_process(python, command, role, output))
            for role, output in zip(roles, outputs)
        ]
        wait_for(processes[SERVERS:], processes[:SERVERS], outputs)
        outputs[SERVERS].seek(0)
        return outputs[SERVERS].read()


def wait_for(
    trainers: list[subprocess.Popen[str]], servers: list[subprocess.Popen[str]], outputs: list[Any]
) -> None:
    """Wait until all trainers have ended; raise Failed with the output of a process that died."""
    end = time.monotonic() + LIMIT_S
    while any(trainer.poll() is None for trainer in trainers):
        early = [server.poll() is not None for server in servers]
        early += [bool(trainer.poll()) for trainer in trainers]
        if any(early):
            output = outputs[early.index(True)]
            output.seek(0)
            raise Failed("a process died:\n" + output.read()[-2000:])
        if time.monotonic() > end:
            raise Failed(f"not done after {LIMIT_S:g} s")
        time.sleep(0.05)


def main() -> None:
    """Race the cases asked for; exit 1 if a target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--fluid-python", help="the Python that has paddlepaddle==1.8.5")
    parser.add_argument("--case", choices=sorted(CASES), action="append", help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    rows = []
    for case in options.case or list(CASES):
        contenders = [
            Contender(
                "fluid", functools.partial(run_fluid, options.fluid_python, case, options.scale)
            ),
            Contender("hpcdist", functools.partial(run_hpcdist, case, options.scale)),
            Contender(BARE, functools.partial(run_bare, case, options.scale)),
        ]
        title = CASES[case].title
        rows.append(race(case, title, contenders, options.rounds, TARGETS[case], TOLERANCE))
    finish(rows)


if __name__ == "__main__":
    main()
