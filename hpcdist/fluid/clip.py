"""Gradient clipping: by value, by norm, by the norm of all gradients together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.fluid import layers
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, default_main_program, program_of
from hpcdist.graph.variable import Parameter, Variable

ParamGrads = list[tuple[Parameter, Variable]]


class GradientClipBase:
    """A clip: ``clip(params_grads)`` appends its operators and returns the new pairs.

    ``need_clip(parameter)`` may choose the parameters whose gradients are clipped; those with
    ``need_clip`` False (Paddle 2's ParamAttr) are never.
    """

    def __init__(self, need_clip: Callable[[Parameter], bool] | None = None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise GraphTypeError(f"need_clip must be a function of a parameter, got {need_clip!r}")
        self._need_clip = need_clip

    def __call__(self, params_grads: ParamGrads) -> ParamGrads:
        """Append the operators that clip these gradients and return (parameter, new gradient)."""
        pairs = [
            (p, g)
            for p, g in params_grads
            if g is not None
            and getattr(p, "need_clip", True)
            and (self._need_clip is None or self._need_clip(p))
        ]
        before = _ops(pairs)
        clipped = {p.name: (p, g) for p, g in self._clip(pairs)} if pairs else {}
        _retarget(before, list(clipped.values()))
        return [clipped.get(p.name, (p, g)) for p, g in params_grads]

    def _clip(self, pairs: ParamGrads) -> ParamGrads:
        """Append the operators for the chosen pairs."""
        return [(p, _as_optimizer(p, g, self._create, p, g)) for p, g in pairs]

    # Set on parameters, a clip works in two rounds over all of them, sharing ``context``.
    def _process(self, context: dict[str, Any], param: Parameter, grad: Variable) -> None:
        """Append what is needed of one gradient before any is clipped."""

    def _create(self, param: Parameter, grad: Variable, context: Any = None) -> Variable:
        """Append the operator that clips one gradient and return the new one."""
        raise NotImplementedError


class BaseErrorClipAttr:
    """What is done to the gradient of a value, ``variable.error_clip``, before it flows on."""

    def _append_clip_op(self, block: Any, grad_name: str) -> None:
        """Append the operator that changes this gradient in place."""
        raise NotImplementedError


class ErrorClipByValue(BaseErrorClipAttr):
    """Cut every element to [min, max]; ``min`` is ``-max`` by default."""

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max = float(max)
        self.min = -self.max if min is None else float(min)

    def __str__(self) -> str:
        return f"ByValue, min={self.min:f}, max={self.max:f}"

    def _append_clip_op(self, block: Any, grad_name: str) -> None:
        attrs = {"min": self.min, "max": self.max, ROLE_ATTR: int(OpRole.BACKWARD)}
        block.append_op("clip", {"X": grad_name}, {"Out": grad_name}, attrs)


def error_clip_callback(block: Any, context: dict[str, Any]) -> None:
    """Clip the gradients that the latest backward operator wrote, of values with an error_clip."""
    for grad_name in context["__current_op_desc__"].output_arg_names:
        forward = block.find_var(context.get(grad_name, ""))
        clip = getattr(forward, "error_clip", None)
        if clip is None:
            continue
        if not isinstance(clip, BaseErrorClipAttr):
            raise GraphTypeError(
                f"{forward.name}.error_clip must be an ErrorClipByValue or None, got {clip!r}"
            )
        clip._append_clip_op(block, grad_name)


class GradientClipByValue(GradientClipBase):
    """Cut every element to [min, max]; ``min`` is ``-max`` by default.

    Examples:
        >>> fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(1.0, -1.0)).type
        'sgd'
    """

    def __init__(self, max: float, min: float | None = None, need_clip: Any = None) -> None:
        super().__init__(need_clip)
        if min is None:
            if max <= 0:
                raise GraphError(f"GradientClipByValue: max must be positive, got {max}")
            min = -max
        if not min <= max:
            raise GraphError(f"GradientClipByValue: expected min up to max, got {min} and {max}")
        self.max, self.min = float(max), float(min)

    def __str__(self) -> str:
        return f"Gradient Clip By Value, min = {self.min:f}, max={self.max:f}"

    def _create(self, param: Parameter, grad: Variable, context: Any = None) -> Variable:
        return layers.clip(grad, min=self.min, max=self.max)


def _norm(clip: str, value: float) -> float:
    """Return the norm of a clip; GraphError unless it is above 0: it would turn gradients round."""
    if not value > 0:
        raise GraphError(f"{clip}: expected a clip_norm above 0, got {value}")
    return float(value)


class GradientClipByNorm(GradientClipBase):
    """Shrink each gradient to the norm ``clip_norm`` if it is longer.

    Examples:
        >>> fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(1.0)).type
        'sgd'
    """

    def __init__(self, clip_norm: float, need_clip: Any = None) -> None:
        super().__init__(need_clip)
        self.clip_norm = _norm(type(self).__name__, clip_norm)

    def __str__(self) -> str:
        return f"Gradient Clip By Norm, clip_norm={self.clip_norm:f}"

    def _create(self, param: Parameter, grad: Variable, context: Any = None) -> Variable:
        return layers.clip_by_norm(grad, max_norm=self.clip_norm)


class GradientClipByGlobalNorm(GradientClipBase):
    """Multiply all gradients by c / max(c, their common norm).

    Examples:
        >>> fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0)).type
        'sgd'
    """

    def __init__(
        self, clip_norm: float, group_name: str = "default_group", need_clip: Any = None
    ) -> None:
        super().__init__(need_clip)
        self.clip_norm = _norm(type(self).__name__, clip_norm)
        self.group_name = group_name

    def __str__(self) -> str:
        return f"Gradient Clip By GlobalNorm, global_norm={self.clip_norm:f}"

    def _limit(self, like: Variable) -> Variable:
        return layers.fill_constant([1], like.dtype, self.clip_norm)

    def _clip(self, pairs: ParamGrads) -> ParamGrads:
        squares = [_as_optimizer(p, g, _sum_of_squares, g) for p, g in pairs]

        def scale_of_all() -> Variable:
            norm = layers.sqrt(layers.sums(squares))
            limit = self._limit(norm)
            return layers.elementwise_div(limit, layers.elementwise_max(limit, norm))

        scale = _as_optimizer(*pairs[-1], scale_of_all)
        return [(p, _as_optimizer(p, g, layers.elementwise_mul, g, scale)) for p, g in pairs]

    def _process(self, context: dict[str, Any], param: Parameter, grad: Variable) -> None:
        group = context.get(self.group_name)
        if group is None:
            group = context[self.group_name] = _Group(self.clip_norm, self._limit(grad))
        elif group.clip_norm != self.clip_norm:
            raise GraphError(
                f"GradientClipByGlobalNorm: group {self.group_name!r} has clip_norm "
                f"{group.clip_norm}, but {param.name!r} asks for {self.clip_norm}"
            )
        group.squares.append(_sum_of_squares(grad))

    def _create(self, param: Parameter, grad: Variable, context: Any = None) -> Variable:
        return layers.elementwise_mul(grad, context[self.group_name].scale())


class _Group:
    """Parameters clipped by one common norm."""

    def __init__(self, clip_norm: float, limit: Variable) -> None:
        self.clip_norm = clip_norm
        self.squares: list[Variable] = []
        self._limit = limit
        self._scale: Variable | None = None

    def scale(self) -> Variable:
        """Return the factor of all gradients; its operators are appended at the first call."""
        if self._scale is None:
            norm = layers.sqrt(layers.sums(self.squares))
            longest = layers.elementwise_max(self._limit, norm)
            self._scale = layers.elementwise_div(self._limit, longest)
        return self._scale


def _sum_of_squares(grad: Variable) -> Variable:
    if grad.type == VarType.SELECTED_ROWS:
        grad = layers.get_tensor_from_selected_rows(layers.merge_selected_rows(grad))
    return layers.reduce_sum(layers.square(grad))


def set_gradient_clip(
    clip: GradientClipBase,
    param_list: Sequence[Parameter | str] | None = None,
    program: Program | None = None,
) -> None:
    """Clip the gradients of these parameters (default: all of the program) in later minimizes."""
    if not isinstance(clip, GradientClipBase):
        raise GraphTypeError(
            f"set_gradient_clip: expected GradientClipByValue, ByNorm or ByGlobalNorm, got {clip!r}"
        )
    block = (program or default_main_program()).global_block()
    for entry in block.all_parameters() if param_list is None else param_list:
        param = block.var(entry) if isinstance(entry, str) else entry
        if not isinstance(param, Parameter):
            raise GraphTypeError(f"set_gradient_clip: {entry!r} is not a parameter")
        param.gradient_clip_attr = copy.deepcopy(clip)


def append_gradient_clip_ops(param_grads: ParamGrads) -> ParamGrads:
    """Clip as set on the parameters, by ParamAttr or `set_gradient_clip`."""
    pairs = [(p, g) for p, g in param_grads if p.gradient_clip_attr is not None]
    for param, _ in pairs:
        if not isinstance(param.gradient_clip_attr, GradientClipBase):
            raise GraphTypeError(
                f"gradient_clip of {param.name!r}: expected a clip, "
                f"got {param.gradient_clip_attr!r}"
            )
    context: dict[str, Any] = {}
    before = _ops(pairs)
    for p, g in pairs:
        _as_optimizer(p, g, p.gradient_clip_attr._process, context, p, g)
    measured = before and [op for op in _ops(pairs) if op not in before]
    clipped = {
        p.name: (p, _as_optimizer(p, g, p.gradient_clip_attr._create, p, g, context))
        for p, g in pairs
    }
    _correct(measured, list(clipped.values()))
    return [clipped.get(p.name, (p, g)) for p, g in param_grads]


def _as_optimizer(param: Parameter, grad: Variable, build: Callable[..., Any], *args: Any) -> Any:
    """Call ``build`` so that its operators have the optimizer's role, for this pair."""
    with program_of(param).role_guard(OpRole.OPTIMIZE, (param, grad)):
        return build(*args)


def _ops(pairs: ParamGrads) -> list[Operator]:
    return list(pairs[0][0].block.program.global_block().ops) if pairs else []


def _retarget(before: list[Operator], clipped: ParamGrads) -> None:
    before_ids = set(map(id, before))
    _correct([op for op in _ops(clipped) if id(op) not in before_ids], clipped)


def _correct(ops: Sequence[Operator], clipped: ParamGrads) -> None:
    """Update the role variables of clip operators to the gradients that optimizers read."""
    new = {p.name: g.name for p, g in clipped}
    for op in ops:
        param = op.attrs[ROLE_VAR_ATTR][0]
        op.set_attr(ROLE_VAR_ATTR, [param, new.get(param, op.attrs[ROLE_VAR_ATTR][1])])


ClipByValue = GradientClipByValue
ClipByNorm = GradientClipByNorm
ClipByGlobalNorm = GradientClipByGlobalNorm

name_arguments_in(__name__)
