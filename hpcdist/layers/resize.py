"""Images of another size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper, refuse_variables

__all__ = [
    "image_resize",
    "image_resize_short",
    "interpolate",
    "resize_bilinear",
    "resize_nearest",
    "resize_trilinear",
]

_KINDS = {"BILINEAR": "bilinear", "NEAREST": "nearest", "TRILINEAR": "trilinear"}


def image_resize(
    input: Variable,
    out_shape: Sequence[int] | None = None,
    scale: float | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Any = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images to ``out_shape`` (rows, columns), or by ``scale``.

    resample: BILINEAR, NEAREST, or TRILINEAR of volumes. align_corners: corners stay corners;
    without it, align_mode 0 lets the centers of pixels, 1 their beginnings lie on each other.
    """
    if resample not in _KINDS:
        raise GraphError(f"image_resize: resample must be one of {[*_KINDS]}, got {resample!r}")
    refuse_variables("image_resize", "out_shape", out_shape, actual_shape)
    refuse_variables("image_resize", "scale", scale)
    if actual_shape is not None:
        raise GraphError("image_resize: actual_shape stands for a Variable: give out_shape")
    if (out_shape is None) is (scale is None):
        raise GraphError("image_resize: one of out_shape and scale must be given")
    kind = _KINDS[resample]
    attrs: dict[str, Any] = {
        "out_d": -1,
        "out_h": -1,
        "out_w": -1,
        "interp_method": kind,
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_layout": "NCHW" if data_format in ("NCHW", "NCDHW") else "NHWC",
    }
    if scale is not None:
        if scale <= 0:
            raise GraphError(f"image_resize: scale must be positive, got {scale}")
        attrs["scale"] = float(scale)
    else:
        assert out_shape is not None
        sizes = [int(size) for size in out_shape]
        if len(sizes) != len(input.shape) - 2:
            raise GraphError(f"image_resize: out_shape {sizes} does not fit images {input.shape}")
        attrs |= dict(zip(("out_w", "out_h", "out_d"), sizes[::-1]))
    helper = LayerHelper(f"{kind}_interp", name)
    return helper.apply(helper.layer_type, {"X": input}, attrs, dtype=input.dtype)


def _of_kind(resample: str, with_mode: bool, data_format: str) -> Callable[..., Variable]:
    def layer(
        input: Variable,
        out_shape: Sequence[int] | None = None,
        scale: float | None = None,
        name: str | None = None,
        actual_shape: Any = None,
        align_corners: bool = True,
        *rest: Any,
        **given: Any,
    ) -> Variable:
        names = ("align_mode", "data_format") if with_mode else ("data_format",)
        facts = {"data_format": data_format, **dict(zip(names, rest)), **given}
        return image_resize(
            input, out_shape, scale, name, resample, actual_shape, align_corners, **facts
        )

    layer.__name__ = layer.__qualname__ = f"resize_{_KINDS[resample]}"
    layer.__doc__ = f"Append `image_resize` with ``resample={resample!r}``."
    return layer


resize_bilinear = _of_kind("BILINEAR", True, "NCHW")
resize_nearest = _of_kind("NEAREST", False, "NCHW")
resize_trilinear = _of_kind("TRILINEAR", True, "NCDHW")
interpolate = image_resize


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Resize images so that their shorter side becomes ``out_short_len``."""
    if len(input.shape) != 4:
        raise GraphError(f"image_resize_short: expected images NCHW, got shape {input.shape}")
    refuse_variables("image_resize_short", "out_short_len", out_short_len)
    sides = list(input.shape[2:])
    short = sides.index(min(sides))
    new = [int(side * (out_short_len / sides[short]) + 0.5) for side in sides]
    new[short] = out_short_len
    return image_resize(input, new, resample=resample)
