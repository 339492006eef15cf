"""The values and updates in a ``fetch_list``, and a Program pruned to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.base.errors import FeedError, GraphError, GraphTypeError
from hpcdist.executor.merging import merge_state
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.variable import Variable


def fetch_names_and_updates(fetch_list: object) -> tuple[tuple[str, ...], tuple[Operator, ...]]:
    """Return the names of the values and the updates that a ``fetch_list`` asks for.

    Updates are operators, lists of them, or pairs (operators, anything), as ``minimize`` returns.
    FeedError for what is neither, GraphTypeError for an operator that is no update.
    """
    if fetch_list is None:
        return (), ()
    if isinstance(fetch_list, str) or not isinstance(fetch_list, (list, tuple)):
        fetch_list = [fetch_list]
    names: list[str] = []
    for item in fetch_list:
        if type(item) is str:
            names.append(item)
        elif isinstance(item, Variable):
            names.append(item.name)
        else:
            break
    else:  # that of a step, mostly
        return tuple(names), ()
    updates: list[Operator] = []
    for item in fetch_list[len(names) :]:
        if isinstance(item, tuple) and item and isinstance(item[0], (list, tuple)):
            item = item[0]
        if isinstance(item, (list, tuple)):
            inner, more = fetch_names_and_updates(item)
            names += inner
            updates += more
        elif isinstance(item, Operator):
            updates.append(item)
        elif isinstance(item, str) or hasattr(item, "name"):
            names.append(item if isinstance(item, str) else item.name)
        else:
            raise FeedError(f"fetch_list: expected Variables or names, got {fetch_list!r}")
    for op in updates:
        if not op.role & OpRole.OPTIMIZE:
            raise GraphTypeError(f"fetch_list: {op} updates no parameter, so it is not fetched")
    return tuple(names), tuple(updates)


class PrunedPrograms:
    """Programs cut to what is asked for, kept with those that they are cut from."""

    def __init__(self) -> None:
        self._programs: ProgramCache[dict[object, Program]] = ProgramCache()

    def of_this_run(
        self,
        program: Program,
        feed: Mapping[str, Any],
        fetches: Sequence[str],
        updates: Sequence[Operator],
    ) -> tuple[Program, dict[str, Any]]:
        """Return the Program that computes what is asked for, and what it is fed.

        It is the given one if that does nothing more that lasts, so a job runs it as ever.
        """
        forms = self._programs.of(program, dict)
        key = (tuple(sorted(feed)), tuple(fetches), tuple(map(id, updates)))
        if key not in forms:
            forms[key] = _pruned(program, feed, fetches, updates)
        cut = forms[key]
        variables = cut.global_block().vars
        return cut, {name: value for name, value in feed.items() if name in variables}

    def refuse_another(
        self, program: Program, fetches: Sequence[str], updates: Sequence[Operator]
    ) -> None:
        """Refuse to cut the Program of a CompiledProgram, unless nothing would be cut."""
        cut, _ = self.of_this_run(program, {}, fetches, updates)
        if cut is not program:
            raise GraphError(
                "Executor.run: a CompiledProgram is not pruned; run the Program itself with "
                "use_prune or some of its updates in fetch_list"
            )


def _pruned(
    program: Program, feed: Mapping[str, Any], fetches: Sequence[str], updates: Sequence[Operator]
) -> Program:
    block = program.global_block()
    for op in updates:
        if op.block.program is not program:
            raise GraphError(f"fetch_list: {op} is not in the Program that is run")
    updating = list(updates) or [op for op in block.ops if op.role & OpRole.OPTIMIZE]
    cut = program._prune_with_input(list(feed), [*fetches, *updating])
    persistent = _kept_between_steps(program)
    if any(persistent.intersection(op.input_arg_names) for op in cut.global_block().ops):
        also = [op for op in block.ops if persistent.intersection(op.output_arg_names)]
        cut = program._prune_with_input(list(feed), [*fetches, *updating, *also])
    if any(name in feed for op in block.ops for name in op.output_arg_names):
        return cut
    return program if _lasting(program) == _lasting(cut) else cut


def _kept_between_steps(program: Program) -> set[str]:
    """Return the values that updates keep for the next step.

    Gradients that are merged over steps, with their count, and the scale of a loss.
    """
    ops = program.global_block().ops
    scales = (op.output("LossScaling") for op in ops if op.type == "update_loss_scaling")
    return merge_state(program).union(*scales)


def _lasting(program: Program) -> list[tuple[str, ...]]:
    """Return the results of each operator that writes a persistable variable."""
    block = program.global_block()
    persistent = {name for name, var in block.vars.items() if var.persistable}
    return [names for op in block.ops if persistent & {*(names := tuple(op.output_arg_names))}]
