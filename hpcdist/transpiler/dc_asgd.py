"""DC-ASGD: the delay of a gradient g is compensated by g * g * (w - the value its trainer last
read).

Servers keep, for every trainer, the values of their blocks that it last read.
"""

from __future__ import annotations

from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.transpiler.plan import ProgramPlan

SENDER = "@TRAINER_ID@"  # int64 [1]: whose gradient an optimize block is run for
_OUTPUTS = "tmp_dc_output"


def backups(plan: ProgramPlan, name: str) -> tuple[str, ...]:
    """Return the variables that hold a block as trainers 0, 1, ... last read it."""
    return tuple(f"{name}.trainer_{trainer}_bak" for trainer in range(plan.trainers))


def declare_backups(home: Block, plan: ProgramPlan, endpoint: str) -> None:
    """Declare the backups of a server's blocks; the startup program copies the blocks into them."""
    for route, piece in plan.blocks_on(endpoint):
        for name in backups(plan, piece.name):
            # Kept between runs, or the startup program's copies would be lost.
            home.create_var(name, shape=piece.shape, dtype=route.dtype, persistable=True)


def append_backup_init(home: Block, plan: ProgramPlan, endpoint: str) -> None:
    """Append operators to a server's startup program that set backups to initial values."""
    for _, piece in plan.blocks_on(endpoint):
        for name in backups(plan, piece.name):
            home.add_op(_op(home, "assign", {"X": [piece.name]}, name))


def compensate(block: Block, name: str, gradient: str, plan: ProgramPlan) -> str:
    """Append what compensates the gradient of the parameter block ``name``; return the result."""
    variable = block.program.global_block().var(name)
    facts = {"shape": variable.shape, "dtype": variable.dtype}
    block.create_var(SENDER, shape=[1], dtype="int64")
    read = f"{name}.local_bak"
    first = sum(n.startswith(_OUTPUTS) for b in block.program.blocks for n in b.vars)
    delay, once, twice, result = (f"{_OUTPUTS}_{first + k}" for k in range(4))
    for temporary in (read, delay, once, twice, result):
        block.create_var(temporary, **facts)
    sources = {"X": list(backups(plan, name)), "TrainerId": [SENDER]}
    for op in (
        _op(block, "ref_by_trainer_id", sources, read),
        _elementwise(block, "sub", name, read, delay),
        _elementwise(block, "mul", delay, gradient, once),
        _elementwise(block, "mul", once, gradient, twice),
        _elementwise(block, "add", gradient, twice, result),
    ):
        block.add_op(op)
    return result


def _elementwise(block: Block, kind: str, x: str, y: str, out: str) -> Operator:
    return _op(block, f"elementwise_{kind}", {"X": [x], "Y": [y]}, out, axis=-1)


def _op(block: Block, kind: str, inputs: dict[str, list[str]], out: str, **attrs: int) -> Operator:
    attrs[ROLE_ATTR] = int(OpRole.FORWARD)
    return Operator(block, kind, inputs, {"Out": out}, attrs)
