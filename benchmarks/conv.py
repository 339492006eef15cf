"""Compare convolutions, pools and batch_norm with PyTorch's, layer by layer, on one thread.

    python benchmarks/conv.py --torch-python /path/to/python
    HPCDIST_KERNELS=torch python benchmarks/conv.py        # with a Python that has torch

Each contender runs as a child process, in turn, several rounds; counted is processor time. A ratio
above 1 says that hpcdist takes less. Exit 1 if a layer, forward and backward together, is below its
target: 3x3 and 1x1 layers of ResNet with hpcdist's own kernels; every layer where PyTorch provides.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from rich.table import Table
from rounds import CONSOLE, FROM_CHECKOUT, HERE, LIMIT_S, arguments, environment, say

OWN = (0.5, ("resnet 3x3", "resnet 1x1"))  # the target of the layers whose names begin so
BY_TORCH = (0.9, "")


def main() -> None:
    """Print milliseconds and ratios of each layer."""
    parser = arguments(__doc__, 3)
    parser.add_argument("--torch-python", default=sys.executable, help="the Python with torch")
    options = parser.parse_args()
    contenders = {
        "hpcdist": [sys.executable, HERE / "conv_hpcdist.py"],
        "torch": [options.torch_python, HERE / "conv_torch.py"],
    }
    rounds: list[dict[str, Any]] = []
    for index in range(options.rounds):
        found = {}
        for name, command in contenders.items():
            with CONSOLE.status(f"round {index + 1} of {options.rounds}, {name}"):
                found[name] = _measured(command)
        rounds.append(found)
    rows = [_row(layer, rounds) for layer in rounds[0]["hpcdist"]]
    table = Table("layer", "hpcdist ms", "torch ms", "forward", "backward", "both")
    for row in rows:
        ms = ["{:.2f} + {:.2f}".format(*(1e3 * s for s in row[name])) for name in contenders]
        ratios = [f"{row[name]:.2f}" for name in ("forward", "backward", "both")]
        table.add_row(row["layer"], *ms, *ratios)
    CONSOLE.print(table)
    say(rows)
    target, layers = BY_TORCH if os.environ.get("HPCDIST_KERNELS") == "torch" else OWN
    sys.exit(any(row["layer"].startswith(layers) and row["both"] < target for row in rows))


def _measured(command: list[Any]) -> dict[str, list[float]]:
    """Run a contender and return the seconds of each layer's operator and gradient."""
    facts: dict[str, Any] = {"env": environment(FROM_CHECKOUT), "timeout": LIMIT_S, "text": True}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, **facts)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _row(layer: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of a layer's seconds, and of torch's over ours in each round."""

    def median(ratio: Any) -> float:
        return statistics.median(ratio(r["hpcdist"][layer], r["torch"][layer]) for r in rounds)

    return {
        "layer": layer,
        "hpcdist": [median(lambda ours, _, i=i: ours[i]) for i in range(2)],
        "torch": [median(lambda _, theirs, i=i: theirs[i]) for i in range(2)],
        "forward": median(lambda ours, theirs: theirs[0] / ours[0]),
        "backward": median(lambda ours, theirs: theirs[1] / ours[1]),
        "both": median(lambda ours, theirs: sum(theirs) / sum(ours)),
    }


if __name__ == "__main__":
    main()
