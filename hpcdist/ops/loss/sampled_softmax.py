"""Losses over large vocabularies that touch few classes of a row: nce, sampled logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, OfRows, by_row, each_row
from hpcdist.ops.common import define_with_grad, fits, same
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.loss.labels import range_check
from hpcdist.ops.random.counter import BatchPart, Draw, Draws, filler, key_of, part_of
from hpcdist.ops.random.samplers import (
    SeededPairs,
    SeededWords,
    copied,
    log_uniform_classes,
    uniform_classes,
)
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Kernel, Metas

UNIFORM, LOG_UNIFORM, CUSTOM = range(3)
FAR = 1e20  # what is taken from the score of a sample that is a label by accident


def chance(xp: ArrayModule, classes, count: int, sampler: int, chances) -> DeviceArray:
    """Return with which probability a sampler draws each of these classes."""
    if sampler == UNIFORM:
        return xp.full(classes.shape, 1 / count)
    if sampler == LOG_UNIFORM:
        return xp.log((classes + 2.0) / (classes + 1.0)) / math.log(count)
    return chances[classes]


def log_uniform(xp: ArrayModule, words, count: int, modulus: int) -> DeviceArray:
    """Return int64 classes of uint32 ``words``, c by log((c + 2) / (c + 1)) / log(count)."""
    drawn = xp.exp(words * (2.0**-32 * math.log(count))).astype("int64") - 1
    return drawn % modulus


# -- nce: noise contrastive estimation (Gutmann, Hyvaerinen, 2010) ---------------------------------
_NCE_ATTRS = {
    "num_total_classes": 1,
    "num_neg_samples": 10,
    "seed": 0,
    "sampler": UNIFORM,
    "is_sparse": False,
    "remote_prefetch": False,
    "custom_neg_classes": (),
}
_NCE_IN = (
    "Input, Label, Weight, Bias?, SampleWeight?, CustomDistProbs?, CustomDistAlias?, "
    "CustomDistAliasProbs?"
)


def _columns(label: Meta, negatives: int) -> int:
    """Return how many classes each row has: its labels, and those that are drawn."""
    return (label.shape[1] if len(label.shape) == 2 else 1) + negatives


def _nce_infer(
    x: Meta,
    label: Meta,
    weight: Meta,
    *optional,
    num_total_classes: int,
    num_neg_samples: int,
    custom_neg_classes: Sequence[int],
    **_,
) -> Metas:
    shape = (x.shape[0], _columns(label, len(custom_neg_classes) or num_neg_samples))
    if optional[1] is not None and not fits(optional[1].shape[:1], x.shape[:1]):
        raise GraphError(f"expected SampleWeight of {x.shape[0]} rows, got {optional[1].shape}")
    looked_up = optional[-1] is not None  # classes, and weights of these
    bias = optional[0]
    if not (looked_up or bias is None or fits(bias.shape, (num_total_classes, 1))):
        raise GraphError(f"expected Bias {[num_total_classes, 1]}, got {list(bias.shape)}")
    extents = shape[1:] if looked_up else (num_total_classes,)
    if len(x.shape) != 2 or weight.shape[looked_up:] != (*extents, x.shape[1]):
        raise GraphError(
            f"rows of {x.shape} need weights {(*extents, x.shape[-1])}, got {weight.shape}"
        )
    return Meta((x.shape[0], 1), x.dtype), Meta(shape, x.dtype), Meta(shape, "int64")


def _drawing(
    xp: ArrayModule,
    label,
    alias,
    alias_chances,
    rows,
    classes,
    num_total_classes: int,
    seed: int,
    sampler: int,
    custom_neg_classes: Sequence[int],
    state: Draws,
    stream: str = "",
    **_,
) -> Callable[[], None]:
    """Return the call that fills ``classes``: each row's labels, then the drawn ones."""
    trues = label.reshape(len(classes), -1)
    many = trues.shape[1]
    negatives = classes[:, many:]
    part = part_of(negatives, rows, None)
    if seed:
        numbers = _seeded(xp, part, num_total_classes, sampler, seed)
    else:
        key = key_of(seed, stream or state.name)
        numbers = _counted(xp, filler(xp, part, key, state), num_total_classes, sampler)
    check = range_check(xp, label, num_total_classes, "nce", "classes")
    custom = xp.asarray(custom_neg_classes, classes.dtype)

    def draw() -> DeviceArray:
        drawn, aside = numbers()
        if sampler == CUSTOM:
            moved = (aside > alias_chances[drawn]) & (alias[drawn] >= 0)
            drawn = xp.where(moved, alias[drawn], drawn)
        return drawn.reshape(negatives.shape)

    def run() -> None:
        check()
        classes[:, :many] = trues
        negatives[...] = custom if custom_neg_classes else draw()

    return run


