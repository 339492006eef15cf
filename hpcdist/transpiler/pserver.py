"""A server's program: arriving gradients update its blocks, averaged or one by one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from hpcdist.graph.block import Block, block_of
from hpcdist.graph.distribution import ProgramDistribution
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, program_of
from hpcdist.ps.plan import Route, UpdateMode
from hpcdist.ps.slicing import Slice
from hpcdist.transpiler.config import ServerRuntimeConfig
from hpcdist.transpiler.dc_asgd import backups, compensate, declare_backups
from hpcdist.transpiler.distributed_table import ServerTable, add_table
from hpcdist.transpiler.mean_gradient import (
    SCALARS,
    SUMMED,
    ServerSums,
    add_scalars,
    is_local,
    part_of,
    summing_ops,
    totals_of,
)
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.program_roles import (
    ON_SERVERS,
    ParameterUpdate,
    ProgramRoles,
    program_roles,
)
from hpcdist.transpiler.trainer import rename_role_vars
from hpcdist.transpiler.turns import TURN


@dataclass(frozen=True)
class ServerBlock:
    """One block of a parameter as its server sees it.

    ``block`` is the index of the program's block that updates it, ``gradient`` what that block
    reads, ``received`` the names under which it comes: with averaging one for each of trainers 0,
    1, ...; else ``gradient`` itself, from any trainer. Rows ``begin:end`` of ``parameter`` are in
    ``name``. ``backups``: with DC-ASGD, ``name`` as trainers 0, 1, ... last read it.
    """

    block: int
    parameter: str
    name: str
    begin: int
    end: int
    gradient: str
    received: tuple[str, ...]
    sparse: bool
    backups: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerPlan(ProgramDistribution):
    """How the Programs of the server at ``endpoint`` are distributed: ``plan``, and what it holds.

    ``blocks`` are in the order of their updates; ``schedules`` has the index of the learning rates'
    block, -1 if none: one, or one for each of the Programs that train in turns.
    """

    plan: ProgramPlan
    endpoint: str
    schedules: tuple[int, ...]
    blocks: tuple[ServerBlock, ...]
    tables: tuple[ServerTable, ...] = ()
    sums: ServerSums | None = None  # over servers, if updates need some

    @property
    def schedule(self) -> int:
        """The first one's."""
        return self.schedules[0]

    @property
    def index(self) -> int:
        """Which of the servers this is."""
        return self.plan.endpoints.index(self.endpoint)

    @property
    def mode(self) -> UpdateMode:
        """How gradients travel and are applied."""
        return self.plan.mode

    def fluid_fields(self) -> dict[str, object]:
        return self.plan.fluid_fields()


def server_plan(program: Program) -> ServerPlan | None:
    """Return the plan of a server's Program; None of another."""
    plan = program.distribution
    return plan if isinstance(plan, ServerPlan) else None


@dataclass(frozen=True)
class Shard:
    """One block of a parameter together with the operators that move it."""

    update: ParameterUpdate
    route: Route
    piece: Slice
    alone: bool  # no other block of this parameter is on the same server
    variables: frozenset[str]  # variables of this update: parameter, gradient, accumulators, decay

    def local(self, name: str) -> str:
        """Return the server's name of a variable of the original program."""
        if name in (self.route.parameter, self.route.gradient):
            return self.piece.of(name)
        return name if self.alone or name not in self.variables else self.piece.of(name)

    def local_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a variable's shape on the server: cut like the parameter if it is shaped so."""
        return self.piece.shape if name in self.variables and shape == self.route.shape else shape


def shards_on(
    program: Program, plan: ProgramPlan, roles: ProgramRoles, endpoint: str
) -> list[Shard]:
    """Return a server's shards to update, in the order of the optimizer operators."""
    ops = program.global_block().ops
    routes = {route.parameter: route for route in plan.routes}
    shards = []
    for update in sorted(roles.updates, key=lambda u: u.optimizer):
        if update.parameter not in routes:  # a distributed table
            continue
        route = routes[update.parameter]
        pieces = route.on(endpoint)
        moved = [ops[i] for i in update.on_server if is_local(ops[i])]
        written = {name for op in moved for name in op.output_arg_names}
        variables = frozenset({route.parameter, route.gradient, *written})
        shards += [Shard(update, route, piece, len(pieces) == 1, variables) for piece in pieces]
    return shards


