"""Elements moved: flipped, shifted, padded, cropped, sliced, regrouped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.activation import apply
from hpcdist.fluid.layers.extents import as_extents, refuse_variables
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.fluid.layers.tensor import assign
from hpcdist.graph.variable import Variable

__all__ = [
    "crop",
    "crop_tensor",
    "diag",
    "diag_embed",
    "expand_as",
    "flip",
    "pad",
    "pad2d",
    "pad_constant_like",
    "pixel_shuffle",
    "roll",
    "shuffle_channel",
    "space_to_depth",
    "t",
    "temporal_shift",
    "tril",
    "triu",
    "unfold",
    "unstack",
]

Ints = int | Sequence[int]


def _ints(layer: str, argument: str, value: Any) -> list[int]:
    """Return integers, known when the Program is built, as a list."""
    refuse_variables(layer, argument, value)
    return [whole(v) for v in _listed(value)]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


# -- turned and shifted ----------------------------------------------------------------------------
def roll(input: Variable, shifts: Ints, dims: Ints | None = None) -> Variable:
    """Shift elements along ``dims`` (None: along all, as one row); what leaves enters again.

    Examples:
        >>> x = fluid.layers.assign(np.array([1, 2, 3]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.roll(x, shifts=1)])
        [array([3, 1, 2])]
    """
    attrs: dict[str, Any] = {"shifts": _ints("roll", "shifts", shifts)}
    attrs["dims"] = [] if dims is None else _ints("roll", "dims", dims)
    return apply("roll", input, **attrs)


def flip(input: Variable, dims: Ints, name: str | None = None) -> Variable:
    """Turn the order of elements around along ``dims``.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2], [3, 4]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.flip(x, dims=[0])])
        [array([[3, 4],
               [1, 2]])]
    """
    return apply("flip", input, name, dims=_ints("flip", "dims", dims))


def temporal_shift(
    x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None
) -> Variable:
    """Shift channels between the frames of videos [videos * seg_num, channels, height, width].

    The first ``shift_ratio`` of the channels come from the frame before, as many from the frame
    after, zeros where there is none (Lin et al., 2019). Shape and dtype stay.
    """
    return apply("temporal_shift", x, name, seg_num=seg_num, shift_ratio=float(shift_ratio))


def t(input: Variable, name: str | None = None) -> Variable:
    """Transpose a matrix; a vector stays one.

    input: at most 2 dimensions. Returns [n, m] of [m, n].

    Examples:
        >>> x = fluid.data("x", [2, 3])
        >>> fluid.layers.t(x).shape
        (3, 2)
    """
    if len(input.shape) > 2:
        raise GraphError(f"layers.t: expected at most 2 dimensions, got shape {input.shape}")
    helper = LayerHelper("t", name)
    if len(input.shape) < 2:
        return helper.apply("assign", {"X": input}, dtype=input.dtype)
    outputs = dict.fromkeys(("Out", "XShape"), input.dtype)
    return helper.apply_all("transpose2", {"X": input}, outputs, {"axis": [1, 0]})[0]


# -- triangles and diagonals -----------------------------------------------------------------------
def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Keep the lower triangle of matrices, up to a diagonal; the rest is 0.

    input: [..., m, n], which is the shape of the result.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2], [3, 4]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.tril(x)])
        [array([[1, 0],
               [3, 4]])]
    """
    return _triangle("tril", input, diagonal, name)


