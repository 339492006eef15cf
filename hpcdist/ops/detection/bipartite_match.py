"""Matching of prior boxes to true boxes, for SSD's loss (Liu et al., 2016)."""

from __future__ import annotations

import itertools

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.types import Array, ArrayModule, Call, Metas

_NOTHING = 1e-6
NONE = -1  # no true box, or no more priors


def _put(xp: ArrayModule, target, value) -> None:
    if target is not None:
        target[...] = xp.asarray(value)


def _bounds(lod: Lod | None, rows: int) -> Array:
    """Return where the true boxes of each image begin, and the end; one image if not grouped."""
    return np.array([0, rows]) if lod is None else lod.last


def _match_infer(alike: Meta, match_type: str, dist_threshold: float) -> Metas:
    if match_type not in ("bipartite", "per_prediction"):
        raise GraphError(f"match_type must be bipartite or per_prediction, got {match_type!r}")
    images = 1 if alike.lod is None else alike.lod.sequences
    return Meta((images, alike.shape[1]), "int32"), Meta((images, alike.shape[1]), alike.dtype)


def _matched(alike) -> tuple[Array, Array]:
    """Give each row, the most alike pair first, a different column."""
    rows, columns = alike.shape
    index, value = np.full(columns, NONE), np.zeros(columns)
    order = np.argsort(-alike.reshape(-1), kind="stable")
    free = set(range(rows))
    for flat in order:
        row, column = divmod(int(flat), columns)
        if not free or alike[row, column] < _NOTHING:
            break
        if row in free and index[column] == NONE:
            free.remove(row)
            index[column], value[column] = row, alike[row, column]
    return index, value


def _match_bind(
    xp: ArrayModule, alike, indices, distances, match_type: str, dist_threshold: float, lods
) -> Call:
    bounds = _bounds(lods[0], len(alike))

    def run() -> None:
        host_distances, matches = on_host(alike), []
        for begin, end in itertools.pairwise(bounds):
            distances_of_image = host_distances[begin:end]
            index, value = _matched(distances_of_image)
            if match_type == "per_prediction" and len(
                distances_of_image
            ):  # the other columns, if alike enough
                best = distances_of_image.argmax(0)
                most = distances_of_image.max(0)
                more = (index == NONE) & (most >= max(dist_threshold, _NOTHING))
                index, value = np.where(more, best, index), np.where(more, most, value)
            matches.append((index, value))
        _put(xp, indices, np.array([index for index, _ in matches], np.int32))
        _put(xp, distances, np.array([value for _, value in matches], host_distances.dtype))

    return run


define(
    "bipartite_match",
    "DistMat -> ColToRowMatchIndices, ColToRowMatchDist",
    rows=not_on_rows,
    attrs={"match_type": "bipartite", "dist_threshold": 0.5},
    infer=_match_infer,
    bind=_match_bind,
    lods=("DistMat",),
)


# -- target_assign: to each prior the value of its true box ----------------------------------------
def _assign_infer(x: Meta, match: Meta, negative: Meta | None, mismatch_value: int) -> Metas:
    if len(x.shape) != 3:
        raise GraphError(f"values of true boxes must be [boxes, priors or 1, width], got {x.shape}")
    return Meta((*match.shape, x.shape[2]), x.dtype), Meta((*match.shape, 1), "float32")


def _assign_bind(
    xp: ArrayModule, x, match, negative, out, weight, mismatch_value: int, lods
) -> Call:
    begins = _bounds(lods[0], len(x))[:-1]
    priors = np.arange(match.shape[1]) % x.shape[1]

    def run() -> None:
        index = on_host(match)
        matched = (index != NONE)[..., None]
        rows = np.where(index == NONE, 0, index + np.asarray(begins)[:, None])
        chosen = on_host(x)[np.minimum(rows, max(len(x) - 1, 0)), priors] if len(x) else 0
        counts = matched.astype(np.float32)
        if negative is not None:
            for image, places in enumerate(on_host(negative)):
                counts[image, places[places != NONE]] = 1
        _put(xp, out, np.where(matched, chosen, mismatch_value).astype(out.dtype.name))
        _put(xp, weight, counts)

    return run


define(
    "target_assign",
    "X, MatchIndices, NegIndices? -> Out, OutWeight",
    rows=not_on_rows,
    attrs={"mismatch_value": 0},
    infer=_assign_infer,
    bind=_assign_bind,
    lods=("X",),
)


# -- mine_hard_examples: priors without a true box whose loss is high ------------------------------
def _mine(
    xp: ArrayModule,
    loss,
    match,
    distance,
    negative,
    updated,
    neg_pos_ratio: float,
    neg_dist_threshold: float,
    mining_type: str,
    **_,
) -> None:
    """Choose so many for each that has one. Unlike Fluid's, rows are filled up with -1."""
    losses, index, alike = on_host(loss), on_host(match), on_host(distance)
    mined = np.full(index.shape, NONE, np.int32)
    for image in range(len(index)):
        eligible = np.flatnonzero((index[image] == NONE) & (alike[image] < neg_dist_threshold))
        negatives = int((index[image] != NONE).sum() * neg_pos_ratio)
        order = np.argsort(-losses[image, eligible], kind="stable")[:negatives]
        chosen = np.sort(eligible[order])
        mined[image, : len(chosen)] = chosen
    _put(xp, negative, mined)
    _put(xp, updated, index)


def _mine_infer(loss: Meta, match: Meta, distance: Meta, mining_type: str, **_) -> Metas:
    if mining_type != "max_negative":
        raise GraphError(f"mining_type must be max_negative, got {mining_type!r}")
    return Meta(match.shape, "int32"), Meta(match.shape, "int32")


define(
    "mine_hard_examples",
    "ClsLoss, MatchIndices, MatchDist -> NegIndices, UpdatedMatchIndices",
    rows=not_on_rows,
    attrs={
        "neg_pos_ratio": 3.0,
        "neg_dist_threshold": 0.5,
        "mining_type": "max_negative",
        "sample_size": None,
    },
    infer=_mine_infer,
    kernel=_mine,
)