Drawn: TypeAlias = tuple[DeviceArray, Any]  # int64 classes; chances, if CUSTOM


def _counted(xp: ArrayModule, words: Draw, count: int, sampler: int) -> Callable[[], Drawn]:
    """Return the function that draws other classes in every run."""

    def draw() -> Drawn:
        if sampler == LOG_UNIFORM:
            return log_uniform(xp, words(), count, max(count - 1, 1)), None
        drawn = (words() * (count * 2.0**-32)).astype("int64")
        return drawn, words() * 2.0**-32 if sampler == CUSTOM else None

    return draw


def _seeded(
    xp: ArrayModule, part: BatchPart, count: int, sampler: int, seed: int
) -> Callable[[], Drawn]:
    """Return the function that draws Fluid's classes, the same in every run."""
    if sampler == CUSTOM:
        pairs = SeededPairs(seed, count)

        def draw() -> Drawn:
            places, asides = pairs(part.skipped(), part.size)
            return copied(xp, places), copied(xp, asides)

        return draw
    stream = SeededWords(seed)

    def drawn() -> Drawn:
        words = stream(part.skipped(), part.size)
        if sampler == LOG_UNIFORM:
            return copied(xp, log_uniform_classes(words, count, max(count - 1, 1))), None
        return copied(xp, uniform_classes(words, count)), None

    return drawn


def _nce_bind(
    xp: ArrayModule,
    x,
    label,
    weight,
    bias,
    sample_weight,
    chances,
    alias,
    alias_chances,
    rows,
    given_classes,
    cost,
    activations,
    classes,
    num_total_classes: int,
    sampler: int,
    **attrs,
) -> Call:
    many = label.reshape(len(x), -1).shape[1]
    attrs |= {"num_total_classes": num_total_classes, "sampler": sampler}
    if given_classes is None:
        find = _drawing(xp, label, alias, alias_chances, rows, classes, **attrs)
    else:
        find = partial(xp.copyto, classes, given_classes)

    def run() -> None:
        find()
        scores = xp.einsum("nd,nkd->nk", x, of_classes(weight, classes))
        if bias is not None:
            scores += of_classes(bias, classes)[..., 0]
        activations[...] = 1 / (1 + xp.exp(-scores))
        noise = _noise(xp, classes, many, num_total_classes, sampler, chances)
        chosen = activations / (activations + noise)
        missed = noise / (activations + noise)
        terms = -xp.log(xp.concatenate([chosen[:, :many], missed[:, many:]], 1))
        total = terms.sum(1, keepdims=True)
        cost[...] = total if sample_weight is None else total * sample_weight.reshape(-1, 1)

    return run


def of_classes(table, classes) -> DeviceArray:
    """Return a table's rows of classes [n, k]; one of three dimensions has been looked up."""
    return table if table.ndim == 3 else table.reshape(len(table), -1)[classes]


def _noise(xp: ArrayModule, classes, many: int, count: int, sampler: int, chances) -> DeviceArray:
    return (classes.shape[1] - many) * chance(xp, classes, count, sampler, chances)


def _nce_slopes(xp: ArrayModule, label, activations, classes, noise, weight, dcost) -> DeviceArray:
    many = label.reshape(len(activations), -1).shape[1]
    share = activations / (activations + noise)
    slopes = share * (1 - activations)
    slopes[:, :many] = (1 - share[:, :many]) * (activations[:, :many] - 1)
    slopes *= dcost.reshape(-1, 1)
    return slopes if weight is None else slopes * weight.reshape(-1, 1)


def _nce_grad_infer(
    x: Meta, label: Meta, weight: Meta, bias: Meta | None, *optional, is_sparse: bool, **_
) -> Metas:
    return gradient_metas(x, weight, bias, optional[-2].size, is_sparse)


def gradient_metas(
    x: Meta, weight: Meta, bias: Meta | None, touched: int, is_sparse: bool
) -> Metas:
    """Return the Metas of `write_gradients`, for so many ``touched`` rows of the tables."""
    of_bias = None if bias is None else table_gradient(bias, touched, is_sparse)
    return same(x), table_gradient(weight, touched, is_sparse), of_bias


