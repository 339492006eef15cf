"""Where the workers of fleet 2 begin: with what worker 0 has when it calls ``init_worker``."""

from __future__ import annotations

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.scope import ScopeVariable, global_scope
from hpcdist.graph.program import Program
from hpcdist.ps.given_values import give
from hpcdist.ps.plan import Route
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.transpiler.plan import ProgramPlan, trainer_plan


def begin_as_first(main: Program) -> None:
    """Give servers and workers the parameters of ``main`` that worker 0 has.

    Its script may have set them, as in Paddle 2. Rows of tables, and of embeddings that workers do
    not receive, stay the servers'. Collective among workers, after the startup program; before it
    nothing is done.
    """
    peers, plan, scope = program_peers(), trainer_plan(main), global_scope()
    if plan is None or not peers.servers:
        return
    received: list[tuple[Route, ScopeVariable]] = []
    for route in plan.routes:
        variable = scope.find_var(route.parameter)
        if variable is not None and variable.value is not None and not route.remote:
            received.append((route, variable))
    if not received:
        return
    if peers.trainer == 0:
        pieces = _on_servers(peers, plan, [route for route, _ in received])
        changed = {}
        for route, variable in received:
            here = on_host(variable.value)
            for piece in route.slices:
                local = here[piece.begin : piece.end] if route.cut else here
                if local.tobytes() != pieces[piece.name].tobytes():
                    changed[piece.name] = local
        give(peers.ask, changed)
    peers.gather(b"")  # the servers have all of it
    if peers.trainer > 0:
        pieces = _on_servers(peers, plan, [route for route, _ in received])
        for route, variable in received:
            variable.take(np.concatenate([np.atleast_1d(pieces[s.name]) for s in route.slices]))


def _on_servers(
    peers: ProgramPeers, plan: ProgramPlan, routes: list[Route]
) -> dict[str, np.ndarray]:
    """Return the servers' values of these parameters, by name of the piece."""
    found: dict[str, np.ndarray] = {}
    for server, endpoint in enumerate(plan.endpoints):
        pieces = [(route, piece) for route in routes for piece in route.on(endpoint)]
        arrays = {piece.name: np.empty(piece.shape, route.dtype) for route, piece in pieces}
        peers.read(server, arrays)
        found |= arrays
    return found
