"""c10d's collectives among the ranks of one host, in shared memory.

They run in phases. In each, a rank writes its buffer, signals the others, waits until all have
written (`PhaseBarrier`), and reads theirs. It writes for phase k + 1 before it waits in phase k
(`one_ahead`), so ranks that are not quite at one pace need not wait for each other. Buffers take
turns: a rank that tells of phase k has finished reading in phase k - 2, and one that writes for
phase k knows that all have told of phase k - 2, so nobody reads the buffers of phase k - 4.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import torch

from hpcdist.comm.base import SharedRows, Transport
from hpcdist.comm.futex import Futex
from hpcdist.comm.lanes import Steps
from hpcdist.comm.reduction_phases import cuts
from hpcdist.torch.reductions import TensorReduction
from hpcdist.torch.signature import agree

LINE_BYTES = 64  # pieces begin at lines of the cache
LINE = 4096  # before a rank's buffers: what it tells the others
BUFFERS = 4
CHUNK = 2**20  # bytes of a buffer
SLEPT = 3  # of what a rank tells: the latest phase in which it has slept
EXCHANGE_ALL_TO = 2**14  # bytes up to which every one of several ranks reduces all of a vector

Phase: TypeAlias = Generator[None, None, None]  # writes, yields until all have written, reads


class HostMemory:
    """Memory shared by all ranks of a group on one host."""

    def __init__(self, transport: Transport, shared: SharedRows, names: tuple[int, ...]) -> None:
        """``shared`` has LINE + BUFFERS * CHUNK bytes of each rank's, the first of them zeros."""
        self.rank, self.size = transport.rank, transport.size
        self.sync = shared.sync
        # Of each rank: its count of phases, its latest two calls, and SLEPT.
        self.heads = [memoryview(row[:32]).cast("q") for row in shared.rows]
        self.others = [head for k, head in enumerate(self.heads) if k != self.rank]
        self._names = names
        self._counts = [Futex(row[:8]) for row in shared.rows]
        buffers = torch.from_numpy(shared.rows)[:, LINE:].unflatten(1, (BUFFERS, CHUNK))
        self._buffers = buffers.transpose(0, 1)
        self.count = 0  # of the phases that this rank has told of
        self._calls = 0
        self._view = lru_cache(256)(self._slice)  # a script calls the same again and again

    def rows(self, dtype: torch.dtype, length: int, begin: int = 0) -> list[torch.Tensor]:
        """Return parts of all ranks' buffers of the phase that is to come.

        They have ``length`` elements and lie ``begin`` bytes from the buffers' beginnings.
        """
        return list(self._view(self.count % BUFFERS, dtype, length, begin))

    def meet(self) -> PhaseBarrier:
        """Tell the others that this rank has written; return the wait for all to have."""
        self.count = count = self.count + 1
        self.sync()
        self.heads[self.rank][0] = count
        self.sync()  # a rank about to sleep has noted it, or sees the count
        for head in self.others:
            if head[SLEPT] == count:
                self._counts[self.rank].wake()
                break
        return PhaseBarrier(self, count)

    def sleep(self, count: int, seconds: float) -> bool:
        """Sleep until a rank that is missing in phase ``count`` comes, ``seconds`` at most.

        Returns False, at once, where ranks cannot wake each other.
        """
        self.heads[self.rank][SLEPT] = count
        self.sync()
        for head, futex in zip(self.heads, self._counts, strict=True):
            seen = head[0]
            if seen < count:
                return futex.sleep(seen, seconds)
        return True

    def tell(self, call: int) -> None:
        """Let the others see, when they meet next, what this rank calls."""
        self._calls += 1
        self.heads[self.rank][1 + self._calls % 2] = call

    def agree(self, call: int, number: int) -> None:
        """Refuse ranks that have told other calls before they met."""
        at = 1 + self._calls % 2
        codes = [head[at] for head in self.heads]
        agree(call, codes, self._names, self.rank, number)

    def _slice(
        self, turn: int, dtype: torch.dtype, length: int, begin: int
    ) -> tuple[torch.Tensor, ...]:
        end = begin + length * dtype.itemsize
        rows: tuple[torch.Tensor, ...] = self._buffers[turn, :, begin:end].view(dtype).unbind(0)
        return rows


class PhaseBarrier:
    """The wait until all ranks have come to a phase."""

    def __init__(self, memory: HostMemory, count: int) -> None:
        self._memory = memory
        self._others = memory.others
        self._count = count

    def ended(self) -> bool:
        """Return whether all ranks have come."""
        # A loop: it is asked again and again, and a generator would take longer.
        for head in self._others:
            if head[0] < self._count:
                return False
        self._memory.sync()
        return True

    def sleep(self, seconds: float) -> bool:
        """Sleep until a missing rank comes, ``seconds`` at most; False if no rank can wake it."""
        return self._memory.sleep(self._count, seconds)

    def missing(self) -> Sequence[int]:
        """Return the ranks that have not come, by their numbers in the group."""
        return [k for k, head in enumerate(self._memory.heads) if head[0] < self._count]


def host_memory(transport: Transport, names: tuple[int, ...]) -> HostMemory | None:
    """Return memory for a group, None if its ranks have none in common. Collective.

    ``names`` are what messages call its ranks.
    """
    if transport.size == 1 or transport.on_host().size < transport.size:
        return None
    shared = transport.share(LINE + BUFFERS * CHUNK)
    return None if shared is None else HostMemory(transport, shared, names)


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
    rank = memory.rank
    parts = vector.tensor_split(-(-vector.nbytes // CHUNK))  # of lengths that differ by 1 at most
    bounds = cuts(parts[0].numel(), memory.size, memory.size)
    shares = [slice(begin, end) for begin, end in pairwise(bounds)]
    given: list[tuple[list[torch.Tensor], torch.Tensor]] = []

    def phase(index: int) -> Phase:
        reduced, results = vector[:0], []
        if index >= 2:
            reduced = parts[index - 2]
            results = memory.rows(reduced.dtype, reduced.numel())
            rows, rows[rank] = given[index - 2]
            reduction.fold([row[shares[rank]] for row in rows], results[rank][shares[rank]])
        if index < len(parts):
            part = parts[index]
            rows, prepared = memory.rows(part.dtype, part.numel()), reduction.prepare(part)
            for others in slice(bounds[rank]), slice(bounds[rank + 1], None):
                rows[rank][others].copy_(prepared[others])
            given.append((rows, prepared))
        yield
        for result, share in zip(results, shares, strict=False):
            reduced[share].copy_(result[share])

    return one_ahead(memory, map(phase, range(len(parts) + 2)))


def pieces(vector: torch.Tensor, nbytes: int) -> list[torch.Tensor]:
    """Return a vector in pieces of at most ``nbytes``; one if it is empty."""
    step = nbytes // vector.element_size()
    return list(vector.split(step)) if vector.numel() > step else [vector]
