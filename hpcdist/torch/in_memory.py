"""c10d's collectives among the ranks of one host, in shared memory.

They run in phases (`HostMemory`). A rank writes for phase k + 1 before it waits in phase k
(`one_ahead`), so ranks that are not quite at one pace need not wait for each other. A rank that
tells of phase k has finished reading in phase k - 2, and one that writes for phase k knows that all
have told of phase k - 2, so nobody reads the buffers of phase k - 4.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from hpcdist.comm.base import Array
from hpcdist.comm.futex import CALL_NUMBER, FOR_KERNELS
from hpcdist.comm.lanes import Steps, Wait
from hpcdist.torch.host_memory import BUFFERS, CHUNK, LINE, SLEPT, HostMemory
from hpcdist.torch.reductions import TensorReduction

LINE_BYTES = 64  # pieces begin at lines of the cache
EXCHANGE_ALL_TO = 2**14  # bytes up to which every one of several ranks reduces all of a vector
# Of what the ranks share, this much of each keeps their pieces in the cache while they are summed.
PIPELINE_BYTES = BUFFERS * CHUNK // 2
COMPILED = (torch.float32, torch.float64, torch.int32, torch.int64)

Phase: TypeAlias = Generator[None, None, None]  # writes, yields until all have written, reads


def one_ahead(memory: HostMemory, phases: Iterator[Phase]) -> Steps:
    """Run phases in their order: in the next one, this rank writes before it waits in this one."""
    phase = next(phases)
    next(phase)
    wait = memory.meet()
    for following in phases:
        next(following)
        wait, earlier = memory.meet(), wait
        yield earlier
        next(phase, None)
        phase = following
    yield wait
    next(phase, None)


def barrier(memory: HostMemory) -> Steps:
    """Wait for all ranks."""
    yield memory.meet()


def broadcast(memory: HostMemory, vector: torch.Tensor, root: int) -> Steps:
    """Overwrite ``vector`` with the root's."""

    def phase(part: torch.Tensor) -> Phase:
        rows = memory.rows(part.dtype, part.numel())
        if memory.rank == root:
            rows[root].copy_(part)
        yield
        if memory.rank != root:
            part.copy_(rows[root])

    return one_ahead(memory, map(phase, pieces(vector, CHUNK)))


def all_gather(memory: HostMemory, vector: torch.Tensor, outputs: Sequence[torch.Tensor]) -> Steps:
    """Bring every rank's ``vector`` to all, as ``outputs[r]``."""

    def phase(part: torch.Tensor, into: Sequence[torch.Tensor]) -> Phase:
        rows = memory.rows(part.dtype, part.numel())
        rows[memory.rank].copy_(part)
        yield
        for row, out in zip(rows, into, strict=True):
            out.copy_(row)

    targets = zip(*(pieces(out, CHUNK) for out in outputs), strict=True)
    sources = pieces(vector, CHUNK)
    return one_ahead(memory, (phase(*both) for both in zip(sources, targets, strict=True)))


