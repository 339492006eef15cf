"""Runs operators with shapes known only in the step one by one, between compiled operators.

Loops, branches and what is computed from them (`executor.dynamic` says which operators). If a
gradient is needed, their computation is recorded on a tape.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.executor.analysis import nested_ops
from hpcdist.executor.dynamic import GRADIENTS, outer_reads
from hpcdist.executor.scope import Scope
from hpcdist.executor.states import OperatorStates
from hpcdist.executor.tape import (
    SAME_VALUE,
    Tape,
    TapeRecorder,
    expect_free_place,
    kept_apart,
    seeds_of,
    stacked,
    summed,
    unstacked,
)
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import (
    Meta,
    arguments,
    declared_attrs,
    known_attrs,
    lookup,
)
from hpcdist.graph.shape_rules import infer_outputs, operand_meta
from hpcdist.graph.values import ARRAY, TensorArray, Value
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.tensor.tensor_array import zeros_like


class Interpreter:
    """The values of one compiled Program that are in no planned memory, and how to make them.

    ``arrays`` and ``metas`` are of the compiled operators: read here, and written if an interpreted
    operator gives what a compiled one reads.
    """

    def __init__(
        self,
        block: Block,
        arrays: Mapping[str, Any],
        metas: Mapping[str, Meta],
        states: OperatorStates,
        recorded: Mapping[int, Operator],
        persistent: Sequence[str] = (),
    ) -> None:
        """``recorded``: blocks whose gradients are computed, with the last operator that goes back
        through them; ``persistent``: see `keep`."""
        self._block = block
        self._arrays, self._metas = arrays, metas
        self._states, self._recorded, self._persistent = states, recorded, persistent
        self._recorder = TapeRecorder(self._execute)
        self.begin()

    def begin(self) -> None:
        """Forget the values of the last step."""
        self._values: dict[str, Any] = {}
        self._read: dict[str, tuple[Any, Value]] = {}  # of compiled operators, with its memory
        self._local: set[str] = set()  # names that a loop or branch writes: not in compiled memory
        self._tapes: dict[int, Tape] = {}
        self._tape: Tape | None = None
        # In arrays, of what gradients seek; how many of them have been found.
        self._places: dict[tuple[str, str, str], list[Any]] = {}
        self._found: Counter[tuple[str, str, str]] = Counter()

    def keep(self, scope: Scope) -> None:
        """Put what is to outlive the step, and has no planned place, into the scope."""
        for name in self._persistent:
            value = self._values.get(name)
            if isinstance(value, Value):
                scope.var_or_new(name).take(np.asarray(value.array))

    def bind(self, op: Operator) -> Callable[[], None]:
        """Return the call of every step."""
        return functools.partial(self.run, op)

    # -- values ------------------------------------------------------------------------------
    def get(self, name: str) -> Any:
        """Return a value by name; None if nothing has given it one."""
        if name in self._values:
            return self._values[name]
        array = self._arrays.get(name)
        if array is None:
            return None
        if isinstance(array, SelectedRows):
            raise GraphError(
                f"{name!r} is a sparse gradient (SelectedRows), not supported in loops"
            )
        meta = self._metas.get(name)
        lod = None if meta is None else meta.lod
        memory, value = self._read.get(name, (None, None))
        if self._tape is None or value is None or memory is not array or value.lod is not lod:
            value = Value(array, lod)
            self._read[name] = array, value
        return value

    def _put(self, op: Operator, name: str, value: Any) -> None:
        array = None if name in self._local else self._arrays.get(name)
        if array is None:
            self._values[name] = value
            return
        if value is None or isinstance(value, TensorArray):
            return
        if value.array is array:
            return
        if value.array.shape != array.shape or value.array.dtype != array.dtype:
            raise GraphError(
                f"{op.place} {op}: {name!r} is {value.array.dtype}{list(value.array.shape)} now, "
                f"but was declared as {array.dtype}{list(array.shape)}"
            )
        array[...] = value.array

    # -- operators ---------------------------------------------------------------------------
    def run(self, op: Operator) -> None:
        """Run one operator, with its blocks."""
        if op.type in GRADIENTS:
            self._run_gradient(op)
        elif "sub_block" in op.attrs:
            self._run_nested(op)
        else:
            self._run_operator(op)

    def _run_operator(self, op: Operator) -> None:
        ins = {slot: [self._input(op, n) for n in names] for slot, names in op.inputs.items()}
        into = {
            name: self._arrays[name]
            for name in op.output_arg_names
            if name in self._arrays and name not in self._local and self._tape is None
        }
        if lookup(op.type).values is not None:
            self._keep_from_reuse(op, ins)
        if self._tape is None and op.type.removesuffix("_grad") in SAME_VALUE[:2]:
            self._remember_place(op, ins)
            if op.type == "write_to_array":
                expect_free_place(op, self.get(op.output("Out")[0]), int(ins["I"][0].number))
        outs = self._apply(op, ins, into)
        for slot, names in op.outputs.items():
            for name, value in zip(names, outs.get(slot, ())):
                if name != EMPTY:
                    self._put(op, name, value)
        if self._tape is not None:
            entry = self._recorder.entry(op, ins, outs)
            if entry is not None:
                self._tape.entries.append(entry)

    def _keep_from_reuse(self, op: Operator, ins: Mapping[str, Sequence[Any]]) -> None:
        """Protect operands that a result may alias from the reuse of their memory."""
        for slot, names in op.inputs.items():
            for name, value in zip(names, ins[slot]):
                memory = self._arrays.get(name)
                if memory is not None and isinstance(value, Value) and value.array is memory:
                    value.array = memory.copy()

    def _remember_place(self, op: Operator, ins: dict[str, list[Any]]) -> None:
        """Remember the index for the gradient, since the number may change later."""
        type = op.type.removesuffix("_grad")
        out = (op.outputs.get("Out") or op.inputs["Out@GRAD"])[0].partition(GRAD_SUFFIX)[0]
        key = type, op.input("X")[0], out
        places = self._places.setdefault(key, [])
        if type == op.type:
            places.append(ins["I"][0])
        elif places:  # gradients come in the opposite order, in every pass back
            self._found[key] += 1
            ins["I"] = [places[-self._found[key] % len(places)]]

    def _input(self, op: Operator, name: str) -> Any:
        if name == EMPTY:
            return None
        value = self.get(name)
        if value is None and lookup(op.type).values is None:
            raise GraphError(
                f"{op.place} {op} reads {name!r}, which no operator has written in this step"
            )
        return value

    def _execute(self, op: Operator, values: dict[str, Any]) -> None:
        """Run an operator on values by name, and add its results to them."""
        ins = {slot: [values.get(n) for n in names] for slot, names in op.inputs.items()}
        outs = self._apply(op, ins, {})
        for slot, names in op.outputs.items():
            for name, value in zip(names, outs.get(slot, ())):
                if name != EMPTY:
                    values[name] = value

    def _apply(
        self, op: Operator, ins: dict[str, list[Any]], into: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        """Compute the results of an operator by slot; ``into`` has memory for some, by name."""
        definition = lookup(op.type)
        if any(isinstance(v, TensorArray) for operands in ins.values() for v in operands):
            if op.type == "sum":
                return {"Out": [summed(ins["X"])]}
            if op.type in ("assign", "fill_zeros_like"):
                result = TensorArray(
                    v and (zeros_like(v) if op.type != "assign" else v) for v in ins["X"][0]
                )
                return {"Out": [result]}
        if definition.values is not None:
            attrs = declared_attrs(definition, op.attrs)
            if definition.state is not None:
                attrs["state"] = self._states.of(op, definition.state)
            if op.type == "write_to_array":
                attrs["before"] = self.get(op.output("Out")[0])
            if op.type == "array_to_lod_tensor":
                attrs["like"] = block_of(op)._var_recursive(op.output("Out")[0]).meta
            values = definition.values(*arguments(definition.inputs, ins), **attrs)
            per_slot = values if type(values) is tuple else (values,)
            return {
                slot.name: list(value) if slot.many else [value]
                for slot, value in zip(definition.outputs, per_slot)
            }
        metas = {
            slot: [operand_meta(definition, slot, v) for v in operands]
            for slot, operands in ins.items()
        }
        try:
            inferred = infer_outputs(op.type, {s: m for s, m in metas.items() if m}, op.attrs)
        except GraphError as error:
            raise GraphError(f"{op.place} {op}: {error}") from None
        outs: dict[str, list[Any]] = {}
        copies = []
        for slot, names in op.outputs.items():
            outs[slot] = []
            for name, meta in zip(names, inferred.get(slot, ())):
                if name == EMPTY:
                    outs[slot].append(None)
                    continue
                if -1 in meta.shape:
                    raise GraphError(f"{op.place} {op}: the shape {meta.shape} of {name!r} is open")
                array = into.get(name)
                if array is None or array.shape != meta.shape:
                    array = np.empty(meta.shape, meta.dtype)
                elif name in op.input_arg_names and not definition.may_overwrite(slot):
                    copies.append((array, np.empty(meta.shape, meta.dtype)))
                    array = copies[-1][1]
                outs[slot].append(Value(array, meta.lod))
        arrays, results = (
            {s: [None if v is None else v.array for v in values] for s, values in slots.items()}
            for slots in (ins, outs)
        )
        attrs = known_attrs(definition, op.attrs, metas)
        call = self._call(op, definition, attrs, metas, arrays, results)
        call()
        for target, source in copies:
            target[...] = source
        return outs

    def _call(
        self, op: Operator, definition: Any, attrs: Any, metas: Any, arrays: Any, results: Any
    ) -> Any:
        if definition.state is not None:
            attrs["state"] = self._states.of(op, definition.state)
        if definition.lods or definition.measures:
            lods = {s: [m.lod for m in metas.get(s, ())] for s in definition.lods}
            lods |= {s: [m.lengths for m in metas.get(s, ())] for s in definition.measures}
            attrs["lods"] = arguments([s for s in definition.inputs if s.name in lods], lods)
        outs = arguments(definition.outputs, results)
        operands = (*arguments(definition.operands, arrays), *outs)
        if definition.bind is not None:
            return definition.bind(np, *operands, **attrs)
        if definition.kernel is None:
            raise GraphError(f"{op.place} {op}: cannot run within a loop or branch")
        return functools.partial(definition.kernel, np, *operands, **attrs)

    # -- loops and branches ------------------------------------------------------------------
    def _run_nested(self, op: Operator) -> None:
        outermost = op.block is self._block
        inside = op.block.program.block(op.attrs["sub_block"])
        if not outermost:
            self._run_inside(op, inside)
            return
        inner = [n for i in nested_ops(op)[1:] for n in i.output_arg_names]
        persistent = {n for n in inner if self._block.is_persistable(n)}
        self._local = set(inner) - persistent
        records = op.attrs["sub_block"] in self._recorded
        for name in self._local & self._arrays.keys():
            value = self.get(name)
            self._values[name] = Value(value.array.copy(), value.lod)
        names = list(dict.fromkeys([*op.input_arg_names, *outer_reads(op)]))
        if records:
            self._tape = Tape()
            found = {name: self.get(name) for name in names}
            self._tape.before = kept_apart(found, found.keys() - self._values.keys())
            self._values.update((n, v) for n, v in self._tape.before.items() if n in self._values)
        self._run_inside(op, inside)
        if self._tape is not None:
            outs = [n for n in op.output_arg_names if n != EMPTY]
            self._tape.after = {name: self.get(name) for name in outs}
            self._tapes[op.attrs["sub_block"]] = self._tape
            self._tape = None
        local, self._local = self._local, set()
        for name in local & self._arrays.keys():
            self._put(op, name, self._values.pop(name))

    def _run_inside(self, op: Operator, inside: Block) -> None:
        if op.type == "while":
            condition = op.input("Condition")[0]
            arrays = [name for name, var in inside.vars.items() if var.type == ARRAY]
            while self.get(condition).number:
                for name in arrays:  # each turn has its own: an array within a loop begins empty
                    self._values.pop(name, None)
                self._run_block(inside)
        elif op.type == "recurrent":
            self._run_recurrent(op, inside)
        elif self._holds(op):
            self._run_block(inside)

    def _run_block(self, inside: Block) -> None:
        for op in inside.ops:
            self.run(op)

    def _holds(self, op: Operator) -> bool:
        conditions = [self.get(name) for name in op.input("Cond")]
        if op.attrs["is_scalar_condition"]:
            return bool(conditions[0].number)
        return all(value.array.size for value in conditions)

    def _run_recurrent(self, op: Operator, inside: Block) -> None:
        """Inside, a step of an input has the name that the whole has outside."""
        inputs, outputs = list(dict.fromkeys(op.input("inputs"))), op.output("outputs")
        parts = {}
        for name in inputs:
            parts[name], entry = unstacked(self.get(name))
            self._record(entry)
        steps = len(next(iter(parts.values())))
        states = dict(zip(op.attrs["ex_states"], map(self.get, op.input("initial_states"))))
        order = range(steps - 1, -1, -1) if op.attrs["reverse"] else range(steps)
        stacks: dict[str, list[Any]] = {name: [None] * steps for name in outputs}
        hidden = {name: self._values[name] for name in inputs if name in self._values}
        self._local |= {*inputs, *states}
        for t in order:
            self._values.update({name: parts[name][t] for name in inputs})
            self._values.update(states)
            self._run_block(inside)
            states = {
                last: self.get(now) for last, now in zip(op.attrs["ex_states"], op.attrs["states"])
            }
            for name in outputs:
                stacks[name][t] = self.get(name)
        for name in inputs:
            self._values.pop(name)
        self._values.update(hidden)
        self._local -= set(inputs)
        for name, values in stacks.items():
            self._values[name], entry = stacked(values)
            self._record(entry)

    def _record(self, entry: Any) -> None:
        if self._tape is not None:
            self._tape.entries.append(entry)

    # -- gradients ---------------------------------------------------------------------------
    def _run_gradient(self, op: Operator) -> None:
        block = op.attrs["sub_block"]
        tape = self._tapes.get(block)
        assert tape is not None, f"{op.type}: nothing was recorded"
        if self._recorded[block] is op:
            del self._tapes[block]
        forward = GRADIENTS[op.type]
        outputs = {"while": "Out", "recurrent": "outputs", "conditional_block": "Out"}[forward]
        pairs: list[tuple[str, str]] = []  # a gradient's name, and of what
        for slot, names in op.outputs.items():
            names_of_values = op.input(slot.removesuffix("@GRAD"))
            pairs += [(g, n) for g, n in zip(names, names_of_values) if g != EMPTY]
        seeds = []
        gradients = dict(zip(op.input(outputs), map(self.get, op.input(f"{outputs}@GRAD"))))
        for name, gradient in gradients.items():
            seeds += seeds_of(tape.after.get(name), gradient)
        flat = []
        for _, name in pairs:
            value = tape.before.get(name)
            flat += list(value) if isinstance(value, TensorArray) else [value]
        gradient_of = tape.gradients(seeds, [v for v in flat if v is not None])
        firsts = {name: gradient for gradient, name in reversed(pairs)}
        for gradient, name in pairs:
            found: Any = tape.before.get(name)
            # What is read in two slots has one gradient, that of the first.
            of = gradient_of if firsts[name] == gradient else lambda _: None
            if isinstance(found, TensorArray):
                found = TensorArray(v and of(v) for v in found)
            else:
                found = found and (of(found) or zeros_like(found))
            self._put(op, gradient, found)
