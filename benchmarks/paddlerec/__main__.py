"""Trains static models of PaddleRec here and by Paddle 2.6.2, from the same values; compares.

    python -m benchmarks.paddlerec --paddlerec PaddleRec --reference paddle26/bin/python [MODEL ...]
    python -m benchmarks.paddlerec --paddlerec PaddleRec --jobs [MODEL ...]

One JSON line for each model (``models/rank/dnn``, ...; by default all that have a config.yaml and a
static_model.py): how far the fetched values of ten steps are apart, or which of the two failed, and
how. ``--jobs`` compares 2 servers and 2 trainers, and 2 ranks, with one process of hpcdist, with
``--double`` in float64: what is rounded only is less than 1e-12 apart then. The
exit status is 1 if hpcdist fails where the reference runs, or differs by more than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 10
TOLERANCE = 1e-4
# Models that normalize batches, whose configurations have batches of two rows: see train.py.
OPTIONS = {"models/rank/difm": ["--batch=8", "--sgd"], "models/rank/dlrm": ["--batch=8", "--sgd"]}
TRAIN = Path(__file__).with_name("train.py")


def models_of(clone: Path) -> list[str]:
    """Return the models that have a static form."""
    configs = sorted(clone.glob("models/**/config.yaml"))
    found = [path.parent for path in configs if (path.parent / "static_model.py").is_file()]
    return [str(path.relative_to(clone)) for path in found]


def trained(command: list[str], clone: Path, limit_s: float) -> str:
    """Run one of the two; return the last line of its error, "" if it ended well."""
    root = str(TRAIN.parent.parent.parent)
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "CPU_NUM": "1"}
    try:
        done = subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {limit_s:.0f} s"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines or ["no output"])[-1]


def apart(here: Path, there: Path) -> dict[str, float]:
    """Return by fetched value how far two runs are apart, relative to values above 1."""
    with np.load(here) as ours, np.load(there) as theirs:
        return {
            name: float(
                np.max(np.abs(ours[name] - theirs[name]) / np.maximum(abs(theirs[name]), 1))
            )
            for name in theirs.files
        }


def compare(
    model: str, clone: Path, reference: str, limit_s: float, folder: Path
) -> dict[str, Any]:
    """Train a model by both, by the reference unless its files are there; return what to say."""
    of = folder / model.replace("/", "_")
    values, ours, theirs = (Path(f"{of}.{name}.npz") for name in ("values", "ours", "theirs"))
    script = [str(TRAIN), f"{model}/config.yaml", str(STEPS), str(values)]
    options = OPTIONS.get(model, [])
    if not theirs.is_file():
        error = trained([reference, *script, str(theirs), "--first", *options], clone, limit_s)
        if error:
            return {"model": model, "reference": error}
    hpcdist = [sys.executable, "-m", "hpcdist", "--quiet", "--as-paddle"]
    error = trained([*hpcdist, *script, str(ours), *options], clone, limit_s)
    if error:
        return {"model": model, "hpcdist": error}
    return {"model": model, "apart": apart(ours, theirs)}


JOBS = {"servers": ["-n", "4"], "ranks": ["-n", "2"]}


def compare_jobs(
    model: str, clone: Path, limit_s: float, folder: Path, more: list[str]
) -> Iterator[dict[str, Any]]:
    """Train a model by one process and by jobs; yield what to say of each."""
    of = folder / model.replace("/", "_")
    hpcdist = [sys.executable, "-m", "hpcdist", "--quiet", "--as-paddle"]
    script = [str(TRAIN), f"{model}/config.yaml", str(STEPS), f"{of}.job"]
    alone = Path(f"{of}.alone.npz")
    options = [*OPTIONS.get(model, []), "--job", *more]
    error = trained([*hpcdist, *script, str(alone), "--first", *options], clone, limit_s)
    if error:
        yield {"model": model, "job": "alone", "hpcdist": error}
        return
    for job, ranks in JOBS.items():
        found = Path(f"{of}.{job}.npz")
        start = [mpirun(), *ranks, *hpcdist, *(["--pservers", "2"] if job == "servers" else [])]
        error = trained([*start, *script, str(found), *options], clone, limit_s)
        said = {"hpcdist": error} if error else {"apart": apart(found, alone)}
        yield {"model": model, "job": job, **said}


def mpirun() -> str:
    """Return the mpirun beside this Python, or the one on the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.is_file() else "mpirun"


def main() -> int:
    """Compare models; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--paddlerec", type=Path, required=True, help="a clone of PaddleRec")
    parser.add_argument("--reference", help="a Python that has Paddle 2.6.2")
    parser.add_argument("--jobs", action="store_true", help="compare jobs with one process")
    parser.add_argument("--double", action="store_true", help="jobs in float64")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the reference's results")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each run")
    parser.add_argument("models", nargs="*")
    options = parser.parse_args()
    if not (options.jobs or options.reference):
        parser.error("expected --reference, or --jobs")
    clone, failed = options.paddlerec.resolve(), False
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep.resolve() if options.keep else Path(temporary)
        for model in options.models or models_of(options.paddlerec):
            results: Iterable[dict[str, Any]] = (
                compare_jobs(model, clone, options.limit, folder, ["--double"] * options.double)
                if options.jobs
                else [compare(model, clone, options.reference, options.limit, folder)]
            )
            for found in results:
                distances = found.get("apart", {}).values()
                failed |= "hpcdist" in found or not all(d <= TOLERANCE for d in distances)
                print(json.dumps(found), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
