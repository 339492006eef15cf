"""The names of Paddle 2.6.2, and what to use instead of those that hpcdist does not have.

``paddle2_names.txt`` lists the names of each module that users meet, whether hpcdist has them or
not, and, in its section ``modules``, all modules.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib import resources

from hpcdist.base.nearest import did_you_mean

_STATIC = (
    "programs are static: paddle.enable_static(), paddle.static.data, paddle.static.Executor; a "
    "paddle.nn.Layer appends operators when it is called"
)
# What to use instead of names, by expressions that their beginning matches. The first one counts.
_INSTEAD: dict[str, tuple[str, ...]] = {
    _STATIC: (
        r"paddle\.(jit|autograd|grad$|Model|DataParallel|callbacks|hub|summary|flops|LazyGuard)",
        r"paddle\.(no_grad|set_grad_enabled|is_grad_enabled|enable_grad)",
        r"paddle\.amp\b",
    ),
    "no operator computes with complex numbers: keep both parts as real ones": (
        r"paddle\.(fft|signal)\b",
        r".*(complex|as_real|polar|\bconj|imag$|real$)",
    ),
    "a value of a Program has no place of its own: write y = paddle.<name>(x)": (r".*[a-z0-9]_$",),
    "paddle.static.nn.embedding(is_sparse=True) and sparse_embedding are what is sparse here": (
        r"paddle\.sparse\b",
    ),
    "hpcdist trains; run a saved model by paddle.static.load_inference_model and an Executor": (
        r"paddle\.(inference|onnx|quantization)\b",
        r"paddle\.nn\.quant",
    ),
    "see docs/data.md for what reads files": (r"paddle\.(vision|text|audio|dataset)\b",),
    "paddle.distributed.fleet is what trains on several ranks, docs/fleet.md lists what it has": (
        r"paddle\.distributed",
    ),
    "the launcher chooses devices; python -m hpcdist doctor shows them": (
        r"paddle\.(device|static\.(xpu|npu|ipu|mlu))",
        r".*(IPUPlace|XPUPlace|CustomPlace|ipu_|xpu_|Ipu)",
    ),
    "moments are of the whole batch where trainers share it; with fleet set "
    "strategy.sync_batch_norm = True and use paddle.nn.BatchNorm2D": (
        r"paddle\.nn\.SyncBatchNorm",
    ),
    "its shape would depend on values: paddle.geometric.send_u_recv(out_size=) and "
    "paddle.scatter_nd(shape=) add up into known shapes": (
        r".*\b(bincount|unique_consecutive|combinations)$",
    ),
    "no operator decomposes matrices: paddle.linalg has solve, inv and cholesky": (
        (
            r".*\b(svd|qr|lu|lu_unpack|eig|eigh|eigvals|eigvalsh|pinv|lstsq|pca_lowrank|cond"
            r"|matrix_rank|householder_product)$"
        ),
    ),
    "Paddle 2.6.2 has it for dynamic mode; of static programs weight_norm takes both parts from "
    "the first weight anew in each step: use paddle.nn.ClipGradBy... of an optimizer, "
    "paddle.nn.SpectralNorm": (r"paddle\.nn\.(utils|spectral_norm)\b",),
    "it computes a loss many times in one step: use Adam or Momentum": (r".*\bLBFGS$",),
    "how many there are depends on values: sample on the host, with numpy or pgl.sampling, and "
    "feed nodes and edges": (
        r"paddle\.(geometric\.(\w*sample\w*|reindex\w*)|incubate\.graph_(?!send))",
    ),
    "parameters stay float32: leave it out; decorate chooses operators by amp_lists": (
        r"paddle\.static\.amp\.",
    ),
    "a value of a Program is not set in place: paddle.where, paddle.scatter and paddle.index_put "
    "return new ones": (r"paddle\.(static\.setitem|\w*_scatter|view\w*|as_strided|tolist)$",),
    "write it in Python, with numpy: paddle.static.py_func": (r".*static_pylayer$",),
    "compose it of the functions that are there, dir(paddle) and dir(paddle.nn.functional) list "
    "them": (r"paddle\.(nn|tensor|linalg|Tensor|\w+$)",),
}


@functools.cache
def table() -> dict[str, frozenset[str]]:
    """Return the names of each of Paddle's modules."""
    text = (resources.files(__package__) / "paddle2_names.txt").read_text("utf-8")
    sections = re.findall(r"^\[(.*)\]\n([^[]*)", text, re.MULTILINE)
    return {module: frozenset(names.split()) for module, names in sections}


def is_known(module: str, name: str) -> bool:
    """Return whether a module of Paddle 2.6.2 has this name, or is one above such a module."""
    return name in table().get(module, ()) or f"{module}.{name}" in table()["modules"]


def describe_missing(module: str, name: str, names: Iterable[str]) -> str:
    """Say why a module has no such name; ``names`` are those that it has."""
    full = f"{module}.{name}"
    hint = did_you_mean(name, [n for n in names if not n.startswith("_")], most=3)
    if not is_known(module, name):
        there = ", neither here nor in Paddle 2.6.2" if module in table() else " in hpcdist"
        return f"{module} has no {name!r}{there}{hint}"
    for instead, expressions in _INSTEAD.items():
        if any(re.match(expression, full) for expression in expressions):
            return f"{full} of Paddle 2.6.2 is not in hpcdist: {instead}"
    return f"{full} of Paddle 2.6.2 is not in hpcdist: docs/paddle2.md says what is{hint}"
