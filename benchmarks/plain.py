"""Race the README's own way, a plain script, against the same script that transpiles itself.

    python benchmarks/plain.py

Linear regression with the loss fetched in every step, on 2 trainers: with 2 parameter servers, and
without. In the plain script every trainer feeds the whole batch, all compare what they feed, and
the loss is that of the whole batch; the other script calls `DistributeTranspiler`, feeds each
trainer its own part, and fetches that part's loss. The gradients are those of the same rows.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from cases import CASES
from rounds import FROM_CHECKOUT, HERE, Contender, Target, arguments, finish, race, run_child
from vs_fluid import LIMIT_S, MPI_ENVIRONMENT, TRAINERS, mpirun

STEPS = {"linreg": (2000, 20000), "mlp": (10, 100)}  # (warm-up, timed)
TARGET = Target("plain", "transpiles itself", 0.6)


def run(servers: int, options: list[str]) -> dict[str, Any]:
    """Run one job; return what trainer 0 prints."""
    command = [mpirun(), "-n", str(servers + TRAINERS), sys.executable, "-m", "hpcdist"]
    command += ["--pservers", str(servers)] if servers else []
    variables = MPI_ENVIRONMENT | FROM_CHECKOUT
    return run_child([*command, str(HERE / "train.py"), *options], variables, LIMIT_S)


def main() -> None:
    """Race with servers and without; exit 1 if the target is missed."""
    parser = arguments(__doc__, 7)
    parser.add_argument("--case", choices=sorted(CASES), default="linreg")
    parser.add_argument("--servers", type=int, action="append", help="default: 2, then 0")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    warmup, steps = (max(10, round(n * options.scale)) for n in STEPS[options.case])
    counts = ["--case", options.case, "--warmup", str(warmup), "--steps", str(steps)]
    rows = []
    for servers in options.servers or (2, 0):
        contenders = [
            Contender("transpiles itself", functools.partial(run, servers, counts)),
            Contender("plain", functools.partial(run, servers, [*counts, "--plain"])),
        ]
        where = f"{servers} servers" if servers else "no servers"
        title = f"{CASES[options.case].title}, {TRAINERS} trainers, {where}"
        case = f"{options.case}, {where}"
        rows.append(race(case, title, contenders, options.rounds, [TARGET]))
    finish(rows)


if __name__ == "__main__":
    main()
