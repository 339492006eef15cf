"""Layers on sequences: rows that group into pieces of different lengths (``lod_level=1``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable

__all__ = [
    "im2sequence",
    "lod_append",
    "lod_reset",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
]


def sequence_pool(
    input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0
) -> Variable:
    """Turn each sequence into one row: sum, average, sqrt, max, first or last of its rows.

    A sequence without rows gives ``pad_value``; sqrt is the sum over the root of the length.

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.sequence_pool(words, pool_type="sum").shape
        (-1, 16)
    """
    attrs = {"pooltype": pool_type.upper(), "is_test": is_test, "pad_value": pad_value}
    outputs = {"Out": input.dtype, "MaxIndex": "int32"}
    constant = ("MaxIndex",) if pool_type == "max" else ()
    return append_all("sequence_pool", {"X": input}, attrs, outputs, constant=constant)[0]


def sequence_first_step(input: Variable) -> Variable:
    """Return the first row of each sequence.

    input: [rows, ...] in sequences. Returns [sequences, ...].

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.sequence_first_step(words).shape
        (-1, 16)
    """
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """Return the last row of each sequence.

    input: [rows, ...] in sequences. Returns [sequences, ...].

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.sequence_last_step(words).shape
        (-1, 16)
    """
    return sequence_pool(input, "last")


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """Return the softmax of [rows, 1] within each sequence.

    Examples:
        >>> scores = fluid.data("scores", [None, 1], lod_level=1)
        >>> fluid.layers.sequence_softmax(scores).shape
        (-1, 1)
    """
    return append("sequence_softmax", {"X": input}, name, use_cudnn=use_cudnn)


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: ParamLike = None,
    param_attr: ParamLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Multiply ``filter_size`` neighbouring rows with a filter, for each row of [rows, width].

    The first of them stands ``padding_start`` rows on (default: -filter_size // 2, rounded
    towards zero); beyond the ends of a sequence there are zeros. ``filter_stride`` must be 1.

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.sequence_conv(words, num_filters=8).shape
        (-1, 8)
    """
    helper = LayerHelper("sequence_conv", name)
    shape = [filter_size * input.shape[1], num_filters]
    filters = helper.create_parameter(param_attr, shape, input.dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    attrs = {"contextStride": filter_stride, "contextStart": start, "contextLength": filter_size}
    slots = {"X": input, "Filter": filters}
    out = helper.apply("sequence_conv", slots, attrs, dtype=input.dtype)
    return helper.activate(helper.add_bias(out, bias_attr), act)


def sequence_expand(
    x: Variable, y: Variable, ref_level: int = -1, name: str | None = None
) -> Variable:
    """Repeat row, or sequence, i of ``x`` as often as sequence i of ``y``'s level has items.

    Examples:
        >>> x = fluid.data("x", [None, 4])
        >>> like = fluid.data("like", [None, 1], lod_level=1)
        >>> fluid.layers.sequence_expand(x, like).shape
        (-1, 4)
    """
    return append("sequence_expand", {"X": x, "Y": y}, name, ref_level=ref_level)


def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeat row i of ``x`` for each row of sequence i of ``y``.

    x: [sequences of y, ...]. Returns [rows of y, ...] in the sequences of y.

    Examples:
        >>> x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1], lod_level=1)
        >>> fluid.layers.sequence_expand_as(x, y).lod_level
        1
    """
    return append("sequence_expand_as", {"X": x, "Y": y}, name)


def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Put sequence i of each input after one another.

    input: values [rows, ...] with equal numbers of sequences. Returns [all rows, ...] in as many
    sequences.

    Examples:
        >>> x, y = (fluid.data(n, [None, 16], lod_level=1) for n in "xy")
        >>> fluid.layers.sequence_concat([x, y]).shape
        (-1, 16)
    """
    return append("sequence_concat", {"X": list(input)}, name, dtype=input[0].dtype)


def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """Return each sequence with its last row first.

    x: [rows, ...] in sequences, which are those of the result.

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.sequence_reverse(words).shape
        (-1, 16)
    """
    return append("sequence_reverse", {"X": x}, name, slot="Y")


def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """Cut the numbers of each sequence into rows of ``new_dim``: [rows, width] to [.., new_dim].

    Sequences get longer or shorter by width / new_dim; the dtype stays. Raises GraphError if the
    numbers of a sequence do not divide.

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.sequence_reshape(words, new_dim=8).shape
        (-1, 8)
    """
    return append("sequence_reshape", {"X": input}, new_dim=new_dim)


def sequence_enumerate(
    input: Variable, win_size: int, pad_value: int = 0, name: str | None = None
) -> Variable:
    """Return, for each id [rows, 1], it and those after it: [rows, win_size].

    Examples:
        >>> ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
        >>> fluid.layers.sequence_enumerate(ids, win_size=3).shape
        (-1, 3)
    """
    facts: dict[str, Any] = {"win_size": win_size, "pad_value": pad_value, "stop_gradient": True}
    return append("sequence_enumerate", {"X": input}, name, **facts)


def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, ...]:
    """Return [sequences, maxlen, ...], padded with ``pad_value`` ([1] or a row), and the lengths.

    ``maxlen`` None: as long as the longest sequence.

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> zero = fluid.layers.fill_constant([1], "float32", 0.0)
        >>> padded, lengths = fluid.layers.sequence_pad(words, zero, maxlen=20)
        >>> padded.shape
        (-1, 20, 16)
    """
    pad_value.stop_gradient = True
    inputs, outputs = {"X": x, "PadValue": pad_value}, {"Out": x.dtype, "Length": "int64"}
    attrs = {"padded_length": -1 if maxlen is None else maxlen}
    return append_all("sequence_pad", inputs, attrs, outputs, name, ("Length",))