def all_to_all(
    memory: HostMemory, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Steps:
    """Bring ``inputs[r]`` to rank r, and of each rank r what is for this one into ``outputs[r]``.

    All are of one length.
    """
    step = CHUNK // memory.size // LINE_BYTES * LINE_BYTES

    def phase(source: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> Phase:
        rows = _given(memory, source, step)
        yield
        for row, out in zip(rows, into, strict=True):
            out.copy_(row)

    sources = zip(*(pieces(vector, step) for vector in inputs), strict=True)
    targets = zip(*(pieces(vector, step) for vector in outputs), strict=True)
    return one_ahead(memory, (phase(*both) for both in zip(sources, targets, strict=True)))


def reduce_scatter(
    memory: HostMemory,
    inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
    reduction: TensorReduction,
) -> Steps:
    """Write the reduction of all ranks' ``inputs[r]``, all of one length, into rank r's ``out``."""
    step = CHUNK // memory.size // LINE_BYTES * LINE_BYTES

    def phase(source: Sequence[torch.Tensor], into: torch.Tensor) -> Phase:
        rows = _given(memory, [reduction.prepare(part) for part in source], step)
        yield
        reduction.fold(rows, into)

    sources = zip(*(pieces(vector, step) for vector in inputs), strict=True)
    targets = pieces(out, step)
    return one_ahead(memory, (phase(*both) for both in zip(sources, targets, strict=True)))


def _given(memory: HostMemory, parts: Sequence[torch.Tensor], step: int) -> list[torch.Tensor]:
    """Write ``parts[r]`` where rank r reads it; return where this rank reads those of all."""
    for peer, part in enumerate(parts):
        if peer != memory.rank:
            memory.rows(part.dtype, part.numel(), peer * step)[memory.rank].copy_(part)
    own = parts[memory.rank]
    rows = memory.rows(own.dtype, own.numel(), memory.rank * step)
    rows[memory.rank] = own
    return rows


def reduce(
    memory: HostMemory, vector: torch.Tensor, reduction: TensorReduction, root: int
) -> Steps:
    """Overwrite the root's ``vector`` with the reduction of all."""

    def phase(part: torch.Tensor) -> Phase:
        rows, prepared = memory.rows(part.dtype, part.numel()), reduction.prepare(part)
        if memory.rank == root:
            rows[root] = prepared
        else:
            rows[memory.rank].copy_(prepared)
        yield
        if memory.rank == root:
            reduction.fold(rows, part)

    return one_ahead(memory, map(phase, pieces(vector, CHUNK)))


def all_reduce(memory: HostMemory, vector: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Overwrite every rank's ``vector`` with the reduction of all."""
    if vector.nbytes > CHUNK and reduction.name == "SUM" and vector.dtype in COMPILED:
        return _pipelined(memory, vector)
    if memory.size > 2 and vector.nbytes > EXCHANGE_ALL_TO:
        return _reduce_in_shares(memory, vector, reduction)

    # Of two ranks each reduces all: it costs no more than to fetch the other's half of the results,
    # and takes half as many phases.
    def phase(part: torch.Tensor) -> Phase:
        rows, prepared = memory.rows(part.dtype, part.numel()), reduction.prepare(part)
        rows[memory.rank].copy_(prepared)
        yield
        rows[memory.rank] = prepared
        reduction.fold(rows, part)

    return one_ahead(memory, map(phase, pieces(vector, CHUNK)))


def _reduce_in_shares(
    memory: HostMemory, vector: torch.Tensor, reduction: TensorReduction
) -> Steps:
    """Overwrite every rank's ``vector`` with the reduction of all, of which each does a share.

    A rank gives a piece but for its share, in whose place it gives the results of its share of the
    piece before the last, which all have given by then.
    """
    step = CHUNK // memory.size // LINE_BYTES * LINE_BYTES
    parts = vector.tensor_split(-(-vector.nbytes // (step * memory.size)))
    given: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = []

    def phase(index: int) -> Phase:
        reduced: Sequence[torch.Tensor] = ()
        terms: Sequence[torch.Tensor] = ()
        if index >= 2:
            reduced, terms = given[index - 2]
        results = [
            memory.rows(share.dtype, share.numel(), peer * step)[peer]
            for peer, share in enumerate(reduced)
        ]
        if results:
            reduction.fold(terms, results[memory.rank])
        if index < len(parts):
            part = parts[index]
            prepared = reduction.prepare(part).tensor_split(memory.size)
            given.append((part.tensor_split(memory.size), _given(memory, prepared, step)))
        yield
        for result, share in zip(results, reduced, strict=True):
            share.copy_(result)

    return one_ahead(memory, map(phase, range(len(parts) + 2)))


def _pipelined(memory: HostMemory, vector: torch.Tensor) -> Steps:
    """Overwrite every rank's ``vector`` with the sum of all."""
    yield memory.meet()  # nobody reads the buffers any more
    yield _PipelinedSum(memory, vector.numpy())


class _PipelinedSum(Wait):
    """The wait for the end of `pipelined_sum.advance`, which moves on when it is asked."""

    def __init__(self, memory: HostMemory, vector: Array) -> None:
        from hpcdist.comm import pipelined_sum  # numba takes 0.3 s to import

        self._memory = memory
        self._begin, self._step = memory.count, 0
        share = pipelined_sum.share_of(vector.size, vector.itemsize, memory.size, PIPELINE_BYTES)
        self._last = pipelined_sum.last_step(vector.size, share * memory.size)
        self._steps_before = pipelined_sum.steps_before
        counts = memory.shared.ctypes.data + np.arange(memory.size) * memory.shared.strides[0]
        self._advance = partial(
            pipelined_sum.advance,
            vector,
            memory.shared.view(vector.dtype),
            LINE // vector.itemsize,
            share,
            memory.rank,
            counts,
            counts + SLEPT * counts.itemsize,
            self._begin,
            FOR_KERNELS,
            memory.spins,
        )

    def ended(self) -> bool:
        return self._go_on(0)

    def sleep(self, seconds: float) -> bool:
        if CALL_NUMBER is None:
            return False
        self._go_on(int(seconds * 1e9))
        return True

    def missing(self) -> Sequence[int]:
        awaited = self._begin + self._steps_before(self._step, self._last)
        return [k for k, head in enumerate(self._memory.heads) if head[0] < awaited]

    def _go_on(self, sleep_ns: int) -> bool:
        """Go on while the others come within so long; return whether it has ended."""
        self._step = self._advance(sleep_ns, self._step)
        self._memory.count = self._begin + min(self._step, self._last)
        return bool(self._step > self._last)


def pieces(vector: torch.Tensor, nbytes: int) -> list[torch.Tensor]:
    """Return a vector in pieces of at most ``nbytes``; one if it is empty."""
    step = nbytes // vector.element_size()
    return list(vector.split(step)) if vector.numel() > step else [vector]
