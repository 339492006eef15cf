"""Prefetch: rows of the next batch travel while this step ends and its data is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch

from hpcdist.comm.base import Array
from hpcdist.errors import TableError
from hpcdist.torch.embedding import TableModule
from hpcdist.torch.tables import tables

Item = TypeVar("Item")
Ids = Mapping[TableModule, torch.Tensor]


def rows_ahead(loader: Iterable[Item], ids_of: Callable[[Item], Ids]) -> Iterator[Item]:
    """Yield what a loader yields, each when the next is known too.

    ``ids_of`` returns the ids that a training step on it will look up, by module:
    ``lambda batch: {model.words: batch[0]}``. When an optimizer's ``step`` has sent this step's
    gradients to the servers, it asks them for these rows, of all tables at once; they hold all that
    they would if asked for later, so no bit changes. A table that is looked up several times has
    one of the look-ups ahead. Without servers this only yields. TableError for other modules.
    """
    kept = tables()
    known: list[Item] = []  # what is yielded next
    try:
        for following in loader:
            kept.coming = _by_table(ids_of(following))
            yield from known
            known = [following]
        kept.coming = {}
        yield from known
    finally:
        kept.coming = {}


def _by_table(ids: Ids) -> dict[str, Array]:
    for module in ids:
        if not isinstance(module, TableModule):
            raise TableError(
                "rows_ahead: expected ids by module, hpcdist.torch.Embedding or EmbeddingBag, got "
                f"a {type(module).__name__}"
            )
    return {module.name: module.flat(given) for module, given in ids.items()}
