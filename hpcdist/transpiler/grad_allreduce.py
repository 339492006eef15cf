"""Training without servers: every trainer keeps all parameters; sums are operators with a ring id.

Each function returns a new program; `hpcdist.transpiler.collective` chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import AFTER_UPDATES, MERGED_STEPS, ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import (
    Program,
    program_of,
)
from hpcdist.graph.variable import Parameter
from hpcdist.ops.optimize.local_sgd import INTERVAL_OP
from hpcdist.transpiler.dependences import access_of
from hpcdist.transpiler.group import Group
from hpcdist.transpiler.made_of_gradients import as_updates
from hpcdist.transpiler.table_metadata import tables_looked_up

SNAPSHOT = "@SNAPSHOT"
# What only means something where there are several trainers.
RING_OPS = (
    "gen_nccl_id",
    "c_gen_nccl_id",
    "c_comm_init",
    "c_comm_init_all",
    "c_broadcast",
    "c_allreduce_sum",
    "c_sparse_sum",
    "c_sync_calc_stream",
    "c_sync_comm_stream",
)


# -- startup: communicators, and the parameters of trainer 0 -----------------------------------
def nccl2_startup(startup: Program, group: Group) -> Program:
    """Return a startup program that ends with making the communicators of ParallelExecutor."""
    new = startup.clone()
    block = new.global_block()
    ids = ["NCCLID", *(f"NCCLID_{i}" for i in range(1, group.rings))]
    if group.hierarchical:
        for i in range(group.rings):
            ids += [f"Hierarchical_inter_NCCLID_{i}", f"Hierarchical_exter_NCCLID_{i}"]
    for name in ids:
        block.create_var(name, type=VarType.RAW, persistable=True)
    attrs: dict[str, Any] = {
        ROLE_ATTR: int(OpRole.FORWARD),
        "trainers": list(group.endpoints),
        "trainer_id": group.trainer_id,
        "nccl_comm_num": group.rings,
        "use_hierarchical_allreduce": group.hierarchical,
        "hierarchical_allreduce_inter_nranks": group.per_node,
    }
    block.add_op(Operator(block, "gen_nccl_id", {}, {"NCCLID": "NCCLID"}, attrs))
    return new


def collective_startup(startup: Program, main: Program, group: Group) -> Program:
    """Return a startup program that ends with one communicator per ring, and broadcasts."""
    new = startup.clone()
    block = new.global_block()
    other_endpoints = [e for e in group.endpoints if e != group.current_endpoint]
    for ring in range(group.rings):
        name = f"nccl_id_{ring}"
        block.create_var(name, type=VarType.RAW, persistable=True)
        facts: dict[str, Any] = {
            "rank": group.trainer_id,
            "endpoint": group.current_endpoint,
            "other_endpoints": other_endpoints,
        }
        block.add_op(_op(block, "c_gen_nccl_id", None, name, OpRole.FORWARD, **facts))
        rank = {"nranks": len(group.endpoints), "rank": group.trainer_id, "ring_id": ring}
        block.add_op(_op(block, "c_comm_init", name, None, OpRole.FORWARD, **rank))
    parameters = _parameters(block, main)
    for number, name in enumerate(parameters):
        ring = number % group.rings
        facts = {"ring_id": ring, "root": 0, "use_calc_stream": False}
        block.add_op(_op(block, "c_broadcast", name, name, OpRole.FORWARD, **facts))
    if parameters:
        _sync_rings(block, len(block.ops), parameters[-1], OpRole.FORWARD, group.rings)
    return new


def local_sgd_startup(startup: Program, main: Program, group: Group) -> Program:
    """Return the same, which then remembers the parameters that all begin with."""
    new = collective_startup(startup, main, group)
    block = new.global_block()
    for name in _parameters(block, main):
        _create_snapshot(block, name)
        block.add_op(_op(block, "assign", name, name + SNAPSHOT, OpRole.FORWARD))
    return new


def all_devices_startup(startup: Program) -> Program:
    """Return a startup program that ends with a ring of all devices of this process."""
    new = startup.clone()
    block = new.global_block()
    block.add_op(_op(block, "c_comm_init_all", None, None, OpRole.FORWARD, ring_id=0))
    return new


def _parameters(block: Block, main: Program) -> list[str]:
    trained = {parameter.name for parameter in main.all_parameters()}
    parameters = [v for v in block.vars.values() if isinstance(v, Parameter) or v.name in trained]
    tables = tables_looked_up(main) | {  # and those of other Programs that the startup is for
        v.name for v in parameters if isinstance(v, Parameter) and v.is_distributed
    }
    return [v.name for v in parameters if v.name not in tables]


# -- main: sums of gradients -------------------------------------------------------------------
def allreduce_gradients(main: Program, group: Group) -> Program:
    """Return a program whose gradients are means over the trainers, before clip and updates.

    A gradient's sum starts where the backward has finished it; rings take turns, counted from the
    last gradient, and all are waited for before the next operator with the optimizer's role.
    """
    if group.mode == "single_process_multi_thread":
        _refuse_distributed_tables(main, "it trains on the devices of one process")
    new = as_updates(main).clone()
    block = new.global_block()
    _scale_loss_gradients(block, 1.0 / len(group.endpoints))
    sum_over_trainers(block, group.rings)
    return new


def sum_over_trainers(block: Block, rings: int) -> None:
    """Insert the sums of all gradients of a block, and what waits for them.

    A block may have several backward passes, each with updates after it.
    """
    _sum_gradients(block, rings)
    first: str | None = None  # of the sums that nothing waits for yet
    for op in list(block.ops):
        if op.type == "c_allreduce_sum" and op.role & OpRole.BACKWARD:
            first = first or op.input("X")[0]
        elif first is not None and op.role & OpRole.OPTIMIZE:
            _sync_rings(block, block.ops.index(op), first, OpRole.BACKWARD, rings)
            first = None


def _scale_loss_gradients(block: Block, factor: float) -> None:
    for i in reversed(range(len(block.ops))):
        op = block.ops[i]
        if op.role & OpRole.BACKWARD and op.role & OpRole.LOSS:
            name = op.output_arg_names[0]
            if op.type == "scale" and name not in op.input_arg_names and not op.attrs["bias"]:
                op.attrs["scale"] *= factor  # of a plain script, whose rows have a weight
                continue
            facts = {"scale": factor, "bias": 0.0, "bias_after_scale": True}
            block.add_op(_op(block, "scale", name, name, OpRole.BACKWARD, **facts), i + 1)


def _sum_gradients(block: Block, rings: int) -> None:
    """Insert the sums, from the last gradient to the first, as Fluid walks.

    Gradients of distributed tables are no arrays: their rows go to the trainers that have them.
    """
    ring = count()
    tables = tables_looked_up(program_of(block))
    for i in reversed(range(len(block.ops))):
        op = block.ops[i]
        if not op.role & OpRole.BACKWARD:
            continue
        pairs = list(op.attrs.get(ROLE_VAR_ATTR) or ())
        finished = [g for p, g in zip(pairs[::2], pairs[1::2]) if p not in tables]
        if finished:
            sync = _op(block, "c_sync_calc_stream", finished[0], finished[0], OpRole.BACKWARD)
            block.add_op(sync, i + 1)
        for gradient in finished:  # each before the one that came earlier
            summed = _sum_op(block, gradient, next(ring) % rings, OpRole.BACKWARD)
            block.add_op(summed, i + 2)


# -- main: local SGD ---------------------------------------------------------------------------
def average_parameters(main: Program, group: Group) -> Program:
    """Return a program that updates by itself, then averages what the updates have changed.

    With s the parameter all had and p this trainer's new one: s - p is summed, p = s - sum / n.
    What else reads or moves p after its update comes before that; what keeps averages comes last.
    """
    _refuse_distributed_tables(main, "local SGD lets trainers update by themselves")
    refuse_operators(
        main,
        "local SGD",
        {
            MERGED_STEPS: "averages parameters after updates, which gradient merge makes in some "
            "steps only: use localsgd_configs['k_steps'] instead of gradient merge",
            "check_finite_and_unscale": "averages what trainers have updated by themselves, and in "
            "mixed precision each would scale its loss, and skip steps, by itself: leave one of "
            "them out",
            "dgc_momentum": "sends parameters and no gradients, which DGCMomentum would compress: "
            "leave one of them out",
        },
    )
    new = main.clone()
    block = new.global_block()
    ring = count()
    averages = [op for op in block.ops if AFTER_UPDATES in op.attrs]
    block.ops = [op for op in block.ops if AFTER_UPDATES not in op.attrs]
    updated = {op.input("Param")[0] for op in block.ops if op.input("Param") and op.input("Grad")}
    last: dict[int, list[str]] = {}  # by position: the parameters that no later operator uses
    for i, op in reversed(list(enumerate(block.ops))):
        access = access_of(op)
        names = [n for n in dict.fromkeys(op.input_arg_names) if n in updated]
        names += sorted(updated & (access.reads | access.writes) - {*names})
        last[i], updated = names, updated - {*names}
    moved: list[str] = []
    for i, names in last.items():
        for name in names:
            _create_snapshot(block, name)
            added = [
                _difference(block, name),
                _op(block, "c_sync_calc_stream", name, name, OpRole.OPTIMIZE),
                _sum_op(block, name, next(ring) % group.rings, OpRole.OPTIMIZE),
            ]
            for offset, op in enumerate(added):
                block.add_op(op, i + 1 + offset)
            moved.insert(0, name)
    if not moved:
        return new
    _sync_rings(block, len(block.ops), moved[0], OpRole.OPTIMIZE, group.rings)
    mean = {"scale": 1.0 / len(group.endpoints), "bias": 0.0, "bias_after_scale": True}
    for name in moved:
        block.add_op(_op(block, "scale", name, name, OpRole.OPTIMIZE, **mean))
        block.add_op(_difference(block, name))
        block.add_op(_op(block, "assign", name, name + SNAPSHOT, OpRole.OPTIMIZE))
    for op in averages:
        block.add_op(op)
    return new


def without_average(program: Program) -> Program:
    """Return local SGD's Program of steps that only update: a copy without the average."""
    new = program.clone()
    block = new.global_block()
    averaged: set[str] = set()  # from the difference on, what writes a parameter averages it
    ops, block.ops = block.ops, []
    for op in ops:
        averaged |= {n for n in op.output_arg_names if n + SNAPSHOT in op.input_arg_names}
        averaged |= {n for n in op.input_arg_names if op.type == "c_allreduce_sum"}
        averages = not averaged.isdisjoint(n.removesuffix(SNAPSHOT) for n in op.output_arg_names)
        if op.type not in (*RING_OPS, INTERVAL_OP) and not averages:
            block.add_op(op)
    return new


