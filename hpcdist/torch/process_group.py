"""A process group of torch whose collectives go over MPI and memory shared inside a host."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

from hpcdist.base.errors import CommError
from hpcdist.torch import sparse_sum
from hpcdist.torch.arguments import (
    OneOrList,
    check_parts,
    of_root,
    one,
    one_for_each,
    options,
    pairs,
)
from hpcdist.torch.group_queue import GroupOptions, GroupQueue
from hpcdist.torch.job import TorchJob
from hpcdist.torch.memory import (
    checked,
    equal_parts,
    flat,
    joined,
    parts_by_rows,
    put_back,
    put_back_joined,
    unwatched,
)
from hpcdist.torch.reductions import reduction
from hpcdist.torch.signature import Call
from hpcdist.torch.single_messages import SingleMessages
from hpcdist.torch.work import MpiWork, last_of, monitored

Tensors: TypeAlias = Sequence[torch.Tensor]


class MpiProcessGroup(dist.ProcessGroup):
    """The ranks of one group. torch calls it; see docs/pytorch.md for what is there.

    Collectives of a group run one after another, single messages beside them.
    """

    def __init__(
        self,
        job: TorchJob,
        store: dist.Store,
        rank: int,
        members: Sequence[int],
        name: str,
        timeout: timedelta,
    ) -> None:
        """``members``: the script's numbers of its ranks, in its order; ``rank``: the place.

        Collective among them, who find each other by ``store``.

        A ``timeout`` other than torch's default bounds every wait, else FLAGS_rpc_deadline does.
        """
        super().__init__(rank, len(members))
        self._size = len(members)
        self._names = {"name": name, "description": ""}
        self._store = store
        self.queue = GroupQueue(job, store, members, rank, name, timeout)
        self._messages = SingleMessages(self.queue)
        self.splits = 0  # how often split_group has split it
        self.backend_name = "hpcdist"  # or the one of torch's that it stands in for

    def getBackendName(self) -> str:
        # For C++, which takes groups of torch's names to have backends in C++.
        return "hpcdist"

    def _get_backend_name(self) -> str:
        return self.backend_name

    name = _get_backend_name

    # torch's own groups ask their backends for these.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

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

    def get_group_store(self) -> dist.Store:
        return self._store

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self.queue.sequence

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the first number is known."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        self.queue.set_timeout(timeout)

    @property
    def options(self) -> GroupOptions:
        return GroupOptions(self.queue)

    def shutdown(self) -> None:
        """Do nothing: when nothing refers to the group, the next one of its ranks has its links."""

    abort = shutdown
    supports_splitting = supports_coalescing = supports_time_estimate = False
    supports_shrinking = True  # so that torch calls this, and the error says what to call instead

    def shrink(self, ranks: Sequence[int], *_: object) -> NoReturn:
        raise CommError(
            "dist.shrink_group() takes backends in C++ only; hpcdist.torch.shrink() goes on "
            "without ranks that died, dist.new_group() makes a group of some ranks"
        )

    def split_group(self, *_: object, **__: object) -> NoReturn:
        raise CommError(
            "groups' own split_group() and merge_remote_group() take backends in C++ only; "
            "dist.split_group() and dist.new_group() make groups of some ranks"
        )

    merge_remote_group = split_group

    # -- reductions --

    def allreduce(self, tensors: OneOrList, *opts: Any, **named: Any) -> MpiWork:
        (tensor,), parsed = one(tensors), options(dist.AllreduceOptions(), *opts, **named)
        if tensor.layout == torch.sparse_coo:
            return self._all_reduce_sparse(tensor, parsed)
        return self._all_reduce([tensor], unwatched([tensor]), parsed)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> MpiWork:
        return self._all_reduce(tensors, tensors, opts or dist.AllreduceCoalescedOptions())

    def _all_reduce(self, tensors: Tensors, written: Tensors, opts: Any) -> MpiWork:
        vector = joined(written)
        reducer = reduction(opts.reduceOp, vector.dtype, self._size)
        call = Call("all_reduce", vector.dtype, vector.numel(), reducer.name)
        back = partial(put_back_joined, vector, written)
        return self.queue.add(call, (vector, reducer), back, tensors, opts)

    def reduce(self, tensors: OneOrList, *how_and_where: Any, **named: Any) -> MpiWork:
        tensors, opts = one(tensors), options(dist.ReduceOptions(), *how_and_where, **named)
        written = unwatched(tensors)
        vector, root = joined(written), self._root(opts)
        reducer = reduction(opts.reduceOp, vector.dtype, self._size)
        call = Call("reduce", vector.dtype, vector.numel(), reducer.name, root)
        back = partial(put_back_joined, vector, written)
        return self.queue.add(call, (vector, reducer, root), back, tensors, opts)

    def reduce_scatter(
        self, outputs: OneOrList, inputs: Sequence[Any], *opts: Any, **named: Any
    ) -> MpiWork:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        parsed = options(dist.ReduceScatterOptions(), *opts, **named)
        each = pairs(outputs, inputs)
        return last_of([self._reduce_scatter(*pair, parsed) for pair in each], outputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: object = None
    ) -> MpiWork:
        check_parts("reduce_scatter", output, input, self._size)
        checked([input], ())
        return self._reduce_scatter(output, equal_parts(flat(input), self._size), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: object = None
    ) -> MpiWork:
        each = pairs(outputs, inputs)
        return last_of([self.reduce_scatter_single(*pair, opts) for pair in each], outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # -- copies --

    def broadcast(self, tensors: OneOrList, *where: Any, **named: Any) -> MpiWork:
        tensors, opts = one(tensors), options(dist.BroadcastOptions(), *where, **named)
        written = unwatched(tensors)
        vector, root = joined(written), self._root(opts)
        call = Call("broadcast", vector.dtype, vector.numel(), root=root)
        back = partial(put_back_joined, vector, written)
        return self.queue.add(call, (vector, root), back, tensors, opts)

    def allgather(
        self, outputs: Sequence[Any], inputs: OneOrList, *opts: Any, **named: Any
    ) -> MpiWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        parsed = options(AllgatherOptions(), *opts, **named)
        each = pairs(outputs, inputs)
        works = [self._all_gather(part, list(into), parsed) for into, part in each]
        return last_of(works, outputs if len(outputs) > 1 else outputs[0])  # as gloo's

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: object = None
    ) -> MpiWork:
        check_parts("all_gather", input, output, self._size)
        checked((), [output])
        vector = flat(output)
        return self._all_gather(input, equal_parts(vector, self._size), opts, (vector, output))

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: object = None
    ) -> MpiWork:
        each = pairs(outputs, inputs)
        return last_of([self.all_gather_single(*pair, opts) for pair in each], outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None
    ) -> MpiWork:
        """``outputs[r][k]`` becomes rank r's ``inputs[k]``."""
        by_input = [[row[k] for row in outputs] for k in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    def gather(
        self, outputs: Sequence[Any], inputs: OneOrList, *where: Any, **named: Any
    ) -> MpiWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        opts = options(dist.GatherOptions(), *where, **named)
        (part,), targets = one(inputs), of_root("gather", outputs, self.rank(), opts.rootRank)
        root, vector, vectors = self._with_root("gather", part, targets, opts)
        call, back = Call("gather", part.dtype, root=root), partial(put_back, vectors, targets)
        return self.queue.add(call, (vector, vectors, root), back, targets, opts)

    def gather_single(
        self, output: torch.Tensor, input: torch.Tensor, *where: Any, **named: Any
    ) -> MpiWork:
        opts = options(dist.GatherOptions(), *where, **named)
        parts = [list(output.chunk(self._size))] if self.rank() == opts.rootRank else []
        return last_of([self.gather(parts, [input], opts)], [output])

    def scatter(
        self, outputs: OneOrList, inputs: Sequence[Any], *where: Any, **named: Any
    ) -> MpiWork:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = options(dist.ScatterOptions(), *where, **named)
        written = unwatched(one(outputs))
        (out,), sources = written, of_root("scatter", inputs, self.rank(), opts.rootRank)
        root, vector, vectors = self._with_root("scatter", out, sources, opts)
        call, back = Call("scatter", out.dtype, root=root), partial(put_back, [vector], written)
        return self.queue.add(call, (vectors, vector, root), back, outputs, opts)

    def _with_root(
        self, kind: str, tensor: torch.Tensor, of_all: Tensors, opts: Any
    ) -> tuple[int, torch.Tensor, list[torch.Tensor]]:
        """Return the root, and this rank's tensor and the root's of all ranks as vectors."""
        root = self._root(opts)
        checked([tensor], of_all) if kind == "gather" else checked(of_all, [tensor])
        if self.rank() == root:
            one_for_each(kind, of_all, tensor, root, self._size)
        return root, flat(tensor), [flat(each) for each in of_all]

    def alltoall(self, outputs: Tensors, inputs: Tensors, *opts: Any, **named: Any) -> MpiWork:
        checked(inputs, outputs)
        me = self.rank()
        for tensors in (outputs, inputs):
            local = outputs[me] if len(outputs) > me else None
            one_for_each("all_to_all", tensors, local, me, self._size)
        written = unwatched(outputs)
        sources, into = [flat(tensor) for tensor in inputs], [flat(out) for out in written]
        call, back = Call("all_to_all", outputs[0].dtype), partial(put_back, into, written)
        parsed = options(dist.AllToAllOptions(), *opts, **named)
        return self.queue.add(call, (sources, into), back, outputs, parsed)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *opts: Any,
        **named: Any,
    ) -> MpiWork:
        """Splits are numbers of rows (dimension 0) for each rank; empty: equal ones."""
        checked([input], [output])
        written = unwatched([output])
        vector = flat(written[0])
        into = parts_by_rows(vector, output, output_splits, self._size)
        sources = parts_by_rows(flat(input), input, input_splits, self._size)
        one_for_each("all_to_all", sources, into[self.rank()], self.rank(), self._size)
        equal = not output_splits and not input_splits
        call = Call("all_to_all", output.dtype, input.numel() if equal else None)
        parsed = options(dist.AllToAllOptions(), *opts, **named)
        back = partial(put_back, [vector], written)
        return self.queue.add(call, (sources, into), back, [output], parsed)

    all_to_all_single = alltoall_base

    def barrier(self, *opts: Any, **named: Any) -> MpiWork:
        call = Call("barrier", torch.uint8, 0)
        parsed = options(dist.BarrierOptions(), *opts, **named)
        return self.queue.add(call, (), lambda: None, [], parsed)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks; the error names all that have not come, on every rank."""
        with monitored():
            self.barrier(timeout).wait()

    # -- single messages --

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> MpiWork:
        (tensor,) = tensors
        return self._messages.send(tensor, self._in_group("to", to), tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> MpiWork:
        (tensor,) = tensors
        return self._messages.receive(tensor, self._in_group("from", source), tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> MpiWork:
        (tensor,) = tensors
        return self._messages.receive_any(tensor, tag)

    # -- inside --

    def _root(self, opts: Any) -> int:
        return self._in_group("root", int(opts.rootRank))

    def _in_group(self, role: str, rank: int) -> int:
        if not 0 <= rank < self._size:
            raise CommError(f"{role} {rank}: expected a rank of the group, 0 to {self._size - 1}")
        return rank

    def _reduce_scatter(self, out: torch.Tensor, parts: Tensors, opts: Any) -> MpiWork:
        opts = opts or dist.ReduceScatterOptions()
        checked(parts, [out])
        one_for_each("reduce_scatter", parts, out, self.rank(), self._size)
        vector, sources = flat(out), [flat(part) for part in parts]
        reducer = reduction(opts.reduceOp, out.dtype, self._size)
        equal = len({part.numel() for part in sources}) == 1
        length = vector.numel() if equal else None
        call = Call("reduce_scatter", out.dtype, length, reducer.name)
        back = partial(put_back, [vector], [out])
        return self.queue.add(call, (sources, vector, reducer), back, [out], opts)

    def _all_gather(
        self,
        part: torch.Tensor,
        outputs: Tensors,
        opts: object,
        gathered: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> MpiWork:
        """``gathered``: the vector of which ``outputs`` are parts, and its tensor."""
        checked([part], outputs)
        one_for_each("all_gather", outputs, part, self.rank(), self._size)
        source = flat(part)
        into = outputs if gathered else [flat(out) for out in outputs]
        vectors, tensors = ([gathered[0]], [gathered[1]]) if gathered else (into, outputs)
        equal = len({out.numel() for out in into}) == 1
        call = Call("all_gather", part.dtype, source.numel() if equal else None)
        back = partial(put_back, vectors, tensors)
        return self.queue.add(call, (source, into), back, tensors, opts)

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> MpiWork:
        reducer = reduction(opts.reduceOp, tensor.dtype, self._size)
        if reducer.name != "SUM":
            raise CommError(
                f"all_reduce of sparse tensors: expected ReduceOp.SUM, got {reducer.name}"
            )
        sparse = tensor.detach().coalesce()
        call = Call("all_reduce", tensor.dtype, None, reducer.name)
        return self.queue.add(call, (tensor, sparse), lambda: None, [tensor], opts, sparse_sum)
