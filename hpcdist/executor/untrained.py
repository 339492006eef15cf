"""Notices a script that computes a loss again and again and trains nothing."""

from __future__ import annotations

from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program

NOTICED_AT = 50  # runs of an Executor, that of the startup Program among them


def moves_nothing(program: Program) -> bool:
    """Return whether a Program has parameters, is not one for tests, and updates nothing. Pure.

    A trainer's, which sends its gradients, has servers update them.
    """
    has_parameters = any(p.trainable for p in program.all_parameters())
    updating = OpRole.OPTIMIZE | OpRole.RPC
    updates = any(op.role & updating for op in program.global_block().ops)
    return has_parameters and not program.for_test and not updates


def untrained(program: Program, fetches: tuple[str, ...], trains: bool) -> str:
    """Return a notice for a script whose Program has a loss and parameters but no update, or "".

    ``trains``: whether anything that this Executor has run updates parameters. Programs that were
    cloned for_test, or loaded, are meant to train nothing; so is one of which no loss is fetched:
    a mean of values that depend on parameters. Pure.
    """
    block = program.global_block()
    parameters = {p.name for p in program.all_parameters() if p.trainable}
    if trains or program.for_test or not parameters:
        return ""
    depends = set(parameters)
    losses = []
    for op in block.ops:
        if depends.intersection(op.input_arg_names):
            depends.update(op.output_arg_names)
            losses += op.output_arg_names if op.type in ("mean", "reduce_mean") else []
    fetched = [name for name in fetches if name in losses]
    if not fetched:
        return ""
    return (
        f"{NOTICED_AT} runs, and no parameter was updated: no optimizer's minimize() has been "
        f"called. To train, call fluid.optimizer.SGD(...).minimize({fetched[0]}) before the first "
        "run; to evaluate, run program.clone(for_test=True)"
    )
