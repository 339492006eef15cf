"""Replays consecutive calls on a GPU as one CUDA graph.

The first run executes normally, on a separate stream; the second is recorded, and replayed from
then on. Memory allocated during the recording is reserved for the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.base.warned import warn
from hpcdist.executor.segments import TYPE
from hpcdist.executor.traced import TracedSegment
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call, Meta, gives_open
from hpcdist.ops.by_torch import torch_for

# What they do follows from memory of the GPU alone: nothing is counted on the host, or waited for.
_REPLAYED = {
    TYPE,
    *OPTIMIZERS,
    *("assign", "cast", "check_finite_and_unscale", "clip", "elementwise_add", "elementwise_div"),
    *("elementwise_max", "elementwise_min", "elementwise_mul", "elementwise_sub", "fill_constant"),
    *("increment", "scale", "square", "sqrt", "sum", "update_loss_scaling"),
}


class Replayed:
    """Calls that become a CUDA graph when they run for the second time."""

    def __init__(self, cupy: Any, calls: Sequence[Call]) -> None:
        self._cupy, self._torch = cupy, torch_for(TYPE)
        self._launches = [c.launch if isinstance(c, TracedSegment) else c for c in calls]
        self._tells = [c.tell for c in calls if isinstance(c, TracedSegment)]
        self._of_cupy = cupy.cuda.Stream(non_blocking=True)
        self._stream = self._torch.cuda.ExternalStream(self._of_cupy.ptr)
        self._pool = cupy.cuda.MemoryPool()
        self._graph: Any = None
        self._runs = 0

    @property
    def captured(self) -> bool:
        """Whether there is a graph, which is replayed from now on."""
        return self._graph is not None

    def __call__(self) -> None:
        if self.captured or (self._runs == 1 and self._captured()):
            self._graph.replay()
        else:
            self._beside()
        self._runs += 1
        for tell in self._tells:
            tell()

    def _launch(self) -> None:
        with self._of_cupy, self._cupy.cuda.using_allocator(self._pool.malloc):
            for launch in self._launches:
                launch()

    def _beside(self) -> None:
        """Compute on the stream of its own, behind and before all others' kernels."""
        torch = self._torch
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._launch()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _captured(self) -> bool:
        cuda = self._torch.cuda
        graph = cuda.CUDAGraph()
        options = {"stream": self._stream, "capture_error_mode": "thread_local"}
        try:
            # Torch does not leave its stream if it cannot end the graph.
            with cuda.stream(cuda.current_stream()), cuda.graph(graph, **options):
                self._launch()
        except (RuntimeError, NotImplementedError) as error:
            cause = error.__context__ or error  # the end of a graph fails because of what was in it
            warn(f"not replayed as a CUDA graph, so slower: {cause}")
            return False
        self._graph = graph
        return True


def join_replays(
    cupy: object, steps: Sequence[Call], ops: Sequence[Operator], metas: Mapping[str, Meta]
) -> tuple[list[Call], list[Operator]]:
    """Return steps with those that can be replayed together as one step each."""

    def replayed(pair: tuple[Call, Operator]) -> bool:
        names = (n for n in pair[1].input_arg_names if n in metas)
        type, inputs = pair[1].type, pair[1].inputs
        dense = all(metas[n].type == "LOD_TENSOR" for n in names)
        return type in _REPLAYED and dense and not gives_open(type, inputs, metas)

    joined: list[Call] = []
    owners: list[Operator] = []
    for together, group in groupby(zip(steps, ops), replayed):
        pairs = list(group)
        if together:
            joined.append(Replayed(cupy, [step for step, _ in pairs]))
            owners.append(pairs[-1][1])
        else:
            joined += [step for step, _ in pairs]
            owners += [op for _, op in pairs]
    return joined, owners
