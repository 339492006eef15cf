"""Long short-term memories in layers and both directions over padded input, as cuDNN has them.

The parameter W is flat: for each layer, and each direction of it, the matrices of what comes in and
of what is hidden; after all of them, in the same order, two biases each. Gates stand in cuDNN's
order: input, forget, candidate, output. The loops are those of `lstm_kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.recurrent.time_steps import IDENTITY, SIGMOID, TANH, check_shapes
from hpcdist.ops.tensor.tensor_array import in_loops
from hpcdist.ops.types import Array, ArrayModule, Call, Metas, Operands

_ATTRS = {
    "max_len": 0,
    "is_bidirec": False,
    "input_size": 0,
    "hidden_size": 0,
    "num_layers": 1,
    "is_test": False,
    "dropout_prob": 0.0,
    "seed": -1,
    "first_layer": 0,  # of those that this operator computes
    "layers": -1,  # how many; -1: all, and nothing is dropped between them
}
_KINDS = SIGMOID, TANH, TANH, IDENTITY
_ORDER = [2, 0, 1, 3]  # of cuDNN's gates: candidate, input, forget, output, as the loops take them


@dataclass(frozen=True)
class _Net:
    """Which layers there are, and what each takes."""

    size: int
    directions: int
    widths: Sequence[int]
    begin: int
    end: int

    @staticmethod
    def of(attrs) -> _Net:
        size, directions = attrs["hidden_size"], 2 if attrs["is_bidirec"] else 1
        count, begin = attrs["num_layers"], attrs["first_layer"]
        widths = [attrs["input_size"]] + [directions * size] * (count - 1)
        end = count if attrs["layers"] < 0 else begin + attrs["layers"]
        return _Net(size, directions, widths, begin, end)

    @property
    def weights(self) -> int:
        """Number of elements of W."""
        return sum(self.directions * 4 * self.size * (w + self.size + 2) for w in self.widths)

    def computed(self, flat: Array) -> Iterator[tuple[int, int, int, Sequence[Array]]]:
        """Go through what is computed: layer, direction, place among the states, pieces of W.

        The pieces [4 * size, width], [4 * size, size] and two biases [4 * size] share its memory.
        """
        gates, at = 4 * self.size, 0
        bias = gates * sum(self.directions * (w + self.size) for w in self.widths)
        for layer, width in enumerate(self.widths):
            for direction in range(self.directions):
                fed, hidden = gates * width, gates * self.size
                if self.begin <= layer < self.end:
                    pieces = (
                        flat[at : at + fed].reshape(gates, width),
                        flat[at + fed : at + fed + hidden].reshape(gates, self.size),
                        flat[bias : bias + gates],
                        flat[bias + gates : bias + 2 * gates],
                    )
                    yield (
                        layer,
                        direction,
                        (layer - self.begin) * self.directions + direction,
                        pieces,
                    )
                at, bias = at + fed + hidden, bias + 2 * gates


def _infer(x: Meta, h: Meta, c: Meta, w: Meta, cache, **attrs) -> Metas:
    net = _Net.of(attrs)
    drops = attrs["dropout_prob"] and not attrs["is_test"] and attrs["num_layers"] > 1
    if drops and attrs["layers"] < 0:
        raise GraphError("cudnn_lstm: dropout between layers is built by layers.lstm only")
    steps, rows = x.shape[:2] if len(x.shape) == 3 else (-1, -1)
    count = (net.end - net.begin) * net.directions
    expected = [
        ("Input", x, (steps, rows, net.widths[net.begin])),
        ("InitH", h, (count, rows, net.size)),
        ("InitC", c, (count, rows, net.size)),
        ("W", w, (net.weights,)),
    ]
    check_shapes("cudnn_lstm", expected)
    reserve = -1
    if min(steps, rows) >= 0:
        reserve = count * rows * net.size * (5 * steps + 2 * (steps + 1))
    last = Meta((count, rows, net.size), x.dtype)
    return (
        Meta((steps, rows, net.directions * net.size), x.dtype),
        last,
        last,
        Meta((reserve,), x.dtype),
    )


def _saved_activations(
    reserve: Array, steps: int, rows: int, size: int
) -> Iterator[tuple[Array, ...]]:
    """Cut memory for each direction of each layer: gates, active cells, hidden values, cells.

    The last two begin with the initial states.
    """
    shapes = [(steps * rows, 4 * size), (steps * rows, size)] + [((steps + 1) * rows, size)] * 2
    by_layer = reserve.reshape(-1, max(sum(n * width for n, width in shapes), 1))
    ends = np.cumsum([n * width for n, width in shapes])
    for part in by_layer:
        yield tuple(
            part[end - n * width : end].reshape(n, width) for end, (n, width) in zip(ends, shapes)
        )


def _rows(steps: int, rows: int, direction: int) -> Array:
    """Return which row of [steps * rows] each place is; the second direction begins at the end."""
    index = np.arange(steps * rows).reshape(steps, rows)
    return np.ascontiguousarray(index[:: -1 if direction else 1]).reshape(-1)


def _turned(piece: Array, size: int) -> Array:
    """Return weights as the loops take them: [width, 4 * size], or biases [4 * size]."""
    ordered = piece.reshape(4, size, -1)[_ORDER].reshape(4 * size, -1)
    return ordered.reshape(-1) if piece.ndim == 1 else np.ascontiguousarray(ordered.T)


def _put_back(gradient: Array, size: int, into: Array) -> None:
    """Write a gradient [4 * size, ...] in the loops' order to a piece of W's gradient."""
    into.reshape(4, size, -1)[_ORDER] = gradient.reshape(4, size, -1)


def _forward(attrs, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.recurrent.lstm_kernels import lstm_forward

    x, h, c, w = inputs
    out, last_h, last_c, reserve = outputs
    net = _Net.of(attrs)
    steps, rows, size, dtype = x.shape[0], x.shape[1], net.size, x.dtype
    starts, befores = np.arange(steps + 1) * rows, np.arange(steps * rows)
    nothing, none = np.empty((0, size), dtype), np.empty((0, 0), dtype)
    zero = dtype.type(0)
    if reserve is None:
        reserve = np.empty(len(h) * rows * size * (5 * steps + 2 * (steps + 1)), dtype)
    fed = x.reshape(steps * rows, -1)
    output = np.empty((steps * rows, net.directions * size), dtype)
    places = _saved_activations(reserve, steps, rows, size)
    for _, direction, k, pieces in net.computed(w):
        gates, active, hidden, cells = next(places)
        hidden[:rows], cells[:rows] = h[k], c[k]
        order = _rows(steps, rows, direction)
        lstm_forward(
            fed @ _turned(pieces[0], size),
            _turned(pieces[1], size),
            _turned(pieces[2] + pieces[3], size),
            nothing,
            none,
            True,
            starts,
            order,
            befores,
            _KINDS,
            (zero, zero),
            hidden,
            cells,
            gates,
            active,
            hidden[rows:],
        )
        output[order, direction * size : (direction + 1) * size] = hidden[rows:]
        if last_h is not None:
            last_h[k] = hidden[steps * rows :]
        if last_c is not None:
            last_c[k] = cells[steps * rows :]
        if direction == net.directions - 1:
            fed, output = output, np.empty_like(output)
    if out is not None:
        out[...] = fed.reshape(out.shape)


def _backward(attrs, inputs: Operands, outputs: Operands) -> None:
    from hpcdist.ops.recurrent.lstm_kernels import lstm_backward

    x, w, reserve, dout, dlast_h, dlast_c = inputs
    dx, dh, dc, dw = outputs
    net = _Net.of(attrs)
    steps, rows, size, dtype = x.shape[0], x.shape[1], net.size, x.dtype
    starts, befores = np.arange(steps + 1) * rows, np.arange(steps * rows)
    nothing, none = np.empty((0, size), dtype), np.empty((0, 0), dtype)
    zero = dtype.type(0)
    dflat = np.zeros_like(w)
    activations = list(_saved_activations(reserve, steps, rows, size))
    dnext = dout.reshape(steps * rows, -1)
    dprevious: Array = None
    pairs = list(zip(net.computed(w), net.computed(dflat)))
    for (layer, direction, k, pieces), (*_, dpieces) in reversed(pairs):
        gates, active, hidden, cells = activations[k]
        order = _rows(steps, rows, direction)
        if layer == net.begin:
            fed = x.reshape(steps * rows, -1)
        else:
            below = [
                activations[k - direction - net.directions + other]
                for other in range(net.directions)
            ]
            fed = np.empty((steps * rows, net.directions * size), dtype)
            for other, (_, _, values, _) in enumerate(below):
                columns = slice(other * size, (other + 1) * size)
                fed[_rows(steps, rows, other), columns] = values[rows:]
        dhidden_at = np.zeros_like(hidden)
        dhidden_at[rows:] = dnext[order, direction * size : (direction + 1) * size]
        dhidden_at[steps * rows :] += dlast_h[k]
        dcells = np.zeros_like(cells)
        dcells[steps * rows :] = dlast_c[k]
        dgates = np.empty_like(gates)
        lstm_backward(
            _turned(pieces[1], size),
            nothing,
            none,
            starts,
            befores,
            _KINDS,
            (zero, zero),
            hidden,
            cells,
            gates,
            active,
            dhidden_at,
            dcells,
            dgates,
            np.empty((steps * rows, size), dtype),
            np.empty((rows, size), dtype),
            np.zeros_like(nothing),
        )
        if dh is not None:
            dh[k] = dhidden_at[:rows]
        if dc is not None:
            dc[k] = dcells[:rows]
        dfed = np.empty_like(dgates)
        dfed[order] = dgates
        _put_back(dfed.T @ fed, size, dpieces[0])
        _put_back(dgates.T @ hidden[befores], size, dpieces[1])
        for dbias in dpieces[2:]:
            _put_back(dgates.sum(axis=0), size, dbias)
        passed = dfed @ _turned(pieces[0], size).T
        dprevious = passed if dprevious is None else dprevious + passed
        if direction == 0:
            dnext, dprevious = dprevious, None
    if dx is not None:
        dx[...] = dnext.reshape(dx.shape)
    if dw is not None:
        dw[...] = dflat


def _bind(xp: ArrayModule, x, h, c, w, cache, *outputs, **attrs) -> Call:
    return run_on_host(xp, partial(_forward, attrs), (x, h, c, w), outputs)


def _grad_bind(xp: ArrayModule, *operands, **attrs) -> Call:
    x, _, _, w, *others = operands[:8]
    return run_on_host(xp, partial(_backward, attrs), (x, w, *others), operands[8:])


_GRAD = """Input, InitH, InitC, W, Reserve, Out@GRAD, last_h@GRAD, last_c@GRAD ->
    Input@GRAD?, InitH@GRAD?, InitC@GRAD?, W@GRAD?"""
define_with_grad(
    "cudnn_lstm",
    "Input, InitH, InitC, W, Cache? -> Out, last_h, last_c, Reserve?",
    _GRAD,
    rows=in_loops,
    attrs=_ATTRS,
    infer=_infer,
    bind=_bind,
    grad_infer=lambda *metas, **_: tuple(Meta(m.shape, m.dtype) for m in metas[:4]),
    grad_bind=_grad_bind,
)
