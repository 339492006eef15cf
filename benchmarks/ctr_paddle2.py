"""Click-through rates in Paddle 2's words: examples per second, beside 2.6.2's brpc servers.

    python benchmarks/ctr_paddle2.py --paddle-python /path/to/python3.10/bin/python

Wide and deep, 26 slots of Zipf ids, rows of 16, batches of 512 per trainer, 2 servers and 2
trainers on this machine, one script for both: fed, and from files by train_from_dataset. Paddle
2.6.2:

    python3.10 -m venv paddle26 && paddle26/bin/pip install 'paddlepaddle==2.6.2' \\
        'protobuf<3.21' 'numpy<2' setuptools

Its synchronous workers may end with a segmentation fault: that column is then left out, as it is
without --paddle-python. `bare_ctr.py`, the job by hand, is a measure of what is possible. Losses
are not compared: asynchronous steps depend on who comes first.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import ctr
import vs_fluid
from rounds import (
    BARE,
    FROM_CHECKOUT,
    HERE,
    Contender,
    Target,
    arguments,
    finish,
    json_line,
    race,
    run_child,
)

STEPS = {"paddle": (10, 60), "hpcdist": (20, 300)}  # warm-up, timed
TARGETS = {"sync": 8.0, "async": 8.0, "files": 4.0}  # files: asynchronous, train_from_dataset


def command(name: str, mode: str, scale: float) -> list[str]:
    """Return the script of a contender, with how many steps it makes."""
    warmup, steps = (max(5, round(n * scale)) for n in STEPS[name])
    script = str(HERE / "ctr_paddle2_train.py")
    counts = ["--warmup", str(warmup), "--steps", str(steps)]
    return [script, *counts, *(["--files"] if mode == "files" else ["--mode", mode])]


def run_hpcdist(mode: str, scale: float) -> dict[str, Any]:
    """Run the script under hpcdist on 4 ranks."""
    ranks = str(vs_fluid.SERVERS + vs_fluid.TRAINERS)
    start = [vs_fluid.mpirun(), "-n", ranks, sys.executable, "-m", "hpcdist", "--as-paddle"]
    start += ["--pservers", str(vs_fluid.SERVERS), *command("hpcdist", mode, scale)]
    return run_child(start, vs_fluid.MPI_ENVIRONMENT | FROM_CHECKOUT, vs_fluid.LIMIT_S)


def run_paddle(python: str | None, mode: str, scale: float) -> dict[str, Any]:
    """Run the script under Paddle: 4 processes that talk brpc."""
    said = vs_fluid.run_roles(python, command("paddle", mode, scale), roles(python))
    return json_line(said)


def roles(python: str | None) -> list[dict[str, str]]:
    """Return the environment of each process of Paddle's, servers first."""
    hosts = ["127.0.0.1"]
    ports = [vs_fluid.free_port(hosts) for _ in range(vs_fluid.SERVERS + vs_fluid.TRAINERS)]
    names = [f"127.0.0.1:{port}" for port in ports]
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(names[: vs_fluid.SERVERS]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(names[vs_fluid.SERVERS :]),
        "PADDLE_TRAINERS_NUM": str(vs_fluid.TRAINERS),
        "PADDLE_WITH_GLOO": "0",
        "POD_IP": "127.0.0.1",
        "CPU_NUM": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(python or '').parent}:{os.environ['PATH']}",
    }
    servers, trainers = ports[: vs_fluid.SERVERS], ports[vs_fluid.SERVERS :]
    found = [{"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port)} for port in servers]
    found += [
        {"TRAINING_ROLE": "TRAINER", "PADDLE_PORT": str(port), "PADDLE_TRAINER_ID": str(index)}
        for index, port in enumerate(trainers)
    ]
    return [common | role for role in found]


def main() -> None:
    """Race the modes asked for; exit 1 if a target is missed."""
    parser = arguments(__doc__, 3)
    parser.add_argument("--paddle-python", help="the Python that has paddlepaddle==2.6.2")
    parser.add_argument("--mode", choices=TARGETS, action="append", help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    rows = []
    for mode in options.mode or TARGETS:
        paddle = functools.partial(run_paddle, options.paddle_python, mode, options.scale)
        contenders = [
            Contender("paddle", paddle),
            Contender("hpcdist", functools.partial(run_hpcdist, mode, options.scale)),
        ]
        if mode != "files":  # asynchronous steps have the same arithmetic and messages
            contenders.append(Contender(BARE, functools.partial(ctr.run_bare, options.scale)))
        title = f"wide and deep in Paddle 2's words, {mode}, 512 examples per step and trainer"
        target = [Target("hpcdist", "paddle", TARGETS[mode])]
        rows.append(race(f"ctr {mode}", title, contenders, options.rounds, target))
    finish(rows)


if __name__ == "__main__":
    main()
