"""Gradient cases of operators on sequences; lengths of 0 are among those drawn."""

from __future__ import annotations

import numpy as np

from hpcdist.lod_tensor import LoDTensor
from tests.support.ops import Case, Draw, case


def _ragged(draw: Draw, width: int | None = None) -> LoDTensor:
    return draw.ragged(draw.lengths(), [draw.int(1, 3) if width is None else width])


@case("sequence_pool")
def _pool(draw: Draw) -> Case:
    kind = draw.of("SUM", "AVERAGE", "SQRT", "MAX", "FIRST", "LAST")
    attrs = {"pooltype": kind, "pad_value": draw.of(0.0, 0.5)}
    return Case({"X": _ragged(draw)}, attrs, targets=["Out"])


@case("sequence_softmax")
def _softmax(draw: Draw) -> Case:
    return Case({"X": draw.ragged(draw.lengths(), draw.of([1], []))})


@case("sequence_conv")
def _conv(draw: Draw) -> Case:
    width, length = draw.int(1, 3), draw.int(1, 4)
    inputs = {"X": _ragged(draw, width), "Filter": draw.floats([length * width, draw.int(1, 3)])}
    return Case(inputs, {"contextLength": length, "contextStart": draw.int(-3, 2)})


@case("sequence_expand")
def _expand(draw: Draw) -> Case:
    repeats = draw.lengths()
    inputs = {"Y": draw.ragged(repeats, [1])}
    width = [draw.int(1, 3)]
    if draw.bool():
        inputs["X"] = draw.ragged(draw.lengths(len(repeats)), width)
    else:
        inputs["X"] = draw.floats([len(repeats), *width])
    return Case(inputs, wrt=["X"])


@case("sequence_expand_as")
def _expand_as(draw: Draw) -> Case:
    repeats = draw.lengths()
    x = draw.floats([len(repeats), draw.int(1, 3)])
    return Case({"X": x, "Y": draw.ragged(repeats, [1])}, wrt=["X"])


@case("sequence_scatter")
def _scatter(draw: Draw) -> Case:
    lengths, width = draw.lengths(), draw.int(1, 3)
    columns = draw.ragged(lengths, [1])
    columns.set(draw.rng.integers(0, width, (sum(lengths), 1)))
    inputs = {"X": draw.floats([len(lengths), width]), "Ids": columns}
    updates = draw.ragged(lengths, [1])
    return Case({**inputs, "Updates": updates}, wrt=["X", "Updates"])


@case("sequence_concat")
def _concat(draw: Draw) -> Case:
    sequences, width = draw.int(1, 3), [draw.int(1, 2)]
    xs = [draw.ragged(draw.lengths(sequences), width) for _ in range(draw.int(1, 3))]
    return Case({"X": xs})


@case("sequence_reverse")
def _reverse(draw: Draw) -> Case:
    return Case({"X": _ragged(draw)})


@case("sequence_reshape")
def _reshape(draw: Draw) -> Case:
    return Case({"X": _ragged(draw, 4)}, {"new_dim": draw.of(1, 2, 4)})


@case("lod_reset")
def _reset(draw: Draw) -> Case:
    x = _ragged(draw)
    rows = len(x)
    if draw.bool():
        return Case({"X": x}, {"target_lod": [0, rows // 2, rows]})
    return Case({"X": x, "Y": draw.ragged([rows // 3, rows - rows // 3], [1])}, wrt=["X"])


@case("sequence_pad")
def _pad(draw: Draw) -> Case:
    x = _ragged(draw)
    value = draw.floats(draw.of([1], x.shape()[1:]))
    maxlen = draw.of(-1, 4)
    return Case({"X": x, "PadValue": value}, {"padded_length": maxlen}, wrt=["X"], targets=["Out"])


@case("sequence_unpad")
def _unpad(draw: Draw) -> Case:
    lengths = draw.lengths()
    x = draw.floats([len(lengths), 3, *draw.of([], [2])])
    return Case({"X": x, "Length": np.array(lengths)})


@case("row_conv")
def _row_conv(draw: Draw) -> Case:
    width = draw.int(1, 3)
    return Case({"X": _ragged(draw, width), "Filter": draw.floats([draw.int(1, 4), width])})


@case("im2sequence")
def _im2sequence(draw: Draw) -> Case:
    attrs = {
        "kernels": [draw.int(1, 2), draw.int(1, 2)],
        "strides": [draw.int(1, 2), draw.int(1, 3)],
        "paddings": [draw.int(0, 1) for _ in range(4)],
    }
    return Case({"X": draw.floats([draw.int(1, 3), draw.int(1, 2), draw.int(2, 4), 3])}, attrs)
