"""One choice of features trained by one process and by a job, and what came of it."""

from __future__ import annotations

import re
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdist.errors import HpcdistError
from hpcdist.executor.scope import Scope, scope_guard
from tests.equality import features as f
from tests.equality.programs import SAVED, AfterSteps, Rank, Values, build, train
from tests.support.thread_jobs import ranks_as_threads

EQUAL, REFUSED, DIFFERENT, FAILED = "equal", "refused", "DIFFERENT", "FAILED"
BY_ONE = "by one process"  # begins why a Program has no result at all
# Of the largest element of a value, or of 1: sums are made in another order on several ranks.
NEAR = {"float32": 2e-5, "float64": 1e-13}
HISTOGRAM = 1000  # whole numbers in a variable from which on they count chances (AUC's bins)
HALF = {"bfloat16": 4e-2, "float16": 1e-2}  # each trainer rounds its part of a gradient

OPERATOR = re.compile(
    r"op #\d+ (\w+)\([^)]*\)(?: -> (?:[\w@]+=[^ ,:]+,? ?)+)?(:?) ?"
)  # and its variables

Job = Callable[[f.Choice, f.Shape, Callable[[int, bool], Rank]], list[list[Values]]]


@dataclass(frozen=True)
class Outcome:
    """What came of a choice: how far the worst value was off, or why there is none."""

    kind: str
    off: float = 0.0
    why: str = ""


def near(choice: f.Choice, dtype: Any) -> float:
    """Return to what part of the largest element a job's values equal those of one process.

    ``dtype``: of the value; accuracies and learning rates are float32 in any Program.
    """
    return max(
        NEAR[f.DTYPE.of(choice)],
        NEAR.get(str(dtype), 0.0),
        HALF.get(choice.get("strategy", ""), 0.0),
    )


def in_threads(
    choice: f.Choice, shape: f.Shape, rank_of: Callable[[int, bool], Rank]
) -> list[list[Values]]:
    """Run a job whose ranks are threads of this process."""
    size = shape.trainers + shape.servers
    ranks = [
        rank_of(k if k < shape.trainers else k - shape.trainers, k >= shape.trainers)
        for k in range(size)
    ]
    scripts = [build(choice) for _ in ranks]
    bodies = [lambda s=s, r=r: train(s, r) for s, r in zip(scripts, ranks)]
    with ranks_as_threads(local_feed=f.MODE.of(choice).local) as run:
        return run(shape.trainers, shape.servers, bodies)


def compare(choice: f.Choice, job: Job = in_threads) -> Outcome:
    """Train a choice by one process and by a job; say whether both have the same values."""
    with surroundings(choice) as root:
        try:
            local = ("mode", "trainers") if f.MODE.of(choice).local else ()  # each feeds some rows
            of_job = {"mode", "trainers", "servers", "late", "save"}.difference(local)
            alone = _by_one(frozenset(one for one in choice.items() if one[0] not in of_job))
        except HpcdistError as error:
            return Outcome(REFUSED, why=f"{BY_ONE}: {line_of(error)}")
        except Exception as error:
            return Outcome(FAILED, why=f"{BY_ONE}: {line_of(error)}")
        try:
            steps = run_job(choice, root / "job", job)
        except HpcdistError as error:
            return Outcome(REFUSED, why=line_of(error))
        except AfterSteps as error:
            return Outcome(FAILED, why=line_of(error))
        except BaseException as error:
            return Outcome(FAILED, why=line_of(error) + _place(error))
    return _compared(choice, steps, alone)


def refuses(choice: f.Choice, job: Job = in_threads) -> bool:
    """Say whether a choice is refused; of what is not, no more steps are made than shows it."""
    if f.SAVE.of(choice) is not None:
        return compare(choice, job).kind == REFUSED
    steps = 1 if f.PROGRAMS.of(choice) == "one" else 2  # the first of each Program
    with surroundings(choice) as root:
        try:
            _alone(choice, root, 0, steps, saves=False)
            run_job(choice, root / "job", job, steps)
        except HpcdistError:
            return True
        except BaseException:
            return False
    return False


@lru_cache(maxsize=256)
def _by_one(levels: frozenset[tuple[str, str]]) -> list[Values]:
    """Return what one process has, which the same Program has beside many jobs."""
    with tempfile.TemporaryDirectory(prefix="equality-", dir="/dev/shm") as directory:
        return _alone(dict(levels), Path(directory))


def _alone(
    choice: f.Choice, root: Path, begin: int = 0, end: int | None = None, saves: bool = True
) -> list[Values]:
    with scope_guard(Scope()):
        rank = Rank(0, f.ALONE, False, root, begin, end, alone=True, saves=saves)
        return train(build(choice), rank)


