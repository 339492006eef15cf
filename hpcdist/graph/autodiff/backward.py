"""Differentiate: append the operators that compute gradients of a loss to its block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpcdist.base.errors import GraphAssertionError, GraphError, GraphTypeError
from hpcdist.graph.autodiff.gradient_steps import (
    Step,
    flowing_names,
    gradient_steps,
    mask_name,
    rename_existing,
    sum_repeated,
    unmask_name,
)
from hpcdist.graph.autodiff.overwritten import BEFORE, Overwritten
from hpcdist.graph.autodiff.recompute import recompute
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX, grad_name
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator, as_names
from hpcdist.graph.program import program_of
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Parameter, Variable

Callback = Callable[..., Any]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Parameter | str] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
    callbacks: Sequence[Callback] | None = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the backward of ``loss``, of one element, and return (parameter, gradient) pairs.

    ``parameter_list`` limits the pairs (default: every trainable parameter, in order of creation),
    and may name other variables;
    gradients do not flow into ``no_grad_set``. Callbacks are called as ``cb(block=, context=)``
    after each operator. Only the values at ``checkpoints`` stay until the backward pass, which
    computes others again (`autodiff.recompute`). Raises GraphAssertionError (an AssertionError) for
    a loss of another shape.

    Examples:
        >>> loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 1))
        >>> [gradient.name for parameter, gradient in fluid.backward.append_backward(loss)]
        ['fc_0.w_0@GRAD', 'fc_0.b_0@GRAD']
    """
    check_loss(loss)
    block = block_of(loss)
    program = program_of(block)
    maker = loss.op
    if maker is None:
        raise GraphError(f"append_backward: no operator computes the loss {loss.name!r}")
    if not isinstance(callbacks, (list, tuple, type(None))) or any(
        not callable(cb) for cb in callbacks or ()
    ):
        raise GraphTypeError(f"append_backward: callbacks must be a list of functions: {callbacks}")
    maker.set_attr(ROLE_ATTR, int(OpRole.FORWARD | OpRole.LOSS))
    stopped = _stopped(block, no_grad_set)
    one = {"shape": list(loss.shape), "value": 1.0, "dtype": loss.dtype}
    start = Step("fill_constant", {}, {"Out": [grad_name(loss.name)]}, one)
    begin = len(block.ops)
    gradient_of = _append(block, {loss.name}, (), stopped, [start], callbacks or ())
    if checkpoints is not None:
        # Copies of values that are overwritten may stand in front by now.
        begin += [bool(op.role & OpRole.BACKWARD) for op in block.ops[begin:]].index(True)
        recompute(block, begin, checkpoints)

    chosen = program.all_parameters() if parameter_list is None else parameter_list
    if isinstance(chosen, str) or not all(isinstance(one, (str, Variable)) for one in chosen):
        raise GraphTypeError(
            f"append_backward: parameter_list holds parameters or names, got {chosen!r}"
        )
    pairs = []
    for name in as_names(list(chosen)):
        parameter: Any = program.global_block().vars.get(name)
        if parameter is None:
            raise GraphError(f"append_backward: the program has no parameter {name!r}")
        if name in gradient_of and getattr(parameter, "trainable", True):
            pairs.append((parameter, block.var(gradient_of[name])))
    writers = block.last_writers()
    for parameter, gradient in pairs:
        finisher = block.ops[writers[gradient.name]]
        role_var = [parameter.name, gradient.name, *finisher.attrs.get(ROLE_VAR_ATTR, ())]
        finisher.set_attr(ROLE_VAR_ATTR, role_var)
    return pairs


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
) -> list[Variable | None]:
    """Append operators for d(targets)/d(inputs) and return the gradients, None where there is none.

    Targets are summed; ``target_gradients`` are their weights (default: ones).

    Examples:
        >>> x = fluid.data("x", [None, 3])
        >>> x.stop_gradient = False
        >>> fluid.gradients([fluid.layers.mean(x)], [x])[0].shape
        (-1, 3)
    """
    targets, inputs = _as_list(targets), _as_list(inputs)
    weights = _as_list(target_gradients) or [None] * len(targets)
    for one in [*targets, *inputs, *(weight for weight in weights if weight is not None)]:
        if not isinstance(one, Variable):
            raise GraphTypeError(f"gradients: expected Variables, got {one!r}")
    if len(weights) != len(targets):
        raise GraphError(f"gradients: {len(targets)} targets, but {len(weights)} target_gradients")
    block = block_of(targets[0])
    stopped = _stopped(block, no_grad_set) - {v.name for v in inputs}
    starts = []
    for target, weight in zip(targets, weights):
        out = {"Out": [grad_name(target.name)]}
        if weight is not None:
            if weight.shape != target.shape:
                raise GraphError(
                    f"gradients: {weight.name!r} {weight.shape} cannot weigh "
                    f"{target.name!r} {target.shape}"
                )
            starts.append(Step("assign", {"X": [weight.name]}, out))
        elif -1 in target.shape:
            attrs = {"shape": list(target.shape), "value": 1.0, "dtype": target.dtype}
            batch = target.shape.index(-1)
            attrs |= {"input_dim_idx": batch, "output_dim_idx": batch}
            like = {"Input": [target.name]}
            starts.append(Step("fill_constant_batch_size_like", like, out, attrs))
        else:
            attrs = {"shape": list(target.shape), "value": 1.0, "dtype": target.dtype}
            starts.append(Step("fill_constant", {}, out, attrs))
    names = [v.name for v in inputs]
    grads = _append(block, {t.name for t in targets}, names, stopped, starts, ())
    return [block.var(grads[name]) if name in grads else None for name in names]


