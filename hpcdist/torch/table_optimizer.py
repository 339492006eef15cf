"""The optimizer of the rows of tables, with the interface of torch's optimizers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from hpcdist.base.errors import TableError
from hpcdist.ps.facts import OptimizerFacts, TrainingMode
from hpcdist.ps.optimizers import ROW_KINDS
from hpcdist.torch.embedding import TableModule
from hpcdist.torch.kept_optimizer import KeptOptimizer, check


class TableOptimizer(KeptOptimizer):
    """Moves the rows of tables, where they live: those that a step has looked up, no others.

    ``param_groups[0]["lr"]`` is the learning rate, for schedules of torch's too. Formulas, names of
    arguments and their defaults are those of Fluid's optimizers. Gradients of all trainers are
    averaged, as by DistributedDataParallel; in mode "async" each trainer's move rows by themselves.
    Every trainer makes it, and calls `step` in every step.

    >>> half = hpcdist.torch.Initial("constant", 0.5)
    >>> words = hpcdist.torch.Embedding(None, 2, initial=half)
    >>> tables = hpcdist.torch.TableOptimizer(words, "SGD", lr=0.25)
    >>> words(torch.tensor([7])).sum().backward()
    >>> tables.step()
    >>> words(torch.tensor([7, 8])).tolist()
    [[0.25, 0.25], [0.5, 0.5]]
    """

    def __init__(
        self,
        modules: nn.Module | Iterable[nn.Module],
        kind: str = "SGD",
        *,
        lr: float,
        l2_decay: float = 0.0,
        mode: str = "sync",
        max_staleness: int | None = None,
        **arguments: float,
    ) -> None:
        """``modules``: a model, whose tables these are, or some of its modules.

        ``kind``: SGD, Momentum, Adagrad, Adam, AdamW, Adamax, RMSProp, Ftrl or Lamb, with
        ``arguments`` of its own, such as ``epsilon``. In mode "async", with servers,
        ``max_staleness`` is how many steps a trainer may be ahead of the slowest. TableError, or
        PlanError, for what cannot be.
        """
        roots = [modules] if isinstance(modules, nn.Module) else list(modules)
        for module in roots:
            if not isinstance(module, nn.Module):
                raise TableError(
                    f"TableOptimizer: expected modules, got a {type(module).__name__}: give the "
                    "model itself, whose tables have no parameters"
                )
        with_tables = [m for g in roots for m in g.modules() if isinstance(m, TableModule)]
        if not with_tables:
            raise TableError("TableOptimizer: there is no table of hpcdist.torch among the modules")
        if kind not in ROW_KINDS:
            raise TableError(
                f"tables have no optimizer {kind!r}: expected one of {', '.join(ROW_KINDS)}"
            )
        if kind == "Adam":
            arguments = {"lazy_mode": True, **arguments}  # tables move the rows of a step only
        facts = OptimizerFacts(kind, arguments, l2_decay)
        check(facts, lr, TrainingMode(mode, max_staleness), ("sync", "async"))
        names = sorted({module.name for module in with_tables})
        tables, *others = {module.tables for module in with_tables}
        if others:
            raise TableError(
                f"TableOptimizer: some of the tables {', '.join(names)} were made "
                "after others had been looked up: make all tables of a model before, or give "
                "models an optimizer each"
            )
        number = tables.optimize(names, facts, lr, TrainingMode(mode, max_staleness))
        # Optimizers of torch's need a parameter; rows are none.
        super().__init__(tables, number, [nn.Parameter(torch.empty(0))], lr)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of these tables' rows that have come since the last step."""
        self.tables.forget(self._number)
