"""Stacked recurrent layers over padded input: `lstm` and contrib's.

``basic_lstm`` and ``basic_gru`` are built of units, step by step; `lstm` is one operator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.cells import (
    Activation,
    BasicGRUUnit,
    BasicLSTMUnit,
    either,
    steps_within,
)
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.nn import dropout
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.fluid.layers.step_rnn import StaticRNN
from hpcdist.fluid.layers.tensor import concat, reshape, reverse, slice, transpose
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable

__all__ = ["lstm"]


def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    dtype: DTypeLike = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Run gated recurrent units over padded input; return hidden values, and those at the end.

    ``input`` [N, steps, width] (``batch_first``) or [steps, N, width]. ``init_hidden`` and the last
    hidden values are [num_layers * directions, N, hidden_size]; the others are as the input,
    ``hidden_size`` wide in each direction. Beyond ``sequence_length`` (int [N]) states stay.
    """

    def unit(scope: str, w: Any, b: Any) -> Any:
        return BasicGRUUnit(scope, hidden_size, w, b, gate_activation, activation, dtype)

    def dropped(x: Variable) -> Variable:
        return dropout(x, dropout_prob) if dropout_prob else x

    first = None if init_hidden is None else [init_hidden]
    named = (name, param_attr, bias_attr)
    shape = (num_layers, hidden_size, 1)
    out, (hidden,) = _both_directions(
        input, first, sequence_length, bidirectional, batch_first, unit, named, shape, dropped
    )
    return out, hidden


