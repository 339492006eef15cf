"""Race readers of multi-slot text: hpcdist's QueueDataset against the real Fluid 1.8.5's.

    python benchmarks/data.py --fluid-python /path/to/python

A pass over two files of Criteo's shape (26 words, 13 numbers and a label a line), in batches of
512, through `DataLoader.from_dataset`, with a thread that reads ahead. Both must read the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from rounds import CONSOLE, FROM_CHECKOUT, HERE, Target, arguments, command, finish, race

TOLERANCE = 1e-6
WORDS, NUMBERS = 26, 13
TARGET = Target("hpcdist", "fluid", 5.0)


def write(path: Path, lines: int, seed: int) -> Path:
    """Write multi-slot text, and return its path."""
    random = np.random.default_rng(seed)
    words = random.integers(1, 10**6, (lines, WORDS))
    numbers = random.random((lines, NUMBERS))
    clicks = random.integers(0, 2, lines)
    with path.open("w") as file:
        for row, values, click in zip(words, numbers, clicks):
            slots = [f"1 {word}" for word in row]
            slots.append(f"{NUMBERS} {' '.join(f'{value:.4f}' for value in values)}")
            file.write(f"{' '.join(slots)} 1 {click}\n")
    return path


def main() -> None:
    """Race; exit 1 if the target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--fluid-python", help="a Python that has paddlepaddle==1.8.5")
    parser.add_argument("--lines", type=int, default=40_000, help="of each file")
    options = parser.parse_args()
    script = str(HERE / "data_pass.py")
    with tempfile.TemporaryDirectory() as directory:
        files = [str(write(Path(directory) / f"part-{k}", options.lines, k)) for k in range(2)]
        words = [sys.executable, "-m", "hpcdist", "--quiet", "--as-paddle", script, *files]
        contenders = [command("hpcdist", words, FROM_CHECKOUT)]
        if options.fluid_python:
            contenders.append(command("fluid", [options.fluid_python, script, *files], None))
        else:
            CONSOLE.print("without --fluid-python hpcdist runs alone")
        title = f"QueueDataset, batches of 512, {2 * options.lines} lines"
        row = race("multi-slot", title, contenders, options.rounds, [TARGET], TOLERANCE)
    finish([row])


if __name__ == "__main__":
    main()
