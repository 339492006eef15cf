"""A run of operators as one torch function, and the operator that replaces it.

A run is traced once, from the forms of its operators (`ops.torch_forms`), and becomes a graph of
ATen operators without unused ones. With HPCDIST_KERNELS=compiled, inductor compiles it. It reads
and writes the same memory as all other operators.

Values that a Program rounds to 16 bits (`ROUNDINGS`) keep that type between operators that support
it: matrix products and convolutions then compute in it and accumulate in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from hpcdist.base.device import tell_later
from hpcdist.base.errors import FeedError
from hpcdist.executor.segments import MOVES, TYPE, Segment, inputs_of
from hpcdist.graph.names import EMPTY
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import arguments, attrs_of, define, lookup
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.by_torch import tensor_on, torch_for
from hpcdist.ops.optimize.mixed_precision import ROUNDINGS
from hpcdist.ops.torch_forms import Checked, forms
from hpcdist.ops.types import ArrayModule

_CONVOLUTIONS = {"conv2d", "depthwise_conv2d", "conv2d_grad", "depthwise_conv2d_grad"}
_FORWARD_IN_HALF = (
    *("batch_norm", "conv2d", "depthwise_conv2d", "elementwise_add", "flatten2", "matmul", "mul"),
    *("pool2d", "relu", "reshape2", "slice", "stack", "transpose2", "unstack"),
)
_COMPUTING = {*_FORWARD_IN_HALF} - {*MOVES, "relu", "stack", "unstack"}
_STATISTICS = ("Scale", "Bias", "Mean", "Variance", "SavedMean", "SavedVariance")  # of batch_norm
# Products, which sum in single precision, and what rounds its result once or moves values only.
_IN_HALF = {name for forward in _FORWARD_IN_HALF for name in (forward, f"{forward}_grad")}
_LOWEST = -(2**63)
_tracing = threading.Lock()  # torch.fx patches its modules while it traces: one thread at a time


class CannotCompileError(Exception):
    """Inductor makes no kernels of a segment."""


class TracedSegment:
    """A segment bound to arrays: what computes it, and what tells the host of wrong integers."""

    def __init__(
        self, xp: ArrayModule, segment: Segment, xs: Sequence[Any], outs: Sequence[Any]
    ) -> None:
        self._torch = torch = torch_for(TYPE)
        self.on_host = xp is np
        inputs = [tensor_on(torch, array) for array in xs]
        places = {name: i for i, name in enumerate(segment.reads)}
        targets = [  # what is overwritten is one tensor on both sides
            inputs[places[name]] if name in places else tensor_on(torch, array)
            for name, array in zip(segment.writes, outs)
        ]
        device = (inputs or targets)[0].device
        graph, self._checked = _traced(torch, segment, inputs, device)
        self._worst = torch.full((len(self._checked),), _LOWEST, dtype=torch.int64, device=device)
        apart = [t for t in targets if not any(t is tensor for tensor in inputs)]
        self._arguments = (*inputs, *apart, self._worst)
        _write(torch, graph, [places.get(name) for name in segment.writes])
        if segment.compiled:
            graph = torch.compile(graph, fullgraph=True, dynamic=False)
        self.graph = graph  # what computes it: a module of torch.fx, or what inductor made of it

    def __call__(self) -> None:
        self.launch()
        self.tell()

    def launch(self) -> None:
        """Compute. On a GPU this does not wait, and once it has run a CUDA graph can take it."""
        with self._torch.no_grad():
            self.graph(*self._arguments)

    def try_out(self) -> None:
        """Compile the kernels and run them on copies; CannotCompileError if that fails."""
        zeros = self._torch.zeros_like  # integers that nobody has written yet may be no places
        copies = [t.clone() if t.is_floating_point() else zeros(t) for t in self._arguments]
        try:
            with self._torch.no_grad():
                self.graph(*copies)
        except Exception as error:  # whatever inductor, a C++ compiler or Triton raise
            first = f"{error}".strip().partition("\n")[0]
            raise CannotCompileError(f"{type(error).__name__}: {first}") from error

    def tell(self) -> None:
        """Report integers that were out of range: on a GPU before a value is fetched."""
        if self._checked:
            self.look() if self.on_host else tell_later(self)

    def settle(self) -> None:
        """Nothing here depends on other ranks."""

    def look(self) -> None:
        """Raise FeedError if an integer was out of range, and forget it."""
        worst_ids = [worst ^ _LOWEST for worst in self._worst.tolist()]
        self._worst.fill_(_LOWEST)
        for (type, count, of), worst in zip(self._checked, worst_ids):
            if not 0 <= worst < count:
                late = "; it may be of an earlier step, and parameters were updated with it"
                raise FeedError(
                    f"{type}: id {worst} is outside 0..{count - 1}, the {count} {of}"
                    f"{'' if self.on_host else late}"
                )


def _traced(
    torch: Any, segment: Segment, inputs: Sequence[Any], device: Any
) -> tuple[Any, list[tuple[str, int, str]]]:
    """Return the graph of a segment, and what its integers must be: operator, count, of what.

    The graph gives what the segment writes, and for each check the worst integer, with the sign
    turned: so negative ones are the greatest. None of what it gives is the memory of an input.
    """
    checks: list[tuple[str, int, str]] = []
    rounded = {n for op in segment.ops if op.type in ROUNDINGS for n in op.input("X")}

    def run(*tensors: Any) -> list[Any]:
        values = dict(zip(segment.reads, tensors))
        values |= {n: values[n].to(getattr(torch, half)) for n, half in segment.half.items()}
        memories = {_memory(tensor) for tensor in tensors}
        worst = []
        checks.clear()
        for op in segment.ops:
            for checked in _compute(torch, segment, op, values, rounded):
                checks.append((op.type, checked.count, checked.of))
                worst.append(checked.worst(torch) ^ _LOWEST)
        results = [values[name] for name in segment.writes]
        return [*(v.clone() if _memory(v) in memories else v for v in results), *worst]

    from torch.fx.experimental.proxy_tensor import make_fx

    with _tracing, torch.no_grad(), torch.device(device):
        graph = make_fx(run, tracing_mode="fake")(*inputs)
    graph.graph.eliminate_dead_code()
    return graph, checks


def _may_round(op: Operator, rounded: Collection[str]) -> bool:
    """Return whether an operator's results may be rounded: the Program does so, or none is made."""
    out = lookup(op.type).outputs[0].name
    return op.type not in _COMPUTING or all(name in rounded for name in op.output(out))


