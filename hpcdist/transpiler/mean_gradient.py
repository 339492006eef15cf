"""Clip and norms of the mean gradient, where trainers share batches: servers compute them.

In Fluid each trainer clips its gradient; if trainers share batches, that is only a part of the
batch's gradient. So the operators between gradients and updates run on servers, on their blocks,
after the mean over trainers. If an operator sums over a complete gradient, or over several, servers
add up their partial sums: operators that need such a sum are in a later stage, and so is what moves
a value that they read (`Stages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.dependences import Stages, access_of
from hpcdist.transpiler.program_roles import BY_ROWS, ON_SERVERS, program_roles

STAGE = "stage"  # attribute: how many sums over servers come before this operator
SCALARS = "of_scalars"  # attribute: computed from such sums alone, by every server
SUMMED = "summed_over_servers"  # attribute: what it adds up is a part of the sum


@dataclass(frozen=True)
class ServerSum:
    """A number that is summed over all blocks of all servers between two stages.

    ``parts`` are the variables of this server that are added; ``total`` holds the sum afterwards.
    """

    total: str
    stage: int
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerSums:
    """All sums of a Program, alike on all servers but for their parts.

    ``scalars`` is the index of the block that computes with them, in front of the others' operators
    of each of the ``stages``.
    """

    sums: tuple[ServerSum, ...]
    scalars: int
    stages: int


def of_mean_gradient(main: Program, servers: int) -> Program:
    """Return a Program that clips, and takes norms, of the mean gradient over trainers.

    PlanError if operators that clip cannot be computed on parts of gradients.
    """
    roles = program_roles(main)
    lars = servers > 1 and any(op.type == "lars_momentum" for op in main.global_block().ops)
    if not (roles.clip or lars):
        return main
    new = main.clone()
    block = new.global_block()
    gradients = _gradients(block)
    flow = _Flow(block, {g: p for p, g in gradients.items()}, servers)
    updating = {i for update in roles.updates for i in update.on_server}
    for i in sorted({*roles.clip, *updating}):
        if i in updating:
            flow.place_update(block.ops[i])
        else:
            flow.place(block.ops[i])
    for i in (*roles.clip, *(i for update in roles.updates for i in update.ops)):
        op = block.ops[i]
        parameter = flow.parameter_of(op) or op.attrs[ROLE_VAR_ATTR][0]
        op.attrs[ROLE_VAR_ATTR] = [parameter, gradients[parameter]]
    new.touch()
    return new


def _gradients(block: Block) -> dict[str, str]:
    """Return the gradient that the backward pass finishes, by parameter."""
    gradients: dict[str, str] = {}
    for op in block.ops:
        if op.role & OpRole.BACKWARD:
            finished = list(op.attrs.get(ROLE_VAR_ATTR) or ())
            gradients |= dict(zip(finished[::2], finished[1::2]))
    return gradients


@dataclass
class _Flow:
    """Which parameter's gradient a value is made of (scalars: none), and in which stage."""

    block: Block
    owner: dict[str, str]
    servers: int
    stages: Stages = field(default_factory=Stages)

    def parameter_of(self, op: Operator) -> str | None:
        """Return the parameter whose gradient an operator reads; None if only scalars."""
        owners = sorted({self.owner[n] for n in op.input_arg_names if n in self.owner})
        if len(owners) > 1:
            raise PlanError(
                f"{op.place} {op} mixes the gradients of {', '.join(owners)}, which may be on "
                "different servers: train without servers, or clip by value or norms"
            )
        return owners[0] if owners else None

    def place(self, op: Operator) -> None:
        """Find the stage of an operator that clips, and note what its results are."""
        parameter = self.parameter_of(op)
        op.attrs[ON_SERVERS] = True
        if parameter is None:
            op.attrs[SCALARS] = True
        elif op.type == "reduce_sum" and op.attrs.get("reduce_all"):
            op.attrs[SUMMED] = True
        elif op.type == "clip_by_norm":
            self._sum_over_servers(op)
        elif op.type not in BY_ROWS:
            raise PlanError(
                f"{op.place} {op}: servers that hold parts of gradients cannot compute this; train "
                "without servers, or clip by value or norms"
            )
        self._stage(op)
        if parameter is not None and is_local(op):
            self.owner.update(dict.fromkeys(op.output_arg_names, parameter))

    def place_update(self, op: Operator) -> None:
        """Find the stage of a regularizer, an optimizer, what they read or what follows it."""
        if op.type == "lars_momentum":
            self._sum_over_servers(op)
        self._stage(op)
        if owners := op.attrs.get(ROLE_VAR_ATTR):  # a copy has none: several updates may read it
            for name in op.output_arg_names:
                self.owner.setdefault(name, owners[0])

    def _sum_over_servers(self, op: Operator) -> None:
        if self.servers > 1:  # one has complete gradients
            op.attrs[SUMMED] = True

    def _stage(self, op: Operator) -> None:
        """Note the first stage in which servers may run an operator, or take what it sums up."""
        access, ahead = access_of(op), SCALARS in op.attrs
        stage = op.attrs[STAGE] = self.stages.stage_of(access, ahead=ahead)
        if SUMMED in op.attrs:
            self.stages.note(access, stage + 1, result_ahead=op.type == "reduce_sum")
        else:
            self.stages.note(access, stage, ahead=ahead)


