"""The sums of sync_batch_norm over trainers, in forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.base.trace.position import here
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ops.normalization.sync_batch_norm import OPS, bind_sync
from hpcdist.runtime.staging import rebound

# (data, what): what every trainer gives, in trainer order; None of one that died. Collective.
Exchange = Callable[[bytes, str], Sequence[bytes | None]]


def is_synchronized(op: Operator) -> bool:
    """Return whether an operator adds up moments over trainers."""
    return op.type in OPS


def bind_moments(op: Operator, binding: Binding, exchange: Exchange | None) -> Call:
    """Return an operator's call of a step. Collective, unless there is no ``exchange``.

    Raises FeedError if another trainer's script has ended, CommError or DeadlineError as other
    exchanges do. Sums run in trainer order: all trainers get the same bits, in every run.
    """

    def make() -> Call:
        bound = bind_sync(op, binding.backend.xp, binding.arrays)
        if callable(bound):
            return bound

        def run() -> None:
            sums = bound.local_sums()
            everyones = [sums] if exchange is None else exchanged(op, sums, exchange)
            bound.take(everyones)

        return run

    return rebound(binding, make)


def exchanged(op: Operator, sums: np.ndarray, exchange: Exchange) -> list[np.ndarray]:
    """Return the ``sums`` of each trainer, float64, in trainer order. Collective.

    Raises FeedError if a trainer has another number of them, or its script has ended.
    """
    outputs = op.output("Y") or op.output_arg_names[:1]
    came = exchange(sums.tobytes(), f"the other trainers' sums of {op.type} {outputs[0]!r}")
    for trainer, data in enumerate(came):
        if data is not None and len(data) != sums.nbytes:
            raise FeedError(
                f"trainers sum the moments of {outputs[0]!r} in step {here.step}, so all must "
                f"take part: expected {sums.nbytes} bytes, got {len(data)} from trainer {trainer}"
                + ("; its script has ended" if not data else "")
                + "; feed the same number of batches on all trainers"
            )
    return [np.frombuffer(data) for data in came if data is not None]
