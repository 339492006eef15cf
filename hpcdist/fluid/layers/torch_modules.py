"""A module of PyTorch's, or a function of tensors, as a layer of a Program."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import NumpyArrayInitializer
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.ops.by_torch import torch_for
from hpcdist.ops.torch_module import TYPE, RegisteredModule, of_operator, registered, results

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
    """Apply a `torch.nn.Module`, or a function of tensors, to ``inputs``.

    Its parameters become Parameters ``<name>.<theirs>`` of the Program, with the values that they
    have now: every rank builds the module alike, say after ``torch.manual_seed``. They are trained,
    sliced, served and saved like others; the module itself keeps its own, unchanged. Layers of the
    same module share them, unless they have different names. ``by_row``:
    whether row i of every result follows from row i of the inputs alone, so that trainers may
    divide a batch; None: it is tried on a few rows. Returns a Variable, or a list if it makes
    several. GraphError for a module that has state beside parameters, such as running means, that
    returns anything but tensors, or has the name of another.
    """
    torch = torch_for(TYPE)
    input_list = [inputs] if isinstance(inputs, Variable) else list(inputs)
    helper = _helper(module, name)
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
    count, written = _tried_shapes(torch, helper.name, held_module, parameters, input_list)
    held_module = _on_copies(held_module, written)
    if by_row is None:  # a module that counts its calls must not count these
        copied = copy.deepcopy(module) if isinstance(module, torch.nn.Module) else module
        tried = _on_copies(_registered_module(torch, copied, tuple(parameters)), written)
        by_row = _by_row(torch, tried, parameters, input_list)
    attrs = {
        "number": registered(held_module),
        "module": held_module.printed,
        "by_row": by_row,
    }
    outs = [helper.new_var() for _ in range(count)]
    helper.append_op(TYPE, {"X": input_list, "Param": variables}, {"Out": outs}, attrs)
    return outs if count > 1 else outs[0]


def _helper(module: Any, name: str | None) -> LayerHelper:
    """Return a helper with the name of a module's parameters; one that has a layer keeps it."""
    helper = LayerHelper(TYPE, name)
    for made, other in _called_in(helper.main_program):
        if other is module and name is None:
            return LayerHelper(TYPE, made)
        if other is not module and made == helper.name:
            raise GraphError(
                f"{made}: another module of this Program has this name, and so its parameters: "
                "give them different names"
            )
    return helper


def _called_in(program: Program) -> list[tuple[str, Any]]:
    """Return the modules with parameters that a Program calls, and their names there."""
    found = []
    for op in (op for block in program.blocks for op in block.ops if op.type == TYPE):
        called = of_operator(op.attrs["number"], op.attrs["module"])
        if called.names:
            found.append((op.input("Param")[0].removesuffix(f".{called.names[0]}"), called.module))
    return found


def _parameters_of(torch: Any, name: str, module: Any) -> dict[str, Any]:
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            raise GraphError(f"{name}: expected a torch.nn.Module or a function, got {module!r}")
        return {}
    if isinstance(module, torch.jit.ScriptModule):
        raise GraphError(
            f"{name}: modules of torch.jit cannot be called with a Program's parameters: give the "
            "torch.nn.Module that this one was made of"
        )
    buffers = [name_there for name_there, _ in module.named_buffers()]
    if buffers:
        raise GraphError(
            f"{name}: the module has state beside its parameters ({buffers[0]!r}), which Programs "
            "would neither share nor save: use layers such as fluid.layers.batch_norm for it, or "
            "modules without buffers"
        )
    parameters = dict(module.named_parameters())
    for name_there, value in parameters.items():
        if torch.nn.parameter.is_lazy(value):
            raise GraphError(
                f"{name}: parameter {name_there!r} has no values yet: call the module once before"
            )
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
        copied = copy.deepcopy(module).to("meta").train()
        run, train = lambda values, x: call(module, values, tuple(x)), module.train
        without_memory = lambda values, x: call(copied, values, tuple(x))  # noqa: E731

    def shapes(values: dict[str, Any], x: Sequence[Any]) -> Any:
        with torch.device("meta"):  # of what the module makes by itself
            return without_memory(values, x)

    return RegisteredModule(module, _printed(torch, module), names, run, shapes, train)


def _on_copies(held_module: RegisteredModule, written: Sequence[int]) -> RegisteredModule:
    """Return a module that writes into copies of these inputs, not into a Program's values."""
    if not written:
        return held_module
    call = held_module.call
    return replace(
        held_module,
        call=lambda values, x: call(
            values, [t.clone() if k in written else t for k, t in enumerate(x)]
        ),
    )


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


def _tried_shapes(
    torch: Any,
    name: str,
    held_module: RegisteredModule,
    parameters: Any,
    variables: Sequence[Variable],
) -> tuple[int, list[int]]:
    """Return how many results a module makes, and which inputs it writes into."""
    on_meta = {parameter: value.detach().to("meta") for parameter, value in parameters.items()}
    inputs = _tried(torch, variables, [0] * ROWS, device="meta")
    versions = [tensor._version for tensor in inputs]
    try:
        made = results(held_module.shapes(on_meta, inputs))
    except RuntimeError as error:
        raise GraphError(
            f"{name}: the module does not take inputs of shapes {[v.shape for v in variables]}, or "
            f"has tensors that are neither parameters nor made when it is called, or asks for "
            f"values of tensors, as branches on them do: {error}"
        ) from error
    changed = [parameter for parameter, value in on_meta.items() if value._version]
    if changed:
        raise GraphError(
            f"{name}: the module writes into its parameter {changed[0]!r} when it is called, which "
            "only an optimizer may do in a Program"
        )
    for value in made:
        dtype = str(value.dtype).removeprefix("torch.")
        if not hasattr(np, dtype):
            raise GraphError(
                f"{name}: the module returns {value.dtype}, which Programs do not have: let it "
                "return, say, .float() of it"
            )
    return len(made), [k for k, x in enumerate(inputs) if x._version != versions[k]]


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
    if not (whole.is_floating_point() or whole.is_complex()):
        return bool(torch.equal(whole, joined))
    finite = whole[whole.isfinite()].abs()
    atol = 1e-5 * max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(whole, joined, rtol=1e-4, atol=atol, equal_nan=True)


def _printed(torch: Any, module: Any) -> str:
    """Return a module's name in a Program, the same on all ranks."""
    if isinstance(module, torch.nn.Module):
        return repr(module)
    function = getattr(module, "func", module)  # of functools.partial
    return getattr(function, "__qualname__", None) or type(function).__qualname__
