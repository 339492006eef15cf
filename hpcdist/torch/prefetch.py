"""Prefetch: rows of the next batch travel while this step ends and its data is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.torch.embedding import TableModule
from hpcdist.torch.embedding_exchange import Announced

Item = TypeVar("Item")
Ids = Mapping[TableModule, torch.Tensor]


def rows_ahead(loader: Iterable[Item], ids_of: Callable[[Item], Ids]) -> Iterator[Item]:
    """Yield what a loader yields, each when the next is known too.

    ``ids_of`` returns the ids that a training step on it will look up, by module:
    ``lambda batch: {model.words: batch[0]}``. The rows of all these tables travel together, in one
    exchange, and no bit changes. With servers they are asked for when an optimizer's ``step`` has
    sent the gradients of the step before; without, when the first of them is looked up, for which
    all trainers must use this. Of several look-ups of one table one is ahead. TableError for other
    modules.

    >>> words = hpcdist.torch.Embedding(None, 4)
    >>> tables = hpcdist.torch.TableOptimizer(words, "Adagrad", lr=0.1)
    >>> loader = [torch.tensor([7, -2]), torch.tensor([5, 7])]
    >>> for ids in hpcdist.torch.rows_ahead(loader, lambda ids: {words: ids}):
    ...     words(ids).sum().backward()
    ...     tables.step()
    """
    announced = Announced()  # the model's, once there is a table
    items: list[Item] = []  # what is yielded next
    ids: dict[str, Array] = {}
    try:
        for following in loader:
            by_module = ids_of(following)
            ids = _by_table(by_module)
            for module in by_module:
                announced = module.tables.announced
            announced.next = ids
            yield from items
            items, announced.now = [following], ids
        announced.next = ids = {}
        yield from items
    finally:
        if announced.next is ids:  # else another loop has begun, and this one is closed late
            announced.now, announced.next = {}, {}


def _by_table(ids: Ids) -> dict[str, Array]:
    for module in ids:
        if not isinstance(module, TableModule):
            raise TableError(
                "rows_ahead: expected ids by module, hpcdist.torch.Embedding or EmbeddingBag, got "
                f"a {type(module).__name__}"
            )
    if len({module.tables for module in ids}) > 1:
        raise TableError(
            "rows_ahead: some of the tables were made after others had been looked up: announce "
            "each model's ids by a rows_ahead of its own"
        )
    # Copies: the script may change its own until it looks them up.
    return {module.name: module.flat(given).copy() for module, given in ids.items()}
