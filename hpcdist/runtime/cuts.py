"""What a communicator exchanges: whole gradients and parameters, and the pieces servers know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import ROLE_VAR_ATTR
from hpcdist.runtime.exchange import is_counter


@dataclass(frozen=True)
class Cut:
    """A whole gradient and the parameter that answers it, in pieces of rows for the servers.

    Rows ``starts[i]:starts[i + 1]`` are called ``gradients[i]`` and ``parameters[i]``.
    """

    gradient: str
    parameter: str
    starts: tuple[int, ...]
    gradients: tuple[str, ...]
    parameters: tuple[str, ...]  # none for a table that trainers do not receive
    endpoints: tuple[str, ...]

    def rows(self, names: Sequence[str], whole: Any) -> dict[str, Any]:
        """Return the pieces of an array by name."""
        ends = zip(self.starts, self.starts[1:])
        return {name: whole[begin:end] for name, (begin, end) in zip(names, ends)}


def is_split(op: Operator) -> bool:
    """Tell whether a send holds a whole gradient for the communicator to cut."""
    return op.type == "send" and bool(op.attrs.get("sections")) and not is_counter(op)


def read_cuts(ops: Sequence[Operator]) -> tuple[Cut, ...]:
    """Return what the communicator is to cut and join, in the order of the sends."""
    received = {
        op.output("Out")[0]: tuple(op.attrs["recv_varnames"]) for op in ops if op.type == "recv"
    }
    cuts = []
    for op in filter(is_split, ops):
        parameter = op.attrs[ROLE_VAR_ATTR][0]
        starts = tuple(int(n) for n in np.cumsum([0, *op.attrs["sections"]]))
        names, endpoints = tuple(op.attrs["send_varnames"]), tuple(op.attrs["epmap"])
        pieces = received.get(parameter, ())
        cuts.append(Cut(op.input("X")[0], parameter, starts, names, pieces, endpoints))
    return tuple(cuts)


def piece_metas(cuts: Sequence[Cut], metas: Mapping[str, Meta]) -> dict[str, Meta]:
    """Return the shapes of the pieces of parameters."""
    found = {}
    for cut in cuts:
        whole = metas.get(cut.parameter)
        for name, begin, end in zip(cut.parameters, cut.starts, cut.starts[1:]):
            assert whole is not None, "what is received is declared"
            found[name] = Meta((end - begin, *whole.shape[1:]), whole.dtype)
    return found
