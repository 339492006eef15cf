"""One Program on several devices of a process, and on several trainers: as ParallelExecutor ran it.

The program repeats forward and backward for each device, on separate variables; gradients are
summed over devices, then over trainers, and every parameter is updated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.names import EMPTY
from hpcdist.graph.op_role import MERGED_STEPS, ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.dependences import access_of, following, swapped
from hpcdist.transpiler.grad_allreduce import RING_OPS, refuse_operators, sum_over_trainers
from hpcdist.transpiler.group import Group, group_of
from hpcdist.transpiler.made_of_gradients import as_updates
from hpcdist.transpiler.table_metadata import tables_looked_up

RUNNING = "data_parallel"  # the mode of a group whose programs are ready to run
# These run once, not per device.
_ONCE = OpRole.OPTIMIZE | OpRole.LR_SCHED | OpRole.RPC | OpRole.DIST


@dataclass(frozen=True)
class DataParallel:
    """A program for ``devices`` devices; ``of`` tells what a variable is called on each of them.

    Variables that are not in ``of`` are the same on all. Values in ``copied`` outlive a run and
    begin on every device as on the first.
    """

    program: Program
    devices: int
    of: Mapping[str, Sequence[str]]
    copied: Mapping[str, Sequence[str]]

    def names(self, name: str) -> Sequence[str]:
        """Return a variable's name on each device."""
        return self.of.get(name, [name] * self.devices)


def data_parallel(
    main: Program, devices: int = 1, factor: float | None = None, customized: bool = False
) -> DataParallel:
    """Return the Program of ``main`` on ``devices`` devices, and on the transpiled trainers.

    The loss's gradient starts from ``factor`` (None: 1 / all devices of all trainers), or, if it is
    ``customized``, from what the user feeds.
    """
    group = group_of(main)
    trainers = 1 if group is None else len(group.endpoints)
    new = as_updates(main).clone()
    for name in _start_losses(new, factor or 1.0 / (trainers * devices), customized):
        new.global_block().var(name).is_data = True
    if devices > 1:
        _refuse_distributed_tables(new, devices)
    result = _on_devices(new, devices) if devices > 1 else DataParallel(new, 1, {}, {})
    if group is not None:
        if trainers > 1:
            sum_over_trainers(new.global_block(), group.rings)
        new.distribution = replace(group, mode=RUNNING, devices=devices)
    return result


def _refuse_distributed_tables(program: Program, devices: int) -> None:
    for name in sorted(tables_looked_up(program)):
        raise PlanError(
            f"table {name!r} has is_distributed=True: a process looks its rows up once in a step, "
            f"not on each of {devices} devices; set CPU_NUM=1 and start more ranks"
        )


def _start_losses(program: Program, factor: float, customized: bool) -> list[str]:
    """Set where losses' gradients start; return those that the user feeds."""
    block = program.global_block()
    fed = []
    for op in list(block.ops):
        if op.type == "fill_constant" and op.role == OpRole.BACKWARD | OpRole.LOSS:
            if customized:
                fed += op.output("Out")
                block.ops.remove(op)
            else:
                op.attrs["value"] = factor * op.attrs["value"]
    return fed


# -- devices -----------------------------------------------------------------------------------
def _on_devices(program: Program, devices: int) -> DataParallel:
    """Rewrite ``program`` in place."""
    block = program.global_block()
    ops = block.ops
    repeated = [op for op in ops if not op.role & _ONCE]
    if any(MERGED_STEPS in op.attrs for op in ops):
        raise PlanError(
            f"gradients are merged over steps on one device of a process, got {devices}: set "
            "CPU_NUM=1 and start more ranks"
        )
    for op in repeated:
        if "sub_block" in op.attrs:
            raise PlanError(
                f"{op.place} {op} runs a sub-block: such a program cannot be repeated on {devices} "
                "devices of one process; set CPU_NUM=1 and start more ranks"
            )
    late = _late(ops, repeated)
    repeated = [op for op in repeated if op not in late]
    gradients = [g for op in repeated for g in (op.attrs.get(ROLE_VAR_ATTR) or ())[1::2]]
    for op in repeated:
        parts = [] if op.role & OpRole.BACKWARD else [*{*gradients} & {*op.input_arg_names}]
        if parts:
            raise PlanError(
                f"{op.place} {op} reads {min(parts)!r}, of which each of the {devices} devices of "
                "this process has a part: set CPU_NUM=1 and start more ranks"
            )
    shared = _shared_by_devices(block, [*repeated, *late])
    names = dict.fromkeys(
        n for op in (*repeated, *late) for n in (*op.input_arg_names, *op.output_arg_names)
    )
    of = {
        name: [_on(name, d, first_too=name in gradients) for d in range(devices)]
        for name in names
        if name != EMPTY and name not in shared
    }
    copied = {}
    for name, on_devices in of.items():
        var = block.find_var(name)
        for other in on_devices:
            if var is not None and not block.has_var(other):
                copy = var.copied_to(block)
                copy.name = other
                block.add_var(copy)
        if var is not None and var.persistable:
            copied[name] = on_devices[1:]
    block.ops = []
    at_head = [op for op in ops if op.role & _ONCE and ops.index(op) < ops.index(repeated[0])]
    for op in at_head:
        block.add_op(op)
    for device in range(devices):
        for op in repeated:
            last = device == devices - 1
            finished = list(op.attrs.get(ROLE_VAR_ATTR) or ())
            block.add_op(_copy(op, block, of, device))
            for parameter, gradient in zip(finished[::2], finished[1::2]) if last else ():
                block.add_op(_sum(block, parameter, gradient, of[gradient]))
    for op in ops:
        if op.role & _ONCE and op not in at_head:
            block.add_op(op)
    summed = {name: on_devices for name, on_devices in of.items() if name not in gradients}
    for device in range(devices):
        for op in late:
            block.add_op(_copy(op, block, summed, device))
    return DataParallel(program, devices, summed, copied)


