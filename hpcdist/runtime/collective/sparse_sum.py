"""Sums of compressed gradients (DGC), of which trainers send the largest elements."""

from __future__ import annotations

import logging

import numpy as np

from hpcdist.base.device import assign, on_host
from hpcdist.base.errors import CommError
from hpcdist.comm.collective import CollectiveOperations
from hpcdist.executor.control import Binding
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.ops.optimize.dgc import COUNTER
from hpcdist.transpiler.compressed import GradientCompression, compression_of
from hpcdist.transpiler.group import required_group

logger = logging.getLogger("hpcdist")


class SparseSum:
    """One message for all that a step sends; the sums are means, added in trainer order."""

    def __init__(self, group: CollectiveOperations, op: Operator, binding: Binding) -> None:
        self._group = group
        values, indices, counts, sums = (
            [binding.arrays[name] for name in names]
            for names in (
                op.input("Values"),
                op.input("Indices"),
                op.input("Count"),
                op.output("Out"),
            )
        )
        self._sent = list(zip(values, indices, counts))
        self._sums = sums

    def __call__(self) -> None:
        """Give every sum what all trainers send. Collective."""
        group = self._group
        counts = np.array([int(count[0]) for _, _, count in self._sent], np.int64)
        parts = [(on_host(v)[:n], on_host(i)[:n]) for (v, i, _), n in zip(self._sent, counts)]
        packed = np.concatenate(
            [
                counts.view(np.uint8),
                *(np.ascontiguousarray(v).view(np.uint8) for v, _ in parts),
                *(i.astype(np.int32).view(np.uint8) for _, i in parts),
            ]
        )
        everyones = np.empty((group.size, packed.size), np.uint8)
        group.allgather(packed, everyones)
        self._check(counts, everyones)
        ends = np.cumsum(counts)
        total, head = int(ends[-1]), counts.nbytes
        values = [row[head : head + 4 * total].view(np.float32) for row in everyones]
        indices = [row[head + 4 * total :].view(np.int32) for row in everyones]
        for target, end, count in zip(self._sums, ends, counts):
            mean = np.zeros(target.size, np.float32)
            for value, index in zip(values, indices):
                mean[index[end - count : end]] += value[end - count : end]
            mean *= np.float32(1 / group.size)
            assign(target, mean.reshape(target.shape))

    def _check(self, counts: np.ndarray, everyones: np.ndarray) -> None:
        for trainer, row in enumerate(everyones):
            other = row[: counts.nbytes].view(np.int64)
            if (other != counts).any():
                raise CommError(
                    f"trainer {self._group.rank} sends {counts.sum()} elements of its gradients, "
                    f"trainer {trainer} {other.sum()}: their steps are not the same; restore all "
                    "of them from one checkpoint"
                )


class CompressedSteps:
    """Chooses what is run in a step: the number of the step is in the scope."""

    def __init__(self) -> None:
        self._compressed: ProgramCache[GradientCompression] = ProgramCache()

    def of_this_step(self, program: Program, scope: Scope) -> Program:
        """Return a Program, or what it is once gradients are compressed."""
        compressed = self.of(program)
        if compressed.program is None:
            return program
        variable = scope.find_var(COUNTER)
        if variable is None or variable.value is None:  # not initialized: compiling says so
            return program
        return compressed.program if int(variable.value[0]) + 1 >= compressed.begin else program

    def of(self, program: Program) -> GradientCompression:
        """Return how a Program that trains compresses its gradients."""
        trainers = len(required_group(program).endpoints)
        return self._compressed.of(program, lambda: compression_of(program, trainers))

    def tell(self, program: Program, rank: int) -> None:
        """Say, on trainer 0, that results will be others than those of one process."""
        compressed = self.of(program)
        if compressed.program is not None and rank == 0:
            logger.warning(
                "DGCMomentum: from step %d on trainers send only the largest elements of their "
                "gradients, and the rest in later steps: losses are close to those of one "
                "process, which does not compress, but not equal",
                compressed.begin + 1,
            )