def _create_snapshot(block: Block, name: str) -> None:
    var = block.var(name)
    block.create_var(
        name + SNAPSHOT, shape=var.shape, dtype=var.dtype, persistable=True, stop_gradient=True
    )


def _difference(block: Block, name: str) -> Operator:
    inputs = {"X": name + SNAPSHOT, "Y": name}
    attrs = {"axis": -1, ROLE_ATTR: int(OpRole.OPTIMIZE)}
    return Operator(block, "elementwise_sub", inputs, {"Out": name}, attrs)


# -- operators ---------------------------------------------------------------------------------
def _op(
    block: Block, type: str, x: str | None, out: str | None, role: OpRole, **attrs: Any
) -> Operator:
    """Return an operator from ``x`` to ``out``, not added."""
    inputs = {} if x is None else {"X": x}
    outputs = {} if out is None else {"Out": out}
    return Operator(block, type, inputs, outputs, {**attrs, ROLE_ATTR: int(role)})


def _sum_op(block: Block, name: str, ring: int, role: OpRole) -> Operator:
    facts = {"ring_id": ring, "use_calc_stream": False}
    return _op(block, "c_allreduce_sum", name, name, role, **facts)


def _sync_rings(block: Block, index: int, name: str, role: OpRole, rings: int) -> None:
    for ring in range(rings):
        op = _op(block, "c_sync_comm_stream", name, name, role, ring_id=ring)
        block.add_op(op, index + ring)


def _refuse_distributed_tables(main: Program, reason: str) -> None:
    for name in sorted(tables_looked_up(main)):
        raise PlanError(
            f"table {name!r} has is_distributed=True, and nobody has all of its rows: {reason}; "
            "use parameter servers, or sum gradients over trainers (nccl2, grad_allreduce)"
        )


def refuse_operators(program: Program, who: str, refusals: Mapping[str, str]) -> None:
    """Raise PlanError if ``program`` has an operator of a type, or with an attribute, refused."""
    for refused, why in refusals.items():
        if any(op.type == refused or refused in op.attrs for op in program.global_block().ops):
            raise PlanError(f"{who} {why}")
