"""Race recurrent networks and a beam search: hpcdist against the real Fluid 1.8.5, one thread each.

    python benchmarks/recurrent.py --fluid-python /path/to/python

Classifiers of sentences of 20 to 100 words, 32 a batch, by `dynamic_lstm` and `dynamic_gru` of 128
units, every batch of other lengths; and 20 steps of a beam search (32 sentences, 4 beams, 1000
words) in a `While` block. Both must compute the same losses, and scores.
"""

from __future__ import annotations

import sys

from rounds import CONSOLE, FROM_CHECKOUT, HERE, Target, arguments, command, finish, race

TITLES = {
    "lstm": "classifier by dynamic_lstm, forward, backward, update",
    "gru": "classifier by dynamic_gru, forward, backward, update",
    "beam": "beam search in a While block",
}
TARGET = Target("hpcdist", "fluid", 1.0)
TOLERANCE = 1e-4


def main() -> None:
    """Race the cases asked for; exit 1 if a target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--fluid-python", help="a Python that has paddlepaddle==1.8.5")
    parser.add_argument("--case", choices=TITLES, action="append", help="default: all")
    options = parser.parse_args()
    if not options.fluid_python:
        CONSOLE.print("without --fluid-python hpcdist runs alone")
    rows = []
    for case in options.case or TITLES:
        script = [str(HERE / "recurrent_step.py"), case]
        ours = [sys.executable, "-m", "hpcdist", "--quiet", "--as-paddle", *script]
        contenders = [command("hpcdist", ours, FROM_CHECKOUT)]
        if options.fluid_python:
            contenders.append(command("fluid", [options.fluid_python, *script], None))
        rows.append(race(case, TITLES[case], contenders, options.rounds, [TARGET], TOLERANCE))
    finish(rows)


if __name__ == "__main__":
    main()
