"""hierarchical_sigmoid: a path of decisions to every class (Morin, Bengio, 2005)."""

from __future__ import annotations

from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, OfRows, by_row
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.loss.labels import range_check
from hpcdist.ops.loss.sampled_softmax import (
    gradient_metas,
    of_classes,
    with_copied_rows,
    with_tables,
    write_gradients,
)
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, DeviceArray, Metas

_HS_ATTRS = {"num_classes": 2, "is_sparse": False, "remote_prefetch": False}
_CLIP = 40.0


def _depth(num_classes: int, table) -> int:
    return table.shape[1] if table is not None else int(num_classes - 1).bit_length()


def _path(
    xp: ArrayModule, label, table, code, num_classes: int
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return the decisions on the way to each row's class: their rows of W, bits, which count.

    Without a table: the way up from leaf ``label + num_classes`` of a heap, whose root is 1.
    """
    if table is not None:
        # A path ends at the first number below 0.
        on_path = xp.cumsum(table < 0, axis=1) == 0
        return xp.where(on_path, table, 0), (code != 0) & on_path, on_path
    leaf = label.reshape(-1, 1) + num_classes
    level = xp.arange(_depth(num_classes, None))
    place = leaf >> (level + 1)
    on_path = place > 0
    return xp.where(on_path, place - 1, 0), ((leaf >> level) & 1 == 1) & on_path, on_path


def _hs_infer(
    x: Meta,
    w: Meta,
    label: Meta,
    table: Meta | None,
    code: Meta | None,
    bias: Meta | None,
    num_classes: int,
    **_,
) -> Metas:
    rows = x.shape[0]
    return Meta((rows, 1), x.dtype), Meta((rows, _depth(num_classes, table)), x.dtype)


def _hs(xp: ArrayModule, x, w, label, table, code, bias, out, pre, num_classes: int, **_) -> None:
    if table is None:
        range_check(xp, label, num_classes, "hierarchical_sigmoid", "classes")()
    places, bits, on_path = _path(xp, label, table, code, num_classes)
    scores = xp.einsum("nd,nkd->nk", x, of_classes(w, places))
    if bias is not None:
        scores += of_classes(bias.reshape(-1, 1) if bias.ndim < 3 else bias, places)[..., 0]
    scores = xp.clip(xp.where(on_path, scores, 0), -_CLIP, _CLIP)
    # As Fluid: places after the end of a path count with a score of 0, a constant log(2) each.
    soft = xp.log1p(xp.exp(scores))
    if pre is not None:
        pre[...] = soft
    out[...] = (soft - scores * bits).sum(1, keepdims=True)


def _hs_grad(
    xp: ArrayModule, x, w, label, table, code, bias, pre, dout, dx, dw, dbias, num_classes: int, **_
) -> None:
    places, bits, on_path = _path(xp, label, table, code, num_classes)
    slopes = (-xp.expm1(-pre) - bits) * on_path * dout
    write_gradients(xp, slopes, x, w, places, dx, dw, dbias)


def _hs_grad_infer(x: Meta, w: Meta, *others, is_sparse: bool, **_) -> Metas:
    *_paths, bias, pre, _dout = others
    return gradient_metas(x, w, bias, pre.size, is_sparse)


def _hs_rows(op: Applied) -> OfRows:
    return with_tables(op, "X", "Label", "PathTable", "PathCode", tables=("W", "Bias"))


def _hs_path(xp: ArrayModule, label, table, out, num_classes: int) -> None:
    if table is None:
        range_check(xp, label, num_classes, "hierarchical_sigmoid", "classes")()
    out[...] = _path(xp, label, table, table, num_classes)[0]


define_with_grad(
    "hierarchical_sigmoid",
    "X, W, Label, PathTable?, PathCode?, Bias? -> Out, PreOut",
    "X, W, Label, PathTable?, PathCode?, Bias?, PreOut, Out@GRAD -> X@GRAD?, W@GRAD?, Bias@GRAD?",
    rows=_hs_rows,
    attrs=_HS_ATTRS,
    infer=shaped("X: n d; W: ... d; Label: n 1; PathTable: n l; PathCode: n l", _hs_infer),
    kernel=_hs,
    grad_infer=_hs_grad_infer,
    grad_bind=with_copied_rows(_hs_grad),
)
define(
    "hierarchical_sigmoid_path",
    "Label, PathTable? -> Out",
    rows=by_row("Label", "PathTable"),
    attrs={"num_classes": 2},
    infer=lambda label, table, num_classes: Meta(
        (label.shape[0], _depth(num_classes, table)), "int64"
    ),
    kernel=_hs_path,
)
