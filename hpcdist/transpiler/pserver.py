"""A server's program: what arrives is averaged, and moves the blocks that live here."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import ROLE_ATTR, Role
from hpcdist.transpiler.anatomy import Anatomy, Update, dissect
from hpcdist.transpiler.config import DistributedMode, ServerRuntimeConfig
from hpcdist.transpiler.plan import Plan, Route, fingerprint
from hpcdist.transpiler.slicing import Slice
from hpcdist.transpiler.trainer import mark, rename_role_vars


@dataclass(frozen=True)
class ServerBlock:
    """One block of a parameter as its server sees it.

    ``block`` is the index of the program's block that updates it, ``gradient`` the averaged
    gradient it reads, ``received`` the gradients of trainers 0, 1, ... that are averaged; with one
    trainer that is ``gradient`` itself. Rows ``begin:end`` of ``parameter`` are in ``name``.
    """

    block: int
    parameter: str
    name: str
    begin: int
    end: int
    gradient: str
    received: tuple[str, ...]
    sparse: bool


@dataclass(frozen=True)
class ServerPlan:
    """What a server holds: its blocks in the order of their updates; ``schedule`` -1 if none."""

    endpoint: str
    index: int
    trainers: int
    schedule: int
    blocks: tuple[ServerBlock, ...]


@dataclass(frozen=True)
class Shard:
    """One block of a parameter together with the operators that move it."""

    update: Update
    route: Route
    piece: Slice
    alone: bool  # no other block of this parameter is on the same server
    own: frozenset[str]  # variables of this update: parameter, gradient, accumulators, decay

    def local(self, name: str) -> str:
        """Return what a variable of the original program is called on the server."""
        if name in (self.route.parameter, self.route.gradient):
            return self.piece.of(name)
        return name if self.alone or name not in self.own else self.piece.of(name)

    def local_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a variable's shape on the server: cut like the parameter if it is shaped so."""
        return self.piece.shape if name in self.own and shape == self.route.shape else shape


def shards_on(program: Program, plan: Plan, anatomy: Anatomy, endpoint: str) -> list[Shard]:
    """Return what a server updates, in the order of the optimizer operators."""
    ops = program.global_block().ops
    routes = {route.parameter: route for route in plan.routes}
    shards = []
    for update in sorted(anatomy.updates, key=lambda u: u.optimizer):
        route = routes[update.parameter]
        pieces = route.on(endpoint)
        written = {name for i in update.ops for name in ops[i].output_arg_names}
        own = frozenset({route.parameter, route.gradient, *written})
        shards += [Shard(update, route, piece, len(pieces) == 1, own) for piece in pieces]
    return shards


def pserver_program(
    program: Program, plan: Plan, endpoint: str, threads: ServerRuntimeConfig
) -> Program:
    """Return what the server at ``endpoint`` runs: listen_and_serv with a block for each update.

    `Program._server_plan` says what the blocks are for.
    """
    anatomy = dissect(program)
    new = Program()
    new.random_seed = program.random_seed
    home = new.global_block()
    shards = shards_on(program, plan, anatomy, endpoint)
    inputs = _declare_arrivals(home, plan, endpoint)
    schedule = _add_schedule(new, program, anatomy)
    parent = new.num_blocks - 1
    blocks = [_add_update(new, parent, program, plan, shard) for shard in shards]
    optimize_blocks = ([schedule] if schedule >= 0 else []) + [block.block for block in blocks]
    if not optimize_blocks:
        optimize_blocks = [new.create_block(parent).idx]
    new.current_block_idx = 0
    server = ServerPlan(
        endpoint, plan.endpoints.index(endpoint), plan.trainers, schedule, tuple(blocks)
    )
    home.add_op(_listen(home, inputs, server, optimize_blocks, threads))
    mark(new, plan)
    new._server_plan = server
    new._fingerprint = fingerprint(program, plan)
    return new


def _declare_arrivals(home: Block, plan: Plan, endpoint: str) -> list[str]:
    """Declare parameters and gradients; return the gradients that trainers send here."""
    arrivals: list[str] = []
    for route, piece in plan.blocks_on(endpoint):
        home.create_var(piece.name, shape=piece.shape, dtype=route.dtype, persistable=True)
    for route, piece in plan.blocks_on(endpoint):
        merged = piece.of(route.gradient)
        received = received_names(plan, merged)
        kind = VarType.SELECTED_ROWS if route.sparse else VarType.LOD_TENSOR
        for name in dict.fromkeys([merged, *received]):
            var = home.create_var(name, shape=piece.shape, dtype=route.dtype, type=kind)
            var.persistable = name not in received  # what arrives is not the server's to keep
        arrivals += received
    return arrivals