def calc_gradient(*args: Any, **kwargs: Any) -> Any:
    """Return `gradients`, not in a list when there is only one."""
    grads = gradients(*args, **kwargs)
    return grads[0] if len(grads) == 1 else grads


# -- what gradients flow through -----------------------------------------------------------------
def check_loss(loss: Any) -> None:
    """Raise GraphTypeError unless it is a Variable, GraphAssertionError unless of one element."""
    if not isinstance(loss, Variable):
        raise GraphTypeError(f"append_backward: the loss must be a Variable, got {loss!r}")
    if tuple(loss.shape) not in ((1,), ()):
        raise GraphAssertionError(
            f"append_backward: the loss {loss.name!r} must have shape (1,) or (), got "
            f"{loss.shape}; reduce it with layers.mean"
        )


def _stopped(block: Block, no_grad_set: Iterable[Variable | str] | None) -> set[str]:
    """Names that no gradient flows into: stopped, integer, or refused by the caller."""
    if not isinstance(no_grad_set, (set, frozenset, list, tuple, type(None))):
        raise GraphTypeError(f"no_grad_set must be a set, list or tuple, got {no_grad_set!r}")
    for entry in no_grad_set or ():
        if not isinstance(entry, (Variable, str)):
            raise GraphTypeError(f"no_grad_set holds {entry!r}: expected a Variable or a name")
    stopped = set(as_names(list(no_grad_set or ())))
    for var in program_of(block).list_vars():
        if var.stop_gradient or not is_float(var.dtype):
            stopped.add(var.name)
    return stopped


def _path(block: Block, targets: set[str], stopped: set[str]) -> list[Operator]:
    """Operators that the targets depend on through gradients, in order."""
    needed = set(targets)
    path = []
    for op in reversed(block.ops):
        if lookup(op.type).grad is not None and needed.intersection(op.output_arg_names):
            path.append(op)
            needed.update(name for name in op.input_arg_names if name not in stopped)
    return path[::-1]


def _reached(
    block: Block, path: Sequence[Operator], sources: Sequence[str], stopped: set[str]
) -> set[str]:
    """Names whose gradients somebody can want: parameters, free inputs, and what follows them."""
    written = {name for op in block.ops for name in op.output_arg_names}
    read = {name for op in path for name in op.input_arg_names}

    def free(name: str) -> bool:
        var = block.find_var(name)
        fed = var is not None and var.is_data  # also if a loop writes it anew
        return name not in written or fed or isinstance(var, Parameter)

    reached = set(sources) or {name for name in read if name not in stopped and free(name)}
    for op in path:
        if reached.intersection(op.input_arg_names):
            reached.update(name for name in op.output_arg_names if name not in stopped)
    return reached


