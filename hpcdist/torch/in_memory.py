"""c10d's collectives among the ranks of one host, in shared memory.

They run in phases. In each, a rank writes its buffer, waits for the others (`PhaseBarrier`), and
reads theirs. Buffers alternate: a rank that writes in phase k knows that all have finished reading
phase k - 2, because all have reached phase k - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch

from hpcdist.comm.base import SharedRows, Transport
from hpcdist.comm.futex import Futex
from hpcdist.comm.lanes import Steps
from hpcdist.comm.reduction_phases import cuts
from hpcdist.torch.reductions import TensorReduction
from hpcdist.torch.signature import agree

LINE_BYTES = 64  # pieces begin at lines of the cache
LINE = 4096  # before a rank's buffers: what it tells the others
CHUNK = 2**21  # bytes of a buffer: few meetings, and all of it in the second-level cache
HALF = CHUNK // 2
SLEPT = 3  # of what a rank tells: the latest phase in which it has slept
EXCHANGE_ALL_TO = 2**14  # bytes up to which every one of several ranks reduces all of a vector


class HostMemory:
    """Memory shared by all ranks of a group on one host."""

    def __init__(self, transport: Transport, shared: SharedRows, names: tuple[int, ...]) -> None:
        """``shared`` has LINE + 2 * CHUNK bytes of each rank's, the first of them zeros."""
        self.rank, self.size = transport.rank, transport.size
        self.sync = shared.sync
        # Of each rank: its count of phases, what it calls in even and odd ones, and SLEPT.
        self.heads = [memoryview(row[:32]).cast("q") for row in shared.rows]
        self.others = [head for k, head in enumerate(self.heads) if k != self.rank]
        self._names = names
        self._counts = [Futex(row[:8]) for row in shared.rows]
        buffers = torch.from_numpy(shared.rows)[:, LINE:].unflatten(1, (2, CHUNK))
        self._buffers = buffers.transpose(0, 1)
        self.count = 0
        self._view = lru_cache(256)(self._slice)  # a script calls the same again and again

    def rows(self, dtype: torch.dtype, length: int, begin: int = 0) -> list[torch.Tensor]:
        """Return parts of all ranks' buffers of the phase that is to come.

        They have ``length`` elements and lie ``begin`` bytes from the buffers' beginnings.
        """
        return list(self._view(self.count % 2, dtype, length, begin))

    def meet(self) -> PhaseBarrier:
        """Return the wait for all ranks to have written what is theirs in this phase."""
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
        self.heads[self.rank][1 + self.count % 2] = call

    def agree(self, call: int, number: int) -> None:
        """Refuse ranks that have told other calls before they met."""
        at = 2 - self.count % 2
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
        """Tell whether all ranks have come."""
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
    shared = transport.share(LINE + 2 * CHUNK)
    return None if shared is None else HostMemory(transport, shared, names)


def barrier(memory: HostMemory) -> Steps:
    """Wait for all ranks."""
    yield memory.meet()


def broadcast(memory: HostMemory, vector: torch.Tensor, root: int) -> Steps:
    """Overwrite ``vector`` with the root's."""
    for part in pieces(vector, CHUNK):
        rows = memory.rows(part.dtype, part.numel())
        if memory.rank == root:
            rows[root].copy_(part)
        yield memory.meet()
        if memory.rank != root:
            part.copy_(rows[root])


def all_gather(memory: HostMemory, vector: torch.Tensor, outputs: Sequence[torch.Tensor]) -> Steps:
    """Bring every rank's ``vector`` to all, as ``outputs[r]``."""
    targets = zip(*(pieces(out, CHUNK) for out in outputs), strict=True)
    for part, into in zip(pieces(vector, CHUNK), targets, strict=True):
        rows = memory.rows(part.dtype, part.numel())
        rows[memory.rank].copy_(part)
        yield memory.meet()
        for row, out in zip(rows, into, strict=True):
            out.copy_(row)


