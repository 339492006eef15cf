"""Cells (single steps of recurrent networks), and `rnn`, which runs one along padded input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.activation import sigmoid, tanh
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.math import (
    clip,
    elementwise_add,
    elementwise_mul,
    elementwise_sub,
    matmul,
    scale,
)
from hpcdist.fluid.layers.norms_distances import cumsum
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.fluid.layers.step_rnn import StaticRNN
from hpcdist.fluid.layers.structure import (
    assert_same_structure,
    flatten,
    map_structure,
    pack_sequence_as,
)
from hpcdist.fluid.layers.tensor import (
    cast,
    concat,
    fill_constant_batch_size_like,
    ones_like,
    reshape,
    reverse,
    slice,
    split,
    transpose,
)
from hpcdist.graph import names
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]

Activation = Callable[[Variable], Variable]


# -- units: weights and what they compute ----------------------------------------------------------
class _Unit:
    """A step with parameters, created at the first call and shared by later ones."""

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamLike,
        bias_attr: ParamLike,
        dtype: DTypeLike,
    ) -> None:
        kind = type(self).__name__
        self._helper = LayerHelper(kind, names.generate(f"{name_scope}/{kind}"))
        self._hidden_size, self._dtype = hidden_size, dtype
        self._weights: Any = None
        self._attrs = {"w": param_attr, "b": bias_attr}
        for attr in (param_attr, bias_attr):
            if attr is False:
                raise GraphError(f"{kind}: weights and biases cannot be left out, got {attr!r}")

    def _parameter(self, kind: str, shape: Sequence[int], part: str = "") -> Any:
        """Create weights ("w") or biases ("b"); ``part`` is added to a name that is given."""
        attr = ParamAttr.of(self._attrs[kind])
        if part and attr is not None and attr.name is not None:
            attr = copy.copy(attr)
            attr.name = f"{attr.name}_{part}"
        return self._helper.create_parameter(attr, shape, self._dtype, is_bias=kind == "b")


class BasicLSTMUnit(_Unit):
    """A step of a long short-term memory: ``unit(input, hidden, cell)`` returns both anew.

    Gates of [input, hidden] times one matrix: input, candidate, forget and output; ``forget_bias``
    is added to the forget gate. As in Fluid the activations are sigmoid and tanh, whatever
    ``gate_activation`` and ``activation`` say.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamLike = None,
        bias_attr: ParamLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, dtype)
        self._forget_bias = forget_bias

    def __call__(
        self, input: Variable, pre_hidden: Variable, pre_cell: Variable
    ) -> tuple[Variable, Variable]:
        """Return hidden values and cells [N, hidden_size] of ``input`` [N, width] and the last."""
        width, size = input.shape[-1], self._hidden_size
        if self._weights is None:
            self._weights = (
                self._parameter("w", [width + size, 4 * size]),
                self._parameter("b", [4 * size]),
            )
        weight, bias = self._weights
        gates = elementwise_add(matmul(concat([input, pre_hidden], 1), weight), bias)
        i, candidate, f, o = split(gates, 4, dim=-1)
        remembered = elementwise_mul(pre_cell, sigmoid(scale(f, bias=self._forget_bias)))
        cell = elementwise_add(remembered, elementwise_mul(sigmoid(i), tanh(candidate)))
        return elementwise_mul(tanh(cell), sigmoid(o)), cell


