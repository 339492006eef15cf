"""The parts of a training program: operators that schedule, clip and update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import AFTER_UPDATES, ROLE_VAR_ATTR, WITHOUT_SERVERS, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.dependences import access_of, following

# Operators on gradients and parameters that compute each row, or element, from the same one.
BY_ROWS = {
    "assign",
    "cast",
    "clip",
    "elementwise_add",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mul",
    "elementwise_sub",
    "get_tensor_from_selected_rows",
    "merge_selected_rows",
    "scale",
    "sign",
    "square",
    "sum",
}
ELEMENTWISE = BY_ROWS | {"fill_constant"}
ON_SERVERS = "of_mean_gradient"  # attribute of what clips, if servers are to do it
_SCHEDULE_ROLES = (OpRole.LR_SCHED, OpRole.LR_SCHED | OpRole.OPTIMIZE)


@dataclass(frozen=True)
class ParameterUpdate:
    """How one parameter is moved.

    ``gradient`` is what a trainer sends: the parameter's gradient, after clipping. ``ops`` are the
    positions in block 0 of the regularizer, the optimizer and what follows it; ``copies`` those of
    forward operators whose results they read, such as a copy of the parameter before its update:
    servers compute these, too.
    """

    parameter: str
    gradient: str
    optimizer: int
    ops: tuple[int, ...]
    copies: tuple[int, ...] = ()

    @property
    def on_server(self) -> tuple[int, ...]:
        """All that a server runs for this parameter, in the order of the Program."""
        return tuple(sorted((*self.copies, *self.ops)))


@dataclass(frozen=True)
class ProgramRoles:
    """Positions in block 0 of what does not belong to forward and backward.

    ``updates`` are in the order in which parameters are first met, which fixes all placements.
    ``averages`` is what keeps averages of the parameters behind their updates, on trainers.
    ``late`` is what else trainers run that needs parameters as updates leave them: by position, the
    variable that it must wait for.
    """

    schedule: tuple[int, ...]
    clip: tuple[int, ...]
    updates: tuple[ParameterUpdate, ...]
    averages: tuple[int, ...] = ()
    late: Mapping[int, str] = field(default_factory=dict)

    @property
    def following(self) -> tuple[int, ...]:
        """What trainers run once they have the parameters of this step, in Program order."""
        return tuple(sorted({*self.averages, *self.late}))


def program_roles(program: Program) -> ProgramRoles:
    """Find the operators that schedule the learning rate, clip gradients, and update parameters.

    PlanError if there is nothing to update, a parameter without exactly one optimizer, or
    something that follows parameters on trainers.
    """
    ops = program.global_block().ops
    for op in ops:
        if WITHOUT_SERVERS in op.attrs:
            raise PlanError(
                f"{op.attrs[WITHOUT_SERVERS]} moves parameters in every step, which parameter "
                "servers hold: train without servers (no --pservers)"
            )
        if op.type == "dgc_momentum":
            raise PlanError(
                "DGCMomentum compresses the gradients that trainers send to each other: train "
                "without servers (no --pservers), or with Momentum"
            )
        if op.type == "check_finite_and_unscale":
            raise PlanError(
                "mixed precision looks at all gradients at once, of which each parameter server "
                "has a part: train without servers (no --pservers), in bfloat16 "
                "(bf16.decorate_bf16), or in single precision"
            )
    schedule = tuple(i for i, op in enumerate(ops) if op.role in _SCHEDULE_ROLES)
    averages = _averages(program.global_block(), schedule)
    optimizing = [i for i, op in enumerate(ops) if op.role == OpRole.OPTIMIZE and i not in averages]
    copyable, server_only = _copyable(program.global_block())
    clip = _clip_ops(program, optimizing, server_only)
    by_parameter: dict[str, list[int]] = {}
    gradients: dict[str, str] = {}
    for i in optimizing:
        if i not in clip:
            parameter, gradient = _role_vars(ops[i])
            by_parameter.setdefault(parameter, []).append(i)
            gradients.setdefault(parameter, gradient)
    updates = tuple(
        ParameterUpdate(
            p,
            gradients[p],
            _optimizer(ops, p, update),
            tuple(update),
            _copies(ops, update, copyable),
        )
        for p, update in by_parameter.items()
    )
    if not updates:
        raise PlanError(
            "the program has no optimizer operators: call optimizer.minimize(loss) "
            "before transpile(), and transpile the program that it was called for"
        )
    return ProgramRoles(
        schedule, tuple(clip), updates, averages, _late(ops, schedule, updates, averages)
    )


def _late(
    ops: Sequence[Operator],
    schedule: Sequence[int],
    updates: Sequence[ParameterUpdate],
    averages: Sequence[int],
) -> dict[int, str]:
    """Return the operators that trainers must run behind the updates."""
    accesses = [access_of(op) for op in ops]
    moving = dict.fromkeys(schedule, frozenset[str]())
    moving |= {i: accesses[i].writes for update in updates for i in update.ops}
    moving |= {i: accesses[i].writes for i in averages}
    return following(accesses, moving)


def _averages(block: Block, schedule: Sequence[int]) -> tuple[int, ...]:
    """Return the operators that average parameters, and the step count only they read.

    The latter stands in front of them in one process, where the schedule has been run already.
    """
    ops = block.ops
    averages = {i for i, op in enumerate(ops) if AFTER_UPDATES in op.attrs}
    scheduled = {name for op in nested([ops[i] for i in schedule]) for name in op.output_arg_names}
    counting = []
    for i, op in enumerate(ops if averages else ()):
        if op.role == OpRole.FORWARD and not scheduled.isdisjoint(op.input_arg_names):
            scheduled.update(op.output_arg_names)
            counting.append(i)
    for i in reversed(counting):
        written = set(ops[i].output_arg_names)
        readers = {j for j, op in enumerate(ops) if not written.isdisjoint(op.input_arg_names)}
        if readers and readers <= averages and not any(map(block.is_persistable, written)):
            averages.add(i)
    return tuple(sorted(averages))


def _copyable(block: Block) -> tuple[dict[str, int], set[str]]:
    """Return the values that servers can compute, too, by the position of their operator.

    It is made of parameters, of other values that only servers move, or of constants, element by
    element; the second value has the names of what is not made of constants alone.
    """
    written = Counter(name for op in nested(block.ops) for name in op.output_arg_names)
    served = OpRole.OPTIMIZE | OpRole.LR_SCHED
    trainers = [op for op in block.ops if not op.role & served]
    moved = {name for op in nested(trainers) for name in op.output_arg_names}
    schedule = [op for op in block.ops if op.role in _SCHEDULE_ROLES]
    changing = moved.union(*(op.output_arg_names for op in nested(schedule)))
    scheduled: set[str] = set()
    positions: dict[str, int] = {}
    server_only: set[str] = set()
    for i, op in enumerate(block.ops):
        if op.role in _SCHEDULE_ROLES:
            scheduled.update(n for inner in nested([op]) for n in inner.output_arg_names)
        if op.role != OpRole.FORWARD or op.type not in ELEMENTWISE:
            continue
        if any(written[n] > 1 or block.is_persistable(n) for n in op.output_arg_names):
            continue
        on_servers = [
            n in scheduled or (block.is_persistable(n) and n not in changing)
            for n in op.input_arg_names
        ]
        if all(at or n in positions for at, n in zip(on_servers, op.input_arg_names)):
            positions.update(dict.fromkeys(op.output_arg_names, i))
            if any(on_servers) or not server_only.isdisjoint(op.input_arg_names):
                server_only.update(op.output_arg_names)
    return positions, server_only


def _copies(
    ops: Sequence[Operator], update: Sequence[int], copyable: dict[str, int]
) -> tuple[int, ...]:
    """Return the forward operators that an update needs the results of, in order."""
    copies: set[int] = set()
    names = [name for i in update for name in ops[i].input_arg_names]
    while names:
        i = copyable.get(names.pop())
        if i is not None and i not in copies:
            copies.add(i)
            names += ops[i].input_arg_names
    return tuple(sorted(copies))


def nested(ops: Sequence[Operator]) -> Iterator[Operator]:
    """Yield operators, each with those of its sub-blocks."""
    for op in ops:
        yield op
        if "sub_block" in op.attrs:
            yield from nested(op.block.program.block(op.attrs["sub_block"]).ops)


def _clip_ops(program: Program, optimizing: list[int], server_only: set[str]) -> list[int]:
    """Return the operators that only turn gradients into other gradients.

    Nothing persistable (no parameter, no accumulator), nor what is made of such, flows into them,
    so trainers can run them.
    """
    block = program.global_block()
    at_server = set(server_only)  # names computed from what only servers have
    clip = []
    for i in optimizing:
        op = block.ops[i]
        stays = any(n in at_server or block.is_persistable(n) for n in op.input_arg_names)
        if stays or op.attrs.get(ON_SERVERS):
            at_server.update(op.output_arg_names)
        else:
            clip.append(i)
    behind = _constants_behind(block.ops, optimizing, clip)
    return [i for i in clip if i not in behind]


def _constants_behind(ops: Sequence[Operator], optimizing: list[int], clip: list[int]) -> set[int]:
    """Return operators that give constants to what servers run, not to what clips."""
    behind: set[int] = set()
    constants: set[str] = set()
    for i in optimizing:
        op = ops[i]
        if op.type in ELEMENTWISE and constants.issuperset(op.input_arg_names):
            constants.update(op.output_arg_names)
    for i in reversed(clip):
        outputs = set(ops[i].output_arg_names)
        if outputs <= constants:
            readers = {j for j in optimizing if not outputs.isdisjoint(ops[j].input_arg_names)}
            if readers and readers.isdisjoint(set(clip) - behind):
                behind.add(i)
    return behind


def _role_vars(op: Operator) -> tuple[str, str]:
    role_vars: Sequence[str] = op.attrs.get(ROLE_VAR_ATTR) or ()
    if len(role_vars) != 2:
        raise PlanError(
            f"operator {op} has the optimizer's role but not one parameter and gradient in its "
            f"{ROLE_VAR_ATTR}, got {list(role_vars)}: it cannot be placed on a server"
        )
    return role_vars[0], role_vars[1]


def _optimizer(ops: list[Operator], parameter: str, update: list[int]) -> int:
    optimizers = [i for i in update if ops[i].input("Param")]
    if len(optimizers) != 1:
        raise PlanError(
            f"parameter {parameter!r} is updated by {len(optimizers)} optimizer operators: "
            "expected one, so minimize() must be called once for each parameter"
        )
    return optimizers[0]
