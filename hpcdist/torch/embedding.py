"""Embedding modules whose rows are on servers, or divided among the trainers.

They take torch's arguments. An id may be any int64. A row is created by the first training look-up
of its id, with values that depend only on the table's name and the id.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.arguments import row_policy
from hpcdist.ps.facts import Initial, TableFacts
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.torch.tables import open_tables

NORMAL = Initial("normal", 0.0, 1.0)  # as torch's begin
_is_tracing: Any = torch.jit.is_tracing  # torch gives it no types
_left_out = ContextVar("_left_out", default=False)  # whether states are without tables


class TableModule(nn.Module):
    """What both modules have in common: a table, found by its name on all ranks."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        name: str | None = None,
        initial: Initial = NORMAL,
        policy: RowPolicy | None = None,
        **torchs: object,
    ) -> None:
        """``num_embeddings``: how many different ids there may be; None or -1: any number.

        ``padding_idx``: the id that stands for nothing, and gives zeros. ``name`` is the same on
        all ranks; default: in the order in which a script makes its tables. ``policy`` says which
        ids get a row, and which rows are forgotten (`RowPolicy`; default: all, and none).
        TableError for arguments that do not fit, and for ``torchs``, which only torch's take.
        """
        super().__init__()
        if torchs:
            raise TableError(
                f"hpcdist.torch.{type(self).__name__} does not take {', '.join(sorted(torchs))}: "
                "leave it out (gradients are always rows; first values come from initial=), or "
                f"use torch.nn.{type(self).__name__}, which keeps all rows on every rank"
            )
        most = -1 if num_embeddings is None else num_embeddings
        for value in (most, embedding_dim, 0 if padding_idx is None else padding_idx):
            if not isinstance(value, int):
                raise TableError(f"expected integers of rows, columns, padding, got {value!r}")
        if not (most == -1 or most > 0) or embedding_dim < 1:
            raise TableError(
                f"expected a positive number of rows, or None, and of columns, got "
                f"{num_embeddings} and {embedding_dim}"
            )
        if padding_idx is not None and padding_idx < 0:
            if most == -1:
                raise TableError(
                    f"padding_idx {padding_idx} counts from the end, but the table has no size: "
                    "give the id itself, 0 or more"
                )
            if padding_idx < -most:
                raise TableError(f"padding_idx {padding_idx} is before the first of {most} rows")
            padding_idx += most
        if name is not None and not (isinstance(name, str) and name):
            raise TableError(f"name: expected a string that is not empty, got {name!r}")
        if not isinstance(initial, Initial):
            raise TableError(
                f"initial: expected hpcdist.torch.Initial, such as Initial('uniform', -0.1, 0.1), "
                f"got {initial!r}"
            )
        policy = row_policy("policy", policy, "hpcdist.torch.RowPolicy")
        self.tables = open_tables()
        self.name = self.tables.new_name() if name is None else name
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        self.tables.add(
            self, TableFacts(self.name, embedding_dim, most, padding_idx, initial, policy=policy)
        )

    def extra_repr(self) -> str:
        """Return the arguments as torch prints them in ``repr(model)``."""
        return f"{self.num_embeddings}, {self.embedding_dim}, name={self.name!r}"

    @torch._disable_dynamo  # a compiled model calls it between two graphs
    def _look_up(self, input: object) -> tuple[Array, torch.Tensor]:
        """Return ids int64 [n] and their rows [n, embedding_dim], whose gradients are kept."""
        ids = self.flat(input)
        return ids, self.tables.look_up(self.name, ids, train=torch.is_grad_enabled())

    def flat(self, input: object) -> Array:
        """Return ids of any shape as int64 [n], a view if they can be; TableError for others."""
        if not isinstance(input, torch.Tensor) or input.dtype not in (torch.int64, torch.int32):
            dtype = input.dtype if isinstance(input, torch.Tensor) else type(input).__name__
            raise TableError(f"table {self.name!r}: expected a tensor of int64 ids, got {dtype}")
        if not input.is_cpu:
            raise TableError(
                f"table {self.name!r}: ids must be on the CPU, where rows are looked up, got "
                f"{input.device}: use ids.cpu()"
            )
        unknown = (
            f"table {self.name!r}: rows are looked up by ids that are known, as they are not in "
            "torch.jit.trace, torch.export and torch.vmap: leave look-ups out of these"
        )
        if _is_tracing():  # which would keep the rows of these ids
            raise TableError(unknown)
        try:
            known = input.numpy()
        except RuntimeError as error:
            raise TableError(unknown) from error
        return np.asarray(known.reshape(-1), np.int64)

    def __getattr__(self, name: str) -> Any:
        """Say where rows are to those who look for torch's ``weight``."""
        if name == "weight":
            raise AttributeError(
                f"table {self.name!r} has no weight: its rows are on several ranks; look ids up "
                "to read rows, and set first values by initial=hpcdist.torch.Initial(...)"
            )
        return super().__getattr__(name)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse `copy.deepcopy`, and pickling, as `torch.save` of a model does it."""
        raise TableError(
            f"table {self.name!r} cannot be copied or pickled, nor can a model that has it: its "
            "rows are on several ranks, where a copy would train the same ones; save them with "
            "hpcdist.torch.Saver, and copy the other parts (hpcdist.torch.dense_state_dict(model))"
        )

    def _save_to_state_dict(self, *_: Any) -> None:
        if _left_out.get():
            return
        raise TableError(
            f"state_dict(): the rows of table {self.name!r} are on several ranks and may fit "
            "none: save them with hpcdist.torch.Saver, or leave the table out "
            "(hpcdist.torch.dense_state_dict(model))"
        )

    def _load_from_state_dict(
        self, state_dict: object, prefix: str, metadata: object, strict: bool, *_: Any
    ) -> None:
        """Take nothing: rows are restored by `hpcdist.torch.Saver`."""


class Embedding(TableModule):
    """As `torch.nn.Embedding`: ids int64 of any shape [...] give rows float32 [..., embedding_dim].

    A `TableOptimizer` must be made before the first look-up, else TableError. In a job without
    servers every rank looks up in every step.

    >>> half = hpcdist.torch.Initial("constant", 0.5)
    >>> words = hpcdist.torch.Embedding(None, 4, initial=half)
    >>> tables = hpcdist.torch.TableOptimizer(words, "Adagrad", lr=0.1)
    >>> words(torch.tensor([[7, -2, 7]])).shape
    torch.Size([1, 3, 4])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows float32 [*input.shape, embedding_dim] of int64 ids of any shape."""
        _, rows = self._look_up(input)
        return rows.view(*input.shape, self.embedding_dim)


class EmbeddingBag(TableModule):
    """As `torch.nn.EmbeddingBag`: the sum, mean or maximum of the rows of each bag.

    Ids int64 [bags, n], or [n] with offsets [bags], give float32 [bags, embedding_dim]. TableError
    as of `Embedding`.

    >>> half = hpcdist.torch.Initial("constant", 0.5)
    >>> bags = hpcdist.torch.EmbeddingBag(None, 2, mode="sum", initial=half)
    >>> tables = hpcdist.torch.TableOptimizer(bags, "SGD", lr=0.1)
    >>> bags(torch.tensor([[7, -2, 5], [3, 3, 3]])).tolist()
    [[1.5, 1.5], [1.5, 1.5]]
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        mode: str = "mean",
        padding_idx: int | None = None,
        *,
        include_last_offset: bool = False,
        name: str | None = None,
        initial: Initial = NORMAL,
        policy: RowPolicy | None = None,
        **torchs: object,
    ) -> None:
        """``mode``: "sum", "mean" or "max". The others are those of `TableModule` and torch's."""
        if mode not in ("sum", "mean", "max"):
            raise TableError(f"mode: expected sum, mean or max, got {mode!r}")
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            name=name,
            initial=initial,
            policy=policy,
            **torchs,
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return float32 [bags, embedding_dim].

        ``input`` [bags, ids of each], or [ids] with ``offsets``, where bags begin. Weights, which
        are like the ids, are for "sum". TableError for offsets that fall, or leave ids out of bags.
        """
        if isinstance(offsets, torch.Tensor) and offsets.dim() == 1:  # others torch refuses
            self._refuse_offsets(offsets, input)
        ids, rows = self._look_up(input)
        plain = offsets is None and per_sample_weights is None and self.padding_idx is None
        if plain and not self.include_last_offset and input.dim() == 2 and input.shape[1] == 1:
            return rows  # bags of one id: torch's sort them for their gradients
        places = torch.arange(len(ids))
        padding = None
        if self.padding_idx is not None:
            padded = torch.from_numpy(ids == self.padding_idx)
            if padded.any():  # one place stands for all of them
                padding = int(padded.int().argmax())
                places[padded] = padding
        if not len(ids):
            rows = torch.cat([rows, rows.new_zeros(1, self.embedding_dim)])  # torch wants one
        return functional.embedding_bag(
            places.view(input.shape),
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def _refuse_offsets(self, offsets: torch.Tensor, input: torch.Tensor) -> None:
        """Raise TableError for those for which torch adds up memory that is not its own."""
        falls = offsets.diff() < 0
        if falls.any():
            k = int(falls.int().argmax())
            raise TableError(
                f"table {self.name!r}: expected non-decreasing offsets, got "
                f"{offsets[k : k + 2].tolist()} at {k}: each offset is where a bag begins"
            )
        count = len(offsets) and (int(offsets[-1]) if self.include_last_offset else input.numel())
        if count < input.numel():
            raise TableError(
                f"table {self.name!r}: {input.numel()} ids, but the offsets' bags end after "
                f"{count}: every id belongs to a bag, and the last offset of "
                "include_last_offset=True is the number of ids"
            )


def dense_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's ``state_dict`` without its tables, which ranks share among them.

    >>> model = torch.nn.Sequential(hpcdist.torch.Embedding(None, 4), torch.nn.Linear(4, 1))
    >>> [*hpcdist.torch.dense_state_dict(model)]
    ['1.weight', '1.bias']
    """
    before = _left_out.set(True)
    try:
        state: dict[str, torch.Tensor] = model.state_dict()
        return state
    finally:
        _left_out.reset(before)
