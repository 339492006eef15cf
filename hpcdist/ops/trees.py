"""Trees: a convolution over nodes and their children, and trees of classes to retrieve from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import by_row, not_on_rows
from hpcdist.ops.common import define_with_grad, in_sequence
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.loss.labels import range_check
from hpcdist.ops.random.counter import Draws, SameDraws, filler, key_of, part_of
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, Call, Operands


# -- tree_conv (Mou et al., 2016) ------------------------------------------------------------------
def _shares(edges, nodes: int, max_depth: int) -> Array:
    """Return [3, nodes, nodes]: how nodes below a node count for it, as left, right, top ones.

    ``edges``: pairs (parent, child), numbered from 1; the first with a 0 ends them.
    """
    ends = np.flatnonzero((edges == 0).any(1))
    used = edges[: ends[0]] if len(ends) else edges
    if len(used) and (used.max() > nodes or used.min() < 0 or len(used) >= nodes):
        raise FeedError(f"tree_conv: {len(used)} edges between {nodes} nodes, got {used.tolist()}")
    children: dict[int, list[int]] = {}
    for parent, child in used.tolist():
        children.setdefault(parent, []).append(child)
    shares = np.zeros((3, nodes, nodes))
    for root in range(1, len(used) + 2):
        shares[2, root - 1, root - 1] = 1
        seen, level = {root}, [root]
        for depth in range(1, max_depth):
            below: list[int] = []
            for node in level:
                of_node = children.get(node, [])
                for place, child in enumerate(of_node):
                    if child in seen:
                        continue
                    seen.add(child)
                    below.append(child)
                    top = (max_depth - depth) / max_depth
                    left = (1 - top) * (place / (len(of_node) - 1) if len(of_node) > 1 else 0.5)
                    shares[:, root - 1, child - 1] += left, (1 - top) * (1 - left), top
            level = below
    return shares


def _patches(max_depth: int, nodes, edges) -> tuple[Any, Any]:
    """Return the shares of each sample, and what filters read of them: [N, nodes, features, 3]."""
    shares = np.stack([_shares(each, nodes.shape[1], max_depth) for each in edges])
    return shares, np.einsum("nkpv,nvf->npfk", shares, nodes)


def _tree_conv_bind(xp: ArrayModule, nodes, edges, w, out, max_depth: int) -> Call:
    def loop(inputs: Operands, outputs: Operands) -> None:
        nodes, edges, w = inputs
        _, read = _patches(max_depth, nodes, edges)
        outputs[0][...] = np.einsum("npfk,fkog->npog", read, w)

    return run_on_host(xp, loop, (nodes, edges, w), (out,))


def _tree_conv_grad_bind(
    xp: ArrayModule, nodes, edges, w, dout, dnodes, dw, max_depth: int
) -> Call:
    def loop(inputs: Operands, outputs: Operands) -> None:
        nodes, edges, w, dout = inputs
        shares, read = _patches(max_depth, nodes, edges)
        if outputs[0] is not None:
            dread = np.einsum("npog,fkog->npfk", dout, w)
            outputs[0][...] = np.einsum("nkpv,npfk->nvf", shares, dread)
        if outputs[1] is not None:
            outputs[1][...] = np.einsum("npfk,npog->fkog", read, dout)

    return run_on_host(xp, loop, (nodes, edges, w, dout), (dnodes, dw))


def _tree_conv_infer(nodes: Meta, edges: Meta, w: Meta, max_depth: int) -> Meta:
    if len(nodes.shape) != 3 or edges.shape[2:] != (2,):
        raise GraphError(
            f"tree_conv: expected nodes [N, nodes, features] and edges [N, edges, 2], got "
            f"{nodes.shape} and {edges.shape}"
        )
    return Meta((*nodes.shape[:2], *w.shape[2:]), nodes.dtype)


define_with_grad(
    "tree_conv",
    "NodesVector, EdgeSet, Filter -> Out",
    "NodesVector, EdgeSet, Filter, Out@GRAD -> NodesVector@GRAD?, Filter@GRAD?",
    rows=by_row("NodesVector", "EdgeSet"),
    attrs={"max_depth": 2},
    infer=shaped("NodesVector: n v f; EdgeSet: n e 2; Filter: f 3 o m", _tree_conv_infer),
    bind=_tree_conv_bind,
    grad_bind=_tree_conv_grad_bind,
)


# -- trees of classes (Zhu et al., 2018) -----------------------------------------------------------
def _child_bind(xp: ArrayModule, x, info, child, leaf, child_nums: int, dtype: str) -> Call:
    """``info``: of each node its item (0: it is no leaf), layer, parent, and children (0: none)."""
    check = range_check(xp, x, len(info), "tdm_child", "nodes of the tree")

    def run() -> None:
        check()
        children = xp.where((x != 0)[..., None], info[x][..., 3:], 0)
        if child is not None:
            child[...] = children
        if leaf is not None:
            leaf[...] = (children != 0) & (info[children][..., 0] != 0)

    return run


def _child_infer(x: Meta, info: Meta, child_nums: int, dtype: str) -> tuple[Meta, Meta]:
    if info.shape[1] != 3 + child_nums:
        raise GraphError(f"tdm_child: the tree must have {3 + child_nums} columns: {info.shape}")
    return Meta((*x.shape, child_nums), dtype), Meta((*x.shape, child_nums), dtype)


define(
    "tdm_child",
    "X, TreeInfo -> Child, LeafMask",
    rows=by_row("X"),
    attrs={"child_nums": 2, "dtype": "int32"},
    infer=_child_infer,
    bind=_child_bind,
)


def _sample_bind(
    xp: ArrayModule,
    x,
    travel,
    layer,
    out,
    labels,
    mask,
    neg_samples_num_list: Sequence[int],
    output_positive: bool,
    layer_offset_lod: Sequence[int],
    seed: int,
    dtype: str,
    state: Draws,
) -> Call:
    """For each class, of each layer the node above it and others, drawn without repetition."""
    check = range_check(xp, x, len(travel), "tdm_sampler", "leaves of the tree")
    count = len(layer)

    def loop(inputs: Operands, outputs: Operands) -> None:
        x, travel, layer = inputs
        ids, nodes = x.reshape(-1), layer.reshape(-1)
        words = filler(np, part_of(np.empty((len(ids), count)), None, None), key, draws)()
        drawn = words.reshape(len(ids), count)
        results = [np.zeros((len(ids), width), np.int64) for _ in range(3)]
        for row, leaf in enumerate(ids):
            at = 0
            for k, number in enumerate(neg_samples_num_list):
                above = travel[leaf, k]
                begin, end = layer_offset_lod[k], layer_offset_lod[k + 1]
                of_layer = nodes[begin:end]
                order = np.argsort(drawn[row, begin:end], kind="stable")
                chosen = of_layer[order][of_layer[order] != above][:number]
                if output_positive:
                    chosen = np.concatenate([[above], chosen])
                if above:  # else the class is not that deep
                    place = slice(at, at + len(chosen))
                    results[0][row, place], results[2][row, place] = chosen, 1
                    results[1][row, at] = output_positive
                at += number + output_positive
        for target, result in zip(outputs, results):
            if target is not None:
                target[...] = result

    width = sum(neg_samples_num_list) + output_positive * len(neg_samples_num_list)
    key, draws = key_of(seed, state.name), SameDraws(state.name) if seed else state
    run = run_on_host(xp, loop, (x, travel, layer), (out, labels, mask))
    return in_sequence(check, run)


def _sample_infer(
    x: Meta, travel: Meta, layer: Meta, neg_samples_num_list: Sequence[int], **options
) -> tuple[Meta, ...]:
    width = sum(neg_samples_num_list) + options["output_positive"] * len(neg_samples_num_list)
    out = Meta((x.shape[0], width), options["dtype"])
    return out, out, out


define(
    "tdm_sampler",
    "X, Travel, Layer -> Out, Labels, Mask",
    rows=not_on_rows,
    attrs={
        "neg_samples_num_list": (),
        "output_positive": True,
        "layer_offset_lod": (),
        "seed": 0,
        "dtype": "int32",
    },
    infer=_sample_infer,
    bind=_sample_bind,
    state=Draws,
)
