"""Recurrent layers over sequences of rows (``lod_level=1``), and single steps of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphAssertionError, GraphError
from hpcdist.fluid.layers.helper import LayerHelper, declared_attrs, present
from hpcdist.fluid.layers.nn import fc
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.fluid.layers.tensor import concat
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable

__all__ = ["dynamic_gru", "dynamic_lstm", "dynamic_lstmp", "gru_unit", "lstm_unit"]


def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Run a long short-term memory over sequences; return hidden values and cells [rows, size / 4].

    ``input`` [rows, size] has what comes in, multiplied by its weights already (`fc`): of the
    candidate, input, forget and output gate. ``h_0`` and ``c_0`` [sequences, size / 4] are the
    initial states (default: 0).

    Examples:
        >>> words = fluid.data("words", [None, 64], lod_level=1)
        >>> hidden, cell = fluid.layers.dynamic_lstm(words, size=64)
        >>> hidden.shape
        (-1, 16)
    """
    _needs_bias(bias_attr, "dynamic_lstm")
    helper = LayerHelper("lstm", name)
    width = size // 4
    slots = {
        "Input": input,
        "Weight": helper.create_parameter(param_attr, [width, 4 * width], dtype),
        "Bias": _gate_bias(helper, bias_attr, width, use_peepholes, dtype),
    }
    _add_states(slots, {"H0": (h_0, width), "C0": (c_0, width)}, input)
    attrs = declared_attrs("lstm", locals())
    outputs = dict.fromkeys(("Hidden", "Cell", "BatchGate", "BatchCellPreAct"), dtype)
    hidden, cell, *_ = helper.apply_all("lstm", slots, outputs, attrs)
    return hidden, cell


def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: DTypeLike = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """Run a `dynamic_lstm` whose hidden values are projected before they go into the next step.

    Returns projections [rows, proj_size] and cells [rows, size / 4]. ``h_0`` [sequences,
    proj_size] is an initial projection. As in Fluid, a ``proj_activation`` other than
    "identity" means that of the cell.
    """
    _needs_bias(bias_attr, "dynamic_lstmp")
    helper = LayerHelper("lstmp", name)
    width = size // 4
    slots = {
        "Input": input,
        "Weight": helper.create_parameter(param_attr, [proj_size, 4 * width], dtype),
        "ProjWeight": helper.create_parameter(param_attr, [width, proj_size], dtype),
        "Bias": _gate_bias(helper, bias_attr, width, use_peepholes, dtype),
    }
    _add_states(slots, {"H0": (h_0, proj_size), "C0": (c_0, width)}, input)
    projection, cell = helper.new_var(dtype), helper.new_var(dtype)
    helper.new_var(dtype)  # Fluid's ordered_proj0: nothing writes it, but it takes a name
    hidden, gates, active = (helper.new_var(dtype) for _ in range(3))
    helper.append_op(
        "lstmp",
        slots,
        {
            "Projection": projection,
            "Cell": cell,
            "BatchHidden": hidden,
            "BatchGate": gates,
            "BatchCellPreAct": active,
        },
        {"cell_clip": 0.0, "proj_clip": 0.0, **declared_attrs("lstmp", locals())},
    )
    return projection, cell


def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """Run a gated recurrent unit over sequences; return hidden values [rows, size].

    ``input`` [rows, 3 * size] has what comes in, multiplied by its weights already (`fc`): of the
    update gate, reset gate and candidate. ``h_0`` [sequences, size] is the initial state.

    Examples:
        >>> words = fluid.data("words", [None, 48], lod_level=1)
        >>> fluid.layers.dynamic_gru(words, size=16).shape
        (-1, 16)
    """
    helper = LayerHelper("gru")
    slots: dict[str, Any] = {
        "Input": input,
        "Weight": helper.create_parameter(param_attr, [size, 3 * size], input.dtype),
        "Bias": helper.create_parameter(bias_attr, [1, 3 * size], input.dtype, is_bias=True),
    }
    _add_states(slots, {"H0": (h_0, size)}, input)
    attrs = declared_attrs("gru", locals(), activation=candidate_activation)
    names = "Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"
    return helper.apply_all("gru", present(**slots), dict.fromkeys(names, input.dtype), attrs)[0]