def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    forget_bias: float = 1.0,
    dtype: DTypeLike = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Run long short-term memories over padded input; shapes are those of `basic_gru`.

    Returns hidden values, and the hidden values and cells at the end.
    """
    if (init_hidden is None) is not (init_cell is None):
        raise GraphError("basic_lstm: give both of init_hidden and init_cell, or none")

    def unit(scope: str, w: Any, b: Any) -> Any:
        facts = gate_activation, activation, forget_bias, dtype
        return BasicLSTMUnit(scope, hidden_size, w, b, *facts)

    def dropped(x: Variable) -> Variable:
        if not dropout_prob:
            return x
        return dropout(x, dropout_prob, dropout_implementation="upscale_in_train")

    first = None if init_hidden is None else [init_hidden, init_cell]
    named = (name, param_attr, bias_attr)
    shape = (num_layers, hidden_size, 2)
    out, (hidden, cell) = _both_directions(
        input, first, sequence_length, bidirectional, batch_first, unit, named, shape, dropped
    )
    return out, hidden, cell


def _both_directions(
    x: Variable,
    first: Sequence[Any] | None,
    length: Variable | None,
    bidirectional: bool,
    batch_first: bool,
    unit: Callable[[str, Any, Any], Any],
    named: tuple[str, Any, Any],
    shape: tuple[int, int, int],
    dropped: Callable[[Variable], Variable],
) -> tuple[Variable, list[Variable]]:
    """Run all layers from the first step to the last, and if asked others the other way."""
    name, param_attr, bias_attr = named
    layers, size, _ = shape
    directions = [("_layers_", "fw")] + ([("_reverse_layers_", "bw")] if bidirectional else [])
    units = [
        [
            unit(
                f"{name}{scope}{i}",
                _suffixed(param_attr, f"_{direction}_w_{i}"),
                _suffixed(bias_attr, f"_{direction}_b_{i}"),
            )
            for i in range(layers)
        ]
        for scope, direction in directions
    ]
    if batch_first:
        x = transpose(x, [1, 0, 2])
    mask = None if length is None else steps_within(x, length)
    if first is not None:
        first = [reshape(state, [layers, len(directions), -1, size]) for state in first]
    outs, lasts = [], []
    for direction, of_way in enumerate(units):
        fed, mask_of_way = (v if direction == 0 or v is None else reverse(v, 0) for v in (x, mask))
        begin = first and [[state[i, direction] for state in first] for i in range(layers)]
        out, last = _one_direction(fed, mask_of_way, begin, of_way, shape, dropped)
        outs.append(out if direction == 0 else reverse(out, 0))
        lasts.append(last)
    joined = outs[0] if len(outs) == 1 else concat(outs, axis=2)
    states = lasts[0]
    if bidirectional:
        states = [
            reshape(concat(list(each), axis=1), [layers * len(directions), -1, size])
            for each in zip(*lasts)
        ]
    return (transpose(joined, [1, 0, 2]) if batch_first else joined), states


def _one_direction(
    x: Any,
    mask: Any,
    first: Any,
    units: Sequence[Any],
    shape: tuple[int, int, int],
    dropped: Callable[[Variable], Variable],
) -> tuple[Variable, list[Variable]]:
    layers, size, count = shape
    steps = StaticRNN()
    with steps.step():
        value = steps.step_input(x)
        mask_of_step = None if mask is None else steps.step_input(mask)
        for i, unit in enumerate(units):
            if first:
                old = [steps.memory(init=state) for state in first[i]]
            else:
                old = [steps.memory(batch_ref=x, shape=[-1, size]) for _ in range(count)]
            results = unit(value, *old)
            new = list(results) if isinstance(results, tuple) else [results]
            if mask_of_step is not None:
                new = [either(n, o, mask_of_step) for n, o in zip(new, old)]
            for before, after in zip(old, new):
                steps.update_memory(before, after)
            steps.output(*new)
            value = dropped(new[0])
        steps.output(value)
    *stepped, out = steps()
    last = [
        reshape(concat([stepped[i * count + k][-1] for i in range(layers)], 0), [layers, -1, size])
        for k in range(count)
    ]
    return out, last


def _suffixed(attr: Any, suffix: str) -> Any:
    attr_of_layer = ParamAttr.of(attr)
    if attr_of_layer is None or attr_of_layer.name is None:
        return attr
    renamed = copy.copy(attr_of_layer)
    renamed.name = attr_of_layer.name + suffix
    return renamed


# -- one operator ----------------------------------------------------------------------------------
def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """Run long short-term memories over ``input`` [steps, N, width], as cuDNN does.

    Returns hidden values [steps, N, directions * hidden_size], and the hidden values and cells at
    the end, [num_layers * directions, N, hidden_size] as ``init_h`` and ``init_c``. A second layer
    takes what the first gives in both directions. All weights and biases are one parameter, in
    cuDNN's order. ``dropout_prob`` is of what goes from one layer to the next.

    Examples:
        >>> x = fluid.data("x", [5, None, 8])
        >>> h = fluid.layers.fill_constant([1, 4, 16], "float32", 0.0)
        >>> c = fluid.layers.fill_constant([1, 4, 16], "float32", 0.0)
        >>> out, last_h, last_c = fluid.layers.lstm(x, h, c, 5, hidden_size=16, num_layers=1)
        >>> out.shape[-1]
        16
    """
    helper = LayerHelper("cudnn_lstm", name)
    directions = 2 if is_bidirec else 1
    widths = [input.shape[-1]] + [directions * hidden_size] * (num_layers - 1)
    size = sum(directions * 4 * hidden_size * (width + hidden_size + 2) for width in widths)
    dtype = input.dtype
    weight = helper.create_parameter(None, [size], dtype, default_initializer=default_initializer)
    attrs = {
        "max_len": max_len,
        "is_bidirec": is_bidirec,
        "input_size": input.shape[-1],
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "is_test": is_test,
        "dropout_prob": dropout_prob,
        "seed": seed,
    }
    at_once = not dropout_prob or is_test or num_layers == 1
    parts = [(0, num_layers)] if at_once else [(k, k + 1) for k in range(num_layers)]
    value, lasts = input, []
    for begin, end in parts:
        if begin:
            drawn = seed if seed > 0 else None
            value = dropout(
                value, dropout_prob, seed=drawn, dropout_implementation="upscale_in_train"
            )
        states = [init_h, init_c]
        if not at_once:
            states = [slice(s, [0], [begin * directions], [end * directions]) for s in states]
        inputs = {"Input": value, "InitH": states[0], "InitC": states[1], "W": weight}
        outputs = dict.fromkeys(("Out", "last_h", "last_c", "Reserve"), dtype)
        how = {**attrs, "first_layer": begin, "layers": end - begin}
        made = helper.apply_all("cudnn_lstm", inputs, outputs, how, constant=("Reserve",))
        value, last_h, last_c, _ = made
        lasts.append((last_h, last_c))
    if at_once:
        return value, *lasts[0]
    hidden, cell = (concat(list(each), axis=0) for each in zip(*lasts))
    return value, hidden, cell