def table_gradient(table: Meta, touched: int, is_sparse: bool) -> Meta:
    """Return the gradient of a table: that of the ``touched`` rows only if it is sparse."""
    if is_sparse and len(table.shape) < 3:
        return Meta(table.shape, table.dtype, "SELECTED_ROWS", touched)
    return same(table)


def write_rows(xp: ArrayModule, grad, classes, values) -> None:
    """Write rows of a table's gradient: values [..., width] for classes [...]."""
    flat, rows = classes.reshape(-1), values.reshape(classes.size, -1)
    if isinstance(grad, SelectedRows):
        grad.rows[...] = flat
        grad.value[...] = rows.reshape(grad.value.shape)
    elif grad is not None and grad.ndim == 3:  # rows that have been looked up
        grad[...] = rows.reshape(grad.shape)
    elif grad is not None:
        grad.fill(0)
        SelectedRows(flat, rows.reshape(len(rows), *grad.shape[1:]), len(grad)).add_to(grad)


def with_copied_rows(kernel: Kernel) -> Callable[..., Callable[[], None]]:
    """Bind a kernel to its own rows: a sum over trainers puts those of all in their place."""

    def bind(xp: ArrayModule, *arrays, **attrs) -> Callable[[], None]:
        copies = [replace(a) if isinstance(a, SelectedRows) else a for a in arrays]
        return partial(kernel, xp, *copies, **attrs)

    return bind


def _nce_grad(
    xp: ArrayModule,
    x,
    label,
    weight,
    bias,
    sample_weight,
    chances,
    alias,
    alias_chances,
    activations,
    classes,
    dcost,
    dx,
    dweight,
    dbias,
    num_total_classes: int,
    sampler: int,
    **_,
) -> None:
    many = label.reshape(len(x), -1).shape[1]
    noise = _noise(xp, classes, many, num_total_classes, sampler, chances)
    slopes = _nce_slopes(xp, label, activations, classes, noise, sample_weight, dcost)
    write_gradients(xp, slopes.astype(x.dtype), x, weight, classes, dx, dweight, dbias)


def write_gradients(xp: ArrayModule, slopes, x, weight, classes, dx, dweight, dbias) -> None:
    """Write the gradients of scores x w^T + b [rows, classes of a row], which are ``slopes``."""
    if dx is not None:
        dx[...] = xp.einsum("nk,nkd->nd", slopes, of_classes(weight, classes))
    write_rows(xp, dbias, classes, slopes)
    if dweight is not None:
        write_rows(xp, dweight, classes, slopes[..., None] * x[:, None, :])


def with_tables(op: Applied, *slots: str, tables: Sequence[str]) -> OfRows:
    """Treat tables as rows of the batch, too, if they are what has been looked up for it."""
    looked_up = len(op.inputs[tables[0]][0].shape) == 3
    return each_row(op, *slots, *(tables if looked_up else ()))


def _nce_rows(op: Applied) -> OfRows:
    slots = ("Input", "Label", "SampleWeight", "Classes")
    return with_tables(op, *slots, tables=("Weight", "Bias"))


define_with_grad(
    "nce",
    # Rows: see `random.counter.BatchPart`. Classes: those whose Weight and Bias are looked up.
    f"{_NCE_IN}, Rows?, Classes? -> Cost, SampleLogits, SampleLabels",
    f"{_NCE_IN}, SampleLogits, SampleLabels, Cost@GRAD -> Input@GRAD?, Weight@GRAD?, Bias@GRAD?",
    rows=_nce_rows,
    attrs=_NCE_ATTRS,
    infer=shaped("Input: n d; Label: n t", _nce_infer),
    bind=_nce_bind,
    state=Draws,
    grad_infer=_nce_grad_infer,
    grad_bind=with_copied_rows(_nce_grad),
)
define(
    "nce_classes",
    "Label, CustomDistProbs?, CustomDistAlias?, CustomDistAliasProbs?, Rows? -> Out",
    rows=by_row("Label"),
    attrs={**_NCE_ATTRS, "stream": ""},
    infer=lambda label, *_, num_neg_samples, custom_neg_classes, **__: Meta(
        (label.shape[0], _columns(label, len(custom_neg_classes) or num_neg_samples)), "int64"
    ),
    bind=lambda xp, label, _, *tables_rows_out, **attrs: _drawing(
        xp, label, *tables_rows_out, **attrs
    ),
    state=Draws,
)
