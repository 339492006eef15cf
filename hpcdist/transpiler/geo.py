"""GEO: trainers update locally and exchange differences of parameters with the servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ps.plan import Route
from hpcdist.transpiler.config import ServerRuntimeConfig
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.program_roles import program_roles
from hpcdist.transpiler.pserver import ServerBlock, ServerPlan, listen_op
from hpcdist.transpiler.rpc import control_name, send_op
from hpcdist.transpiler.startup import receive_parameters
from hpcdist.transpiler.table_metadata import LOOKUPS
from hpcdist.transpiler.trainer import declare_parts

PARAM_INIT = "param_init"  # what the startup program "sends" once it has the parameters
_UNROUTED = ("127.0.0.1:6164",)  # epmap of a send in Fluid by default: the plan has the routes


def geo_trainer(program: Program, plan: ProgramPlan) -> Program:
    """Return the trainer's main program: the given one, and a ``send`` that ends the step.

    It names the ids looked up in sparse tables, and for each the table, in send_varnames.
    """
    new = program.clone()
    block = new.global_block()
    for i in program_roles(program).clip:
        block.ops[i].attrs[ROLE_ATTR] = int(OpRole.BACKWARD)
    for route in plan.routes:
        _declare_delta(block, route, route.parameter, route.shape)
        if route.cut:
            declare_parts(block, route, [s.name for s in route.slices])
            for piece in route.slices:
                _declare_delta(block, route, piece.name, piece.shape)
    lookups = _lookups(block, plan)
    for op in lookups:
        if "remote_prefetch" in op.attrs:
            op.attrs["remote_prefetch"] = False
    pairs = list(dict.fromkeys((op.input("Ids")[0], op.input("W")[0]) for op in lookups))
    _append_signal(block, control_name(0), [i for i, _ in pairs], [t for _, t in pairs])
    new.distribution = plan
    return new


def geo_trainer_startup(startup: Program, plan: ProgramPlan) -> Program:
    """Return the trainer's startup program: it receives all parameters, tables included."""
    new = startup.clone()
    block = new.global_block()
    receive_parameters(block, plan, 1)
    for route in plan.routes:
        _declare_delta(block, route, route.parameter, route.shape)
    block.create_var(PARAM_INIT, dtype="bool")
    _append_signal(block, control_name(2), [PARAM_INIT], [PARAM_INIT])
    new.distribution = replace(plan, startup=True)
    return new


def geo_server(
    program: Program, plan: ProgramPlan, endpoint: str, threads: ServerRuntimeConfig
) -> Program:
    """Return a server's Program: a block for each parameter block adds the differences to it."""
    new = Program()
    new.random_seed = program.random_seed
    home = new.global_block()
    blocks = []
    for route, piece in plan.blocks_on(endpoint):
        home.create_var(piece.name, shape=piece.shape, dtype=route.dtype, persistable=True)
        delta = _declare_delta(home, route, piece.name, piece.shape)
        block = new.create_block(0)
        inputs = {"X": [piece.name, delta]}
        block.add_op(
            Operator(block, "sum", inputs, {"Out": piece.name}, {ROLE_ATTR: int(OpRole.FORWARD)})
        )
        location = (block.idx, route.parameter, piece.name, piece.begin, piece.end)
        blocks.append(ServerBlock(*location, delta, (delta,), route.sparse))
    optimize_blocks = [b.block for b in blocks] or [new.create_block(0).idx]
    new.current_block_idx = 0
    facts: dict[str, Any] = {"fingerprint": plan.fingerprint, "records": plan.records}
    server = ServerPlan(plan, endpoint, (-1,), tuple(blocks), **facts)
    pairs = [f"{b.gradient}:{b.name}" for b in blocks if b.sparse]
    listen = listen_op(home, [], server, optimize_blocks, threads, sparse_grad_to_param=pairs)
    home.add_op(listen)
    new.distribution = server
    return new


def vars_info(plan: ProgramPlan) -> dict[str, dict[str, list[str]]]:
    """Return the routes as Fluid's communicator takes them, everything a string."""
    return {
        route.parameter: {
            "var_names": [s.name for s in route.slices],
            "sections": [str(s.end - s.begin) for s in route.slices],
            "epmap": list(route.endpoints),
            "is_sparse": [str(route.sparse)],
        }
        for route in plan.routes
    }


def _declare_delta(block: Block, route: Route, name: str, shape: tuple[int, ...]) -> str:
    kind = VarType.SELECTED_ROWS if route.sparse else VarType.LOD_TENSOR
    return block.create_var(f"{name}.delta", shape=shape, dtype=route.dtype, type=kind).name


def _lookups(block: Block, plan: ProgramPlan) -> list[Operator]:
    """Return the look-ups in sparse tables."""
    tables = {route.parameter for route in plan.routes if route.sparse}
    return [op for op in block.ops if op.type in LOOKUPS and op.input("W")[0] in tables]


def _append_signal(block: Block, output: str, names: list[str], meaning: list[str]) -> None:
    facts: dict[str, Any] = {"send_varnames": meaning, ROLE_ATTR: int(OpRole.FORWARD)}
    send = send_op(block, names, _UNROUTED, (), **facts)
    send.outputs = {"Out": [output]}
    block.create_var(output, dtype="bool")
    block.add_op(send)