class BasicGRUUnit(_Unit):
    """A step of a gated recurrent unit: ``unit(input, hidden)`` returns what is hidden then.

    The reset and update gate have one matrix for [input, hidden], the candidate another.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamLike = None,
        bias_attr: ParamLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, dtype)
        self._gate_activation = gate_activation or sigmoid
        self._activation = activation or tanh

    def __call__(self, input: Variable, pre_hidden: Variable) -> Variable:
        """Return hidden values [N, hidden_size] of ``input`` [N, width] and the last ones."""
        width, size = input.shape[-1] + self._hidden_size, self._hidden_size
        if self._weights is None:
            parts = {"gate": 2 * size, "candidate": size}
            self._weights = [
                self._parameter(kind, [width, n] if kind == "w" else [n], part)
                for kind in ("w", "b")
                for part, n in parts.items()
            ]
        gate_weight, weight, gate_bias, bias = self._weights
        gates = elementwise_add(matmul(concat([input, pre_hidden], 1), gate_weight), gate_bias)
        reset, update = split(self._gate_activation(gates), 2, dim=1)
        joined = concat([input, elementwise_mul(reset, pre_hidden)], 1)
        candidate = self._activation(elementwise_add(matmul(joined, weight), bias))
        left = scale(update, -1.0, 1.0)
        return elementwise_add(
            elementwise_mul(update, pre_hidden), elementwise_mul(left, candidate)
        )


# -- cells -----------------------------------------------------------------------------------------
class RNNCell:
    """A step: subclasses write ``call(inputs, states)``, which returns outputs and new states.

    Inputs, outputs and states are values, or structures of them.
    """

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Compute one step."""
        raise NotImplementedError(f"{type(self).__name__} must have a method call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Compute one step."""
        return self.call(inputs, states, **kwargs)

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: DTypeLike = "float32",
        init_value: float = 0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """Return constant states: `state_shape`, with as many rows as ``batch_ref`` has."""
        reference = flatten(batch_ref)[0]
        if not isinstance(reference, Variable):
            raise GraphTypeError(f"get_initial_states: expected a Variable, got {batch_ref!r}")
        shapes = self.state_shape if shape is None else shape
        try:
            dtypes = flatten(self.state_dtype if dtype is None else dtype)
        except NotImplementedError:
            dtypes = ["float32"]
        count = len(_flat_shapes(shapes))
        dtype_of_state = iter(dtypes * count if len(dtypes) == 1 else dtypes)

        def constant(extents: Sequence[int]) -> Variable:
            full_shape = list(extents) if extents[0] == -1 else [-1, *extents]
            return fill_constant_batch_size_like(
                reference, full_shape, next(dtype_of_state), init_value, input_dim_idx=batch_dim_idx
            )

        return _map_shapes(constant, shapes)

    @property
    def state_shape(self) -> Any:
        """The shapes of states, without rows, in their structure."""
        raise NotImplementedError(f"{type(self).__name__} must have a property state_shape")

    @property
    def state_dtype(self) -> Any:
        """The element types of states; one for all, or one for each."""
        raise NotImplementedError(f"{type(self).__name__} must have a property state_dtype")


def _is_shape(nest: Any) -> bool:
    return isinstance(nest, (list, tuple)) and all(isinstance(extent, int) for extent in nest)


def _flat_shapes(shapes: Any) -> list[Any]:
    flat: list[Any] = []
    _map_shapes(flat.append, shapes)
    return flat


def _map_shapes(func: Callable[[Any], Any], shapes: Any) -> Any:
    """Apply a function to shapes: the innermost lists, those of numbers."""
    if isinstance(shapes, int):
        return func([shapes])
    if _is_shape(shapes):
        return func(shapes)
    if isinstance(shapes, dict):
        return {key: _map_shapes(func, shapes[key]) for key in sorted(shapes)}
    return type(shapes)(_map_shapes(func, each) for each in shapes)


class GRUCell(RNNCell):
    """A gated recurrent unit; inputs [N, width], outputs and states [N, hidden_size]."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: ParamLike = None,
        bias_attr: ParamLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: DTypeLike = "float32",
        name: str = "GRUCell",
    ) -> None:
        self.hidden_size = hidden_size
        self.gru_unit = BasicGRUUnit(
            name, hidden_size, param_attr, bias_attr, gate_activation, activation, dtype
        )

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the new hidden values, twice: as outputs and as states."""
        hidden = self.gru_unit(inputs, states)
        return hidden, hidden

    @property
    def state_shape(self) -> Any:
        """[hidden_size]."""
        return [self.hidden_size]


class LSTMCell(RNNCell):
    """A long short-term memory; inputs [N, width], outputs [N, hidden_size], states two of these.

    States are a list of hidden values and cells.
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: ParamLike = None,
        bias_attr: ParamLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: DTypeLike = "float32",
        name: str = "LSTMCell",
    ) -> None:
        self.hidden_size = hidden_size
        facts = param_attr, bias_attr, gate_activation, activation, forget_bias, dtype
        self.lstm_unit = BasicLSTMUnit(name, hidden_size, *facts)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the new hidden values, and these with the new cells."""
        if not isinstance(states, list) or len(states) != 2:
            raise GraphTypeError(f"LSTMCell: states must be [hidden, cell], got {states!r}")
        hidden, cell = self.lstm_unit(inputs, *states)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> Any:
        """[[hidden_size], [hidden_size]]."""
        return [[self.hidden_size], [self.hidden_size]]


# -- a cell, step by step --------------------------------------------------------------------------
def rnn(
    cell: Any,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Repeat a cell along ``inputs`` [N, steps, ...]; return outputs [N, steps, ...], last states.

    ``time_major``: inputs and outputs are [steps, N, ...]. Beyond ``sequence_length`` (int [N])
    states stay what they are. ``is_reverse``: from the last step to the first.
    """
    if initial_states is None:
        initial_states = cell.get_initial_states(inputs, batch_dim_idx=int(time_major))
    for state in flatten(initial_states):
        state.stop_gradient = False
    if not time_major:
        inputs = map_structure(other_major, inputs)
    mask = None
    if sequence_length is not None:
        mask = steps_within(flatten(inputs)[0], sequence_length)
    if is_reverse:
        inputs = map_structure(lambda x: reverse(x, 0), inputs)
        mask = mask if mask is None else reverse(mask, 0)
    steps = StaticRNN()
    with steps.step():
        states = map_structure(steps.memory, initial_states)
        inputs_of_step = map_structure(steps.step_input, inputs)
        outputs, new_states = cell.call(
            inputs_of_step, map_structure(lambda x: x, states), **kwargs
        )
        assert_same_structure(states, new_states)
        if mask is not None:
            mask_of_step = steps.step_input(mask)
            new_states = map_structure(
                lambda old, new: either(new, old, mask_of_step), states, new_states
            )
        map_structure(steps.update_memory, states, new_states)
        steps.output(*flatten(outputs), *flatten(new_states))
    results = steps()
    count = len(flatten(outputs))
    outs = pack_sequence_as(outputs, results[:count])
    last = map_structure(lambda x: x[-1], pack_sequence_as(new_states, results[count:]))
    if is_reverse:
        outs = map_structure(lambda x: reverse(x, 0), outs)
    return (outs if time_major else map_structure(other_major, outs)), last


def other_major(x: Variable) -> Variable:
    """Change [N, steps, ...] to [steps, N, ...], and back."""
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def either(x: Variable, y: Variable, mask: Variable) -> Variable:
    """Return the rows of ``x`` where ``mask`` [N] is 1, and those of ``y`` where it is 0."""
    mask.stop_gradient = True
    chosen = elementwise_mul(x, mask, axis=0)
    return elementwise_sub(chosen, elementwise_mul(y, scale(mask, bias=-1.0), axis=0))


def steps_within(x: Variable, length: Variable) -> Variable:
    """Return float32 [steps, N] of ``x`` [steps, N, ...]: 1 for the first ``length`` [N] steps."""
    for axis in reversed(range(2, len(x.shape))):
        x = slice(x, [axis], [0], [1])
    ones = ones_like(cast(reshape(x, [0, 0]) if len(x.shape) > 2 else x, "float32"))
    ones.stop_gradient = True
    left = elementwise_sub(cumsum(ones, 0, exclusive=True), cast(length, "float32"), axis=1)
    left.stop_gradient = True
    mask = clip(scale(left, -1.0), 0.0, 1.0)
    mask.stop_gradient = True
    return mask