def run_job(choice: f.Choice, root: Path, job: Job, steps: int | None = None) -> list[list[Values]]:
    """Run the job, or two of which the second goes on where the first one was saved.

    ``steps``: make only these, and save nothing.
    """
    resume, shape = f.SAVE.of(choice), f.shape_of(choice)

    def run(where: f.Shape | None, begin: int, end: int | None) -> list[list[Values]]:
        if where == f.ALONE:
            return [_alone(choice, root, begin, end)]
        here = _of_mode(choice, where or shape)
        saves = steps is None
        return job(
            choice, here, lambda k, serves: Rank(k, here, serves, root, begin, end, saves=saves)
        )

    if resume is None:
        return run(None, 0, steps)
    first = run(resume.saver, 0, SAVED)
    rest = run(resume.goes_on, SAVED, None)
    return [first[0] + later for later in rest]


def _of_mode(choice: f.Choice, shape: f.Shape) -> f.Shape:
    mode = f.MODE.of(choice)
    trainers = 1 if mode.fields is not None else shape.trainers
    return f.Shape(trainers, shape.servers if mode.served else 0)


def _compared(choice: f.Choice, steps: list[list[Values]], alone: list[Values]) -> Outcome:
    worst = 0.0
    wanted = {name: value for values in alone for name, value in values.items()}
    for trainer, of_trainer in enumerate(steps):
        got = {name: value for values in of_trainer for name, value in values.items()}
        for name, value in wanted.items():
            if f"{name}.trainer_0" in got:
                value = value + 1  # asynchronous trainers keep the number of the next step
            if "_gradient_merge_" in name:
                continue  # each trainer adds up what its own rows give
            if name == "saved: learning_rate_warmup" and _counts_ahead(got):
                continue  # as that number: the rate of the next step
            if name not in got:
                if name.startswith("saved: "):
                    continue  # what one process keeps, and a job has no use for
                return Outcome(DIFFERENT, np.inf, f"trainer {trainer} has no {name}")
            local = f.MODE.of(choice).local
            off = _distance(got[name], value, local, trainer, len(steps))
            if not off <= near(choice, value.dtype):
                return Outcome(
                    DIFFERENT, off, f"trainer {trainer}, {name}: {_both(got[name], value)}"
                )
            if value.dtype == f.DTYPE.of(choice):
                worst = max(worst, off)
    return Outcome(EQUAL, worst)


def _counts_ahead(got: Values) -> bool:
    """Say whether these are of an asynchronous trainer, which keeps the number of the next step."""
    return any(name.endswith(".trainer_0") for name in got)


def _both(got: Any, wanted: Any) -> str:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype}{got.shape} for {wanted.dtype}{wanted.shape}"
    at = np.unravel_index(np.argmax(np.abs(got.astype("float64") - wanted)), wanted.shape)
    return f"{got[at]} for {wanted[at]}"


def _distance(got: Any, wanted: Any, local: bool, trainer: int, trainers: int) -> float:
    """Return how far two values are apart, in parts of the largest element or of 1."""
    if local and got.shape != wanted.shape and got.shape[1:] == wanted.shape[1:]:
        rows = len(wanted)
        wanted = wanted[rows * trainer // trainers : rows * (trainer + 1) // trainers]
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return np.inf
    if wanted.size == 0:
        return 0.0
    if wanted.dtype.kind == "i" and wanted.size > HISTOGRAM:
        return shift(got.ravel(), wanted.ravel())
    if wanted.dtype.kind not in "f":
        return 0.0 if np.array_equal(got, wanted) else np.inf
    if not np.isfinite(wanted).all():
        return 0.0 if np.array_equal(got, wanted, equal_nan=True) else np.inf
    scale = max(1.0, float(np.abs(wanted).max()))
    return float(np.abs(got.astype("float64") - wanted).max()) / scale


def shift(got: Any, wanted: Any) -> float:
    """Return how far what is counted must be moved for equal counts, in parts of the axis."""
    if got.sum() != wanted.sum():
        return np.inf
    return float(np.abs(np.cumsum(got - wanted)).sum() / max(1, wanted.sum()) / wanted.size)


@contextmanager
def surroundings(choice: f.Choice) -> Iterator[Path]:
    """Set what a mode sets, and give a directory for checkpoints."""
    settings: Mapping[str, str] = {
        **f.MODE.of(choice).settings,
        **f.KERNELS.of(choice),
    }
    directory = tempfile.mkdtemp(prefix="equality-", dir="/dev/shm")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in settings.items():
            patch.setenv(name, value)
        try:
            yield Path(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def line_of(error: BaseException) -> str:
    text = OPERATOR.sub(r"operator \1\2 ", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:300]}"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " at " + " < ".join(f"{Path(x.filename).name}:{x.lineno}" for x in frames[-3:][::-1])
