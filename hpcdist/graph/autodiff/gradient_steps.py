"""The operators of a backward pass, before they are appended: renamed, summed, and masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdist.base.warned import warn
from hpcdist.graph.autodiff.overwritten import Overwritten
from hpcdist.graph.block import Block
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX, grad_name
from hpcdist.graph.operator import Operator, Slots, rename_in
from hpcdist.graph.registry import lookup

# In place of GRAD_SUFFIX in the names of forward values that are gradients of an earlier backward:
# the gradient that this one makes of x is not the x@GRAD that its operators read.
MASK = "@EARLIER_GRAD"


@dataclass
class Step:
    """A backward operator before it is appended; renaming repeated gradients edits its slots."""

    type: str
    inputs: Slots
    outputs: Slots
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def reads(self) -> list[str]:
        """Return the names of the variables in all input slots, repeats included."""
        return [name for names in self.inputs.values() for name in names]

    def writes(self) -> list[str]:
        """Return the names of the variables in all output slots, repeats included."""
        return [name for names in self.outputs.values() for name in names]

    def unmask(self) -> None:
        """Give masked names of earlier gradients their real ones again, see `MASK`."""
        for slots in (self.inputs, self.outputs):
            for slot, names in slots.items():
                slots[slot] = list(map(unmask_name, names))

    def rename(self, old: str, new: str) -> None:
        """Put the variable ``new`` in place of ``old`` in all slots."""
        for slots in (self.inputs, self.outputs):
            rename_in(slots, old, new)


def flowing_names(path: Sequence[Operator], targets: set[str], reached: set[str]) -> set[str]:
    """Names that really get a gradient: on a way from the targets back."""
    flowing = set(targets)
    for op in reversed(path):
        if flowing.intersection(op.output_arg_names):
            flowing.update(name for name in op.input_arg_names if name in reached)
    return flowing


def mask_name(name: str) -> str:
    """Return a forward name that may hold @GRAD so that no gradient is taken for it."""
    return name.replace(GRAD_SUFFIX, MASK)


def unmask_name(name: str) -> str:
    """Return the name that `mask_name` was given."""
    return name.replace(MASK, GRAD_SUFFIX)


def masked_operator(op: Operator) -> Operator:
    """Return a copy of a forward operator, not in the block, whose names are masked."""
    copy = op.copied_to(op.block)
    for slots in (copy.inputs, copy.outputs):
        slots.update({slot: list(map(mask_name, names)) for slot, names in slots.items()})
    return copy


def gradient_steps(
    path: Sequence[Operator],
    targets: set[str],
    flowing: set[str],
    reached: set[str],
    overwritten: Overwritten,
) -> list[Step]:
    """Return the steps back along a path."""
    names = (set(map(mask_name, names)) for names in (targets, flowing, reached))
    targets, flowing, reached = names
    steps: list[Step] = []
    written = {grad_name(name) for name in targets}
    for original in reversed(path):
        op = masked_operator(original)
        if not reached.intersection(op.input_arg_names):
            continue
        # An operator may have no gradient by some of what it reads: what made that gets none.
        outputs = {n for n in flowing.intersection(op.output_arg_names) if grad_name(n) in written}
        if not outputs:
            continue
        before = len(steps)
        of_gradient = {grad_name(name): name for name in original.input_arg_names}
        for grad in lookup(op.type).grad(op, reached.__contains__):  # type: ignore[misc]
            step = Step(
                grad.type, {s: list(n) for s, n in grad.inputs.items()}, _present(grad), grad.attrs
            )
            if not any(name != EMPTY for name in step.writes()):
                continue
            if len(steps) == before:
                overwritten.check(original, reached)
            step.inputs = overwritten.before(original, step.type, step.inputs)
            gradients = {grad_name(name) for name in op.output_arg_names}
            absent = gradients - {grad_name(n) for n in outputs}
            if "sub_block" in step.attrs:
                _leave_out(step, absent)
                absent = set()
            may_lack = [slot.name for slot in lookup(step.type).inputs if slot.optional]
            for slot in may_lack:
                if absent.issuperset(step.inputs.get(slot, ())):
                    step.inputs.pop(slot, None)
            for missing in sorted(absent):
                if missing in step.reads():  # an output that the targets do not depend on
                    forward = missing.removesuffix(GRAD_SUFFIX)
                    zeros = {"X": [forward]}, {"Out": [missing]}
                    steps.append(Step("fill_zeros_like", *zeros))
            steps.append(step)
            written.update(writes := step.writes())
            overwritten.note(original, [of_gradient[n] for n in writes if n in of_gradient])
        if len(steps) > before:
            _tell_of_lost(original, outputs, steps[before:])
    return steps


def _tell_of_lost(op: Operator, outputs: set[str], steps: Sequence[Step]) -> None:
    """Warn of results with gradients that an operator's gradient, as Fluid's, does not take."""
    read = {name for step in steps for name in step.reads()}
    constants = {unmask_name(name) for name in outputs if grad_name(name) not in read}
    for slot, names in op.outputs.items():
        lost = sorted(constants.intersection(names))
        if lost:
            warn(
                f"no gradient flows back through {slot} of {op.type} ({', '.join(lost)}), on which "
                "the loss depends: as in Fluid, it counts as a constant"
            )


def _leave_out(step: Step, absent: set[str]) -> None:
    """Take gradients that are not there, and what they are of, from a loop's or branch's."""
    for slot in [s for s in step.inputs if s.endswith(GRAD_SUFFIX)]:
        gradients, forward = step.inputs[slot], step.inputs[slot.removesuffix(GRAD_SUFFIX)]
        pairs = [(g, f) for g, f in zip(gradients, forward) if g not in absent]
        step.inputs[slot] = [g for g, _ in pairs]
        step.inputs[slot.removesuffix(GRAD_SUFFIX)] = [f for _, f in pairs]


def _present(grad: Any) -> Slots:
    """Output slots of a gradient operator: EMPTY holds a place in list slots only."""
    many = {slot.name: slot.many for slot in lookup(grad.type).outputs}
    outputs = {}
    for slot, names in grad.outputs.items():
        present = list(names) if many.get(slot) else [n for n in names if n != EMPTY]
        if any(name != EMPTY for name in present):
            outputs[slot] = present
    return outputs


def sum_repeated(steps: list[Step], block_idx: int) -> list[Step]:
    """Make every producer of a repeated gradient write a separate variable; sum them before use."""
    producers: dict[str, list[str]] = {}  # gradient -> what its producers write
    count: dict[str, int] = {}
    first: dict[str, int] = {}
    summed: list[Step] = []

    def fresh(name: str) -> str:
        count[name] = count.get(name, -1) + 1
        return f"{name}@RENAME@block{block_idx}@{count[name]}"

    def sum_up(name: str) -> None:
        summed.append(Step("sum", {"X": producers[name]}, {"Out": [name]}))
        producers[name] = [name]
        first[name] = len(summed) - 1

    for step in steps:
        for name in dict.fromkeys(step.reads()):
            if len(producers.get(name, ())) > 1:
                sum_up(name)
        reads = step.reads()
        for slot, names in step.outputs.items():
            for i, name in enumerate(names):
                if name == EMPTY or GRAD_SUFFIX not in name or name in reads:
                    continue
                if name not in producers:
                    producers[name], first[name] = [name], len(summed)
                    continue
                if len(producers[name]) == 1:
                    renamed = fresh(name)
                    producers[name] = [renamed]
                    for earlier in summed[first[name] :]:
                        earlier.rename(name, renamed)
                    for earlier_slot, outputs_of_slot in step.outputs.items():
                        if earlier_slot == slot:
                            names[:i] = [renamed if n == name else n for n in names[:i]]
                            break
                        step.outputs[earlier_slot] = [
                            renamed if n == name else n for n in outputs_of_slot
                        ]
                names[i] = fresh(name)
                producers[name].append(names[i])
        summed.append(step)
    for name in list(producers):
        if len(producers[name]) > 1:
            sum_up(name)
    return summed


def rename_existing(block: Block, starts: Sequence[Step], steps: Sequence[Step]) -> dict[str, str]:
    """Give new names to gradients of a second backward: the first one's keep theirs.

    ``starts`` write the targets' gradients; what they read may be a variable of such a name.
    """
    renamed: dict[str, str] = {}
    order = 2
    while any(name.startswith("grad/" * order) for name in block.vars):
        order += 1
    for step in (*starts, *steps):
        for name in step.writes():
            if GRAD_SUFFIX in name and block.find_var(unmask_name(name)) is not None:
                renamed[name] = "grad/" * order + name
    for start in starts:
        start.outputs = {s: [renamed.get(n, n) for n in of] for s, of in start.outputs.items()}
    for step in steps:
        for old, new in renamed.items():
            step.rename(old, new)
    return renamed