def pserver_program(
    program: Program, plan: ProgramPlan, endpoint: str, threads: ServerRuntimeConfig
) -> Program:
    """Return the Program of the server at ``endpoint``: listen_and_serv, a block per update.

    Its distribution, a `ServerPlan`, says what the blocks are for.
    """
    roles = program_roles(program)
    new = Program()
    new.random_seed = program.random_seed
    home = new.global_block()
    shards = shards_on(program, plan, roles, endpoint)
    inputs = _declare_arrivals(home, plan, endpoint)
    if plan.mode.dc_asgd:
        declare_backups(home, plan, endpoint)
    schedules = _add_schedules(new, program, roles, len(plan.turns) or 1)
    parent = new.num_blocks - 1
    parts: list[tuple[str, str]] = []
    blocks = [_add_update(new, parent, program, plan, shard, parts) for shard in shards]
    optimize_blocks = [s for s in schedules if s >= 0] + [block.block for block in blocks]
    index = plan.endpoints.index(endpoint)
    origin = program.global_block()
    by_parameter = {update.parameter: origin.ops[update.optimizer] for update in roles.updates}
    tables = [
        add_table(home, parent, plan, number, by_parameter[table.parameter], index)
        for number, table in enumerate(plan.tables)
    ]
    optimize_blocks += [table.update for table in tables]
    sums = add_scalars(new, parent, program, parts)
    if not optimize_blocks:
        optimize_blocks = [new.create_block(parent).idx]
    new.current_block_idx = 0
    server = ServerPlan(
        plan,
        endpoint,
        schedules,
        tuple(blocks),
        tuple(tables),
        sums,
        fingerprint=plan.fingerprint,
        records=plan.records,
    )
    facts: dict[str, Any] = {
        "pserver_id": server.index,
        "sparse_grad_to_param": _sparse_pairs(new, server),
        "dc_asgd": plan.mode.dc_asgd,
    }
    if tables:
        facts["checkpint_block_id"] = tables[0].save  # the attribute has room for one
        facts["prefetch_var_name_to_block_id"] = [f"{t.ids}:{t.lookup}" for t in tables]
    home.add_op(listen_op(home, inputs, server, optimize_blocks, threads, **facts))
    new.distribution = server
    return new


def _declare_arrivals(home: Block, plan: ProgramPlan, endpoint: str) -> list[str]:
    """Declare parameters and gradients; return the gradients that trainers send here."""
    arrivals: list[str] = []
    for route, piece in plan.blocks_on(endpoint):
        home.create_var(piece.name, shape=piece.shape, dtype=route.dtype, persistable=True)
    for route, piece in plan.blocks_on(endpoint):
        merged = piece.of(route.gradient)
        received = plan.received(merged)
        kind = VarType.SELECTED_ROWS if route.sparse else VarType.LOD_TENSOR
        for name in dict.fromkeys([merged, *received]):
            var = home.create_var(name, shape=piece.shape, dtype=route.dtype, type=kind)
            # What is to be averaged is not the server's to keep.
            var.persistable = not (plan.mode.averaged and name in received)
        arrivals += received
    return arrivals


def _add_schedules(
    new: Program, program: Program, roles: ProgramRoles, turns: int
) -> tuple[int, ...]:
    """Copy each turn's learning-rate schedule, with sub-blocks; return its block's index or -1."""
    ops = [program.global_block().ops[i] for i in roles.schedule]
    schedules = []
    for turn in range(turns):
        scheduling = [op for op in ops if op.attrs.get(TURN, 0) == turn]
        schedules.append(new.create_block(0).idx if scheduling else -1)
        for op in scheduling:
            _copy_nested(op, new.block(schedules[-1]))
    return tuple(schedules)


def _copy_nested(op: Operator, block: Block) -> None:
    new, origin = program_of(block), block_of(op)
    copied = op.copied_to(block)
    block.add_op(copied)
    for name in op.input_arg_names + op.output_arg_names:
        in_block = origin.idx and origin.has_var(name)
        # It may be of a block between this and block 0.
        if in_block or block.find_var(name) is None:
            _carry(origin, name, block if in_block else new.global_block())
    if "sub_block" in op.attrs:
        below = new.create_block(block.idx)
        for inner in origin.program.block(op.attrs["sub_block"]).ops:
            _copy_nested(inner, below)
        copied.attrs["sub_block"] = below.idx


def _carry(origin: Block, name: str, target: Block) -> None:
    """Declare a variable of the original program on the server, kept from step to step."""
    var = origin.find_var(name)
    if var is not None and not target.has_var(name):
        persists = var.persistable or var.type in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS)
        target.create_var(
            name, shape=var.shape, dtype=var.dtype, type=var.type, persistable=persists
        )


