"""A module of PyTorch's, or a function of tensors, as a layer of a Program."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.initializer import NumpyArrayInitializer
from hpcdist.layers.helper import LayerHelper
from hpcdist.layers.param_attr import ParamAttr
from hpcdist.ops.by_torch import torch_for
from hpcdist.ops.torch_module import TYPE, Held, registered

__all__ = ["torch_module"]

ROWS = 4  # of the batch on which it is tried whether results mix rows


def torch_module(
    module: Callable[..., Any],
    inputs: Variable | Sequence[Variable],
    name: str | None = None,
    by_row: bool | None = None,
) -> Any:
    """Return what a `torch.nn.Module`, or a function of tensors, makes of ``inputs``.

    Its parameters become Parameters ``<name>.<theirs>`` of the Program, with the values that they
    have now: every rank builds the module alike, say after ``torch.manual_seed``. They are trained,
    sliced, served and saved like others; the module itself keeps its own, unchanged. ``by_row``:
    whether row i of every result follows from row i of the inputs alone, so that trainers may
    divide a batch; None: it is tried on a few rows. Returns a Variable, or a list if it makes
    several. GraphError for a module that has state beside parameters, such as running means.
    """
    torch = torch_for(TYPE)
    helper = LayerHelper(TYPE, name)
    given = [inputs] if isinstance(inputs, Variable) else list(inputs)
    parameters = _parameters_of(torch, helper.name, module)
    variables = [
        helper.create_parameter(
            ParamAttr(
                name=f"{helper.name}.{own}",
                initializer=NumpyArrayInitializer(value.detach().cpu().numpy()),
                trainable=value.requires_grad,
            ),
            list(value.shape),
            str(value.dtype).removeprefix("torch."),
        )
        for own, value in parameters.items()
    ]
    held = _held(torch, module, tuple(parameters))
    alone = _by_row(torch, held, parameters, given) if by_row is None else by_row
    attrs = {"number": registered(held), "module": _said(module), "by_row": alone}
    count = _count(torch, held, parameters, given)
    outs = [helper.new_var() for _ in range(count)]
    helper.append_op(TYPE, {"X": given, "Param": variables}, {"Out": outs}, attrs)
    return outs if count > 1 else outs[0]


def _parameters_of(torch: Any, name: str, module: Any) -> dict[str, Any]:
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            raise GraphError(f"{name}: expected a torch.nn.Module or a function, got {module!r}")
        return {}
    kept = [own for own, _ in module.named_buffers()]
    if kept:
        raise GraphError(
            f"{name}: the module has state beside its parameters ({kept[0]!r}), which Programs "
            "would neither share nor save: use layers such as fluid.layers.batch_norm for it, or "
            "modules without buffers"
        )
    found = dict(module.named_parameters())
    for own, value in found.items():
        if value.dtype != torch.float32:
            raise GraphError(f"{name}: parameter {own!r} is {value.dtype}, expected torch.float32")
        if value.dim() == 0:
            raise GraphError(f"{name}: parameter {own!r} has no dimension: give it shape [1]")
    return found


def _held(torch: Any, module: Any, names: tuple[str, ...]) -> Held:
    if not isinstance(module, torch.nn.Module):
        return Held(names, lambda _, x: module(*x), lambda _, x: module(*x), lambda training: None)
    call = importlib.import_module("torch.func").functional_call
    without_memory = copy.deepcopy(module).to("meta")
    return Held(
        names,
        lambda own, x: call(module, own, tuple(x)),
        lambda own, x: call(without_memory, own, tuple(x)),
        module.train,
    )


def _tried(torch: Any, given: Sequence[Variable], rows: int, **where: Any) -> list[Any]:
    """Return inputs of so many rows: small numbers, the same for the first of them; ids are 0."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for var in given:
        shape = [rows if k == 0 else max(extent, 1) for k, extent in enumerate(var.shape)]
        dtype = getattr(torch, var.dtype)
        whole = torch.zeros(shape, dtype=dtype)
        if dtype.is_floating_point:
            whole = torch.rand([ROWS, *shape[1:]], generator=generator).to(dtype)[:rows]
        found.append(whole.to(**where) if where else whole)
    return found


def _count(torch: Any, held: Held, parameters: Any, given: Sequence[Variable]) -> int:
    on_meta = {own: value.detach().to("meta") for own, value in parameters.items()}
    made = held.shapes(on_meta, _tried(torch, given, ROWS, device="meta"))
    return len(made) if isinstance(made, (tuple, list)) else 1


def _by_row(torch: Any, held: Held, parameters: Any, given: Sequence[Variable]) -> bool:
    """Tell whether results of some rows are the same alone and among others."""
    if any(not var.shape or var.shape[0] >= 0 for var in given):
        return False
    held.train(True)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        values = {own: value.detach() for own, value in parameters.items()}
        whole = held.call(values, _tried(torch, given, ROWS))
        part = held.call(values, _tried(torch, given, ROWS // 2))
    pairs = [(whole, part)] if not isinstance(whole, (tuple, list)) else list(zip(whole, part))
    return all(
        a.dim() > 0
        and len(a) == ROWS
        and len(b) == ROWS // 2
        and torch.allclose(a[: ROWS // 2], b, rtol=1e-4, atol=1e-5)
        for a, b in pairs
    )


def _said(module: Any) -> str:
    """Return what a Program calls a module, the same on all ranks."""
    return getattr(module, "__qualname__", None) or repr(module)
