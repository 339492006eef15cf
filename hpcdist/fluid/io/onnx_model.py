"""Inference Programs as ONNX: the part behind the look-ups in distributed tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import HpcdistError, PublicationError
from hpcdist.executor.segments import inputs_of
from hpcdist.fluid.io.model import pruned
from hpcdist.fluid.io.selection import is_persistable
from hpcdist.fluid.io.variables import values_of
from hpcdist.graph.names import EMPTY
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.registry import Meta, arguments, attrs_of, lookup
from hpcdist.graph.variable import Variable
from hpcdist.ops.torch_forms import dtype_name, forms
from hpcdist.ps.published.dense import TRACED_BATCH, DenseParts, OnnxModel
from hpcdist.ps.published.members import RowsInput
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.transpiler.table_metadata import is_distributed_lookup, padding_of


def onnx_model(
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    main_program: Program | None = None,
) -> OnnxModel:
    """Return the part that computes ``target_vars`` from the feeds, to be written as ONNX.

    Rows of distributed tables are inputs, named ``TABLE[IDS]`` after table and ids, which must be
    fed. Outputs have the targets' names. PublicationError for a Program with operators that ONNX
    does not have, such as those of sequences; GraphError for a target that needs other feeds.

    >>> model = fluid.io.onnx_model(["user", "item"], [chance])  # doctest: +SKIP
    >>> model.save("dense.onnx")  # doctest: +SKIP
    """
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    whole = default_main_program() if main_program is None else main_program
    look_ups = {
        op.output("Out")[0]: op for op in whole.global_block().ops if is_distributed_lookup(op)
    }
    model, results = pruned(whole, [*feeds, *look_ups], targets)
    dense = _DenseProgram(model, results)
    names = [n for n in (*feeds, *look_ups) if n in dense.reads]
    called = {n: _row_name(look_ups[n]) if n in look_ups else n for n in names}
    rows = {called[n]: _rows_input(look_ups[n], feeds) for n in names if n in look_ups}
    dense.refuse(names)
    parameters = [var.name for var in model.list_vars() if is_persistable(var)]
    of_module = {name: f"value_{k}" for k, name in enumerate(parameters)}

    def values() -> dict[str, Any]:
        import torch

        arrays = values_of(program_peers(), whole, parameters)
        return {of_module[name]: torch.from_numpy(array) for name, array in arrays.items()}

    @contextlib.contextmanager
    def parts() -> Iterator[DenseParts]:
        variables = [model.global_block().var(name) for name in names]
        inputs = {called[var.name]: _example(var) for var in variables}
        opened = {
            called[var.name]: [k for k, n in enumerate(var.shape) if n < 0] for var in variables
        }
        module = dense.module(names, of_module, values())
        yield DenseParts(module, inputs, opened, [target.name for target in targets])

    return OnnxModel(f"the Program of {', '.join(t.name for t in targets)}", rows, parts, values)


def _row_name(op: Operator) -> str:
    return f"{op.input('W')[0]}[{op.input('Ids')[0]}]"


def _rows_input(op: Operator, feeds: Sequence[str]) -> RowsInput:
    table, ids = op.input("W")[0], op.input("Ids")[0]
    if ids not in feeds:
        raise PublicationError(
            f"onnx_model: the ids {ids!r} of table {table!r} are not fed: name them among "
            "feeded_var_names, so that readers can look their rows up"
        )
    return RowsInput(table, ids, padding_of(op), op.type == "lookup_table")


def _example(var: Variable) -> Any:
    import torch

    extents = [n if n >= 0 else TRACED_BATCH + 2 * k for k, n in enumerate(var.shape)]
    return torch.zeros(extents, dtype=getattr(torch, var.dtype))


class _DenseProgram:
    """The operators of an inference Program, computed by their forms."""

    def __init__(self, model: Program, results: Sequence[str]) -> None:
        self._ops, self._block = model.global_block().ops, model.global_block()
        self._results = results
        self.reads = {name for op in self._ops for name in op.input_arg_names}

    def refuse(self, names: Sequence[str]) -> None:
        """Raise PublicationError for what no graph can hold; ``names`` are the inputs."""
        for op in self._ops:
            form = forms().get(op.type)
            drawn = form is not None and form.draws and not op.attrs.get("is_test")
            if form is None or drawn or "sub_block" in op.attrs:
                raise PublicationError(
                    f"onnx_model: operator {op.type!r} ({op.place}) has no form in ONNX: export "
                    "targets that are computed without it"
                )
        for var in map(self._block.var, names):
            if var.lod_level:
                raise PublicationError(
                    f"onnx_model: {var.name!r} is a batch of sequences (lod_level "
                    f"{var.lod_level}), which ONNX does not have: feed padded ones"
                )

    def module(
        self, names: Sequence[str], of_module: Mapping[str, str], values: Mapping[str, Any]
    ) -> Any:
        """Return the torch module of these inputs, in order."""
        import torch

        compute = self._compute

        class Module(torch.nn.Module):
            def forward(self, *inputs: Any) -> tuple[Any, ...]:
                known = dict(zip(names, inputs))
                return compute(torch, known | {n: getattr(self, b) for n, b in of_module.items()})

        made = Module()
        for name, tensor in values.items():
            made.register_buffer(name, tensor)
        return made

    def _compute(self, torch: Any, values: dict[str, Any]) -> tuple[Any, ...]:
        for op in self._ops:
            try:
                _apply(torch, op, values)
            except HpcdistError:
                raise
            except Exception as error:
                raise PublicationError(
                    f"operator {op.type!r} ({op.place}): {error}".splitlines()[0]
                ) from None
        return tuple(values[name] for name in self._results)


def _apply(torch: Any, op: Operator, values: dict[str, Any]) -> None:
    """Put an operator's results among the values; extents may be open."""
    definition, form = lookup(op.type), forms()[op.type]
    metas = {
        name: Meta(tuple(values[name].shape), dtype_name(values[name]))
        for name in op.input_arg_names
        if name != EMPTY
    }
    attrs = attrs_of(op.type, op.attrs, op.inputs, metas)
    operands = inputs_of(op, metas)
    if not form.holds(operands, attrs):
        raise PublicationError(f"operator {op.type!r} ({op.place}) has no form for such inputs")
    assert definition.infer is not None, "what has a form has a shape rule"
    inferred = definition.infer(*operands, **attrs)
    outs = inferred if isinstance(inferred, tuple) else (inferred,)
    slots: dict[str, list[Any]] = {
        slot.name: (list(meta) if slot.many else [meta]) if op.output(slot.name) else []
        for slot, meta in zip(definition.outputs, outs)
    }
    wanted_outs = arguments(definition.outputs, slots)
    results = form(torch, inputs_of(op, values), attrs, wanted_outs)
    for slot, result in zip(definition.outputs, results):
        for name, value in zip(op.output(slot.name), result if slot.many else [result]):
            if name != EMPTY and value is not None:
                values[name] = value
