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
from hpcdist.ops.torch_module import TYPE, RegisteredModule, registered, results

__all__ = ["torch_module"]

# Of the batch on which it is tried whether results mix rows, and of the parts that it is cut into:
# none is two halves, or begins where pairs of rows do.
ROWS, PARTS = 8, (1, 2, 5)
LARGE = 30.0


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
    several. GraphError for a module that has state beside parameters, such as running means, or
    that returns anything but tensors.
    """
    torch = torch_for(TYPE)
    helper = LayerHelper(TYPE, name)
    input_list = [inputs] if isinstance(inputs, Variable) else list(inputs)
    parameters = _parameters_of(torch, helper.name, module)
    variables = [
        helper.create_parameter(
            ParamAttr(
                name=f"{helper.name}.{parameter}",
                initializer=NumpyArrayInitializer(value.detach().cpu().numpy()),
                trainable=value.requires_grad,
            ),
            list(value.shape),
            str(value.dtype).removeprefix("torch."),
        )
        for parameter, value in parameters.items()
    ]
    held_module = _registered_module(torch, module, tuple(parameters))
    if by_row is None:  # a module that counts its calls must not count these
        copied = copy.deepcopy(module) if isinstance(module, torch.nn.Module) else module
        by_row = _by_row(
            torch, _registered_module(torch, copied, tuple(parameters)), parameters, input_list
        )
    attrs = {"number": registered(held_module), "module": _printed(torch, module), "by_row": by_row}
    count = _count(torch, helper.name, held_module, parameters, input_list)
    outs = [helper.new_var() for _ in range(count)]
    helper.append_op(TYPE, {"X": input_list, "Param": variables}, {"Out": outs}, attrs)
    return outs if count > 1 else outs[0]


def _parameters_of(torch: Any, name: str, module: Any) -> dict[str, Any]:
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            raise GraphError(f"{name}: expected a torch.nn.Module or a function, got {module!r}")
        return {}
    buffers = [name_there for name_there, _ in module.named_buffers()]
    if buffers:
        raise GraphError(
            f"{name}: the module has state beside its parameters ({buffers[0]!r}), which Programs "
            "would neither share nor save: use layers such as fluid.layers.batch_norm for it, or "
            "modules without buffers"
        )
    parameters = dict(module.named_parameters())
    for name_there, value in parameters.items():
        if value.dtype != torch.float32:
            raise GraphError(
                f"{name}: parameter {name_there!r} is {value.dtype}, expected torch.float32"
            )
        if value.dim() == 0:
            raise GraphError(
                f"{name}: parameter {name_there!r} has no dimension: give it shape [1]"
            )
    return parameters


def _registered_module(torch: Any, module: Any, names: tuple[str, ...]) -> RegisteredModule:
    run: Any = lambda _, x: module(*x)  # noqa: E731
    without_memory, train = run, lambda training: None
    if isinstance(module, torch.nn.Module):
        call = importlib.import_module("torch.func").functional_call
        copied = copy.deepcopy(module).to("meta")
        run, train = lambda values, x: call(module, values, tuple(x)), module.train
        without_memory = lambda values, x: call(copied, values, tuple(x))  # noqa: E731

    def shapes(values: dict[str, Any], x: Sequence[Any]) -> Any:
        with torch.device("meta"):  # of what the module makes by itself
            return without_memory(values, x)

    return RegisteredModule(names, run, shapes, train)


def _tried(
    torch: Any,
    variables: Sequence[Variable],
    ids: Sequence[int],
    scale: float = 1.0,
    **where: Any,
) -> list[Any]:
    """Return inputs of `ROWS` rows: row i has ``ids[i]`` where they are whole, else numbers.

    ``scale`` 1: from 0 to 1; 0: the same, all rows alike; greater: from 1 / scale in the first row,
    which is positive, growing to ``scale`` in the last, of both signs.
    """
    generator = torch.Generator().manual_seed(1)
    tensors = []
    for var in variables:
        shape = [ROWS, *(max(extent, 1) for extent in var.shape[1:])]
        dtype = getattr(torch, var.dtype)
        if dtype.is_floating_point:
            tensor = torch.rand(shape, generator=generator)
            if not scale:
                tensor = tensor[:1].expand(shape).contiguous()
            elif scale > 1:
                tensor[1:] = 2 * tensor[1:] - 1
                growing = scale ** torch.linspace(-1, 1, ROWS)
                tensor *= growing.reshape([ROWS, *(1 for _ in shape[1:])])
            tensor = tensor.to(dtype)
        else:
            rows = torch.tensor(ids).reshape([ROWS, *(1 for _ in shape[1:])])
            tensor = rows.expand(shape).to(dtype).contiguous()
        tensors.append(tensor.to(**where) if where else tensor)
    return tensors


def _count(
    torch: Any,
    name: str,
    held_module: RegisteredModule,
    parameters: Any,
    variables: Sequence[Variable],
) -> int:
    on_meta = {parameter: value.detach().to("meta") for parameter, value in parameters.items()}
    try:
        return len(
            results(
                held_module.shapes(on_meta, _tried(torch, variables, [0] * ROWS, device="meta"))
            )
        )
    except RuntimeError as error:
        raise GraphError(
            f"{name}: the module does not take inputs of shapes {[v.shape for v in variables]}, or "
            f"has tensors that are neither parameters nor made when it is called, or asks for "
            f"values of tensors, as branches on them do: {error}"
        ) from error


def _by_row(
    torch: Any, held_module: RegisteredModule, parameters: Any, variables: Sequence[Variable]
) -> bool:
    """Return whether results of each part of some rows are the same alone and among the others.

    It is tried with small numbers, with such as grow from row to row, and with rows that are alike.
    """
    if any(not var.shape or var.shape[0] >= 0 for var in variables):
        return False
    held_module.train(True)
    values = {parameter: value.detach() for parameter, value in parameters.items()}
    zeros = [0] * ROWS
    different = [3 - k % 4 for k in range(ROWS)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        for scale, ids in ((1.0, different), (LARGE, different), (0.0, zeros)):
            for inputs in (_tried(torch, variables, tried, scale) for tried in (ids, zeros)):
                try:
                    of_batch, *of_parts = (
                        results(held_module.call(values, list(part)))
                        for part in (inputs, *zip(*(x.split(PARTS) for x in inputs), strict=True))
                    )
                    break
                except (IndexError, RuntimeError, ValueError):
                    continue  # such ids are perhaps out of range, which 0 is not
            else:
                return False
            if not all(
                _is_joined(torch, whole, parts)
                for whole, *parts in zip(of_batch, *of_parts, strict=True)
            ):
                return False
        return torch.equal(before, torch.get_rng_state())


def _is_joined(torch: Any, whole: Any, parts: Sequence[Any]) -> bool:
    """Return whether a result on all rows is that on their parts, but for rounding."""
    if whole.dim() == 0 or [len(part) if part.dim() else -1 for part in parts] != [*PARTS]:
        return False
    joined = torch.cat(list(parts))
    if joined.shape != whole.shape:
        return False
    finite = whole[whole.isfinite()].abs()
    atol = 1e-5 * max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(whole, joined, rtol=1e-4, atol=atol, equal_nan=True)


def _printed(torch: Any, module: Any) -> str:
    """Return what a Program calls a module, the same on all ranks."""
    if isinstance(module, torch.nn.Module):
        return repr(module)
    function = getattr(module, "func", module)  # of functools.partial
    return getattr(function, "__qualname__", None) or type(function).__qualname__
