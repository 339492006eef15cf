"""HPCDIST_KERNELS=measured: the first steps of a Program decide which kernels it uses.

Runs of operators by PyTorch, as they are (`fused`), compute the first `STEPS` steps; compiled by
inductor, the next; whichever took less time, summed over all trainers, compute the rest.
"""

from __future__ import annotations

import logging
import math
import statistics
import struct
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from hpcdist.base.errors import HpcdistError
from hpcdist.executor import control
from hpcdist.executor.backend import Backend
from hpcdist.executor.compiled_form import Compiled
from hpcdist.executor.traced import CannotCompileError
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.ops.by_torch import Kernels

STEPS = 8  # of each of both
WARM = 3  # runs for one shape of the batch that are not timed: compiled, recorded, replayed
_TIMES = struct.Struct("<2d")

logger = logging.getLogger("hpcdist")


@dataclass
class _Trial:
    """What is known of a Program; marks of time are before and after each step, by kernels."""

    steps: int = 0
    runs: Counter[Hashable] = field(default_factory=Counter)  # of each compiled form
    spans: dict[Kernels, list[tuple[Any, Any]]] = field(default_factory=dict)
    cannot_compile: bool = False
    chosen: Kernels | None = None


class MeasuredKernels:
    """Decides for each Program that trains; alike on all trainers, who take the same steps."""

    def __init__(self, backend: Backend, forget: Callable[[Program, Kernels], None]) -> None:
        """``forget`` frees what was compiled of a Program for kernels that are not chosen."""
        self._backend = backend
        self._forget = forget
        self._trials: ProgramCache[_Trial] = ProgramCache(lasting=True)

    def of_this_step(self, program: Program, job: control.Control | None) -> Kernels:
        """Return the provider whose kernels compute the next step of a Program.

        Collective among trainers in the step in which it is decided. HpcdistError in a job with
        servers, whose trainers may take different numbers of steps.
        """
        if not program.trains:
            return Kernels.FUSED
        trial = self._trials.of(program, _Trial)
        if trial.chosen is not None:
            return trial.chosen
        if trial.steps == 0:
            _begin(job)
        if trial.steps == 2 * STEPS:
            trial.chosen = self._decide(trial, job)
            trial.spans.clear()
            losers = {Kernels.FUSED, Kernels.COMPILED} - {trial.chosen}
            self._forget(program, *losers)
            return trial.chosen
        return Kernels.FUSED if trial.steps < STEPS else Kernels.COMPILED

    def compiled(
        self, program: Program, kernels: Kernels, make: Callable[[Kernels], Compiled]
    ) -> Compiled:
        """Compile by ``make``; with fused kernels if inductor cannot, and say so."""
        try:
            return make(kernels)
        except CannotCompileError as error:
            self._trials.of(program, _Trial).cannot_compile = True
            words = "HPCDIST_KERNELS=measured: computed by fused kernels, for inductor fails: %s"
            logger.warning(words, error)
            return make(Kernels.FUSED)

    def run(self, program: Program, form: Hashable, kernels: Kernels, step: Any) -> None:
        """Run a step, ``step()``, and take its time unless it is the first of its form."""
        trial = self._trials.get(program)
        if trial is None or trial.chosen is not None:
            step()
            return
        trial.steps += 1  # here: a step whose feed is refused is none
        trial.runs[form] += 1
        begin = self._backend.mark()
        step()
        if trial.runs[form] > WARM:
            trial.spans.setdefault(kernels, []).append((begin, self._backend.mark()))

    def _decide(self, trial: _Trial, job: control.Control | None) -> Kernels:
        medians = [self._median_s(trial, kernels) for kernels in (Kernels.FUSED, Kernels.COMPILED)]
        if trial.cannot_compile:
            medians[1] = math.inf
        data = _TIMES.pack(*medians)
        gathered = [data] if job is None else job.everyones(data, "how long the others' steps took")
        fused_s, compiled_s = (sum(times) for times in zip(*map(_TIMES.unpack, gathered)))
        # Of what was not timed it is not known that it is faster.
        chosen = Kernels.COMPILED if compiled_s < fused_s < math.inf else Kernels.FUSED
        if _is_first(job):
            means_ms = [1e3 * total_s / len(gathered) for total_s in (fused_s, compiled_s)]
            logger.warning(
                "HPCDIST_KERNELS=measured: a step takes %.3g ms fused, %.3g ms compiled (inf: not "
                "timed, for no shape of the batch came often enough, or it cannot be compiled); "
                "from now on %s; set HPCDIST_KERNELS=%s for the same digits in every run",
                *(*means_ms, chosen.value, chosen.value),
            )
        return chosen

    def _median_s(self, trial: _Trial, kernels: Kernels) -> float:
        spans = trial.spans.get(kernels, [])
        seconds = [self._backend.seconds(begin, end) for begin, end in spans]
        return statistics.median(seconds) if seconds else math.inf


def _begin(job: control.Control | None) -> None:
    """Say before the first step what differs; refuse what cannot be decided together."""
    peers = None if job is None else job.peers()
    if peers is not None and peers.servers:
        raise HpcdistError(
            f"trainer {peers.trainer}: HPCDIST_KERNELS=measured in a job with {peers.servers} "
            "parameter servers, expected none: their trainers may take different numbers of steps, "
            "so they cannot measure together; set HPCDIST_KERNELS to fused or compiled"
        )
    if _is_first(job):
        logger.warning(
            "HPCDIST_KERNELS=measured: of each program that trains, %d steps are computed by fused "
            "kernels, %d by compiled ones, the rest by the faster of both: the last digits of "
            "values may differ from run to run",
            STEPS,
            STEPS,
        )


def _is_first(job: control.Control | None) -> bool:
    peers = None if job is None else job.peers()
    return peers is None or peers.trainer == 0
