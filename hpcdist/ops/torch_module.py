"""A module of PyTorch's as an operator: its parameters are inputs, gradients torch's autograd's.

The forward pass keeps torch's graph until the backward pass takes it, so that a module that draws
random numbers draws them once. A graph belongs to the memory of its first result: loops, devices
and micro-batches call a module several times before gradients come. Values are read and gradients
written where the Program has them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.comm.run_name import run_name
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, MixesRows, OfRows, by_row
from hpcdist.ops.by_torch import inferred, tensor_on, torch_for
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.types import ArrayModule, Attrs, Call

TYPE = "torch_module"


@dataclass
class RegisteredModule:
    """A module that operators of this process's Programs call: ``call(parameters, inputs)``.

    ``names`` are its parameters', in the order of the slot. ``shapes`` is what `call` is on tensors
    without memory. ``train`` sets its mode. ``graphs`` by the address of the first result.
    """

    module: Any
    printed: str
    names: tuple[str, ...]
    call: Callable[[dict[str, Any], Sequence[Any]], Any]
    shapes: Callable[[dict[str, Any], Sequence[Any]], Any]
    train: Callable[[bool], Any]
    graphs: dict[int, tuple[list[Any], list[Any], list[Any]]] = field(default_factory=dict)

    def graph(self, address: int, keep: bool) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the graph of a result: inputs, parameters, results; ``keep`` it, or drop it."""
        if address not in self.graphs and len(self.graphs) == 1:
            (address,) = self.graphs  # the gradient reads a copy: the result is overwritten
        if address not in self.graphs:
            raise GraphError(
                "torch_module: a result is overwritten before its gradient, of several calls: "
                "write into another variable"
            )
        return self.graphs[address] if keep else self.graphs.pop(address)


_modules: list[RegisteredModule] = []


def registered(module: RegisteredModule) -> int:
    """Return the number by which operators of this run know a module, the same on all its ranks.

    It is of no other run, whose Programs, read from a file, would call some other module.
    """
    _modules.append(module)
    return _first_number() + len(_modules) - 1


def _first_number() -> int:
    return int(run_name(), 16) >> 20 << 19  # positive, with room for as many modules


def of_operator(number: int, printed: str) -> RegisteredModule:
    """Return an operator's module by its attributes; GraphError if another process has it."""
    place = number - _first_number()
    if not 0 <= place < len(_modules) or _modules[place].printed != printed:
        raise GraphError(
            "torch_module: its module is of the process that built the Program; build it here again"
        )
    return _modules[place]


def results(returned) -> list[Any]:
    """Return a module's results as a list; GraphError for other values than tensors."""
    tensors = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    other = [type(value).__name__ for value in tensors if not hasattr(value, "dim")]
    if other:
        raise GraphError(
            "torch_module: expected that the module returns a tensor, or a tuple or list of them, "
            f"got a {other[0]}: put it into a torch.nn.Module that returns only tensors"
        )
    return tensors


def _infer(
    x: Sequence[Meta], params: Sequence[Meta], number: int, module: str, **_
) -> tuple[list[Meta]]:
    called = of_operator(number, module)
    torch = torch_for(TYPE)

    def function(_, *inputs) -> tuple[Any, ...]:
        on_meta = {
            name: torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device="meta")
            for name, meta in zip(called.names, params, strict=True)
        }
        return tuple(results(called.shapes(on_meta, inputs)))

    found = inferred(TYPE, function, x, {})
    return ([m for m in found if isinstance(m, Meta)] if isinstance(found, tuple) else [found],)