def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Keep the upper triangle of matrices [..., rows, columns]; the rest is 0.

    ``diagonal`` > 0 begins that many places to the right of the main one. Shape and dtype stay.
    Raises GraphError for fewer than 2 dimensions.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2], [3, 4]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.triu(x)])
        [array([[1, 2],
               [0, 4]])]
    """
    return _triangle("triu", input, diagonal, name)


def _triangle(kind: str, input: Variable, diagonal: int, name: str | None) -> Variable:
    if not isinstance(diagonal, (int, np.integer)):
        raise GraphTypeError(f"diagonal in {kind} must be a python Int, got {diagonal!r}")
    if len(input.shape) < 2:
        raise GraphError(f"input shape in {kind} must be at least 2-D, got {input.shape}")
    return apply("tril_triu", input, name, diagonal=whole(diagonal), lower=kind == "tril")


def diag(diagonal: Variable | np.ndarray) -> Variable:
    """Return the matrix that has this vector as its diagonal.

    diagonal: [n]. Returns [n, n] of its type.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.diag(np.array([1, 2], "int64"))])
        [array([[1, 0],
               [0, 2]])]
    """
    if isinstance(diagonal, np.ndarray):
        diagonal = assign(diagonal)
    return append("diag", {"Diagonal": diagonal})


def diag_embed(input: Variable, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Write the last dimension into diagonals of matrices in dimensions dim1 and dim2.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, 2.0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.diag_embed(x)])
        [array([[1., 0.],
               [0., 2.]], dtype=float32)]
    """
    return append("diag_embed", {"Input": input}, offset=offset, dim1=dim1, dim2=dim2)


