"""Distributed tables, `embedding(is_sparse=True, is_distributed=True)`: the facts. Pure.

Such a table has no array anywhere: its rows are created on servers, or in a process that trains
alone, when their ids are first looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import declared_attrs, lookup
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ps.planned_tables import Fill, PlannedTable, check_policy
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table_metadata import DECAYS, KINDS

LOOKUPS = ("lookup_table", "lookup_table_v2")
GIVEN_ROWS = "given_rows"  # attribute of what fills a table: the rows that it begins with
FILLS = ("fill_constant", "uniform_random", "gaussian_random", "truncated_gaussian_random")


@dataclass(frozen=True)
class LookUp:
    """A look-up in a distributed table: variable ``rows`` takes the rows of variable ``ids``.

    ``kind`` is the type of its operator, ``padding`` the id that it answers with zeros. For its
    gradient ``rows`` is that of the rows.
    """

    table: str
    ids: str
    rows: str
    kind: str
    padding: int | None = None


@dataclass(frozen=True)
class TableSteps:
    """What a Program does with distributed tables: pulls rows, and pushes their gradients.

    ``absent`` are the variables that only the printed Program has: gradients of whole tables, and
    what would be split by server.
    """

    pulled: tuple[LookUp, ...] = ()
    pushed: tuple[LookUp, ...] = ()
    absent: frozenset[str] = frozenset()

    def __or__(self, other: TableSteps) -> TableSteps:
        return TableSteps(
            self.pulled + other.pulled, self.pushed + other.pushed, self.absent | other.absent
        )


def is_distributed_lookup(op: Operator) -> bool:
    """Return whether an operator looks up rows of a distributed table."""
    return op.type in LOOKUPS and bool(op.attrs.get("is_distributed", False))


def tables_looked_up(program: Program) -> set[str]:
    """Return the distributed tables of a Program."""
    ops = (op for block in program.blocks for op in block.ops)
    return {op.input("W")[0] for op in ops if is_distributed_lookup(op)}


def padding_of(op: Operator) -> int | None:
    """Return the id that a look-up answers with zeros, None if there is none."""
    padding: int = op.attrs.get("padding_idx", -1)
    return None if padding == -1 else padding


def look_up_of(op: Operator) -> LookUp:
    """Return the look-up of an operator."""
    return LookUp(
        op.input("W")[0], op.input("Ids")[0], op.output("Out")[0], op.type, padding_of(op)
    )


def padding_in(table: str, lookups: Iterable[LookUp]) -> int | None:
    """Return the padding of all look-ups in one table; PlanError if they have different ones."""
    paddings = {look_up.padding for look_up in lookups if look_up.table == table}
    if len(paddings) > 1:
        raise PlanError(
            f"table {table!r} has is_distributed=True: its look-ups have different padding_idx, "
            f"got {', '.join(sorted(map(str, paddings)))}; use one for all of them"
        )
    return next(iter(paddings), None)


def gradient_of(block: Block, table: PlannedTable) -> tuple[tuple[LookUp, ...], frozenset[str]]:
    """Return where the gradient of a table comes from, and the variables that would hold it.

    It is formed by look-ups' gradient operators, and sums of them: PlanError if by others, or if
    others read it.
    """
    sources = []
    names = [table.gradient]
    forming = []
    for op in reversed(block.ops):
        if not any(name in names for name in op.output_arg_names):
            continue
        if op.type == "sum":
            names += op.input("X")
        elif op.type.removesuffix("_grad") in LOOKUPS:
            ids, rows = op.input("Ids")[0], op.input("Out@GRAD")[0]
            sources.append(LookUp(table.parameter, ids, rows, op.type.removesuffix("_grad")))
        else:
            raise PlanError(
                f"table {table.parameter!r} has is_distributed=True: operator {op} changes its "
                "gradient, which only look-ups may form"
            )
        forming.append(op)
    for op in block.ops:
        reads = [name for name in op.input_arg_names if name in names]
        if reads and op not in forming and not op.input("Param"):
            refuse_reader(op, reads[0])
    return tuple(sources), frozenset(names)


def refuse_reader(op: Operator, name: str) -> NoReturn:
    """Refuse an operator that reads what would be the gradient of a whole table."""
    raise PlanError(
        f"operator {op} reads {name!r}, which is not formed on any rank: it is the gradient of a "
        "table with is_distributed=True"
    )


def read_tables(program: Program) -> tuple[PlannedTable, ...]:
    """Return the distributed tables that a training Program trains, by name.

    PlanError for one that cannot be: not sparse, read by other operators, regularized, moved by an
    optimizer that needs more than the rows of a batch.
    """
    lookups: dict[str, list[Operator]] = {}
    for block in program.blocks:
        for op in filter(is_distributed_lookup, block.ops):
            lookups.setdefault(op.input("W")[0], []).append(op)
    return tuple(_read(program, name, lookups[name]) for name in sorted(lookups))


def with_startup(tables: Sequence[PlannedTable], startup: Program) -> tuple[PlannedTable, ...]:
    """Return the tables with what the startup Program would fill them with."""
    fills = {
        name: op
        for op in startup.global_block().ops
        for slot in op.outputs
        for name in op.output(slot)
    }
    return tuple(
        replace(
            table,
            fill=_fill(table, fills.get(table.parameter)),
            first=tuple(_constant(name, fills.get(name)) for name in table.state),
        )
        for table in tables
    )


def untrained_tables(startup: Program) -> tuple[PlannedTable, ...]:
    """Return the tables that a startup Program fills, for Programs that only look rows up."""
    filled = {name for op in startup.global_block().ops for name in op.output_arg_names}
    parameters = [v for v in startup.list_vars() if isinstance(v, Parameter) and v.is_distributed]
    tables = [
        PlannedTable(v.name, "", v.shape, v.dtype, "", policy=policy_of(v))
        for v in parameters
        if v.name in filled
    ]
    for var in parameters:
        _check_dtype(var)
    return with_startup(sorted(tables, key=lambda table: table.parameter), startup)


# -- reading ---------------------------------------------------------------------------------------
def _read(program: Program, name: str, lookups: Sequence[Operator]) -> PlannedTable:
    prefix = f"table {name!r} has is_distributed=True"
    block = program.global_block()
    var = block.var(name)
    if any(op.block.idx for op in lookups):
        raise PlanError(f"{prefix}: it cannot be looked up inside a conditional block")
    updates = [op for op in block.ops if op.input("Param") == [name]]
    gradient = updates[0].input("Grad")[0] if updates else ""
    if not all(op.attrs.get("is_sparse") for op in lookups) or not updates:
        raise PlanError(f"{prefix}: it must be trained, with is_sparse=True")
    if len(updates) > 1:
        raise PlanError(f"{prefix}: {len(updates)} optimizers would move it, expected one")
    if late := [op for op in lookups if op.idx > updates[0].idx]:
        raise PlanError(
            f"{prefix}: {late[0].place} {late[0]} stands behind the table's update, but its rows "
            "are looked up once in a step, before that; build what evaluates in a Program of its "
            "own, such as clone(for_test=True) before minimize"
        )
    _check_dtype(var)
    for op in _others(program, name, lookups, updates[0]):
        if op.role & OpRole.OPTIMIZE:
            raise PlanError(
                f"{prefix}: a regularizer ({op.type}) would move every row, and no rank has them "
                "all; leave out ParamAttr(regularizer=) and the optimizer's regularization="
            )
        raise PlanError(f"{prefix}: operator {op} reads the whole table, which no rank has")
    if block.var(gradient).type != VarType.SELECTED_ROWS:
        raise PlanError(f"{prefix}: its gradient {gradient!r} is dense: use is_sparse=True")
    return _of_update(updates[0], gradient, padding_in(name, map(look_up_of, lookups)))


def _check_dtype(var: Variable) -> None:
    if var.dtype != "float32":
        raise PlanError(
            f"table {var.name!r} has is_distributed=True: its rows are float32, got dtype "
            f"{var.dtype}"
        )


def _of_update(op: Operator, gradient: str, padding: int | None) -> PlannedTable:
    var = op.block.program.global_block().var(op.input("Param")[0])
    if op.type not in KINDS:
        raise PlanError(
            f"table {var.name!r} has is_distributed=True: {op.type} cannot move its rows one by "
            f"one, expected one of {', '.join(KINDS)}"
        )
    operands = [n for slot in lookup(op.type).inputs for n in op.input(slot.name)]
    block = block_of(op)
    shaped = [n for n in operands if block.var(n).shape == var.shape]
    attrs = declared_attrs(lookup(op.type), op.attrs)
    attrs |= {name: op.attrs[name] for name in DECAYS if name in op.attrs}
    planned = PlannedTable(
        var.name,
        gradient,
        var.shape,
        var.dtype,
        op.input("LearningRate")[0],
        op.type,
        tuple(sorted(attrs.items())),
        tuple(n for n in shaped if n not in (var.name, gradient)),
        padding=padding,
        policy=policy_of(var),
    )
    check_policy(planned.parameter, planned.policy, planned.optimizer)
    return planned


def policy_of(var: Variable) -> RowPolicy | None:
    """Return the policy of a parameter's rows, if it is a table that has one."""
    policy = var.row_policy if isinstance(var, Parameter) else None
    return policy if isinstance(policy, RowPolicy) else None