def received_names(plan: Plan, merged: str) -> tuple[str, ...]:
    """Return the names under which the trainers send a gradient block, in their order."""
    return tuple(plan.of_trainer(merged, trainer) for trainer in range(plan.trainers))


def _add_schedule(new: Program, program: Program, anatomy: Anatomy) -> int:
    """Copy the learning-rate schedule with its sub-blocks; return its block's index or -1."""
    if not anatomy.schedule:
        return -1
    block = new.create_block(0)
    for i in anatomy.schedule:
        _copy_nested(program.global_block().ops[i], block)
    return block.idx


def _copy_nested(op: Operator, block: Block) -> None:
    new, origin = block.program, op.block
    copied = op.copied_to(block)
    block.add_op(copied)
    for name in op.input_arg_names + op.output_arg_names:
        _carry(origin, name, block if origin.idx and origin.has_var(name) else new.global_block())
    if "sub_block" in op.attrs:
        below = new.create_block(block.idx)
        for inner in origin.program.block(op.attrs["sub_block"]).ops:
            _copy_nested(inner, below)
        copied.attrs["sub_block"] = below.idx


def _carry(origin: Block, name: str, target: Block) -> None:
    """Declare a variable of the original program on the server, kept from step to step."""
    var = origin.find_var(name)
    if var is not None and not target.has_var(name):
        kept = var.persistable or var.type in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS)
        target.create_var(name, shape=var.shape, dtype=var.dtype, type=var.type, persistable=kept)


def _add_update(
    new: Program, parent: int, program: Program, plan: Plan, shard: Shard
) -> ServerBlock:
    """Add the block that averages one gradient block and runs the parameter's operators on it."""
    origin, home = program.global_block(), new.global_block()
    block = new.create_block(parent)
    route, piece = shard.route, shard.piece
    merged = piece.of(route.gradient)
    received = received_names(plan, merged)
    if plan.trainers > 1:
        forward = {ROLE_ATTR: int(Role.FORWARD)}
        mean = {"scale": 1.0 / plan.trainers, "bias": 0.0, "bias_after_scale": True, **forward}
        block.add_op(Operator(block, "sum", {"X": received}, {"Out": merged}, forward))
        block.add_op(Operator(block, "scale", {"X": merged}, {"Out": merged}, mean))
    for i in shard.update.ops:
        op = origin.ops[i].copied_to(block)
        rename_role_vars(op, route.gradient, plan.role_gradient(route))
        for slots in (op.inputs, op.outputs):
            for slot, names in slots.items():
                for name in names:
                    _declare_local(origin, name, home, shard)
                slots[slot] = [shard.local(name) for name in names]
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
    )


def _declare_local(origin: Block, name: str, home: Block, shard: Shard) -> None:
    var = origin.find_var(name)
    if var is not None and not home.has_var(shard.local(name)):
        shape = shard.local_shape(name, var.shape)
        local = home.create_var(
            shard.local(name), shape=shape, dtype=var.dtype, type=var.type, persistable=True
        )
        local.lod_level = var.lod_level


def _listen(
    home: Block,
    inputs: list[str],
    server: ServerPlan,
    optimize_blocks: list[int],
    threads: ServerRuntimeConfig,
) -> Operator:
    attrs = {
        "endpoint": server.endpoint,
        "pserver_id": server.index,
        "Fanin": server.trainers,
        "distributed_mode": int(DistributedMode.SYNC),
        "optimize_blocks": optimize_blocks,
        "grad_to_block_id": [f"{b.gradient}:{b.block}" for b in server.blocks],
        "sparse_grad_to_param": _sparse_pairs(home.program, server),
        "lr_decay_block_id": server.schedule,
        "rpc_send_thread_num": threads._rpc_send_thread_num,
        "rpc_get_thread_num": threads._rpc_get_thread_num,
        "rpc_prefetch_thread_num": threads._rpc_prefetch_thread_num,
        "dc_asgd": False,
        "checkpint_block_id": -1,  # so spelt in Fluid
        "prefetch_var_name_to_block_id": [],
        ROLE_ATTR: int(Role.FORWARD),
    }
    return Operator(home, "listen_and_serv", {"X": inputs}, {}, attrs)


def _sparse_pairs(program: Program, server: ServerPlan) -> list[str]:
    """Return ``gradient:parameter`` of the updates whose optimizer sees a sparse gradient."""
    pairs = []
    for held in server.blocks:
        for op in program.block(held.block).ops:
            gradient = op.input("Grad")
            if gradient and program.global_block().var(gradient[0]).type == VarType.SELECTED_ROWS:
                pairs.append(f"{gradient[0]}:{held.name}")
    return pairs