# -- padded, cropped, repeated ---------------------------------------------------------------------
def pad(
    x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """Pad every dimension: before and after the first, before and after the second, ...

    paddings: two numbers for each dimension of x.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2]], "int64"))
        >>> fluid.layers.pad(x, paddings=[0, 0, 1, 1]).shape
        (1, 4)
    """
    return apply("pad", x, name, paddings=list(paddings), pad_value=float(pad_value))


def pad2d(
    input: Variable,
    paddings: Variable | Sequence[int] = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Pad images (top, bottom, left, right): with a number, or mirrored (reflect, edge).

    Examples:
        >>> images = fluid.data("images", [None, 3, 8, 8])
        >>> fluid.layers.pad2d(images, paddings=[1, 1, 2, 2]).shape
        (-1, 3, 10, 12)
    """
    if mode not in ("constant", "reflect", "edge"):
        raise GraphError(f"layers.pad2d: mode must be constant, reflect or edge, got {mode!r}")
    attrs = {
        "paddings": as_extents(paddings),
        "mode": mode,
        "pad_value": float(pad_value),
        "data_format": data_format,
    }
    return apply("pad2d", input, name, **attrs)


def pad_constant_like(
    x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """Pad y after its elements until it has the shape of x.

    Examples:
        >>> x = fluid.layers.assign(np.array([[0, 0, 0]], "float32"))
        >>> y = fluid.layers.assign(np.array([[1]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.pad_constant_like(x, y, pad_value=9.0)])
        [array([[1., 9., 9.]], dtype=float32)]
    """
    return append(
        "pad_constant_like", {"X": x, "Y": y}, name, dtype=y.dtype, pad_value=float(pad_value)
    )


def crop(
    x: Variable,
    shape: Variable | Sequence[int] | None = None,
    offsets: Variable | Sequence[int] | None = None,
    name: str | None = None,
) -> Variable:
    """Cut out a piece: of a shape, or of another value's shape, at offsets (0).

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2, 3], [4, 5, 6]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.crop(x, shape=[1, 2], offsets=[1, 1])])
        [array([[5., 6.]], dtype=float32)]
    """
    helper = LayerHelper("crop", name)
    inputs: dict[str, Any] = {"X": x}
    attrs = {"offsets": _offsets(x, offsets)}
    if isinstance(shape, Variable):
        inputs["Y"] = shape
    elif shape is None:
        raise GraphError("layers.crop: shape must be given")
    else:
        attrs["shape"] = _ints("crop", "shape", shape)
    return helper.apply("crop", inputs, attrs, dtype=x.dtype)


def crop_tensor(
    x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None
) -> Variable:
    """Return the piece of ``shape`` (-1: all that is left) that begins at ``offsets`` (default 0).

    Both have an integer or a Variable for each dimension of ``x``, or are a Variable that has all;
    the dtype stays. Raises GraphError if the piece reaches beyond ``x``.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2, 3], [4, 5, 6]]))
        >>> out = fluid.layers.crop_tensor(x, shape=[1, 2], offsets=[1, 1])
        >>> fluid.Executor().run(fetch_list=[out])
        [array([[5, 6]])]
    """
    attrs = {
        "shape": as_extents(x.shape if shape is None else shape),
        "offsets": _offsets(x, offsets),
    }
    return append("crop_tensor", {"X": x}, name, **attrs)


def _offsets(x: Variable, offsets: Any) -> Any:
    if isinstance(offsets, Variable):
        return offsets
    return as_extents(offsets or [0] * len(x.shape))


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Repeat x along its dimensions until it has the shape of ``target_tensor``.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2]], "int64"))
        >>> like = fluid.layers.assign(np.zeros((2, 2), "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.expand_as(x, like)])
        [array([[1, 2],
               [1, 2]])]
    """
    return append("expand_as", {"X": x, "target_tensor": target_tensor}, name)


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Return the values side by side along ``axis``, without that dimension.

    The extent along axis must be known. Returns a list of that many values.

    Examples:
        >>> x = fluid.data("x", [2, 3])
        >>> [row.shape for row in fluid.layers.unstack(x)]
        [(3,), (3,)]
    """
    helper = LayerHelper("unstack")
    count = x.shape[axis] if num is None else num
    if count < 0:
        raise GraphError(
            f"layers.unstack: the extent of dimension {axis} of {x.shape} is not known"
        )
    outs = [helper.new_var(x.dtype) for _ in range(count)]
    helper.append_op("unstack", {"X": x}, {"Y": outs}, {"axis": axis, "num": count})
    return outs


# -- pixels and channels ---------------------------------------------------------------------------
def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Make r x r pixels of every r^2 channels.

    x: [n, channels, rows, columns], upscale_factor r. Returns [n, channels / r^2, rows * r, columns
    * r].

    Examples:
        >>> x = fluid.data("x", [None, 8, 5, 5])
        >>> fluid.layers.pixel_shuffle(x, upscale_factor=2).shape
        (-1, 2, 10, 10)
    """
    return apply("pixel_shuffle", x, upscale_factor=upscale_factor)


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Take channels of all groups in turn.

    x: [n, channels, rows, columns], group divides the channels. The result has the shape of x.

    Examples:
        >>> x = fluid.data("x", [None, 6, 5, 5])
        >>> fluid.layers.shuffle_channel(x, group=2).shape
        (-1, 6, 5, 5)
    """
    return apply("shuffle_channel", x, name, group=group)


def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Make channels of the pixels of every block of ``blocksize`` by ``blocksize``.

    [N, C, H, W] becomes [N, C * blocksize^2, H / blocksize, W / blocksize], in Fluid's order.

    Examples:
        >>> x = fluid.data("x", [None, 4, 6, 6])
        >>> fluid.layers.space_to_depth(x, blocksize=2).shape
        (-1, 16, 3, 3)
    """
    return apply("space_to_depth", x, name, blocksize=blocksize)


def unfold(
    x: Variable,
    kernel_sizes: Ints,
    strides: Ints = 1,
    paddings: Ints = 0,
    dilations: Ints = 1,
    name: str | None = None,
) -> Variable:
    """Write every window of images as a column: [N, channels * window, windows].

    paddings: one number, (rows, columns), or (top, left, bottom, right).

    Examples:
        >>> x = fluid.data("x", [None, 3, 8, 8])
        >>> fluid.layers.unfold(x, kernel_sizes=2, strides=2).shape
        (-1, 12, 16)
    """

    def pair(value: Ints) -> list[int]:
        return [value] * 2 if isinstance(value, int) else list(value)

    around = [paddings] * 4 if isinstance(paddings, int) else list(paddings)
    attrs = {
        "kernel_sizes": pair(kernel_sizes),
        "strides": pair(strides),
        "paddings": around * 2 if len(around) == 2 else around,
        "dilations": pair(dilations),
    }
    return LayerHelper("unfold", name).apply("unfold", {"X": x}, attrs, slot="Y", dtype=x.dtype)