def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """Compute one step of a gated recurrent unit of ``size`` / 3; return what is hidden then.

    ``input`` [N, size], ``hidden`` [N, size / 3]; also returned are the last hidden values times
    the reset gate, and the gates. As in Fluid the activations are tanh and sigmoid.

    Examples:
        >>> x, hidden = fluid.data("x", [None, 12]), fluid.data("hidden", [None, 4])
        >>> fluid.layers.gru_unit(x, hidden, size=12)[0].shape
        (-1, 4)
    """
    for name in (activation, gate_activation):
        if name not in ("identity", "sigmoid", "tanh", "relu"):
            raise GraphError(f"gru_unit: no activation {name!r}")
    helper = LayerHelper("gru_unit")
    dtype, width = input.dtype, size // 3
    slots: dict[str, Any] = {
        "Input": input,
        "HiddenPrev": hidden,
        "Weight": helper.create_parameter(param_attr, [width, 3 * width], dtype),
    }
    gate, resets, out = (helper.new_var(dtype) for _ in range(3))
    bias = helper.create_parameter(bias_attr, [1, 3 * width], dtype, is_bias=True)
    helper.append_op(
        "gru_unit",
        present(**slots, Bias=bias),
        {"Gate": gate, "ResetHiddenPrev": resets, "Hidden": out},
        {"activation": 2, "gate_activation": 1, "origin_mode": origin_mode},
    )
    return out, resets, gate


def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Compute one step of a long short-term memory: hidden values and cells [N, width] from both.

    ``forget_bias`` is added to the forget gate, besides the bias.

    Examples:
        >>> x, hidden, cell = (fluid.data(n, [None, 4]) for n in ("x", "hidden", "cell"))
        >>> fluid.layers.lstm_unit(x, hidden, cell)[0].shape
        (-1, 4)
    """
    helper = LayerHelper("lstm_unit", name)
    for var in (x_t, hidden_t_prev, cell_t_prev):
        if len(var.shape) != 2 or var.shape[0] != x_t.shape[0]:
            raise GraphError(
                f"lstm_unit: x_t {x_t.shape}, hidden_t_prev {hidden_t_prev.shape} and cell_t_prev "
                f"{cell_t_prev.shape} must be matrices of equally many rows"
            )
    joined = concat([x_t, hidden_t_prev], axis=1)
    width = cell_t_prev.shape[1]
    gates = fc(joined, size=4 * width, param_attr=param_attr, bias_attr=bias_attr)
    slots, outputs = {"X": gates, "C_prev": cell_t_prev}, dict.fromkeys("CH", x_t.dtype)
    cell, hidden = helper.apply_all("lstm_unit", slots, outputs, {"forget_bias": forget_bias})
    return hidden, cell


def _needs_bias(bias_attr: ParamLike, layer: str) -> None:
    if bias_attr is False:
        raise GraphAssertionError(f"{layer}: bias_attr must not be False")


def _gate_bias(
    helper: LayerHelper, attr: Any, width: int, use_peepholes: bool, dtype: DTypeLike
) -> Variable | None:
    shape = [1, (7 if use_peepholes else 4) * width]
    return helper.create_parameter(attr, shape, dtype, is_bias=True)


def _add_states(slots: dict[str, Any], states: Any, input: Variable) -> None:
    for slot, (state, width) in states.items():
        if state is None:
            continue
        expected: Sequence[int] = (input.shape[0], width)
        if tuple(state.shape) != tuple(expected):
            raise GraphAssertionError(
                f"the initial state {state.name!r} must be {list(expected)}, one row for each "
                f"sequence, got {list(state.shape)}"
            )
        slots[slot] = state
