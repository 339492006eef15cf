"""The trainer's program: gradients are sent as they become ready, parameters are received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ps.plan import Route
from hpcdist.transpiler.distributed_table import fetch_rows, push_rows
from hpcdist.transpiler.look_ups import at_once
from hpcdist.transpiler.plan import ProgramPlan, is_remote_lookup
from hpcdist.transpiler.program_roles import ProgramRoles, nested, program_roles
from hpcdist.transpiler.rpc import control_name, rpc_op, send_op
from hpcdist.transpiler.table_metadata import TableSteps


def trainer_program(program: Program, plan: ProgramPlan) -> Program:
    """Return a trainer's Program in place of ``program``.

    Updates and schedules are gone; clipping stays. Behind the last operator that writes a gradient
    it is cut and sent; at the end the parameters are received, and what needs them as they are then
    follows: what averages them, and what stands behind their updates.
    """
    complete, plan = plan, plan.of_this_turn()
    roles = program_roles(program)
    new = program.clone()
    block = new.global_block()
    for i in roles.clip:
        block.ops[i].attrs[ROLE_ATTR] = int(OpRole.BACKWARD)
    following = [block.ops[i] for i in roles.following]
    _declare_blocks(block, plan)
    sent, table_steps = _insert_sends(block, plan, roles)
    if plan.mode.lockstep:
        _append_receives(block, plan, list(sent.values()))
    else:
        _append_receives_as_sent(block, plan, sent)
    _look_up_remotely(block, plan)
    received = len(block.ops)
    _append_following(block, plan, following)
    _look_up_remotely(block, plan, received)  # rows as updates have left them
    table_steps |= fetch_rows(block, plan)
    for name in optimizer_vars(program, roles):
        if block.has_var(name):
            block.remove_var(name)
    new.distribution = replace(complete, table_steps=table_steps)
    return new


def reading_program(program: Program, plan: ProgramPlan) -> Program:
    """Return a trainer's Program in place of one that does not train, such as a test.

    Its look-ups in sparse tables go to the servers: this trainer holds no rows of them.
    """
    new = program.clone()
    table_steps = TableSteps()
    asks = False
    for block in new.blocks:
        asks |= _look_up_remotely(block, plan)
        table_steps |= fetch_rows(block, plan)
    if not (asks or table_steps.pulled):
        return program
    new.distribution = replace(plan, startup=False, records=None, table_steps=table_steps)
    return new


def control_names_used(plan: ProgramPlan) -> int:
    """Return how many of these names the trainer's main program has: sends' and one barrier's."""
    return len(plan.routes) + len(plan.tables) + bool(plan.counters) + 1


def declare_parts(block: Block, route: Route, names: Sequence[str], **facts: Any) -> None:
    """Declare the blocks of a cut parameter or gradient."""
    for piece, name in zip(route.slices, names):
        block.create_var(name, shape=piece.shape, dtype=route.dtype, **facts)


def _declare_blocks(block: Block, plan: ProgramPlan) -> None:
    for route in plan.routes:
        if route.cut:
            declare_parts(block, route, [s.name for s in route.slices])
    new_names = {}
    for route in plan.routes:
        names = plan.local_gradients(route)
        if route.cut:
            declare_parts(block, route, names, type=block.var(route.gradient).type)
        elif names[0] != route.gradient:
            var = block.vars.pop(route.gradient)
            var.name = new_names[route.gradient] = names[0]
            block.add_var(var)
    for op in block.ops:
        op.rename(new_names)
        rename_role_vars(op, new_names)


def rename_role_vars(op: Operator, new_names: Mapping[str, str]) -> None:
    """Replace gradients' names, old to new, in op_role_var."""
    role_vars = op.attrs.get(ROLE_VAR_ATTR)
    if role_vars:
        op.attrs[ROLE_VAR_ATTR] = [new_names.get(name, name) for name in role_vars]


