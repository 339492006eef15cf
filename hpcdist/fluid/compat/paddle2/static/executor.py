"""``paddle.static.Executor``: Fluid's, which knows the rates that a script steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import global_scope
from hpcdist.fluid.compat.paddle2 import optimizer
from hpcdist.graph.program import Program, default_main_program


class StaticExecutor(Executor):
    """Runs Programs; before each step it sets the rates of ``paddle.optimizer.lr``."""

    def __init__(self, place: Any = None) -> None:
        from hpcdist.fluid.compat import paddle2

        super().__init__(paddle2.chosen_place() if place is None else place)

    def run(self, program: Any = None, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a Program once, as `hpcdist.Executor.run` does."""
        if optimizer.has_schedulers():
            of = program.program if isinstance(program, CompiledProgram) else program
            scope = kwargs.get("scope") or global_scope()
            if of is None or isinstance(of, Program):
                optimizer.set_rates(of or default_main_program(), scope)
        feed = args[0] if args else kwargs.get("feed")
        if isinstance(feed, dict):
            fitting = _with_ones(program, feed)
            args, kwargs = args[1:], {**kwargs, "feed": fitting}
        return super().run(program, *args, **kwargs)


def _with_ones(program: Any, feed: dict[str, Any]) -> dict[str, Any]:
    """Return a feed in which arrays [n] for variables [-1, 1] have that dimension of extent 1.

    Paddle takes them so; batches of numbers from ``paddle.io.DataLoader`` are of that kind.
    """
    block = (getattr(program, "program", program) or default_main_program()).global_block()
    changed = {}
    for name, value in feed.items():
        variable = block.vars.get(name)
        shape = getattr(value, "shape", None)
        if variable is None or not isinstance(shape, tuple) or not shape:
            continue
        more = variable.shape[len(shape) :]
        if more and all(extent == 1 for extent in more):
            changed[name] = np.asarray(value).reshape(*shape, *more)
    return {**feed, **changed} if changed else feed
