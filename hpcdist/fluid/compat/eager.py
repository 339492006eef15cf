"""Operators that run at once: Fluid's imperative mode, without its classes of layers.

Inside ``guard()`` an operator runs when it is appended, one after the other, in this process::

    with fluid.dygraph.guard():
        x = fluid.dygraph.to_variable(numpy.ones([2, 3], "float32"))
        x.stop_gradient = False
        loss = fluid.layers.reduce_sum(fluid.layers.square(x))
        loss.backward()
        print(loss.numpy(), x.gradient())

What has run is kept as a Program, whose backward pass `EagerVariable.backward` runs. Layers that
make parameters are refused: their initial values would be made anew by every call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from hpcdist.base.errors import GraphAssertionError, GraphError
from hpcdist.executor.backend import Place
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.fluid.compat.op import SingleOperator
from hpcdist.graph import names
from hpcdist.graph.autodiff.backward import gradients
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.operator import Operator, as_names, read_before_written
from hpcdist.graph.program import Program, default_main_program, program_guard
from hpcdist.graph.variable import Parameter, Variable

__all__ = ["enabled", "guard", "no_grad", "to_variable"]

T = TypeVar("T")


class EagerVariable(Variable):
    """A variable that has its value as soon as the operator that makes it is appended."""

    def value(self) -> ScopeVariable:
        """Return the holder of the value: ``value().get_tensor()`` reads and sets it."""
        return _eager(self).scope.var(self.name)

    def numpy(self) -> np.ndarray:  # type: ignore[override]
        """Return a copy of the value; FeedError if no operator has made one yet."""
        return np.array(self.value().get_tensor())

    def set_value(self, value: Any) -> None:  # type: ignore[override]
        """Set the value, an array or another variable."""
        array = value.numpy() if isinstance(value, EagerVariable) else np.asarray(value)
        self.value().take(array)

    def detach(self) -> EagerVariable:  # type: ignore[override]
        """Return a variable of the same value that no gradient flows through."""
        return to_variable(self.numpy())

    def backward(self, backward_strategy: object = None) -> None:  # type: ignore[override]
        """Compute the gradients of this value, to be read by `gradient`, and forget the operators.

        Gradients of several calls are added up, until `clear_gradient`.
        """
        _eager(self).backward(self)

    def gradient(self) -> np.ndarray | None:  # type: ignore[override]
        """Return the gradient, None if none has reached this variable."""
        return _eager(self).gradients.get(self.name)

    def clear_gradient(self) -> None:  # type: ignore[override]
        """Forget the gradient."""
        _eager(self).gradients.pop(self.name, None)

    def __float__(self) -> float:
        return float(self.numpy().item())

    def __int__(self) -> int:
        return int(self.numpy().item())

    def __index__(self) -> int:
        return operator.index(self.numpy().item())

    def __len__(self) -> int:
        return len(self.numpy())


class _EagerBlock(Block):
    """A block whose operators run when they are appended."""

    program: _EagerProgram

    def create_var(self, name: str | None = None, **facts: Any) -> Variable:
        initializer = facts.pop("initializer", None)
        facts = {fact: value for fact, value in facts.items() if value is not None}
        variable = EagerVariable(self, name or names.generate("_generated_var"), **facts)
        self.add_var(variable)
        if initializer is not None:
            initializer(variable, self)
        return variable

    def create_parameter(self, name: str, **facts: Any) -> Parameter:
        raise GraphError(
            f"layers with parameters ({name!r}) do not run at once: build a Program with "
            "fluid.layers, outside fluid.dygraph.guard, and run it with fluid.Executor"
        )

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        for name in (n for slot in (inputs or {}).values() for n in as_names(slot)):
            held = self.program.scope.var(name).sequences
            self.var(name).lod_level = held.level if held else 0
        op = super().insert_op(index, type, inputs, outputs, attrs)
        self.program.run(op)
        return op


class _EagerProgram(Program):
    """What has run since the last backward pass, with all values."""

    def __init__(self, place: Place | None) -> None:
        super().__init__()
        self.blocks: list[Block] = [_EagerBlock(self, 0)]
        self.place = place
        self.scope = Scope()
        self.gradients: dict[str, np.ndarray] = {}
        self.recording = True

    def create_block(self, parent_idx: int | None = None) -> Block:
        raise GraphError("loops and branches of layers do not run at once: use Python's")

    def run(self, op: Operator) -> None:
        """Run an operator that has been appended, and keep it for the backward pass."""
        SingleOperator(op.type, op.inputs, op.outputs, op.attrs).run(self.scope, self.place)
        block = self.global_block()
        stopped = all(block.var(name).stop_gradient for name in op.input_arg_names)
        for name in op.output_arg_names:
            if name == names.EMPTY:
                continue
            variable, tensor = block.var(name), self.scope.var(name).as_tensor()
            variable.shape, variable.dtype = tuple(tensor.shape()), tensor._dtype()
            variable.lod_level = len(tensor.lod())
            variable.stop_gradient |= stopped and bool(op.input_arg_names)
        if stopped or not self.recording:
            block.ops.remove(op)

    def backward(self, loss: EagerVariable) -> None:
        """Run the backward pass of what was recorded, then forget it."""
        block = self.global_block()
        tape = Program()
        copy = tape.global_block()
        for name, variable in block.vars.items():
            facts = {f: getattr(variable, f) for f in ("shape", "dtype", "lod_level")}
            copy.create_var(name, stop_gradient=variable.stop_gradient, **facts)
        for op in block.ops:
            copy.add_op(op.copied_to(copy))
        forward = list(copy.ops)
        sources = [v for v in copy.vars.values() if not v.stop_gradient]
        found = gradients([copy.var(loss.name)], sources)
        pairs = {v.name: g.name for v, g in zip(sources, found) if g is not None}
        if copy.ops[: len(forward)] != forward:
            raise GraphError("backward: a value that a gradient needs was overwritten in place")
        copy.ops = copy.ops[len(forward) :]
        self._run_back(tape, pairs)
        block.ops.clear()

    def _run_back(self, tape: Program, pairs: Mapping[str, str]) -> None:
        read = read_before_written(tape.global_block().ops)
        feed = {name: self.scope.var(name).as_tensor() for name in read}
        fetches = list(dict.fromkeys(pairs.values()))
        values = Executor(self.place).run(tape, feed, fetches, scope=Scope())
        by_name = dict(zip(fetches, values))
        for name, gradient in pairs.items():
            before = self.gradients.get(name)
            value = np.array(by_name[gradient])
            self.gradients[name] = value if before is None else before + value


def _eager(variable: Variable) -> _EagerProgram:
    program = block_of(variable).program
    assert isinstance(program, _EagerProgram)
    return program


# -- in and out of the mode ----------------------------------------------------------------------
@contextmanager
def guard(place: Place | None = None) -> Iterator[None]:
    """Run operators at once, inside the ``with``, at ``place``; each rank by itself."""
    with program_guard(_EagerProgram(place), Program()):
        yield


def enabled() -> bool:
    """Return whether operators run at once here."""
    return isinstance(default_main_program(), _EagerProgram)


def to_variable(value: Any, name: str | None = None, zero_copy: bool | None = None) -> Any:
    """Return a variable with the value of an array; no gradient is kept for it unless asked for.

    Ask by ``variable.stop_gradient = False``. GraphError outside of `guard`.
    """
    program = default_main_program()
    if not isinstance(program, _EagerProgram):
        raise GraphAssertionError("to_variable: call it inside fluid.dygraph.guard()")
    if isinstance(value, EagerVariable):
        return value
    array = np.asarray(value)
    facts = {"shape": array.shape, "dtype": array.dtype, "stop_gradient": True}
    variable = program.global_block().create_var(name, **facts)
    program.scope.var(variable.name).take(array)
    return variable


@contextmanager
def _no_grad() -> Iterator[None]:
    program = default_main_program()
    if not isinstance(program, _EagerProgram):
        yield
        return
    before, program.recording = program.recording, False
    try:
        yield
    finally:
        program.recording = before


def no_grad(function: Callable[..., T] | None = None) -> Any:
    """Keep no gradients inside: a context manager, ``with no_grad():``, or a decorator."""
    return _no_grad() if function is None else _no_grad()(function)
