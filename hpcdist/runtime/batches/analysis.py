"""How each value of a Program depends on the rows of a batch that trainers share. Pure.

A Program is analysed once, from its operators' declarations (`hpcdist.graph.rows`): values computed
row by row are rows, a mean over rows stays a mean under linear operators, and so on. Values mixed
from several rows cannot be combined from the trainers' parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcdist.base.errors import FeedError, PlanError
from hpcdist.graph.autodiff.recompute import AGAIN
from hpcdist.graph.block import block_of
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.op_role import ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import attrs_of, lookup
from hpcdist.graph.rows import SAME, Applied, How, MixesRows, OfRows, Operand
from hpcdist.graph.values import ARRAY, RANK_TABLE
from hpcdist.runtime.batches.rank_order import SORTED, RankOrder, within_loop
from hpcdist.runtime.batches.scatter import batched_names, is_loss_gradient, losses, weight_dtypes

_IN_ROWS = {How.ROWS, How.RAGGED, How.PADDED}
_OF_ARRAY = OfRows(How.MIXED, why="an array of several values")
_GRADIENT = OfRows(How.GRADIENT)
_LOCAL_STEPS = OfRows(How.MIXED, why="it depends on each trainer's own longest sequence")


class RowTreatment:
    """What the values that block 0 of a Program computes are of the rows of a batch.

    ``batched``: the data variables whose rows, or sequences of rows, are shared. ``alike``: pairs
    of data variables ("": the samples) that must have equally many rows of each sample.
    ``counted``: data variables that there is a mean over the rows of.
    """

    def __init__(self, program: Program, batched: frozenset[str]) -> None:
        self._block = program.global_block()
        self._batched = batched
        self.alike: set[tuple[str, str]] = set()
        self._of: dict[str, OfRows] = {}
        self._backward: set[str] = set()  # values of backward operators
        self._finished: set[str] = set()  # gradients of parameters, and what updates make of them
        ops = self._block.ops
        starts = next((i for i, op in enumerate(ops) if is_loss_gradient(op)), len(ops))
        # Gradients that a loss is computed from are values of the forward pass.
        self._before_loss = {id(op) for op in ops[:starts]}
        # That count steps of each trainer's own longest sequence.
        self._local_steps: set[str] = set()
        self._by_rank = RankOrder()
        for _ in range(2):  # what is kept from step to step is read as the last step left it
            persistable = {
                name: of for name, of in self._of.items() if self._block.is_persistable(name)
            }
            self._of = persistable | {name: self._of_data(name) for name in sorted(batched)}
            for op in self._block.ops:
                self._follow(op)
        self._of |= dict.fromkeys(self._by_rank.names, SORTED)
        self._of |= dict.fromkeys(self._local_steps, _LOCAL_STEPS)
        means = {of.sequences for of in self._of.values() if of.how is How.MEAN}
        self.counted = means - {""}

    def of(self, name: str) -> OfRows:
        """Return how a value depends on the rows of a batch."""
        return self._of.get(name, SAME)

    def mixed_states(self) -> dict[str, OfRows]:
        """Find values that are kept from step to step, and that trainers would keep differently."""
        return {
            name: of
            for name, of in self._of.items()
            if of.how not in (How.SAME, How.COUNTS) and self._block.is_persistable(name)
        }

    def _of_data(self, name: str) -> OfRows:
        ragged = self._block.var(name).lod_level
        return OfRows(How.RAGGED, name) if ragged else OfRows(How.ROWS)

    def _follow(self, op: Operator) -> None:
        """Note what an operator's results are; of a loop, also those within it."""
        if op.type == "while":
            inside = op.block.program.block(op.attrs["sub_block"]).ops
            for _ in range(2):  # what a turn leaves, the next one reads
                for inner in inside:
                    self._follow(inner)
            self._of.update(self._after_loop(op))
            return
        results = self._results(op)
        if op.block is not self._block:
            results = {name: within_loop(op, of) for name, of in results.items()}
        if op.type == "write_to_array":  # it leaves the other places as they were
            results = {n: self._beside(n, of) for n, of in results.items()}
        self._of.update(results)
        per_trainer = op.type == "max_sequence_len" or not self._local_steps.isdisjoint(
            op.input_arg_names
        )
        self._local_steps -= results.keys()
        if per_trainer:
            counts = [n for n, of in results.items() if of.how is How.SAME]
            self._local_steps.update(counts)
            others = results.keys() - set(counts)
            if not self._is_backward(op):
                self._of |= dict.fromkeys(others, _LOCAL_STEPS)

    def _beside(self, name: str, of: OfRows) -> OfRows:
        before = self._of.get(name, of)
        if before == of or How.MIXED in (before.how, of.how):
            return of if before == of or of.how is How.MIXED else before
        both = f"{before.how.value} and {of.how.value}"
        return OfRows(How.MIXED, why=f"array {name!r} holds both {both}")

    def _after_loop(self, op: Operator) -> dict[str, OfRows]:
        """Return a loop's results: its number of turns must not depend on rows of the batch."""
        condition = op.input("Condition")[0]
        outs = op.output("Out")
        if self.of(condition).how is not How.SAME:
            reason = "how often a loop turns depends on rows of the batch"
            return dict.fromkeys(outs, OfRows(How.MIXED, why=reason))
        if condition in self._local_steps:
            self._local_steps.update(n for n in outs if self.of(n).how is How.SAME)
        return {}

    def _results(self, op: Operator) -> dict[str, OfRows]:
        names = op.output_arg_names
        inputs = {name: self.of(name) for name in op.input_arg_names}
        backward = self._is_backward(op)
        if backward:  # what it reads of the forward pass is as the loss is, or tells shapes only
            self._backward.update(names)
            self._finished.update((op.attrs.get(ROLE_VAR_ATTR) or ())[1::2])
        elif op.block is self._block and self._by_rank.met(op):
            return dict.fromkeys(names, SORTED)
        read = self._backward & inputs.keys() if backward else inputs.keys()
        mixed = [inputs[name] for name in read if inputs[name].how is How.MIXED]
        treatment = lookup(op.type).rows
        if treatment is None or op.type == "conditional_block":  # may leave results as they were
            inputs |= {name: self.of(name) for name in names}
        zero = backward and op.type == "fill_zeros_like"  # the gradient of what nobody reads
        if zero or is_loss_gradient(op):
            return dict.fromkeys(names, _GRADIENT)
        if all(of.how is How.SAME for of in inputs.values()):
            return dict.fromkeys(names, SAME)
        if op.type == "slice" and self._asks_beyond_rows(op):
            return dict.fromkeys(names, SAME)
        if mixed:
            of_gradient = any(_from_gradient(inputs[name]) for name in read)
            return dict.fromkeys(names, replace(mixed[0], of_gradient=of_gradient))
        if any(of.how is How.GRADIENT for of in inputs.values()):
            return dict.fromkeys(names, self._of_gradients(op, inputs))
        if treatment is None:
            return dict.fromkeys(names, OfRows(How.MIXED, why=_undeclared(op)))
        try:
            results = treatment(self._applied(op))
        except MixesRows as error:
            reason = f"operator {op.type!r} cannot be divided by rows: {error}"
            return dict.fromkeys(names, OfRows(How.MIXED, why=reason))
        by_slot = results if not isinstance(results, OfRows) else dict.fromkeys(op.outputs, results)
        left_out = OfRows(How.MIXED, why=f"operator {op.type!r} mixes rows")
        return {
            name: self._checked(op, name, by_slot.get(slot, left_out))
            for slot, slot_names in op.outputs.items()
            for name in slot_names
        }

    def _asks_beyond_rows(self, op: Operator) -> bool:
        """Return whether this takes extents of a shape that are the same for all rows."""
        places = [slot for slot in op.inputs if slot != "Input" and op.inputs[slot]]
        if places or list(op.attrs["axes"]) != [0] or op.attrs["starts"][0] <= 0:
            return False
        var = op.block.find_var(op.input("Input")[0])
        producer = None if var is None else var.op
        if producer is None or producer.type != "shape":
            return False
        return self.of(producer.input("Input")[0]).how in (How.SAME, How.ROWS, How.RAGGED)

    def _is_backward(self, op: Operator) -> bool:
        # What is computed again is of the rows what it was at first.
        again = all(name.endswith(AGAIN) for name in op.output_arg_names)
        return bool(op.role & OpRole.BACKWARD) and not again and id(op) not in self._before_loss

    def _checked(self, op: Operator, name: str, of: OfRows) -> OfRows:
        """Rows must have a first dimension that is left open."""
        var = op.block.find_var(name)
        if var is not None and var.type == RANK_TABLE:
            return of
        if of.how in _IN_ROWS and (var is None or var.shape[:1] != (-1,)):
            return OfRows(How.MIXED, why=f"operator {op.type!r} gives {name!r} a fixed dimension 0")
        return of

    def _applied(self, op: Operator) -> Applied:
        def operands(slots: dict[str, list[str]]) -> dict[str, list[Operand]]:
            return {slot: [self._operand(op, n) for n in names] for slot, names in slots.items()}

        giving = {slot: op.input(slot) for slot in lookup(op.type).giving}
        block, given_names = block_of(op), [name for names in giving.values() for name in names]
        for name in given_names:
            if self.of(name).how is not How.SAME:
                raise MixesRows(f"{name!r}, which gives an extent, depends on the batch")
        metas = {name: block._var_recursive(name).meta for name in given_names}
        attrs = attrs_of(op.type, op.attrs, op.inputs, metas)
        inputs = operands({slot: n for slot, n in op.inputs.items() if slot not in giving})
        return Applied(attrs, inputs, operands(op.outputs), self._align)

    def _operand(self, op: Operator, name: str) -> Operand:
        var = op.block.find_var(name)
        if var is None:
            return Operand(name, self.of(name), ())
        return Operand(name, self.of(name), var.shape, var.lod_level, var.dtype)

    def _align(self, one: str, other: str) -> None:
        for name in (one, other):
            if name and name not in self._batched:
                raise MixesRows(f"the number of rows of {name!r} does not follow from the feed")
        if one != other:
            self.alike.add((min(one, other), max(one, other)))

    def _of_gradients(self, op: Operator, inputs: dict[str, OfRows]) -> OfRows:
        """Gradients are averaged over trainers before an update reads them, and only there."""
        if op.role & OpRole.BACKWARD:
            return _GRADIENT
        if not op.role & OpRole.OPTIMIZE:
            reason = f"operator {op.type!r} reads a gradient of its own rows"
            return OfRows(How.MIXED, why=reason, of_gradient=True)
        for name, of in inputs.items():
            if of.how is not How.SAME and not (of.how is How.GRADIENT and name in self._finished):
                reason = f"operator {op.type!r} updates by {name!r}, which is {of.how.value}"
                return OfRows(How.MIXED, why=reason, of_gradient=True)
        self._finished.update(op.output_arg_names)
        return SAME if all(map(self._block.is_persistable, op.output_arg_names)) else _GRADIENT