# -- on a server -----------------------------------------------------------------------------------
def is_local(op: Operator) -> bool:
    """Return whether what an update's operator writes belongs to a block, not to the whole."""
    return not (op.attrs.get(SCALARS) or (op.attrs.get(SUMMED) and op.type == "reduce_sum"))


def totals(program: Program) -> tuple[ServerSum, ...]:
    """Return the totals to sum over servers, without parts, in the order of the Program."""
    return tuple(
        ServerSum(name, op.attrs[STAGE])
        for op in program.global_block().ops
        if op.attrs.get(SUMMED)
        for name in totals_of(op)
    )


def totals_of(op: Operator) -> list[str]:
    """Return the names of the sums over servers that an operator needs, or makes."""
    if op.type == "lars_momentum":
        return [f"{op.input(slot)[0]}@SQUARED_NORM" for slot in ("Param", "Grad")]
    return [f"{op.input('X')[0]}@SQUARED_NORM"] if op.type == "clip_by_norm" else op.output("Out")


def part_of(gradient: str, total: str) -> str:
    """Return a gradient block's summand of a total."""
    return f"{gradient}/{total}"


def summing_ops(
    op: Operator, local: Callable[[str], str], part: Callable[[str], str]
) -> list[Operator]:
    """Return a server's operators on a block, for an operator that is ``SUMMED``.

    ``local`` returns what a variable is called there, ``part`` what this block adds to a total.
    """
    block, stage = op.block, op.attrs[STAGE]
    totals = totals_of(op)
    renamed = op.copied_to(block)
    for slots in (renamed.inputs, renamed.outputs):
        for slot, names in slots.items():
            slots[slot] = [local(name) for name in names]
    if op.type == "reduce_sum":
        renamed.outputs = {"Out": [part(totals[0])]}
        return [renamed]
    sources = ("Param", "Grad") if op.type == "lars_momentum" else ("X",)
    norms = [
        Operator(
            block,
            "squared_l2_norm",
            {"X": renamed.input(slot)},
            {"Out": part(total)},
            {STAGE: stage, ROLE_ATTR: op.attrs[ROLE_ATTR], ROLE_VAR_ATTR: op.attrs[ROLE_VAR_ATTR]},
        )
        for slot, total in zip(sources, totals)
    ]
    renamed.attrs[STAGE] = stage + 1
    if op.type == "lars_momentum":
        renamed.type = "lars_momentum_of_norms"
        renamed.inputs |= {"SquaredParamNorm": [totals[0]], "SquaredGradNorm": [totals[1]]}
    else:
        renamed.inputs["SquaredNorm"] = totals
    return [*norms, renamed]


def add_scalars(
    new: Program, parent: int, program: Program, parts: Sequence[tuple[str, str]]
) -> ServerSums | None:
    """Add the block that computes with sums over servers; None if nothing is computed there.

    ``parts`` are the (total, part) of this server's blocks.
    """
    origin, home = program.global_block(), new.global_block()
    sums, scalars = totals(program), [op for op in origin.ops if op.attrs.get(SCALARS)]
    if not (sums or scalars):
        return None
    block = new.create_block(parent)
    for op in scalars:
        block.add_op(op.copied_to(block))
    dtypes = {n: origin.var(n).dtype for op in block.ops for n in op.output_arg_names}
    dtypes |= {total: dtype for op in origin.ops for total, dtype in _summed_dtypes(origin, op)}
    dtypes |= {part: dtypes[total] for total, part in parts}
    for name, dtype in dtypes.items():
        home.create_var(name, shape=(1,), dtype=dtype)
    last = (op.attrs[STAGE] + op.attrs.get(SUMMED, False) for op in origin.ops if STAGE in op.attrs)
    return ServerSums(
        tuple(
            ServerSum(s.total, s.stage, tuple(p for total, p in parts if total == s.total))
            for s in sums
        ),
        block.idx,
        max(last) + 1,
    )


def _summed_dtypes(block: Block, op: Operator) -> list[tuple[str, str]]:
    """Return (total, its type) of what an operator sums over servers: that of what it adds up."""
    if not op.attrs.get(SUMMED):
        return []
    (added,) = op.input("Param") or op.input("X")
    return [(total, block.var(added).dtype) for total in totals_of(op)]
