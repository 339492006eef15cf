"""The tables of models: which a model has, and the end of their use."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from hpcdist import runtime
from hpcdist.base.errors import CheckpointError, TableError
from hpcdist.torch.embedding import TableModule
from hpcdist.torch.job import job
from hpcdist.torch.kept_optimizer import KeptOptimizer
from hpcdist.torch.tables import Tables, all_in_use


def tables_of(objects: Iterable[object]) -> list[Tables]:
    """Return the `Tables` of modules and optimizers, one for each model of theirs."""
    found: dict[Tables, None] = {}
    parameters: set[int] = set()
    for each in objects:
        if isinstance(each, KeptOptimizer):
            found[each.tables] = None
        if isinstance(each, nn.Module):
            parameters |= {id(parameter) for parameter in each.parameters()}
            found |= {m.tables: None for m in each.modules() if isinstance(m, TableModule)}
    for tables in all_in_use():
        if parameters & {id(parameter) for parameter in tables.served_parameters.values()}:
            found[tables] = None
    return [*found]


def needs_launcher(what: str) -> None:
    """Refuse what ranks do together by our servers and files, without our launcher."""
    if runtime.current() is None and job().transport.size > 1:
        raise CheckpointError(
            f"several ranks {what} together only under our launcher: mpirun -n N python -m "
            "hpcdist --as-torchrun train.py"
        )
    job()  # servers serve from here on


def drop_tables(model: nn.Module | torch.optim.Optimizer) -> None:
    """Give up the rows of a model's tables, and its parameters on servers, to train another model.

    ``model`` or its optimizer, which cannot be used any more; what was made with it before the
    first look-up goes too. Every trainer calls this at the same place in its script. Without
    servers a model's rows also go when nothing refers to the model and its optimizers any more;
    on servers, which keep one model at a time, when the next model is looked up first.
    TableError for a model that has neither tables nor parameters on servers.

    >>> hpcdist.torch.drop_tables(model)  # doctest: +SKIP
    """
    found = tables_of([model])
    if not found:
        raise TableError(
            f"drop_tables: expected a model with tables or parameters on servers, or its "
            f"optimizer, got a {type(model).__name__} without"
        )
    for tables in found:
        tables.drop()
