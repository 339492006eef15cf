"""What a plain script keeps from step to step without an optimizer: ranks cannot share it. Pure."""

from __future__ import annotations

from hpcdist.base.errors import PlanError
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter
from hpcdist.transpiler.program_roles import nested


def refuse_moved_by_hand(program: Program, trainers: int) -> None:
    """Refuse a Program that no `minimize` knows of, but that moves parameters.

    Each trainer would run it on what it is fed itself, and train a model of its own. PlanError.
    """
    ops = list(nested(program.global_block().ops))
    found = {op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE) for op in ops} - {OpRole.FORWARD}
    if trainers == 1 or not found:
        return
    written = {name: op.block.find_var(name) for op in ops for name in op.output_arg_names}
    moved = [
        name
        for name, var in written.items()
        if isinstance(var, Parameter) and var.trainable and not var.stop_gradient
    ]
    if not program.trains and not moved:
        return
    raise PlanError(
        f"this program changes {', '.join(moved or _kept(program))} in every step, and no "
        "optimizer has minimized it, so trainers cannot divide its batches: each would train a "
        "model of its own; give its gradients to optimizer.apply_gradients(params_grads) (a "
        "formula of your own: as gradients of optimizer.SGD), or run one process"
    )


def refuse_unserved_state(program: Program) -> None:
    """Refuse what keeps values in a job with servers, whose script has minimized no Program.

    Servers, with nothing to serve, would run the script on to where trainers save. PlanError.
    """
    if kept := _kept(program):
        raise PlanError(
            f"this program changes {', '.join(kept)} in every step, and the script has minimized "
            "no program: parameter servers have nothing to serve, and would neither hold nor save "
            "that; start the job without --pservers, or minimize the program that trains before "
            "this one is run"
        )


def _kept(program: Program) -> list[str]:
    """Return the persistable variables that a step changes by what was fed or kept.

    None of a startup Program, which reads nothing of either.
    """
    ops = list(nested(program.global_block().ops))
    read = {name: op.block.find_var(name) for op in ops for name in op.input_arg_names}
    if not any(var is not None and (var.persistable or var.is_data) for var in read.values()):
        return []
    written = {name: op.block.find_var(name) for op in ops for name in op.output_arg_names}
    return sorted(name for name, var in written.items() if var is not None and var.persistable)
