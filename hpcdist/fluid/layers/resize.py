"""Images of another size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.extents import as_extents, has_variables, refuse_variables
from hpcdist.fluid.layers.helper import LayerHelper, named
from hpcdist.graph.variable import Variable

__all__ = [
    "image_resize",
    "image_resize_short",
    "interpolate",
    "resize_bilinear",
    "resize_nearest",
    "resize_trilinear",
]

_KINDS = {kind.upper(): kind for kind in ("bilinear", "nearest", "bicubic", "trilinear")}


def image_resize(
    input: Variable,
    out_shape: Variable | Sequence[int | Variable] | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images to ``out_shape`` (rows, columns), else by ``scale``.

    resample: BILINEAR, NEAREST, BICUBIC, or TRILINEAR of volumes.
    align_corners: corners stay corners; without it, align_mode 0 lets the centers of pixels, 1
    their beginnings lie on each other.
    ``actual_shape`` goes before the others. There may be Variables in all of them.

    Examples:
        >>> images = fluid.data("images", [None, 3, 8, 8])
        >>> fluid.layers.image_resize(images, out_shape=[16, 16]).shape
        (-1, 3, 16, 16)
    """
    if resample not in _KINDS:
        raise GraphError(f"image_resize: resample must be one of {[*_KINDS]}, got {resample!r}")
    if out_shape is None and scale is None:
        raise GraphError("image_resize: one of out_shape and scale must be given")
    kind = _KINDS[resample]
    attrs: dict[str, Any] = {
        "out_d": -1,
        "out_h": -1,
        "out_w": -1,
        "interp_method": kind,
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_layout": data_format,
    }
    inputs: dict[str, Any] = {"X": input}
    if out_shape is None:
        assert scale is not None
        if not isinstance(scale, Variable) and scale <= 0:
            raise GraphError(f"image_resize: scale must be positive, got {scale}")
        attrs["scale"] = scale if isinstance(scale, Variable) else float(scale)
    elif isinstance(out_shape, Variable):
        attrs["size"] = out_shape
    else:
        if len(out_shape) != len(input.shape) - 2:
            raise GraphError(f"image_resize: out_shape {out_shape} does not fit {input.shape}")
        if has_variables(out_shape):
            attrs["size"] = as_extents(out_shape)
        else:
            attrs |= dict(zip(("out_w", "out_h", "out_d"), as_extents(out_shape)[::-1]))
    if actual_shape is not None:
        attrs["size"] = actual_shape
    helper = LayerHelper(f"{kind}_interp", name)
    return helper.apply(helper.layer_type, inputs, attrs, dtype=input.dtype)


def _resized(resample: str, layout: str, images: str) -> Callable[..., Variable]:
    def layer(
        input: Variable,
        out_shape: Variable | Sequence[int | Variable] | None = None,
        scale: float | Variable | None = None,
        name: str | None = None,
        actual_shape: Variable | None = None,
        align_corners: bool = True,
        align_mode: int = 1,
        data_format: str = layout,
    ) -> Variable:
        options = (actual_shape, align_corners, align_mode, data_format)
        return image_resize(input, out_shape, scale, name, resample, *options)

    docstring = (
        f"Append `image_resize` of {images}; arguments and errors are those of `image_resize`."
    )
    return named(f"resize_{resample.lower()}", layer, docstring)


resize_bilinear = _resized("BILINEAR", "NCHW", "images [N, C, height, width]")
resize_trilinear = _resized("TRILINEAR", "NCDHW", "volumes [N, C, D, H, W]")


def resize_nearest(
    input: Variable,
    out_shape: Variable | Sequence[int | Variable] | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Append `image_resize` with ``resample="NEAREST"``: images [N, C, height, width].

    Arguments and errors are those of `image_resize`.

    Examples:
        >>> images = fluid.data("images", [None, 3, 8, 8])
        >>> fluid.layers.resize_nearest(images, out_shape=[16, 16]).shape
        (-1, 3, 16, 16)
    """
    options = (actual_shape, align_corners, 1, data_format)
    return image_resize(input, out_shape, scale, name, "NEAREST", *options)


interpolate = image_resize


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Resize images so that their shorter side becomes ``out_short_len``.

    input: [n, channels, rows, columns], whose rows and columns are known. Returns float32 images.

    Examples:
        >>> images = fluid.data("images", [None, 3, 20, 30])
        >>> fluid.layers.image_resize_short(images, out_short_len=10).shape
        (-1, 3, 10, 15)
    """
    if len(input.shape) != 4:
        raise GraphError(f"image_resize_short: expected images NCHW, got shape {input.shape}")
    refuse_variables("image_resize_short", "out_short_len", out_short_len)
    sides = list(input.shape[2:])
    short = sides.index(min(sides))
    new = [int(side * (out_short_len / sides[short]) + 0.5) for side in sides]
    new[short] = out_short_len
    return image_resize(input, new, resample=resample)