def _memory(tensor: Any) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory


def _write(torch: Any, module: Any, inputs_written: Sequence[int | None]) -> None:
    """Write a graph's results into its inputs or extra arguments, then run the checks."""
    graph, aten = module.graph, torch.ops.aten
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = list(output.args[0])
    last = placeholders[-1]

    def argument(name: str) -> Any:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.placeholder(name)
        return last

    targets = [
        argument(f"target_{i}") if place is None else placeholders[place]
        for i, place in enumerate(inputs_written)
    ]
    worst = argument("worst")
    with graph.inserting_before(output):
        for target, result in zip(targets, results):
            graph.call_function(aten.copy_.default, (target, result))
        values = results[len(targets) :]
        if values:
            stacked = graph.call_function(aten.stack.default, (values,))
            greatest = graph.call_function(aten.maximum.default, (worst, stacked))
            graph.call_function(aten.copy_.default, (worst, greatest))
    output.args = ((),)
    module.recompile()


def _compute(
    torch: Any, segment: Segment, op: Operator, values: dict[str, Any], rounded: Collection[str]
) -> list[Checked]:
    """Put an operator's results among the values; return what is to be checked of its inputs."""
    if op.type in ROUNDINGS:
        half = getattr(torch, ROUNDINGS[op.type])
        values[op.output("Out")[0]] = values[op.input("X")[0]].to(half)
        return []
    form, definition = forms()[op.type], lookup(op.type)
    read = {n: values[n] for n in op.input_arg_names if n != EMPTY}
    single = {n for n, value in read.items() if value.dtype == torch.float32}
    halves = {n: v.dtype for n, v in read.items() if v.dtype in (torch.float16, torch.bfloat16)}
    if op.type == "batch_norm" or op.type == "batch_norm_grad":
        single -= {n for slot in _STATISTICS for n in op.input(slot)}
    one_type = len({*halves.values()}) <= 1
    if op.type not in _IN_HALF or single or not one_type or not _may_round(op, rounded):
        read |= {n: read[n].to(torch.float32) for n in halves}
    elif op.type in _CONVOLUTIONS:  # the order of elements that tensor cores take
        last = torch.channels_last
        read |= {n: read[n].contiguous(memory_format=last) for n in halves if read[n].dim() == 4}
    attrs = attrs_of(op.type, op.attrs, op.inputs, segment.metas)
    inputs = inputs_of(op, read)
    operands = {
        slot: [None if n == EMPTY else segment.metas.get(n) for n in names]
        for slot, names in op.outputs.items()
    }
    outs = arguments(definition.outputs, operands)
    needed = [any(out) if isinstance(out, list) else out is not None for out in outs]
    for slot, results in zip(definition.outputs, form(torch, inputs, attrs, outs, needed)):
        several = results if slot.many else [results]
        for name, value in zip(op.output(slot.name), several):
            if name != EMPTY and value is not None:
                values[name] = value
    return form.checked(inputs, attrs)


define(
    TYPE,
    "X* -> XOut*",
    attrs={"segment": None},
    bind=lambda xp, xs, outs, segment: TracedSegment(xp, segment, xs, outs),
    rows=not_on_rows,
)