def _insert_sends(
    block: Block, plan: ProgramPlan, roles: ProgramRoles
) -> tuple[dict[str, str], TableSteps]:
    """Put cuts and sends after the writers.

    Return the sends' outputs by parameter, in the order of dispatch, and what tables are pushed.
    """
    removed = {*roles.schedule, *roles.following}
    removed.update(i for update in roles.updates for i in update.ops)
    behind: dict[int, list[Operator]] = {}
    sends = {}
    last_writers = block.last_writers()
    for route in plan.dispatched:
        names, gradient = plan.local_gradients(route), plan.role_gradient(route)
        added = []
        facts: dict[str, Any] = {}
        if plan.mode.runtime_split:
            names = [gradient]
            facts = {"sections": _rows(route), "send_varnames": plan.sent(route)}
        elif route.cut:
            added = [_split(block, route, names)]
        send = send_op(block, names, route.endpoints, [route.parameter, gradient], **facts)
        sends[route.parameter] = send
        writer = _last_writer(last_writers, gradient)
        # What is dispatched later stands closer after a common writer, as in Fluid.
        behind[writer] = [*added, send, *behind.get(writer, [])]
    table_steps = TableSteps()
    for table in plan.tables:
        split, push, pushed = push_rows(block, plan, table)
        table_steps |= pushed
        behind.setdefault(_last_writer(last_writers, table.gradient), []).extend([split, push])
        if plan.mode.lockstep:
            sends[table.parameter] = push
    ops = block.ops
    block.ops = []
    for i, op in enumerate(ops):
        for remaining in ([] if i in removed else [op]) + behind.get(i, []):
            block.add_op(remaining)
    numbered = {id(send) for send in sends.values()}
    for number, send in enumerate(op for op in block.ops if id(op) in numbered):
        send.outputs = {"Out": [control_name(number)]}
    outputs = {parameter: send.output("Out")[0] for parameter, send in sends.items()}
    for name in outputs.values():
        block.create_var(name, dtype="bool")
    return outputs, table_steps


def _rows(route: Route) -> list[int]:
    return [piece.end - piece.begin for piece in route.slices]


def _split(block: Block, route: Route, names: Sequence[str]) -> Operator:
    kind, attr = ("split_byref", "sections")
    if route.sparse:
        kind, attr = ("split_selected_rows", "height_sections")
    attrs = {attr: _rows(route), ROLE_ATTR: int(OpRole.DIST)}
    return Operator(block, kind, {"X": route.gradient}, {"Out": names}, attrs)


def _last_writer(last_writers: Mapping[str, int], name: str) -> int:
    if name not in last_writers:
        raise PlanError(f"gradient {name!r} is optimized, but no operator of block 0 writes it")
    return last_writers[name]


def _append_receives(block: Block, plan: ProgramPlan, sent: Sequence[str]) -> None:
    """Receive the parameters between two barriers, once all servers have updated them."""
    barrier = _append_send_barrier(block, plan, sent)
    received = [route for route in plan.routes if not route.remote]
    for route in received:
        block.add_op(_recv(block, plan, route, barrier))
    names = [s.name for route in received for s in route.slices]
    block.add_op(rpc_op(block, "fetch_barrier", {"X": barrier}, {"Out": names}, **_all(plan)))
    for route in received:
        if route.cut:
            block.add_op(concat_op(block, route, OpRole.DIST))


def _append_following(block: Block, plan: ProgramPlan, following: Sequence[Operator]) -> None:
    """Append what needs the received parameters, behind what it reads of the servers' schedule.

    Such as the counter of steps: it stays the servers', who have this step's value now.
    """
    read = {name for op in following for name in op.input_arg_names}
    for value in plan.scheduled:
        if value.name in read and block.has_var(value.name):
            block.var(value.name).persistable = False
            facts = {"epmap": [plan.updating], "recv_varnames": [], "trainer_id": plan.trainer_id}
            block.add_op(rpc_op(block, "recv", {}, {"Out": [value.name]}, **facts))
    for op in following:
        block.add_op(op)


def _append_receives_as_sent(block: Block, plan: ProgramPlan, sent: Mapping[str, str]) -> None:
    """Receive each parameter once its gradient is sent; tell the servers that a step is over."""
    sends = list(sent.values())
    if plan.counter is not None:
        sends.append(_append_count(block, plan, control_name(len(sent))))
    if plan.mode.joint:
        _append_send_barrier(block, plan, sends)
    for number in range(len(sends), control_names_used(plan)):  # also those not used, as in Fluid
        block.create_var(control_name(number), dtype="bool")
    received = [route for route in plan.routes if not route.remote]
    for route in received:
        block.add_op(_recv(block, plan, route, sent[route.parameter]))
    for route in received:
        if route.cut and not plan.mode.runtime_split:
            block.add_op(concat_op(block, route, OpRole.DIST))