def _add_update(
    new: Program,
    parent: int,
    program: Program,
    plan: ProgramPlan,
    shard: Shard,
    parts: list[tuple[str, str]],
) -> ServerBlock:
    """Add the block that averages one gradient block and runs the parameter's operators on it.

    To ``parts`` it adds (total, what this block gives to it) for each sum over servers.
    """
    origin, home = program.global_block(), new.global_block()
    block = new.create_block(parent)
    route, piece = shard.route, shard.piece
    merged = piece.of(route.gradient)
    received = plan.received(merged)
    if plan.merged:
        forward = {ROLE_ATTR: int(OpRole.FORWARD)}
        mean = {"scale": 1.0 / plan.trainers, "bias": 0.0, "bias_after_scale": True, **forward}
        block.add_op(Operator(block, "sum", {"X": received}, {"Out": merged}, forward))
        block.add_op(Operator(block, "scale", {"X": merged}, {"Out": merged}, mean))
    for i in shard.update.on_server:
        if origin.ops[i].attrs.get(SCALARS):
            continue
        op = origin.ops[i].copied_to(block)
        rename_role_vars(op, {route.gradient: plan.role_gradient(route)})
        for name in (*op.input_arg_names, *op.output_arg_names):
            _declare_local(origin, name, home, shard)
        if op.attrs.get(SUMMED):
            for summing in summing_ops(op, shard.local, functools.partial(part_of, merged)):
                block.add_op(summing)
            parts += [(total, part_of(merged, total)) for total in totals_of(op)]
            continue
        for slots in (op.inputs, op.outputs):
            for slot, names in slots.items():
                slots[slot] = [shard.local(name) for name in names]
        if plan.mode.dc_asgd and i == shard.update.optimizer:
            op.inputs["Grad"] = [compensate(block, piece.name, op.input("Grad")[0], plan)]
        block.add_op(op)
    return ServerBlock(
        block.idx,
        route.parameter,
        piece.name,
        piece.begin,
        piece.end,
        merged,
        received,
        route.sparse,
        backups(plan, piece.name) if plan.mode.dc_asgd else (),
    )


def _declare_local(origin: Block, name: str, home: Block, shard: Shard) -> None:
    var = origin.find_var(name)
    if var is not None and not home.has_var(shard.local(name)):
        shape = shard.local_shape(name, var.shape)
        local = home.create_var(
            shard.local(name), shape=shape, dtype=var.dtype, type=var.type, persistable=True
        )
        local.lod_level = var.lod_level


def listen_op(
    home: Block,
    inputs: list[str],
    server: ServerPlan,
    optimize_blocks: list[int],
    threads: ServerRuntimeConfig,
    **facts: Any,
) -> Operator:
    """Return the listen_and_serv of a server, not added; ``facts`` are attributes, or more."""
    attrs = {
        "endpoint": server.endpoint,
        "pserver_id": -1,
        "Fanin": server.plan.trainers,
        "distributed_mode": int(server.mode.distributed_mode),
        "optimize_blocks": optimize_blocks,
        "grad_to_block_id": _gradient_blocks(server),
        "sparse_grad_to_param": [],
        "lr_decay_block_id": server.schedule,
        "rpc_send_thread_num": threads._rpc_send_thread_num,
        "rpc_get_thread_num": threads._rpc_get_thread_num,
        "rpc_prefetch_thread_num": threads._rpc_prefetch_thread_num,
        "dc_asgd": False,
        "checkpint_block_id": -1,  # so spelt in Fluid
        "prefetch_var_name_to_block_id": [],
        ROLE_ATTR: int(OpRole.FORWARD),
    }
    return Operator(home, "listen_and_serv", {"X": inputs}, {}, {**attrs, **facts})


def _gradient_blocks(server: ServerPlan) -> list[str]:
    """Return ``gradient:block`` of all updates."""
    pairs = [(update.gradient, update.block) for update in server.blocks]
    pairs += [(table.gradient, table.update) for table in server.tables]
    return [f"{gradient}:{block}" for gradient, block in pairs]


def _sparse_pairs(program: Program, server: ServerPlan) -> list[str]:
    """Return ``gradient:parameter`` of the updates whose optimizer sees a sparse gradient."""
    pairs = []
    for update in server.blocks:
        block = program.block(update.block)
        read = [name for op in block.ops for name in op.input("Grad")]
        if any(op.attrs.get(ON_SERVERS) for op in block.ops):
            read = [update.gradient]  # the optimizer reads what is made of it here
        for gradient in read:
            var = block.find_var(gradient)
            if var is not None and var.type == VarType.SELECTED_ROWS:
                pairs.append(f"{gradient}:{update.name}")
    return pairs