def _others(
    program: Program, name: str, lookups: Sequence[Operator], update: Operator
) -> Iterator[Operator]:
    """Yield what reads a table beside its look-ups, their gradients and its update."""
    for block in program.blocks:
        for op in block.ops:
            expected = op in lookups or op is update or _is_lookup_grad(op)
            if name in op.input_arg_names and not expected:
                yield op


def _is_lookup_grad(op: Operator) -> bool:
    forward = op.type.removesuffix("_grad")
    return op.type != forward and forward in LOOKUPS and bool(op.attrs.get("is_distributed"))


def _fill(table: PlannedTable, op: Operator | None) -> Fill:
    if op is None or op.type not in FILLS:
        filled_by = "nothing fills it" if op is None else f"got {op.type}"
        raise PlanError(
            f"table {table.parameter!r} has is_distributed=True: how a new row begins may depend "
            "on its id alone, so its initializer must be Constant, Uniform, Normal, "
            "TruncatedNormal, Xavier or MSRA: constant or random, or Vectors of some ids; "
            f"{filled_by}"
        )
    names = ("value", "min", "max", "mean", "std")
    attrs = tuple((k, float(op.attrs[k])) for k in names if k in op.attrs)
    return Fill(op.type, attrs, int(op.attrs.get("seed", 0)), op.attrs.get(GIVEN_ROWS))


def _constant(name: str, op: Operator | None) -> float:
    if op is None or op.type != "fill_constant":
        raise PlanError(
            f"accumulator {name!r} of a distributed table must begin with a constant, got "
            f"{'nothing' if op is None else op.type}"
        )
    return float(op.attrs["value"])
