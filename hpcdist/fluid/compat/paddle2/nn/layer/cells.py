"""Recurrent cells: a step of a recurrent layer."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed
from hpcdist.fluid.compat.paddle2.declare import operand
from hpcdist.fluid.compat.paddle2.kinds import Count
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer
from hpcdist.fluid.initializer import Constant, Uniform
from hpcdist.graph.variable import Variable

__all__ = ["GRUCell", "LSTMCell", "RNNCellBase", "SimpleRNNCell"]


class RNNCellBase(Layer):
    """Base of cells: called with a step's input and the states, they return output and states."""

    @property
    def state_shape(self) -> Any:
        """The shape of a state without the batch, or a tuple of shapes."""
        raise NotImplementedError(f"{type(self).__name__} has no state_shape")

    def get_initial_states(
        self,
        batch_ref: Variable,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """Return states that are ``init_value``, for the batch of ``batch_ref``."""
        shapes = self.state_shape if shape is None else shape
        kind = batch_ref.dtype if dtype is None else dtype

        def state(extents: Any) -> Variable:
            whole = [-1, *(d for d in extents if d != -1)]
            return layers.fill_constant_batch_size_like(
                batch_ref, whole, kind, init_value, input_dim_idx=batch_dim_idx
            )

        if isinstance(shapes[0], (list, tuple)):
            return tuple(state(one) for one in shapes)
        return state(shapes)

    @property
    def call(self) -> Any:
        """What repeats the cell calls."""
        return self.forward


class GatedCell(RNNCellBase):
    """Weights [gates * hidden, in] and [gates * hidden, hidden], biases: U(-1/sqrt(hidden), ...).

    An attr of False: weights of ones or biases of zeros, which are not trained.
    """

    gates = 1

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        rows, limit = self.gates * hidden_size, 1.0 / math.sqrt(hidden_size)
        parts = (
            ("weight_ih", [rows, input_size], weight_ih_attr, False),
            ("weight_hh", [rows, hidden_size], weight_hh_attr, False),
            ("bias_ih", [rows], bias_ih_attr, True),
            ("bias_hh", [rows], bias_hh_attr, True),
        )
        for name, shape, attr, is_bias in parts:
            fixed = attr is False
            initial = Constant(0.0 if is_bias else 1.0) if fixed else Uniform(-limit, limit)
            parameter = self.create_parameter(
                shape, None if fixed else attr, None, is_bias, initial
            )
            if fixed:
                parameter.stop_gradient = True
            setattr(self, name, parameter)

    @property
    def state_shape(self) -> Any:
        """The shape of a state without the batch."""
        return (self.hidden_size,)

    def _summed(self, inputs: Variable, hidden: Variable) -> tuple[Variable, Variable]:
        """Return the summands of the gates from the input and from the hidden state."""
        name = f"paddle.nn.{type(self).__name__}"
        given = (("inputs", inputs, self.input_size), ("states", hidden, self.hidden_size))
        for label, value, width in given:
            shape = operand(f"{name}: {label}", value).shape
            if len(shape) < 2 or shape[-1] not in (-1, width):
                raise GraphError(f"{name}: {label}: expected [batch, {width}], got {list(shape)}")
        of_input = composed.matmul(inputs, self.weight_ih, transpose_y=True)
        of_hidden = composed.matmul(hidden, self.weight_hh, transpose_y=True)
        return (
            layers.elementwise_add(of_input, self.bias_ih),
            layers.elementwise_add(of_hidden, self.bias_hh),
        )

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.input_size}, {self.hidden_size}"


class SimpleRNNCell(GatedCell):
    """h' = activation(W_ih x + b_ih + W_hh h + b_hh)."""

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        activation: str = "tanh",
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        if activation not in ("tanh", "relu"):
            raise GraphError(
                f"paddle.nn.SimpleRNNCell: activation: 'tanh' or 'relu', got {activation!r}"
            )
        attrs = weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr
        super().__init__(input_size, hidden_size, *attrs)
        self.activation = activation

    def forward(self, inputs: Variable, states: Any = None) -> Any:
        """Append a step."""
        states = self.get_initial_states(inputs) if states is None else states
        hidden = getattr(layers, self.activation)(layers.sum(list(self._summed(inputs, states))))
        return hidden, hidden


class GRUCell(GatedCell):
    """r, z = sigmoid(...); c = tanh(W x + b + r (W h + b)); h' = (h - c) z + c."""

    gates = 3

    def forward(self, inputs: Variable, states: Any = None) -> Any:
        """Append a step."""
        states = self.get_initial_states(inputs) if states is None else states
        of_input, of_hidden = self._summed(inputs, states)
        input_parts, hidden_parts = (layers.split(x, 3, -1) for x in (of_input, of_hidden))
        reset, update = (
            layers.sigmoid(layers.elementwise_add(x, h))
            for x, h in zip(input_parts[:2], hidden_parts[:2])
        )
        kept = layers.elementwise_mul(reset, hidden_parts[2])
        candidate = layers.tanh(layers.elementwise_add(input_parts[2], kept))
        apart = layers.elementwise_sub(states, candidate)
        hidden = layers.elementwise_add(layers.elementwise_mul(apart, update), candidate)
        return hidden, hidden


class LSTMCell(GatedCell):
    """i, f, o = sigmoid(...); c' = f c + i tanh(...); h' = o tanh(c')."""

    gates = 4

    @property
    def state_shape(self) -> Any:
        """The shapes of hidden state and cell without the batch."""
        return ((self.hidden_size,), (self.hidden_size,))

    def forward(self, inputs: Variable, states: Any = None) -> Any:
        """Append a step."""
        states = self.get_initial_states(inputs) if states is None else states
        if not isinstance(states, (list, tuple)) or len(states) != 2:
            raise GraphError(
                f"paddle.nn.LSTMCell: states: expected (hidden, cell), got {states!r:.80}"
            )
        hidden, cell = states
        gates = layers.split(layers.elementwise_add(*self._summed(inputs, hidden)), 4, -1)
        enter, forget, leave = (layers.sigmoid(gates[k]) for k in (0, 1, 3))
        kept = layers.elementwise_mul(forget, cell)
        new = layers.elementwise_mul(enter, layers.tanh(gates[2]))
        cell = layers.elementwise_add(kept, new)
        hidden = layers.elementwise_mul(leave, layers.tanh(cell))
        return hidden, (hidden, cell)