def _bind(
    xp: ArrayModule,
    x: Sequence[Any],
    params: Sequence[Any],
    out: Sequence[Any],
    number: int,
    module: str,
    own_inputs: bool,
    **attrs,
) -> Call:
    torch, called = torch_for(TYPE), of_operator(number, module)
    inputs = [tensor_on(torch, array) for array in x]
    weights = [tensor_on(torch, array) for array in params]
    targets = [tensor_on(torch, array) for array in out]
    training = not attrs["is_test"]
    address = _address(targets)
    first = next(array for array in out if array is not None)
    if training and first.base is None:  # in a loop: a graph that no gradient takes goes with it
        weakref.finalize(first, called.graphs.pop, address, None)

    def run() -> None:
        called.train(training)
        with torch.set_grad_enabled(training):
            read = [tensor.clone() for tensor in inputs] if own_inputs else inputs
            leaves = [_leaf(tensor, training) for tensor in read]
            moved = [_leaf(tensor, training) for tensor in weights]
            returned = results(called.call(dict(zip(called.names, moved, strict=True)), leaves))
        with torch.no_grad():
            for target, value in zip(targets, returned, strict=True):
                if target is not None:
                    target.copy_(value.reshape(target.shape))
        if training:
            called.graphs[address] = leaves, moved, returned

    return run


def _address(tensors: Sequence[Any]) -> int:
    return next(tensor.data_ptr() for tensor in tensors if tensor is not None)


def _leaf(tensor, training: bool) -> Any:
    return tensor.detach().requires_grad_(training and tensor.is_floating_point())


def _grad_bind(
    xp: ArrayModule,
    x: Sequence[Any],
    params: Sequence[Any],
    outs: Sequence[Any],
    douts: Sequence[Any],
    dx: Sequence[Any],
    dparams: Sequence[Any],
    number: int,
    module: str,
    keeps_graph: bool,
    **_,
) -> Call:
    torch, called = torch_for(TYPE), of_operator(number, module)
    address = _address([tensor_on(torch, array) for array in outs])
    dout_tensors = [tensor_on(torch, array) for array in douts]
    # A slot of which nothing is wanted is empty.
    unwanted = [None] * len(x), [None] * len(params)
    targets = [
        tensor_on(torch, array) for array in (*(dx or unwanted[0]), *(dparams or unwanted[1]))
    ]

    def run() -> None:
        if torch.is_inference_mode_enabled():
            raise GraphError(
                "torch_module: torch.inference_mode() keeps no gradients: train outside of it"
            )
        leaves, moved, returned = called.graph(address, keeps_graph)
        targets_of = [
            (source, target)
            for source, target in zip((*leaves, *moved), targets, strict=True)
            if target is not None
        ]
        flowing = [
            (value, dout.reshape(value.shape))
            for value, dout in zip(returned, dout_tensors, strict=True)
            if dout is not None and value.requires_grad
        ]
        gradients = torch.autograd.grad(
            [value for value, _ in flowing],
            [source for source, _ in targets_of],
            [dout for _, dout in flowing],
            retain_graph=keeps_graph,
            allow_unused=True,
        )
        for (_, target), gradient in zip(targets_of, gradients, strict=True):
            target.zero_() if gradient is None else target.copy_(gradient.to_dense())

    return run


def _rows(op: Applied) -> OfRows:
    if not op.attrs["by_row"]:
        raise MixesRows(
            "torch_module: its results may depend on several rows of the batch; by_row=True says "
            "that they do not"
        )
    return of_rows(op)


of_rows: Any = by_row("X")
_ATTRS: Attrs = {
    "number": -1,
    "module": "",
    "by_row": False,
    "own_inputs": False,  # whether the Program overwrites them before the gradient
    "keeps_graph": False,  # of a gradient: whether another comes after it
    "is_test": False,
}

define_with_grad(
    TYPE,
    "X*, Param* -> Out*",
    "X*, Param*, Out*, Out@GRAD* -> X@GRAD*, Param@GRAD*",
    rows=_rows,
    attrs=_ATTRS,
    infer=_infer,
    bind=_bind,
    grad_infer=lambda x, params, *_, **__: (
        [Meta(m.shape, m.dtype, lod=m.lod) for m in x],
        [Meta(m.shape, m.dtype) for m in params],
    ),
    grad_bind=_grad_bind,
    by_number=True,
    grad_by_number=True,
)