def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """Return the first ``length[i]`` rows of each ``x[i]`` as a sequence.

    ``length`` int64 is fed, or comes from `sequence_pad`.

    Examples:
        >>> padded = fluid.data("padded", [None, 20, 16])
        >>> lengths = fluid.data("n", [None], "int64")
        >>> fluid.layers.sequence_unpad(padded, lengths).lod_level
        1
    """
    length.stop_gradient = True
    return append("sequence_unpad", {"X": x, "Length": length}, name)


def sequence_mask(
    x: Variable, maxlen: Any = None, dtype: DTypeLike = "int64", name: str | None = None
) -> Variable:
    """Return [..., maxlen] with 1 at places before each length of ``x``, 0 behind.

    ``maxlen`` is a number or a Variable; None: the largest of the lengths.

    Examples:
        >>> lengths = fluid.layers.assign(np.array([1, 3]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.sequence_mask(lengths, maxlen=3)])
        [array([[1, 0, 0],
               [1, 1, 1]])]
    """
    helper = LayerHelper("sequence_mask", name)
    out = helper.new_var(dtype, stop_gradient=True)
    attrs = {"maxlen": -1 if maxlen is None else maxlen, "out_dtype": out.dtype}
    helper.append_op("sequence_mask", {"X": x}, {"Y": out}, attrs)
    return out


def lod_reset(
    x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None
) -> Variable:
    """Group the rows of ``x`` as those of ``y`` are, or by offsets ``target_lod``.

    Of a ``y`` without sequences the values are the offsets: integers that ascend from 0.

    Examples:
        >>> x = fluid.data("x", [6, 4])
        >>> fluid.layers.lod_reset(x, target_lod=[0, 2, 6]).lod_level
        1
    """
    slots = {"X": x} if y is None else {"X": x, "Y": y}
    if y is not None and not y.lod_level:
        return LayerHelper("lod_reset").apply("lod_reset_by_values", slots, dtype=x.dtype)
    attrs = {"target_lod": list(target_lod or ())}
    return LayerHelper("lod_reset").apply("lod_reset", slots, attrs, dtype=x.dtype)


def sequence_slice(
    input: Variable, offset: Variable, length: Variable, name: str | None = None
) -> Variable:
    """Return ``length[i]`` rows of sequence i from its row ``offset[i]`` on; both int [n, 1]."""
    slots = {"X": input, "Offset": offset, "Length": length}
    offset.stop_gradient = length.stop_gradient = True
    return append("sequence_slice", slots, name)


def sequence_scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """Add ``updates`` to row i of ``input`` at the columns that sequence i of ``index`` says.

    ``input`` [sequences, width]; index and updates [rows, 1], in the sequences of ``index``.
    """
    return append("sequence_scatter", {"X": input, "Ids": index, "Updates": updates}, name)


def lod_append(x: Variable, level: Any) -> Variable:
    """Append a level of sequences below those of ``x``, one for each row: offsets from 0 on.

    Of a Variable, as in Fluid, its sequences take the place of those of ``x``.
    """
    if isinstance(level, Variable):
        return lod_reset(x, level)
    if not isinstance(level, Iterable):
        raise GraphError(f"lod_append: level must be offsets, or a Variable, got {level!r}")
    attrs = {"target_lod": [whole(offset) for offset in level], "append": True}
    return LayerHelper("lod_append").apply("lod_reset", {"X": x}, attrs, dtype=x.dtype)


def row_conv(
    input: Variable, future_context_size: int, param_attr: ParamLike = None, act: str | None = None
) -> Variable:
    """Add to each row of a sequence the ``future_context_size`` rows after it, each weighted.

    The parameter [future_context_size + 1, width] has a weight for each number of those rows.

    Examples:
        >>> words = fluid.data("words", [None, 16], lod_level=1)
        >>> fluid.layers.row_conv(words, future_context_size=2).shape
        (-1, 16)
    """
    helper = LayerHelper("row_conv")
    shape = [future_context_size + 1, input.shape[-1]]
    filters = helper.create_parameter(param_attr, shape, input.dtype)
    slots = {"X": input, "Filter": filters}
    return helper.activate(helper.apply("row_conv", slots, dtype=input.dtype), act)


def im2sequence(
    input: Variable,
    filter_size: int | Sequence[int] = 1,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    input_image_size: Variable | None = None,
    out_stride: int | Sequence[int] = 1,
    name: str | None = None,
) -> Variable:
    """Return the patches of each image [images, channels, height, width] as a sequence of rows.

    Patches go from left to right, then down; ``padding`` is one number, (height, width), or (up,
    left, down, right). ``input_image_size``, sizes that differ from image to image, is refused.

    Examples:
        >>> images = fluid.data("images", [None, 3, 8, 8])
        >>> fluid.layers.im2sequence(images, filter_size=2, stride=2).shape
        (-1, 12)
    """
    if input_image_size is not None:
        raise GraphError("im2sequence: input_image_size is not there; all images have one size")
    padded = _of_axes(padding)
    attrs = {
        "kernels": _of_axes(filter_size),
        "strides": _of_axes(stride),
        "paddings": padded * 2 if len(padded) == 2 else padded,
    }
    return LayerHelper("im2sequence", name).apply(
        "im2sequence", {"X": input}, attrs, dtype=input.dtype
    )


def _of_axes(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
