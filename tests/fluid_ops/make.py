"""Makes the values that layers are compared with, with Fluid 1.8.5 itself.

    /path/to/python3.7-with-paddlepaddle-1.8.5 -m tests.fluid_ops.make [FAMILY ...]

from the root of the repository; a case that Fluid refuses is an error.
"""

from __future__ import annotations

import gzip
import sys

from tests.fluid_ops import replay


def main(chosen):
    import paddle.fluid as fluid

    failed = 0
    for family in chosen or replay.families():
        found = []
        for expression, inputs in replay.cases(family):
            try:
                values = replay.runner(family)(fluid, expression, inputs)
            except Exception as error:
                failed += 1
                told = [line for line in str(error).splitlines() if line.strip()]
                told = [line for line in told if "Error" in line or "hint" in line] or told
                print("%s: %s: %s" % (family, expression, " / ".join(told)[-300:]))
                continue
            found.append([expression, {name: replay.kept(v) for name, v in values.items()}])
        raw = replay.text_of(found).encode()
        with open(replay.path(family), "wb") as file:
            with gzip.GzipFile("", "wb", 9, file, mtime=0) as out:
                out.write(raw)
        print("%s: %d cases, %d bytes" % (family, len(found), len(raw)))
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
