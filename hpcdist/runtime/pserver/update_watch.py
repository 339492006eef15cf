"""Detects NaN and infinity in gradients before a server applies them, and reports them once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.comm.base import Array
from hpcdist.executor.nan_watch import tell
from hpcdist.graph.registry import Call
from hpcdist.ps.server import PsServer
from hpcdist.runtime.pserver.exchange_plan import ServerExchange

PART = 1 << 14  # elements


class UpdateWatch:
    """Looks at gradients as they are applied, until it has found one that is not finite.

    A packet's dot product with itself tells; of a large one, of `PART` of its elements, others in
    every step: what makes a loss NaN makes all of most gradients NaN. Rows of distributed tables
    are looked at by the trainer, and again by the table.
    """

    def __init__(
        self, index: int, exchange: ServerExchange, server: PsServer, parameters: Mapping[str, str]
    ) -> None:
        """``parameters`` are those of this server's gradients, by the names these travel under."""
        self.watching = True
        self._name = f"server {index}"
        self._parameters = parameters
        self._gradients: list[dict[str, Any]] = [
            {v.name: server.gradients[v.name] for v in packet.variables if v.name in parameters}
            for packet in exchange.gradients
        ]
        self._flat: list[Callable[[int], Sequence[Array]]] = [
            _flat(packet.variables, rows, gradients)
            for packet, rows, gradients in zip(exchange.gradients, server.packets, self._gradients)
        ]
        self._dense = len(self._flat)  # packets
        for spec in exchange.pushed:
            sent = server.rows[spec.name]
            self._gradients.append({spec.name: _Values(sent)})
            self._flat.append(functools.partial(_pushed, sent))
        self._turns = [0] * len(self._flat)  # how often each packet has been looked at

    def looks(
        self, packet: int, trainers: Sequence[int], step_of: Callable[[int], int]
    ) -> list[Call]:
        """Return the checks of these trainers' packets, for each time one is to be applied.

        It warns of a gradient that is not finite, or raises NotFiniteError: with ``--on-nan end``,
        or with FLAGS_check_nan_inf.
        """
        if packet >= len(self._flat):
            return []
        pushed = packet >= self._dense  # other rows, and arrays, in every step
        if pushed or any(len(v) > PART for k in trainers for v in self._flat[packet](k)):
            return [functools.partial(self._look, packet, trainers, step_of)]
        values = [(k, v, v.dot) for k in trainers for v in self._flat[packet](k)]

        def look() -> None:
            if self.watching:
                for k, array, dot in values:
                    if not isfinite(dot(array)):
                        self._tell(packet, k, step_of(k))

        return [look]

    def _look(self, packet: int, trainers: Sequence[int], step_of: Callable[[int], int]) -> None:
        """Look at parts of large gradients, others in every step, and at rows that were pushed."""
        if not self.watching:
            return
        turn = self._turns[packet]
        self._turns[packet] += 1
        for k in trainers:
            for values in self._flat[packet](k):
                if len(values) > PART:
                    begin = turn % -(-len(values) // PART) * PART
                    values = values[begin : begin + PART]
                if not isfinite(values.dot(values)):
                    self._tell(packet, k, step_of(k))

    def _tell(self, packet: int, trainer: int, step: int) -> None:
        for name, rows in self._gradients[packet].items():
            if self.watching and not np.isfinite(rows[trainer]).all():
                self.watching = False
                kind = "NaN" if np.isnan(rows[trainer]).any() else "infinity"
                rank = settings.RANK.read()
                who = self._name if rank is None else f"rank {rank} ({self._name})"
                words = (
                    f"{who}, step {step}: the gradient of {self._parameters[name]!r} from trainer "
                    f"{trainer} holds {kind}"
                )
                tell(words, end=settings.CHECK_NAN_INF.read())


class _Values:
    """The values of the rows that each trainer has pushed."""

    def __init__(self, sent: Sequence[Any]) -> None:
        self._sent = sent

    def __getitem__(self, trainer: int) -> Any:
        return self._sent[trainer].values


def _pushed(sent: Sequence[Any], trainer: int) -> Sequence[Array]:
    return [sent[trainer].values.reshape(-1)]


def _flat(
    variables: Sequence[Any], rows: Array, gradients: Mapping[str, Array]
) -> Callable[[int], Sequence[Array]]:
    """Return a function that gives a trainer's numbers in as few arrays as possible."""
    kinds = {np.dtype(v.dtype) for v in variables}
    if len(kinds) == 1 and len(gradients) == len(variables) and (kind := kinds.pop()).kind == "f":
        flat = rows.view(kind)
        return [[row] for row in flat].__getitem__
    floats = [g for g in gradients.values() if g.dtype.kind == "f"]
    parts = [[g[k].reshape(-1) for g in floats] for k in range(len(rows))]
    return parts.__getitem__
