"""Recurrent layers in one operator with what feeds them, which Fluid's passes put in stored models.

As in Fluid they have no gradients. What only the steps of Fluid's kernels need is empty here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.ops.common import in_sequence
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.loss.labels import range_check, take
from hpcdist.ops.recurrent.gru import GRU, gru_bind, gru_infer
from hpcdist.ops.recurrent.lstm import LSTM, lstm_bind, lstm_infer
from hpcdist.ops.recurrent.time_steps import check_shapes, kind_of, rows_of_steps
from hpcdist.ops.sequence.pool_softmax_conv import sequences_of
from hpcdist.ops.types import Array, ArrayModule, Call, Lods, Metas, Operands


def _projected(type: str, x: Meta, weight: Meta) -> Meta:
    """Shape rule of the layer that feeds the recurrent one."""
    sequences_of(x, type, "X")
    check_shapes(type, [("WeightX", weight, (x.shape[1], weight.shape[1]))])
    return Meta((x.shape[0], weight.shape[1]), x.dtype, lod=x.lod)


def _empty(count: int, dtype: str) -> Metas:
    return (Meta((0,), dtype),) * count


# -- gated recurrent units -------------------------------------------------------------------------
def _gru_infer(x: Meta, h0, weight: Meta, inner: Meta, bias, use_seq: bool, **attrs: Any) -> Metas:
    hidden = gru_infer(_projected("fusion_gru", x, weight), h0, inner, bias, **attrs)[0]
    return *_empty(4, x.dtype), hidden


def _gru_bind(
    xp: ArrayModule, x, h0, weight, inner, bias, *outs, lods: Lods, use_seq: bool, **attrs: Any
) -> Call:
    fed = xp.empty((len(x), weight.shape[1]), x.dtype)
    gru = gru_bind(xp, fed, h0, inner, bias, outs[-1], None, None, None, lods=lods, **attrs)
    return in_sequence(partial(xp.matmul, x, weight, out=fed), gru)


define(
    "fusion_gru",
    "X, H0?, WeightX, WeightH, Bias? -> ReorderedH0?, XX?, BatchedInput?, BatchedOut?, Hidden",
    rows=rows_of_steps("Hidden", of="X"),
    attrs={**GRU, "use_seq": True},
    infer=_gru_infer,
    bind=_gru_bind,
    lods=("X",),
)


# -- long short-term memory ------------------------------------------------------------------------
def _lstm_infer(
    x: Meta, weight: Meta, inner: Meta, bias: Meta, h0, c0, use_seq: bool, **attrs: Any
) -> Metas:
    fed = _projected("fusion_lstm", x, weight)
    return *lstm_infer(fed, h0, c0, inner, bias, **attrs)[:2], *_empty(7, x.dtype)


def _lstm_bind(
    xp: ArrayModule, x, weight, *operands, lods: Lods, use_seq: bool, **attrs: Any
) -> Call:
    inner, bias, h0, c0, hidden, cell = operands[:6]
    fed = xp.empty((len(x), weight.shape[1]), x.dtype)
    lstm = lstm_bind(xp, fed, h0, c0, inner, bias, hidden, cell, None, None, lods=lods, **attrs)
    return in_sequence(partial(xp.matmul, x, weight, out=fed), lstm)


_STEPS = "XX?, BatchedInput?, BatchedHidden?, BatchedCell?, ReorderedH0?, ReorderedC0?"
define(
    "fusion_lstm",
    f"X, WeightX, WeightH, Bias, H0?, C0? -> Hidden, Cell, {_STEPS}, CheckedCell?",
    rows=rows_of_steps("Hidden", "Cell", of="X"),
    attrs={**LSTM, "use_seq": True},
    infer=_lstm_infer,
    bind=_lstm_bind,
    lods=("X",),
)


def _embedded_infer(
    ids: Meta, table: Meta, inner: Meta, bias: Meta, h0, c0, use_seq: bool, **attrs: Any
) -> Metas:
    sequences_of(ids, "fused_embedding_fc_lstm", "Ids")
    check_shapes("fused_embedding_fc_lstm", [("Ids", ids, (ids.shape[0], 1))])
    fed = Meta((ids.shape[0], table.shape[1]), table.dtype, lod=ids.lod)
    return *lstm_infer(fed, h0, c0, inner, bias, **attrs)[:2], *_empty(6, table.dtype)


def _embedded_bind(
    xp: ArrayModule, ids, table, *operands, lods: Lods, use_seq: bool, **attrs: Any
) -> Call:
    """The table has the biases of the gates already, so only the peepholes of Bias are read."""
    inner, bias, h0, c0, hidden, cell = operands[:6]
    width = table.shape[1]
    fed, peepholes = xp.empty((len(ids), width), table.dtype), xp.zeros_like(bias)
    return in_sequence(
        range_check(xp, ids, len(table), "fused_embedding_fc_lstm", "rows of the table"),
        take(xp, table, ids.reshape(-1), fed, axis=0),
        partial(xp.copyto, peepholes[:, width:], bias[:, width:]),
        lstm_bind(xp, fed, h0, c0, inner, peepholes, hidden, cell, None, None, lods=lods, **attrs),
    )


define(
    "fused_embedding_fc_lstm",
    f"Ids, Embeddings, WeightH, Bias, H0?, C0? -> Hidden, Cell, {_STEPS}",
    rows=rows_of_steps("Hidden", "Cell", of="Ids"),
    attrs={**LSTM, "use_seq": True},
    infer=_embedded_infer,
    bind=_embedded_bind,
    lods=("Ids",),
)


# -- long short-term memory that looks at its whole sequence in each step --------------------------
_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}
_ATTENTION = {
    "gate_activation": "sigmoid",
    "cell_activation": "tanh",
    "candidate_activation": "tanh",
}


def _attention_infer(
    x: Meta,
    c0: Meta,
    h0,
    looks: Meta,
    shift,
    scalar,
    scalar_shift,
    weight: Meta,
    bias: Meta,
    **acts,
) -> Metas:
    type = "attention_lstm"
    sequences, fed, width = sequences_of(x, type, "X").sequences, x.shape[1], weight.shape[1] // 4
    expected = [
        ("C0", c0, (sequences, width)),
        ("H0", h0, (sequences, width)),
        ("AttentionWeight", looks, (fed + width, 1)),
        ("LSTMWeight", weight, (width + fed, 4 * width)),
        ("LSTMBias", bias, (1, 4 * width)),
    ]
    check_shapes(type, expected)
    for name in acts.values():
        kind_of(name, type)
    for name, one in zip(("Bias", "Scalar", "ScalarBias"), (shift, scalar, scalar_shift)):
        if one is not None and one.size != 1:
            raise GraphError(f"{type}: Attention{name} must be one number, got {one.shape}")
    state = Meta((x.shape[0], width), x.dtype, lod=x.lod)
    return state, state, *_empty(4, x.dtype)


def _attend(lods: Lods, attrs: Mapping[str, str], inputs: Operands, outputs: Operands) -> None:
    """In each step x is the mean of a sequence's rows, by how well they fit the last cell."""
    x, c0, h0, looks, shift, scalar, scalar_shift, weight, bias = inputs
    hidden, cells = outputs[:2]
    gate, at_cell, candidate = (_ACTIVATIONS[attrs[name]] for name in _ATTENTION)
    fed, width = x.shape[1], weight.shape[1] // 4
    of_rows = x @ looks[:fed, 0] + (0 if shift is None else shift.reshape(()))
    bounds = zip(lods[0].last[:-1], lods[0].last[1:])
    for i, (begin, end) in enumerate(bounds):
        cell, last = c0[i], None if h0 is None else h0[i]
        for place in range(begin, end):
            fits = np.maximum(of_rows[begin:end] + cell @ looks[fed:, 0], 0)
            if scalar is not None:
                fits = fits * scalar.reshape(())
                fits = np.maximum(
                    fits + (0 if scalar_shift is None else scalar_shift.reshape(())), 0
                )
            shares = np.exp(fits - fits.max())
            gates = (shares / shares.sum()) @ x[begin:end] @ weight[width:]
            gates = gates + bias[0] if last is None else gates + last @ weight[:width] + bias[0]
            forget, take_in, show = gate(gates[: 3 * width]).reshape(3, width)
            cell = forget * cell + take_in * candidate(gates[3 * width :])
            last = at_cell(cell) * show
            hidden[place], cells[place] = last, cell


define(
    "attention_lstm",
    """X, C0, H0?, AttentionWeight, AttentionBias?, AttentionScalar?, AttentionScalarBias?,
    LSTMWeight, LSTMBias -> Hidden, Cell, AttentionedX?, AttentionFCOut?, LSTMX?, LSTMOUT?""",
    rows=rows_of_steps("Hidden", "Cell", of="X"),
    attrs=_ATTENTION,
    infer=_attention_infer,
    bind=lambda xp, *operands, lods, **attrs: run_on_host(
        xp, partial(_attend, lods, attrs), operands[:9], operands[9:]
    ),
    lods=("X",),
)