def _undeclared(op: Operator) -> str:
    if op.role & OpRole.BACKWARD:
        return f"operator {op.type!r} does not start from the gradient of a loss"
    return f"operator {op.type!r} does not declare how it treats rows"


class SharedProgram:
    """A Program whose batches trainers share: what is cut, and what its values are of the rows.

    ``why_whole``: why its batches cannot be divided, so that every trainer computes all rows;
    empty if they can. Raises PlanError if that does not make the step of one process either.
    """

    def __init__(self, program: Program, trainers: int, *, averaged_away: bool = False) -> None:
        """``averaged_away``: servers average the gradients, so that no trainer has the averages."""
        self._program = program
        self.batched = batched_names(program)
        self._rows = RowTreatment(program, self.batched)
        self.weight_dtypes = weight_dtypes(program)
        self._several = trainers > 1
        self._averaged_away = averaged_away
        self._alike = sorted(self._rows.alike)
        self.counted = sorted(self._rows.counted)
        of_losses = {name: self._rows.of(name) for name in losses(program)}
        of_all = set(of_losses.values())
        self.loss = of_all.pop() if len(of_all) == 1 else OfRows(How.MIXED)
        self.counts_areas = any(op.type == "auc" for op in program.global_block().ops)
        self.why_whole = self._why_whole(of_losses) if trainers > 1 else ""

    def _why_whole(self, of_losses: Mapping[str, OfRows]) -> str:
        if not of_losses:
            raise PlanError(
                "trainers can share the batches of a program only if its gradients start from a "
                f"loss: no loss starts from 1; {_ELSE}"
            )
        ops = self._program.global_block().ops
        self._refuse_error_clips(ops)
        updated = {n for op in ops if op.role & OpRole.OPTIMIZE for n in op.output_arg_names}
        fixed = (op for op in ops if self.draws_all_sequences(op))
        reason = next((f"{op.place} {op} draws for all sequences at once" for op in fixed), "")
        for name, mixed in self._rows.mixed_states().items():
            why = mixed.why or f"it is {mixed.how.value}"
            reason = f"trainers would keep different values of {name!r}: {why}"
            if name in updated or _from_gradient(mixed):
                raise PlanError(f"{reason}; {_ELSE}")
        if self.loss.how in (How.MEAN, How.SUM, How.SAME):
            return reason
        return ", ".join(f"{name!r} is {_described(of)}" for name, of in of_losses.items())

    def _refuse_error_clips(self, ops: Sequence[Operator]) -> None:
        """Refuse what cuts gradients on their way: trainers' are of their own rows, and weighted.

        What cuts the gradients of parameters before an update has the mean of all trainers'.
        """
        for op in ops:
            of_gradient = any(self._rows.of(n).how is How.GRADIENT for n in op.input_arg_names)
            if op.type in ("clip", "clip_by_norm") and of_gradient and op.role & OpRole.BACKWARD:
                raise PlanError(
                    f"{op.place} {op} cuts a gradient within the backward pass (error_clip), where "
                    "a trainer's has a different scale from that of one process: clip the "
                    f"gradients of parameters (grad_clip=), or {_ELSE}"
                )

    def draws_all_sequences(self, op: Operator) -> bool:
        """Return whether an operator draws for the sequences of a whole batch only.

        One with a seed does, and one that knows of rows, but not whose sequences they are.
        """
        if not _knows_rows(op) or not any(map(self.has_sequences, op.input_arg_names)):
            return False
        return bool(op.attrs.get("fix_seed")) or not lookup(op.type).lods

    def draws_for_rows(self, op: Operator) -> bool:
        """Return whether an operator draws for rows of the batch, for each trainer's own."""
        if not _knows_rows(op) or (self._several and self.draws_all_sequences(op)):
            return False  # of the latter `why_whole` tells: every trainer draws for them all
        return self._rows.of(op.output_arg_names[0]).how in (How.ROWS, How.RAGGED)

    def has_sequences(self, name: str) -> bool:
        """Return whether a value consists of sequences of the batch."""
        return self._rows.of(name).how is How.RAGGED

    def alike_in(self, feed: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the pairs that must have equally many rows of each sample in what is fed.

        What is declared without sequences, but fed with some, must have one row in each.
        """
        block = self._program.global_block()
        single = [
            ("", name)
            for name, value in feed.items()
            if isinstance(value, LoDTensor)
            and name in self.batched
            and not block.var(name).lod_level
        ]
        pairs = [pair for pair in self._alike if {"", *feed}.issuperset(pair)]
        return pairs + single if self._several else []

    def why_whole_for(self, names: Sequence[str]) -> str:
        """Say why trainers must compute whole batches where these are fetched; empty if not."""
        mixed = ((name, of) for name in names if _is_mixed(of := self._of(name)))
        reasons = (f"{name!r}, which is fetched, is {_described(of)}" for name, of in mixed)
        return self.why_whole or next(reasons, "")

    def of_rows(self, name: str) -> OfRows:
        """Return how trainers' values are joined once `why_whole_for` is obeyed, or FeedError."""
        of = self._of(name)
        # A trainer's gradients of whole batches are the job's where trainers sum them.
        here = self.why_whole and not self._averaged_away
        if _is_mixed(of) or (here and _from_gradient(of)):
            return SAME if of is _OF_ARRAY else OfRows(How.MIXED)  # each trainer has a whole one
        if _from_gradient(of):
            fetch = "train without servers, or fetch" if self.why_whole else "fetch"
            raise FeedError(
                f"cannot fetch {name!r} while trainers share the batches: it is {_described(of)}, "
                "neither computed row by row, nor a mean, sum, maximum or minimum of such values; "
                f"{fetch} what it is computed from"
            )
        return of

    def parts_of(self, names: Sequence[str]) -> list[str]:
        """Return the names of values of which a trainer has its part alone while a step runs."""
        ofs = {name: self._rows.of(name) for name in names if self._several}
        if self.why_whole:
            return [name for name, of in ofs.items() if _from_gradient(of)]
        return [name for name, of in ofs.items() if of.how is not How.SAME]

    def _of(self, name: str) -> OfRows:
        var = self._program.global_block().vars.get(name)
        of = SAME if var is None else self._rows.of(name)
        several = var is not None and var.type == ARRAY and of is not SAME
        return _OF_ARRAY if several and not _from_gradient(of) else of


_ELSE = "change it, or call DistributeTranspiler.transpile in the script and divide the data there"


def _knows_rows(op: Operator) -> bool:
    """Return whether an operator draws random values that belong to rows."""
    return any(slot.name == "Rows" for slot in lookup(op.type).inputs)


def _from_gradient(of: OfRows) -> bool:
    """Return whether a value is, or follows from, a gradient that counts this trainer's rows."""
    return of.how is How.GRADIENT or of.of_gradient


def _is_mixed(of: OfRows) -> bool:
    """Return whether only whole batches give a value."""
    return of.how in (How.PADDED, How.MIXED) and not of.of_gradient


def _described(of: OfRows) -> str:
    return f"{of.how.value} ({of.why})" if of.why else of.how.value
