"""A process group of torch whose collectives go over MPI and memory shared inside a host."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from hpcdist.comm.base import ANY
from hpcdist.comm.collective import Group
from hpcdist.comm.lanes import Lane, Operation, Steps
from hpcdist.errors import CommError, DeadlineError
from hpcdist.torch import by_messages, in_memory
from hpcdist.torch.by_messages import Channel
from hpcdist.torch.in_memory import HostMemory
from hpcdist.torch.job import TorchJob
from hpcdist.torch.memory import checked, flat, put_back
from hpcdist.torch.reductions import reduction
from hpcdist.torch.signature import Call, agree
from hpcdist.torch.work import MpiWork

Tensors: TypeAlias = Sequence[torch.Tensor]
InMemory: TypeAlias = Callable[[HostMemory], Steps] | None
ByMessages: TypeAlias = Callable[[Channel], Steps]
COLLECTIVE_TAG = 0  # single messages have odd tags


class MpiProcessGroup(dist.ProcessGroup):
    """The ranks of one group. torch calls it; see docs/pytorch.md for what is there.

    Collectives of a group run one after another, single messages beside them.
    """

    def __init__(
        self,
        job: TorchJob,
        store: dist.Store,
        rank: int,
        ranks: Sequence[int],
        name: str,
        timeout: timedelta,
    ) -> None:
        """``ranks`` are the job's ranks in the group, in its order. Collective among them.

        A ``timeout`` other than torch's default bounds every wait, else FLAGS_rpc_deadline does.
        """
        super().__init__(rank, len(ranks))
        self._size = len(ranks)
        self._names = {"name": name, "description": ""}
        deadline_s = job.deadline_s if timeout == default_pg_timeout else timeout.total_seconds()
        self._meet_first(store, rank, ranks, name, deadline_s)
        transport = job.transport.subset(ranks, zlib.crc32(name.encode()) % 2**15)
        self._mover = job.mover
        self._group = Group(transport, tuple(ranks), deadline_s)
        self._channel = Channel(transport, COLLECTIVE_TAG)
        self._memory = in_memory.host_memory(transport, self._group.names)
        self._lane = Lane()
        self._from_anyone = Lane()
        self._sequence = 0
        self._checks = dist.get_debug_level() == dist.DebugLevel.DETAIL

    def getBackendName(self) -> str:
        return "hpcdist"

    # torch's own groups ask their backends for these.

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupDesc(self) -> str:
        return self._names["description"]

    def setGroupDesc(self, description: str) -> None:
        self._names["description"] = description

    def _get_backend(self, device: torch.device) -> MpiProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"no backend for {device} in a group of hpcdist's")
        return self

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        names, transport = self._group.names, self._group.transport
        self._group = Group(transport, names, timeout.total_seconds())

    def shutdown(self) -> None:
        """Do nothing: what the group holds is given back at the end of the process."""

    abort = shutdown

    # -- reductions --

    def allreduce(self, tensors: Tensors, opts: Any = None) -> MpiWork:
        if len(tensors) == 1 and tensors[0].layout == torch.sparse_coo:
            return self._sparse_all_reduce(tensors[0], opts or dist.AllreduceOptions())
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> MpiWork:
        opts = opts or dist.AllreduceCoalescedOptions()
        vector = _joined(tensors)
        how = reduction(opts.reduceOp, vector.dtype, self._size)
        call = Call("all_reduce", vector.dtype, vector.numel(), how.name)
        return self._start(
            call,
            lambda memory: in_memory.all_reduce(memory, vector, how),
            lambda channel: by_messages.all_reduce(channel, vector, how),
            lambda: _part(vector, tensors),
            tensors,
            opts,
        )

    def reduce(self, tensors: Tensors, opts: Any) -> MpiWork:
        vector, root = _joined(tensors), opts.rootRank
        how = reduction(opts.reduceOp, vector.dtype, self._size)
        call = Call("reduce", vector.dtype, vector.numel(), how.name, root)
        return self._start(
            call,
            lambda memory: in_memory.reduce(memory, vector, how, root),
            lambda channel: by_messages.reduce(channel, vector, how, root),
            lambda: _part(vector, tensors),
            tensors,
            opts,
        )

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> MpiWork:
        pairs = list(zip(outputs, inputs, strict=True))
        return _last([self._reduce_scatter(*pair, opts) for pair in pairs], outputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> MpiWork:
        self._fits("reduce_scatter", part=output, whole=input)
        checked([input])
        return self._reduce_scatter(output, self._parts(flat(input)), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> MpiWork:
        pairs = list(zip(outputs, inputs, strict=True))
        return _last([self.reduce_scatter_single(*pair, opts) for pair in pairs], outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # -- copies --

    def broadcast(self, tensors: Tensors, opts: Any) -> MpiWork:
        vector, root = _joined(tensors), opts.rootRank
        return self._start(
            Call("broadcast", vector.dtype, vector.numel(), root=root),
            lambda memory: in_memory.broadcast(memory, vector, root),
            lambda channel: by_messages.broadcast(channel, vector, root),
            lambda: _part(vector, tensors),
            tensors,
            opts,
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> MpiWork:
        pairs = zip(outputs, inputs, strict=True)
        return _last([self._all_gather(own, list(into), opts) for into, own in pairs], outputs)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> MpiWork:
        self._fits("all_gather", part=input, whole=output)
        checked([output])
        vector = flat(output)
        return self._all_gather(input, self._parts(vector), opts, (vector, output))

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> MpiWork:
        pairs = list(zip(outputs, inputs, strict=True))
        return _last([self.all_gather_single(*pair, opts) for pair in pairs], outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> MpiWork:
        """``outputs[r][k]`` becomes rank r's ``inputs[k]``."""
        return self.allgather([[row[k] for row in outputs] for k in range(len(inputs))], inputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> MpiWork:
        (own,), root = inputs, opts.rootRank
        targets = list(outputs[0]) if outputs else []
        checked([own, *targets])
        vector, vectors = flat(own), [flat(target) for target in targets]
        return self._start(
            Call("gather", own.dtype, root=root),
            None,
            lambda channel: by_messages.gather(channel, vector, vectors, root),
            lambda: put_back(vectors, targets),
            outputs,
            opts,
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> MpiWork:
        (out,), root = outputs, opts.rootRank
        sources = list(inputs[0]) if inputs else []
        checked([out, *sources])
        vector, vectors = flat(out), [flat(source) for source in sources]
        return self._start(
            Call("scatter", out.dtype, root=root),
            None,
            lambda channel: by_messages.scatter(channel, vectors, vector, root),
            lambda: put_back([vector], outputs),
            outputs,
            opts,
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> MpiWork:
        checked([*outputs, *inputs])
        given, into = [flat(tensor) for tensor in inputs], [flat(out) for out in outputs]
        return self._start(
            Call("all_to_all", outputs[0].dtype),
            None,
            lambda channel: by_messages.all_to_all(channel, given, into),
            lambda: put_back(into, outputs),
            outputs,
            opts,
        )

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> MpiWork:
        """Splits are numbers of rows (dimension 0) for each rank; empty: equal ones."""
        checked([output, input])
        vector = flat(output)
        into = self._parts(vector, output, output_splits)
        given = self._parts(flat(input), input, input_splits)
        equal = not output_splits and not input_splits
        return self._start(
            Call("all_to_all", output.dtype, input.numel() if equal else None),
            (lambda memory: in_memory.all_to_all(memory, given, into)) if equal else None,
            lambda channel: by_messages.all_to_all(channel, given, into),
            lambda: put_back([vector], [output]),
            [output],
            opts,
        )

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> MpiWork:
        call = Call("barrier", torch.uint8, 0)
        return self._start(call, in_memory.barrier, by_messages.barrier, _nothing, [], opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks; the error names all that have not come, on every rank."""
        opts = dist.BarrierOptions()
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts).wait()

    # -- single messages --

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> MpiWork:
        (tensor,) = tensors
        checked(tensors)
        channel = self._single(tag)
        sends = [(to, flat(tensor))]
        what = f"rank {self._group.names[to]} to take {_of(tensor)}, tag {tag}"
        return self._go(MpiWork(self._mover, Lane(), []), _once(channel, sends), lambda: what)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> MpiWork:
        (tensor,) = tensors
        checked(tensors)
        channel, vector = self._single(tag), flat(tensor)

        def steps() -> Steps:
            yield channel.exchange(receives=[(source, vector)])
            put_back([vector], tensors)

        what = f"a message of {_of(tensor)}, tag {tag}"
        return self._go(MpiWork(self._mover, Lane(), tensors), steps(), lambda: what)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> MpiWork:
        (tensor,) = tensors
        checked(tensors)
        channel, vector = self._single(tag), flat(tensor)
        work = MpiWork(self._mover, self._from_anyone, tensors)

        def steps() -> Steps:
            message = _AnyMessage(channel)
            yield message
            work.source = message.peer
            yield channel.exchange(receives=[(message.peer, vector)])
            put_back([vector], tensors)

        return self._go(work, steps(), lambda: f"a message of {_of(tensor)}, tag {tag}")

    # -- inside --

    def _meet_first(
        self, store: dist.Store, rank: int, ranks: Sequence[int], name: str, deadline_s: float
    ) -> None:
        """Wait until all ranks of the group make it: MPI's own wait for them has no deadline."""
        keys = [f"makes/{k}" for k in range(len(ranks))]
        store.set(keys[rank], "")
        try:
            store.wait(keys, timedelta(seconds=deadline_s))
        except dist.DistStoreError as late:
            missing = tuple(r for r, key in zip(ranks, keys, strict=True) if not store.check([key]))
            error = DeadlineError(
                f"rank {ranks[rank]} makes group {name!r} of ranks {list(ranks)} and rank "
                f"{', '.join(map(str, missing))} has not within {deadline_s:g} s: every rank must "
                "call new_group for all groups, in the same order"
            )
            error.missing = missing
            raise error from late

    def _reduce_scatter(self, out: torch.Tensor, parts: Tensors, opts: Any) -> MpiWork:
        opts = opts or dist.ReduceScatterOptions()
        checked([out, *parts])
        vector, given = flat(out), [flat(part) for part in parts]
        how = reduction(opts.reduceOp, out.dtype, self._size)
        equal = len({part.numel() for part in given}) == 1
        length = vector.numel() if equal else None
        return self._start(
            Call("reduce_scatter", out.dtype, length, how.name),
            (lambda memory: in_memory.reduce_scatter(memory, given, vector, how))
            if equal
            else None,
            lambda channel: by_messages.reduce_scatter(channel, given, vector, how),
            lambda: put_back([vector], [out]),
            [out],
            opts,
        )

    def _all_gather(
        self,
        own: torch.Tensor,
        outputs: Tensors,
        opts: Any,
        whole: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> MpiWork:
        """``whole`` is the vector that ``outputs`` are parts of, and the tensor it belongs to."""
        checked([own, *outputs])
        given = flat(own)
        into = outputs if whole else [flat(out) for out in outputs]
        vectors, tensors = ([whole[0]], [whole[1]]) if whole else (into, outputs)
        equal = len({out.numel() for out in into}) == 1
        return self._start(
            Call("all_gather", own.dtype, given.numel() if equal else None),
            (lambda memory: in_memory.all_gather(memory, given, into)) if equal else None,
            lambda channel: by_messages.all_gather(channel, given, into),
            lambda: put_back(vectors, tensors),
            [whole[1]] if whole else outputs,
            opts,
        )

    def _sparse_all_reduce(self, tensor: torch.Tensor, opts: Any) -> MpiWork:
        how = reduction(opts.reduceOp, tensor.dtype, self._size)
        if how.name != "SUM":
            raise CommError(f"all_reduce of sparse tensors: expected ReduceOp.SUM, got {how.name}")
        mine = tensor.detach().coalesce()
        indices, values = mine.indices(), mine.values()

        def steps(channel: Channel) -> Steps:
            counts = torch.empty(self._size, dtype=torch.int64)
            own = torch.tensor([values.shape[0]])
            yield from by_messages.all_gather(channel, own, counts.split(1))
            all_indices = [indices.new_empty((len(indices), n)) for n in counts.tolist()]
            all_values = [values.new_empty((n, *values.shape[1:])) for n in counts.tolist()]
            for given, outs in ((indices, all_indices), (values, all_values)):
                into = [out.reshape(-1) for out in outs]
                yield from by_messages.all_gather(channel, given.reshape(-1), into)
            parts = [
                torch.sparse_coo_tensor(i, v, tensor.shape, is_coalesced=True)
                for i, v in zip(all_indices, all_values, strict=True)
            ]
            *_, total = accumulate(parts)
            with torch.no_grad():  # a detached tensor would get the elements alone
                tensor.copy_(total.coalesce())

        return self._start(
            Call("all_reduce", tensor.dtype, None, how.name), None, steps, _nothing, [tensor], opts
        )

    def _start(
        self,
        call: Call,
        memory: InMemory,
        messages: ByMessages,
        then: Callable[[], None],
        result: Sequence[Any],
        opts: Any,
    ) -> MpiWork:
        """Put a collective at the end of this group's; it begins at once if it is the first."""
        self._sequence += 1
        number = self._sequence
        steps = self._steps(call, memory, messages, then, number)
        work = MpiWork(self._mover, self._lane, result)
        return self._go(work, steps, lambda: f"{call} (number {number})", opts)

    def _steps(
        self,
        call: Call,
        memory: InMemory,
        messages: ByMessages,
        then: Callable[[], None],
        number: int,
    ) -> Steps:
        """Do a collective in shared memory or by messages, once all ranks call the same one.

        In shared memory that costs nothing; else it is asked at a debug level only.
        """
        if self._memory is not None:
            own = call.encoded()
            self._memory.tell(own)
            steps = (memory or in_memory.barrier)(self._memory)
            yield next(steps)
            self._memory.agree(own, number)
            yield from steps
        elif self._checks:
            own = call.encoded()
            everyone = torch.empty(self._size, dtype=torch.int64)
            told = torch.tensor([own])
            yield from by_messages.all_gather(self._channel, told, everyone.split(1))
            agree(own, everyone.tolist(), self._group.names, self._group.rank, number)
        if self._memory is None or memory is None:
            yield from messages(self._channel)
        then()

    def _go(
        self, work: MpiWork, steps: Steps, what: Callable[[], str], opts: Any = None
    ) -> MpiWork:
        timeout = getattr(opts, "timeout", default_pg_timeout)
        given = timeout > timedelta(0) and timeout != default_pg_timeout
        deadline_s = timeout.total_seconds() if given else self._group.deadline_s
        work.operation = Operation(self._group, steps, what, deadline_s, work.tell)
        work.lane.add(work.operation)
        if work.lane.move() and getattr(opts, "asyncOp", True):
            self._mover.watch(work.lane)
        return work

    def _single(self, tag: int) -> Channel:
        """Return how a single message with a tag of the script's goes."""
        most = (self._group.transport.most_tag - 1) // 2
        if not 0 <= tag <= most:
            raise CommError(f"tag {tag}: expected 0 to {most}, the tags that this MPI library has")
        return Channel(self._group.transport, 2 * tag + 1)

    def _fits(self, kind: str, part: torch.Tensor, whole: torch.Tensor) -> None:
        if whole.numel() != part.numel() * self._size or whole.dtype != part.dtype:
            raise CommError(
                f"{kind} over {self._size} ranks: {_of(part)} needs {_of(part)} times {self._size} "
                f"on the other side, got {_of(whole)}"
            )

    def _parts(
        self, vector: torch.Tensor, like: torch.Tensor | None = None, rows: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """Return a tensor's vector cut for the ranks: by rows of ``like``, or equally."""
        if not rows or like is None:
            if vector.numel() % self._size:
                raise CommError(
                    f"{self._size} ranks cannot share {vector.numel()} elements equally"
                )
            return list(vector.view(self._size, -1)) if vector.numel() else [vector] * self._size
        if len(rows) != self._size or sum(rows) != len(like):
            raise CommError(
                f"splits {list(rows)} of {_of(like)}: expected {self._size} that add to {len(like)}"
            )
        row = vector.numel() // len(like) if len(like) else 0
        return list(vector.split([row * count for count in rows]))


class _AnyMessage:
    """The wait for a message of any rank; ``peer`` is which, then."""

    def __init__(self, channel: Channel) -> None:
        self.peer = ANY
        self._channel = channel

    def ended(self) -> bool:
        came = self._channel.transport.iprobe(ANY, self._channel.tag)
        if came is not None:
            self.peer = came[0]
        return came is not None

    def missing(self) -> Sequence[int]:
        return self._channel.others


def _once(channel: Channel, sends: Sequence[tuple[int, torch.Tensor]]) -> Steps:
    yield channel.exchange(sends)


def _nothing() -> None:
    """Nothing is to be copied back."""


def _last(works: list[MpiWork], result: Sequence[Any]) -> MpiWork:
    """Return the work that ends last, for all of them: they run one after another."""
    works[-1].covers(result)
    return works[-1]


def _joined(tensors: Tensors) -> torch.Tensor:
    """Return the elements of tensors of one dtype as one vector: its own memory if it is one."""
    checked(tensors)
    if len(tensors) == 1:
        return flat(tensors[0])
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise CommError(f"tensors of one dtype expected, got {', '.join(map(_of, tensors))}")
    return torch.cat([flat(tensor) for tensor in tensors])


def _part(vector: torch.Tensor, tensors: Tensors) -> None:
    """Undo `_joined`."""
    put_back(vector.split([tensor.numel() for tensor in tensors]), tensors)


def _of(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
