"""The calls of what a script exchanges among trainers, see `hpcdist.ops.communication.exchange`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hpcdist.base.device import assign, on_host
from hpcdist.base.errors import CommError, PlanError
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Call
from hpcdist.ops.communication.exchange import EXCHANGES, result_of
from hpcdist.runtime.staging import rebound

Gather = Callable[[bytes, str], Sequence[bytes]]  # (data, awaited): every trainer's. Collective


def exchanges(op: Operator) -> bool:
    """Return whether an operator exchanges what a script says."""
    return op.type in EXCHANGES


def refuse_in_shared(programs: Iterable[Program]) -> None:
    """Refuse exchanges where trainers share batches: PlanError before the first step."""
    for op in (op for program in programs for block in program.blocks for op in block.ops):
        if exchanges(op):
            raise PlanError(
                f"{op.place} {op.attrs.get('kind', op.type)} of {op.input('X')}: trainers of a "
                "plain script share every batch, and compute what one process does: leave it out, "
                "or let workers have batches of their own by fleet.init(is_collective=True) and "
                "fleet.distributed_optimizer"
            )


def bind_exchange(op: Operator, binding: Binding, gather: Gather, me: int, trainers: int) -> Call:
    """Return an operator's call of a step. Collective among trainers.

    Raises CommError if another trainer is at something else, or has ended.
    """
    if op.attrs.get("trainers", trainers) != trainers:
        raise CommError(
            f"{op.attrs['kind']} was built for {op.attrs['trainers']} trainers, and {trainers} run "
            "it: build the Program in the job that runs it"
        )

    def make() -> Call:
        x, out = ((binding.arrays[n[0]] if n else None) for n in (op.input("X"), op.output("Out")))

        def run() -> None:
            own = np.empty(0) if x is None else np.ascontiguousarray(on_host(x))
            values = everyones(op, own, gather, trainers)
            if out is not None:
                assign(out, np.ascontiguousarray(result_of(op, values, me)))

        return run

    return rebound(binding, make)


def everyones(op: Operator, own: np.ndarray, gather: Gather, trainers: int) -> Sequence[np.ndarray]:
    """Return the values that trainers give to an exchange, in their order; CommError, see above."""
    what = " ".join([op.attrs.get("kind", op.type), *op.input("X")])
    head = f"{what}: {own.dtype}{list(own.shape)}, {sorted(op.attrs.items())}".encode()
    came = gather(head + own.tobytes(), f"the other trainers' {what}")
    ended = [k for k, data in enumerate(came) if not data]
    size = len(head) + own.nbytes
    others = [k for k, d in enumerate(came) if d and not (d.startswith(head) and len(d) == size)]
    if ended or others or len(came) != trainers:
        why = f"trainers {others} exchange something else"
        if ended:
            why = f"the scripts of trainers {ended} have ended"
        if len(came) != trainers:
            why = f"expected {trainers} trainers, {len(came)} are left"
        raise CommError(
            f"{what}: {own.dtype}{list(own.shape)}: {why}: all trainers must run the same Programs "
            "equally often, on batches of one size"
        )
    return [np.frombuffer(d, own.dtype, offset=len(head)).reshape(own.shape) for d in came]
