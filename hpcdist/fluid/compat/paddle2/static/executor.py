"""``paddle.static.Executor``: Fluid's, which knows the rates that a script steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.keywords import names_arguments_of
from hpcdist.executor import control
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

    @names_arguments_of("paddle.static.Executor.run")
    def run(  # type: ignore[override]  # 2.6.2 has no return_merged
        self,
        program: Any = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Any = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a Program once, as `hpcdist.Executor.run` does."""
        if isinstance(feed, (list, tuple)) and len(feed) == 1 and isinstance(feed[0], dict):
            feed = feed[0]  # what a DataLoader gives for one place
        if isinstance(feed, dict):
            feed = _with_ones(program, feed)
        if optimizer.has_schedulers():
            of = program.program if isinstance(program, CompiledProgram) else program
            if of is None or isinstance(of, Program):
                into = scope or global_scope()
                optimizer.set_rates(of or default_main_program(), into, _has_servers())
        return super().run(
            program,
            feed,
            fetch_list,
            scope=scope,
            return_numpy=return_numpy,
            use_prune=use_prune,
        )

    def infer_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Any = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Any = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> None:
        """Run what is left of a Program without its training; nothing is updated."""
        rest = thread, debug, fetch_list, fetch_info, print_period, fetch_handler
        super().infer_from_dataset(program, dataset, scope, *rest)


def _has_servers() -> bool:
    """Return whether this is a trainer whose job has servers."""
    job = control.installed()
    peers = job.peers() if job is not None else None
    return peers is not None and bool(peers.servers)


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