def _refuse_second_derivatives(
    block: Block, targets: set[str], reached: set[str], stopped: set[str]
) -> None:
    """Raise GraphError if the targets depend on ``reached`` through a gradient operator.

    Gradient operators have no gradients of their own, so that part would be left out.
    """
    depending = set(reached)
    crossed: dict[str, Operator] = {}  # by output: the gradient operator that it came through
    for op in block.ops:
        inputs = depending.intersection(op.input_arg_names)
        if not inputs:
            continue
        through = next((crossed[name] for name in op.input_arg_names if name in crossed), None)
        if through is None and op.type.endswith("_grad") and lookup(op.type).grad is None:
            through = op
        outputs = [name for name in op.output_arg_names if name not in stopped]
        depending.update(outputs)
        if through is not None:
            crossed.update(dict.fromkeys(outputs, through))
    for name in sorted(targets & crossed.keys()):
        raise GraphError(
            f"gradients: {name!r} depends on operator {crossed[name].type!r}, which has no "
            "gradient of its own: second derivatives are not supported; set stop_gradient=True on "
            "the first gradient if it is meant to be a constant"
        )


# -- the operators -------------------------------------------------------------------------------
def _append(
    block: Block,
    targets: set[str],
    sources: Sequence[str],
    stopped: set[str],
    starts: Sequence[Step],
    callbacks: Sequence[Callback],
) -> dict[str, str]:
    """Append the backward from ``targets`` and return the gradient's name for every variable."""
    path = _path(block, targets, stopped)
    reached = _reached(block, path, sources, stopped)
    _refuse_second_derivatives(block, targets, reached, stopped)
    flowing = flowing_names(path, targets, reached)
    _keep_graphs(block, path)
    overwritten = Overwritten(block, targets)
    steps = gradient_steps(path, targets, flowing, reached, overwritten)
    overwritten.keep()
    steps = sum_repeated(steps, block.idx)
    renamed = rename_existing(block, starts, steps)
    for step in steps:
        step.unmask()
    program_of(block)._appending_grad_times += 1
    context: dict[str, Any] = {}
    for index, step in enumerate([*starts, *steps]):
        begins = index < len(starts) and not sources  # the loss's own gradient
        attrs = {k: v for k, v in step.attrs.items() if k != ROLE_VAR_ATTR}
        attrs[ROLE_ATTR] = int(OpRole.BACKWARD | OpRole.LOSS if begins else OpRole.BACKWARD)
        op = block.append_op(step.type, step.inputs, step.outputs, attrs)
        if index >= len(starts):  # as Fluid: what the maker does not say is not on the operator
            op.attrs = attrs
        context.update(
            (name, name.partition(GRAD_SUFFIX)[0]) for name in step.writes() if name != EMPTY
        )
        context["__current_op_desc__"] = op
        for callback in callbacks:
            callback(block=block, context=context)
    written = {name for step in steps for name in step.writes()}
    gradients = {}
    for name in reached:
        default = grad_name(mask_name(name))
        gradient = unmask_name(renamed.get(default, default))
        if gradient in written:
            gradients[name] = gradient
    return gradients


def _keep_graphs(block: Block, path: Sequence[Operator]) -> None:
    """Retain torch graphs of earlier backward passes that this one needs."""
    called = {op.output("Out")[0] for op in path if op.type == "torch_module"}
    for op in block.ops:
        if op.type == "torch_module_grad" and op.input("Out")[0].partition(BEFORE)[0] in called:
            op.attrs["keeps_graph"] = True


def _append_grad_suffix_(name: str) -> str:
    """Return the name of a variable's gradient, under the name that Fluid's scripts import."""
    return grad_name(name)


def _strip_grad_suffix_(name: str) -> str:
    """Return the name of the variable whose gradient a name is."""
    return name.partition(GRAD_SUFFIX)[0]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
