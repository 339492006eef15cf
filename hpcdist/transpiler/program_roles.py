"""What a training program consists of: which operators schedule, clip and update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.errors import PlanError
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import ROLE_VAR_ATTR, WITHOUT_SERVERS, Role

# Optimizers that a server can run on a block of rows: none looks across elements, except that
# lars_momentum takes its norms over the block (where trainers share batches, over the parameter).
OPTIMIZERS = (
    "adagrad",
    "adam",
    "adamax",
    "decayed_adagrad",
    "ftrl",
    "lars_momentum",
    "momentum",
    "rmsprop",
    "sgd",
)
ON_SERVERS = "of_mean_gradient"  # attribute of what clips, if servers are to do it
_SCHEDULE_ROLES = (Role.LR_SCHED, Role.LR_SCHED | Role.OPTIMIZE)


@dataclass(frozen=True)
class ParameterUpdate:
    """How one parameter is moved.

    ``gradient`` is what a trainer sends: the parameter's gradient, after clipping. ``ops`` are the
    positions in block 0 of the regularizer, the optimizer and what follows it.
    """

    parameter: str
    gradient: str
    optimizer: int
    ops: tuple[int, ...]


@dataclass(frozen=True)
class ProgramRoles:
    """Positions in block 0 of what does not belong to forward and backward.

    ``updates`` are in the order in which parameters are first met, which fixes all placements.
    """

    schedule: tuple[int, ...]
    clip: tuple[int, ...]
    updates: tuple[ParameterUpdate, ...]


def program_roles(program: Program) -> ProgramRoles:
    """Find the operators that schedule the learning rate, clip gradients, and update parameters.

    PlanError if there is nothing to update, a parameter without exactly one optimizer, or
    something that follows parameters on trainers.
    """
    ops = program.global_block().ops
    for op in ops:
        if WITHOUT_SERVERS in op.attrs:
            raise PlanError(
                f"{op.attrs[WITHOUT_SERVERS]} follows the parameters of every step, which "
                "parameter servers move: train without servers (no --pservers)"
            )
        if op.type == "dgc_momentum":
            raise PlanError(
                "DGCMomentum compresses the gradients that trainers send to each other: train "
                "without servers (no --pservers), or with Momentum"
            )
        if op.type == "check_finite_and_unscale":
            raise PlanError(
                "mixed precision looks at all gradients at once, of which each parameter server "
                "has a part: train without servers (no --pservers), or in single precision"
            )
    schedule = tuple(i for i, op in enumerate(ops) if op.role in _SCHEDULE_ROLES)
    optimizing = [i for i, op in enumerate(ops) if op.role == Role.OPTIMIZE]
    clip = _clip_ops(program, optimizing)
    by_parameter: dict[str, list[int]] = {}
    gradients: dict[str, str] = {}
    for i in optimizing:
        if i not in clip:
            parameter, gradient = _role_vars(ops[i])
            by_parameter.setdefault(parameter, []).append(i)
            gradients.setdefault(parameter, gradient)
    updates = tuple(
        ParameterUpdate(p, gradients[p], _optimizer(ops, p, found), tuple(found))
        for p, found in by_parameter.items()
    )
    if not updates:
        raise PlanError(
            "the program has no optimizer operators: call optimizer.minimize(loss) "
            "before transpile(), and transpile the program that it was called for"
        )
    return ProgramRoles(schedule, tuple(clip), updates)


def refuse_unsupported_optimizers(program: Program, roles: ProgramRoles) -> None:
    """Refuse optimizers that servers cannot run."""
    for update in roles.updates:
        kind = program.global_block().ops[update.optimizer].type
        if kind not in OPTIMIZERS:
            raise PlanError(f"Not supported optimizer for distributed training: {kind}")


def _clip_ops(program: Program, optimizing: list[int]) -> list[int]:
    """Return the operators that only turn gradients into other gradients.

    Nothing persistable (no parameter, no accumulator) flows into them, so trainers can run them.
    """
    block = program.global_block()
    at_server: set[str] = set()  # names computed from what only servers have
    clip = []
    for i in optimizing:
        op = block.ops[i]
        kept = any(n in at_server or _persistable(program, n) for n in op.input_arg_names)
        if kept or op.attrs.get(ON_SERVERS):
            at_server.update(op.output_arg_names)
        else:
            clip.append(i)
    return clip


def _persistable(program: Program, name: str) -> bool:
    var = program.global_block().find_var(name)
    return var is not None and var.persistable


def _role_vars(op: Operator) -> tuple[str, str]:
    role_vars: Sequence[str] = op.attrs.get(ROLE_VAR_ATTR) or ()
    if len(role_vars) != 2:
        raise PlanError(
            f"operator {op} has the optimizer's role but not one parameter and gradient in its "
            f"{ROLE_VAR_ATTR}, got {list(role_vars)}: it cannot be placed on a server"
        )
    return role_vars[0], role_vars[1]


def _optimizer(ops: list[Operator], parameter: str, found: list[int]) -> int:
    optimizers = [i for i in found if ops[i].input("Param")]
    if len(optimizers) != 1:
        raise PlanError(
            f"parameter {parameter!r} is updated by {len(optimizers)} optimizer operators: "
            "expected one, so minimize() must be called once for each parameter"
        )
    return optimizers[0]