def _append_count(block: Block, plan: ProgramPlan, output: str) -> str:
    """Inform all servers that this trainer has made a step, for their schedules."""
    counter = plan.counters[plan.trainer_id]
    names = [counter] if plan.mode.runtime_split else []
    facts = {"merge_add": True, "use_send_handler": False, "send_varnames": names}
    send = send_op(block, [counter], plan.endpoints, [counter, counter], **facts)
    send.outputs = {"Out": [output]}
    block.create_var(output, dtype="bool")
    block.add_op(send)
    return output


def _append_send_barrier(block: Block, plan: ProgramPlan, sent: Sequence[str]) -> str:
    barrier = control_name(len(sent))
    block.create_var(barrier, dtype="bool")
    facts = {"half_async": plan.mode.joint, **_all(plan)}
    block.add_op(rpc_op(block, "send_barrier", {"X": sent}, {"Out": barrier}, **facts))
    return barrier


def _all(plan: ProgramPlan) -> dict[str, Any]:
    return {"endpoints": list(plan.endpoints), "trainer_id": plan.trainer_id}


def _recv(block: Block, plan: ProgramPlan, route: Route, after: str) -> Operator:
    blocks = [s.name for s in route.slices]
    split = plan.mode.runtime_split
    return rpc_op(
        block,
        "recv",
        {"X": after},
        {"Out": [route.parameter] if split else blocks},
        epmap=list(route.endpoints),
        recv_varnames=blocks if split else [],
        trainer_id=plan.trainer_id,
        op_role_var=[route.parameter, plan.role_gradient(route)],
    )


def concat_op(block: Block, route: Route, role: OpRole) -> Operator:
    """Return the operator that joins the received blocks of a parameter, not added."""
    names = [s.name for s in route.slices]
    attrs = {"axis": 0, ROLE_ATTR: int(role)}
    return Operator(block, "concat", {"X": names}, {"Out": route.parameter}, attrs)


def _look_up_remotely(block: Block, plan: ProgramPlan, begin: int = 0) -> bool:
    """Replace all look-ups in a sparse table by one that asks the servers for the rows.

    It is at position ``begin`` or later. Tell whether there are any.
    """
    asks = False
    for route in (route for route in plan.routes if route.remote):
        lookups = [
            op for op in block.ops if is_remote_lookup(op) and route.parameter in op.input("W")
        ]
        if not lookups:
            continue
        first = lookups[0]
        paddings = {op.attrs.get("padding_idx", -1) for op in lookups}
        if len(paddings) > 1:
            raise PlanError(
                f"table {route.parameter!r} has is_sparse=True: its look-ups have different "
                f"padding_idx, got {sorted(paddings)} (-1: none); use one for all of them, or "
                "is_sparse=False"
            )
        moved = at_once(block.ops, lookups, begin)
        if moved is None:
            raise PlanError(
                f"table {route.parameter!r}: its look-ups cannot be made at once, because ids of "
                "one are computed from rows of another; use is_sparse=False for this table"
            )
        block.ops, position = moved
        attrs = {
            "table_names": [s.name for s in route.slices],
            "height_sections": [s.end - s.begin for s in route.slices],
            "endpoints": list(route.endpoints),
            "padding_idx": first.attrs.get("padding_idx", -1),
            "trainer_id": plan.trainer_id,
            "lookup_table_version": first.type,
            ROLE_ATTR: int(OpRole.FORWARD),
        }
        inputs = {"Ids": [op.input("Ids")[0] for op in lookups], "W": route.parameter}
        outputs = {"Outputs": [op.output("Out")[0] for op in lookups]}
        op = Operator(block, "distributed_lookup_table", inputs, outputs, attrs)
        block.add_op(op, position)
        asks = True
    return asks


def optimizer_vars(program: Program, roles: ProgramRoles) -> list[str]:
    """Return the variables only updates need: learning rates, accumulators, decay terms."""
    ops = program.global_block().ops
    updates = [ops[i] for update in roles.updates for i in update.ops]
    moved = {id(op) for op in updates} | {id(ops[i]) for i in roles.schedule}
    needed = {name for op in updates for name in op.attrs[ROLE_VAR_ATTR]}
    for op in ops:
        if id(op) not in moved:
            needed.update(name for inner in nested([op]) for name in inner.input_arg_names)
            needed.update(name for inner in nested([op]) for name in inner.output_arg_names)
    read = dict.fromkeys(name for op in updates for name in op.input_arg_names)
    return [name for name in read if name not in needed]
