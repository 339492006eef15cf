"""Layers that repeat recurrent cells along [batch, steps, width]."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2.declare import operand
from hpcdist.fluid.compat.paddle2.kinds import Count, Probability
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.cells import (
    GatedCell,
    GRUCell,
    LSTMCell,
    RNNCellBase,
    SimpleRNNCell,
)
from hpcdist.fluid.compat.paddle2.nn.layer.container import LayerList
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer
from hpcdist.graph import names
from hpcdist.graph.variable import Variable

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BiRNN",
    "GRUCell",
    "LSTMCell",
    "RNNCellBase",
    "SimpleRNN",
    "SimpleRNNCell",
]


def _cell(name: str, cell: Any) -> Any:
    if callable(cell) and hasattr(cell, "get_initial_states"):
        return cell
    raise GraphTypeError(f"paddle.nn.{name}: expected a cell such as GRUCell, got {cell!r:.80}")


class RNN(Layer):
    """A cell repeated along the steps; returns the outputs and the last states."""

    def __init__(self, cell: Any, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell, self.is_reverse, self.time_major = _cell("RNN", cell), is_reverse, time_major

    def forward(
        self,
        inputs: Variable,
        initial_states: Any = None,
        sequence_length: Variable | None = None,
        **kwargs: Any,
    ) -> Any:
        """Append the loop; beyond ``sequence_length`` states stay what they are."""
        return layers.rnn(
            _Callable(self.cell),
            inputs,
            initial_states,
            sequence_length,
            self.time_major,
            self.is_reverse,
            **kwargs,
        )


class _Callable:
    """A cell as Fluid's ``rnn`` takes it: a Layer of the script's, with its hooks."""

    def __init__(self, cell: Any) -> None:
        self.call, self.get_initial_states = cell, cell.get_initial_states


class BiRNN(Layer):
    """A cell repeated forwards, and one backwards; outputs are side by side."""

    def __init__(self, cell_fw: Any, cell_bw: Any, time_major: bool = False) -> None:
        super().__init__()
        self.cell_fw, self.cell_bw = _cell("BiRNN", cell_fw), _cell("BiRNN", cell_bw)
        self.time_major = time_major

    def forward(
        self,
        inputs: Variable,
        initial_states: Any = None,
        sequence_length: Variable | None = None,
        **kwargs: Any,
    ) -> Any:
        """Append both loops; states are pairs: forwards, backwards."""
        first, second = (None, None) if initial_states is None else initial_states
        results = [
            layers.rnn(
                _Callable(cell), inputs, states, sequence_length, self.time_major, back, **kwargs
            )
            for cell, states, back in (
                (self.cell_fw, first, False),
                (self.cell_bw, second, True),
            )
        ]
        return layers.concat([out for out, _ in results], -1), tuple(last for _, last in results)


class _Stacked(LayerList):
    """Layers of cells, one above the other; initial and last states are [layers, batch, hidden].

    Parameters are attributes ``weight_ih_l0``, ``bias_hh_l1_reverse``, ... as well.
    """

    cell: Any = None
    states = 1

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: Probability = 0.0,
        *attrs: Any,
        **options: Any,
    ) -> None:
        super().__init__()
        if direction not in ("forward", "bidirect", "bidirectional"):
            raise GraphError(
                f"paddle.nn.{type(self).__name__}: direction: 'forward' or 'bidirect', got "
                f"{direction!r}"
            )
        self.dropout, self.time_major, self.input_size = dropout, time_major, input_size
        self.num_directions = 1 if direction == "forward" else 2
        width = input_size
        for _ in range(num_layers):
            cells = [
                self.cell(width, hidden_size, *attrs, **options) for _ in range(self.num_directions)
            ]
            one: Layer = RNN(cells[0], False, time_major)
            if len(cells) == 2:
                one = BiRNN(cells[0], cells[1], time_major)
            self.append(one)
            width = hidden_size * self.num_directions
        self._expose()
        names.generate(f"{self.full_name()}.w")  # Paddle keeps a packed copy under this name

    def _expose(self) -> None:
        """Keep the cells' parameters as attributes of this layer, too."""
        cells = [layer for layer in self.sublayers() if isinstance(layer, GatedCell)]
        for place, cell in enumerate(cells):
            level, back = divmod(place, self.num_directions)
            for name, parameter in list(cell.named_parameters()):
                self.add_parameter(f"{name}_l{level}{'_reverse' if back else ''}", parameter)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def forward(
        self,
        inputs: Variable,
        initial_states: Any = None,
        sequence_length: Variable | None = None,
    ) -> Any:
        """Append all loops; return the outputs of the last, and the last states of all."""
        name = f"paddle.nn.{type(self).__name__}"
        shape = operand(f"{name}: inputs", inputs).shape
        if len(shape) != 3 or shape[-1] not in (-1, self.input_size):
            order = "steps, batch" if self.time_major else "batch, steps"
            raise GraphError(
                f"{name}: inputs: expected [{order}, {self.input_size}], got {list(shape)}"
            )
        if sequence_length is not None:
            operand(f"{name}: sequence_length", sequence_length)
        given = self._split(name, initial_states)
        last: list[Any] = []
        for level, layer in enumerate(self):
            if level and self.dropout:
                inputs = functional.dropout(inputs, self.dropout, training=self.training)
            of_level = given[level * self.num_directions : (level + 1) * self.num_directions]
            states = None if not of_level else of_level[0] if len(of_level) == 1 else of_level
            inputs, new = layer(inputs, states, sequence_length)
            last += [new] if self.num_directions == 1 else list(new)
        if self.states == 1:
            return inputs, layers.stack(last, 0)
        return inputs, tuple(layers.stack([state[k] for state in last], 0) for k in (0, 1))

    def _split(self, name: str, initial_states: Any) -> list[Any]:
        """Return the states by layer and direction; none if there are none."""
        if initial_states is None:
            return []
        many = initial_states if isinstance(initial_states, (list, tuple)) else [initial_states]
        if len(many) != self.states or not all(isinstance(one, Variable) for one in many):
            raise GraphTypeError(
                f"{name}: initial_states: expected {self.states} Variable(s) [layers, batch, "
                f"hidden], got {initial_states!r:.80}"
            )
        parts = [layers.unstack(state, 0) for state in many]
        return list(parts[0]) if self.states == 1 else list(zip(*parts))


class _Gated(_Stacked):
    """Layers of cells that have no activation to choose."""

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: Probability = 0.0,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        sizes = input_size, hidden_size, num_layers, direction, time_major, dropout
        super().__init__(*sizes, weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)


class GRU(_Gated):
    """Layers of GRUCells."""

    cell = GRUCell


class LSTM(_Gated):
    """Layers of LSTMCells; states are (hidden, cell)."""

    cell = LSTMCell
    states = 2


class SimpleRNN(_Stacked):
    """Layers of SimpleRNNCells."""

    cell = SimpleRNNCell

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: Probability = 0.0,
        activation: str = "tanh",
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        attrs = activation, weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr
        super().__init__(
            input_size, hidden_size, num_layers, direction, time_major, dropout, *attrs
        )
