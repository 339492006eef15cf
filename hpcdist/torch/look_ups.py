"""Rows to train, as autograd sees them: their gradients are noted as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from hpcdist.comm.base import Array

Ids: TypeAlias = Mapping[str, Array]  # int64 [n] by table
_TRAINS = torch.empty(0, requires_grad=True)  # what comes of it has gradients


@dataclass(frozen=True)
class GivenGradients:
    """Gradients of rows that one look-up has got: float32 [n, width] for int64 ids [n]."""

    number: int  # of the look-up
    table: str
    ids: Array
    gradients: torch.Tensor


class LookUps:
    """Rows of several tables that train, one look-up of each: a single node of autograd's graph.

    A node for each look-up takes several times as long as copying its rows.
    """

    def __init__(
        self,
        ids: Ids,
        rows_of: Callable[[Ids], tuple[torch.Tensor, ...]],
        note: Callable[[GivenGradients], None],
    ) -> None:
        """``rows_of`` makes each table's rows [n, width]; ``note`` gets what a backward gives."""
        self.ids = ids
        self._note = note
        self._numbers: dict[str, int] = {}
        made = _Rows.apply(_TRAINS, lambda: rows_of(ids), self._took)
        self._rows = dict(zip(ids, made, strict=True))

    def __contains__(self, table: str) -> bool:
        """Return whether a table's rows are still here."""
        return table in self._rows

    def hand_out(self, table: str, number: int) -> torch.Tensor:
        """Return a table's rows [n, width], once: the script may change them in place."""
        self._numbers[table] = number
        return self._rows.pop(table)

    def _took(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        for (table, ids), gradient in zip(self.ids.items(), gradients, strict=True):
            if gradient is not None:
                # A copy: autograd may give this memory to a parameter as well, as its gradient,
                # which the script may then change (clip_grad_norm_) before this one is pushed.
                own = gradient.clone(memory_format=torch.contiguous_format)
                self._note(GivenGradients(self._numbers[table], table, ids, own))


class _Rows(torch.autograd.Function):
    """Tensors that come from elsewhere; their gradients go there."""

    @staticmethod
    def forward(
        ctx: Any,
        _: torch.Tensor,
        make: Callable[[], tuple[torch.Tensor, ...]],
        take: Callable[[tuple[torch.Tensor | None, ...]], None],
    ) -> tuple[torch.Tensor, ...]:
        ctx.take = take
        ctx.set_materialize_grads(False)
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None, None]:
        ctx.take(tuple(g if g is None else g.detach() for g in gradients))
        return None, None, None