def _late(ops: Sequence[Operator], repeated: Sequence[Operator]) -> list[Operator]:
    """Return the operators that devices repeat behind the updates, as they use moved values.

    PlanError where an update needs it: devices compute all gradients before one of them.
    """
    accesses = [access_of(op) for op in ops]
    once = {i: accesses[i].writes for i, op in enumerate(ops) if op.role & _ONCE}
    first = min(i for i in range(len(ops)) if i not in once)
    moving = {i: writes if i > first else frozenset[str]() for i, writes in once.items()}
    found = following(accesses, moving)
    head, middle, update, last = range(4)
    phases = [last if i in found else middle for i in range(len(ops))]
    for i in once:
        phases[i] = update if i > first else head
    pair = swapped(accesses, phases)
    if pair is not None:
        raise PlanError(
            f"{pair.among(ops)}; but several devices of a process compute forward and backward "
            "before all updates: minimize once, or set CPU_NUM=1 and start more ranks"
        )
    return [ops[i] for i in found]


def _shared_by_devices(block: Block, repeated: Sequence[Operator]) -> set[str]:
    """Return the values that devices keep and only read: parameters, learning rates."""
    written = {name for op in repeated for name in op.output_arg_names}
    return {v.name for v in block.vars.values() if v.persistable and v.name not in written}


def _on(name: str, device: int, first_too: bool) -> str:
    return f"{name}@DEVICE{device}" if device or first_too else name


def _copy(op: Operator, block: Block, of: Mapping[str, Sequence[str]], device: int) -> Operator:
    copied = op.copied_to(block)
    for slots in (copied.inputs, copied.outputs):
        for slot, names in slots.items():
            slots[slot] = [of[name][device] if name in of else name for name in names]
    copied.attrs.pop(ROLE_VAR_ATTR, None)
    if device and "stream" in copied.attrs:  # what it draws is not what another device draws
        copied.attrs["stream"] = f"{copied.attrs['stream']}@DEVICE{device}"
    return copied


def _sum(block: Block, parameter: str, gradient: str, parts: Sequence[str]) -> Operator:
    attrs = {ROLE_ATTR: int(OpRole.BACKWARD), ROLE_VAR_ATTR: [parameter, gradient]}
    return Operator(block, "sum", {"X": list(parts)}, {"Out": gradient}, attrs)


# -- a step without data -----------------------------------------------------------------------
def check_counts_rows(program: Program, group: Group) -> None:
    """Refuse a Program in which trainers cannot have as many rows in a step as they have."""
    if group.devices > 1 or not loss_gradients(program):
        raise PlanError(
            "even_batches(how='join') counts rows where a loss's gradient starts from 1, on "
            "one device of each trainer: set CPU_NUM=1, and no Customized gradient scale"
        )
    if group.k_steps > 1 or group.adapts_to:
        often = "steps that the loss decides" if group.adapts_to else f"{group.k_steps} steps"
        raise PlanError(
            "even_batches(how='join') counts rows in every step, but parameters are averaged "
            f"once in {often}: use localsgd with k_steps=1, or set how to 'pad'"
        )
    refuse_operators(
        program,
        "even_batches(how='join')",
        {
            MERGED_STEPS: "counts rows in every step, but gradients are merged over several: set "
            "how to 'pad' or 'cut', or leave gradient merge out",
            "dgc_momentum": "counts rows in every step, but DGCMomentum sends a part of its "
            "gradients in later ones: set how to 'pad' or 'cut'",
            "push_sparse": "with tables that trainers share out: a trainer without rows would look "
            "none up, and all must: set how to 'pad' or 'cut', or start servers",
            "sync_batch_norm": "with sync_batch_norm: a trainer without rows computes no forward "
            "pass in which moments could be summed: set how to 'pad' or 'cut'",
        },
    )


def without_data(program: Program) -> Program:
    """Return a trainer's Program for steps without data: it adds zeros, and updates like all.

    What forward and backward would have computed is not a number, or 0 where it is an integer.
    """
    new = program.clone()
    block = new.global_block()
    summed = {n for op in block.ops if op.type == "c_allreduce_sum" for n in op.input("X")}
    for op in block.ops:
        if op.role & OpRole.BACKWARD:
            summed.update((op.attrs.get(ROLE_VAR_ATTR) or ())[1::2])
    ops, block.ops = block.ops, []
    for op in ops:
        if op.role & _ONCE or op.type in RING_OPS:
            block.add_op(op)
            continue
        for name in op.output_arg_names:
            var = block.find_var(name)
            if var is not None and not var.persistable:
                _fill(block, name, 0.0 if name in summed else float("nan"))
    return new


def _fill(block: Block, name: str, value: float) -> None:
    var = block.vars[name]
    facts: dict[str, Any] = {"dtype": var.dtype, ROLE_ATTR: int(OpRole.BACKWARD)}
    if var.type == VarType.SELECTED_ROWS:
        facts["shape"] = list(var.shape)
        block.add_op(Operator(block, "no_rows", {}, {"Out": name}, facts))
        return
    facts["shape"] = [max(extent, 0) for extent in var.shape]
    facts["value"] = value if var.dtype.startswith("float") else 0.0
    block.add_op(Operator(block, "fill_constant", {}, {"Out": name}, facts))


def loss_gradients(program: Program) -> list[str]:
    """Return the names of the gradients that a backward pass starts from."""
    ops = program.global_block().ops
    return [
        name
        for op in ops
        if op.role == OpRole.BACKWARD | OpRole.LOSS and op.type == "fill_constant"
        for name in op.output("Out")
    ]