def all_to_all(
    memory: HostMemory, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Steps:
    """Bring ``inputs[r]`` to rank r, and of each rank r what is for this one into ``outputs[r]``.

    All are of one length.
    """
    step = CHUNK // memory.size // LINE_BYTES * LINE_BYTES
    sources = zip(*(pieces(vector, step) for vector in inputs), strict=True)
    targets = zip(*(pieces(vector, step) for vector in outputs), strict=True)
    for source, into in zip(sources, targets, strict=True):
        rows = _given(memory, source, step)
        yield memory.meet()
        for row, out in zip(rows, into, strict=True):
            out.copy_(row)


def reduce_scatter(
    memory: HostMemory,
    inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
    reduction: TensorReduction,
) -> Steps:
    """Write the reduction of all ranks' ``inputs[r]``, all of one length, into rank r's ``out``."""
    step = CHUNK // memory.size // LINE_BYTES * LINE_BYTES
    sources = zip(*(pieces(vector, step) for vector in inputs), strict=True)
    for source, into in zip(sources, pieces(out, step), strict=True):
        rows = _given(memory, [reduction.prepare(part) for part in source], step)
        yield memory.meet()
        reduction.fold(rows, into)


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
    for part in pieces(vector, CHUNK):
        rows = memory.rows(part.dtype, part.numel())
        if memory.rank == root:
            rows[root] = reduction.prepare(part)
        else:
            rows[memory.rank].copy_(reduction.prepare(part))
        yield memory.meet()
        if memory.rank == root:
            reduction.fold(rows, part)


def all_reduce(memory: HostMemory, vector: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Overwrite every rank's ``vector`` with the reduction of all."""
    dtype, rank, size = vector.dtype, memory.rank, memory.size
    if size == 2 or vector.nbytes <= EXCHANGE_ALL_TO:
        # Of two ranks each reduces all: it costs no more than to fetch the other's half of the
        # results, and takes half as many phases.
        for part in pieces(vector, CHUNK):
            rows, prepared = memory.rows(dtype, part.numel()), reduction.prepare(part)
            rows[rank].copy_(prepared)
            yield memory.meet()
            rows[rank] = prepared
            reduction.fold(rows, part)
        return
    # Each rank reduces a share of a piece, of which it needs no copy. In the phase in which they
    # tell their shares' results, in the second half of the buffers, they give the next piece in the
    # first half.
    before: _Piece | None = None
    for part in [*pieces(vector, HALF), None]:
        if before is not None:
            begin, end = before.bounds[rank : rank + 2]
            contributions = [row[begin:end] for row in before.rows]
            contributions[rank] = before.own[begin:end]
            reduction.fold(contributions, memory.rows(dtype, end - begin, HALF)[rank])
            places = list(pairwise(before.bounds))
            results = [memory.rows(dtype, e - b, HALF)[k] for k, (b, e) in enumerate(places)]
        now = None
        if part is not None:
            rows, bounds = memory.rows(dtype, part.numel()), cuts(part.numel(), size, size)
            now = _Piece(part, reduction.prepare(part), rows, bounds)
            begin, end = bounds[rank : rank + 2]
            rows[rank][:begin].copy_(now.own[:begin])
            rows[rank][end:].copy_(now.own[end:])
        yield memory.meet()
        if before is not None:
            for result, (begin, end) in zip(results, places, strict=True):
                before.part[begin:end].copy_(result)
        before = now


@dataclass(frozen=True)
class _Piece:
    """A piece of a vector that is reduced, what this rank gives of it, and all ranks' buffers."""

    part: torch.Tensor
    own: torch.Tensor
    rows: list[torch.Tensor]
    bounds: Sequence[int]  # of the ranks' shares


def pieces(vector: torch.Tensor, nbytes: int) -> list[torch.Tensor]:
    """Return a vector in pieces of at most ``nbytes``; one if it is empty."""
    step = nbytes // vector.element_size()
    return list(vector.split(step)) if vector.numel() > step else [vector]
