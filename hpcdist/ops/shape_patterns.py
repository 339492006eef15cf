"""Which shapes an operator's inputs must have, beside one another: patterns with names of extents.

    infer=shaped("X: n c; Label: n 1", lambda x, label: same(x))

Inputs stand in the order of the operator's slots; one name is one extent wherever it stands, a
number is itself, and ``...`` is any number of dimensions, the same ones wherever it stands. Numpy
would broadcast what does not fit, and give a number that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.ops.common import fits

Infer = Callable[..., Any]
ANY = "..."


def shaped(patterns: str, infer: Infer) -> Infer:
    """Return ``infer`` behind a check of the shapes of its first arguments, as far as known.

    An argument may be None, an absent input, or a list of inputs of one shape. The check raises
    GraphError with the patterns and the shapes.
    """
    parts = [part.partition(":") for part in patterns.split(";")]
    inputs = [(name.strip(), dims.split()) for name, _, dims in parts]

    def checked(*metas: Any, **attrs: Any) -> Any:
        known: dict[str, Sequence[int]] = {}
        for (_, dims), given in zip(inputs, metas):
            for meta in given if isinstance(given, (list, tuple)) else [given]:
                if meta is not None and not _fits(dims, meta.shape, known):
                    raise GraphError(_refusal(inputs, metas))
        return infer(*metas, **attrs)

    return checked


def _fits(dims: Sequence[str], shape: Sequence[int], known: dict[str, Sequence[int]]) -> bool:
    """Return whether a shape is of a pattern; note in ``known`` what its names stand for."""
    free = len(shape) - (len(dims) - (ANY in dims))
    if free < 0 or (free and ANY not in dims):
        return False
    at = 0
    for dim in dims:
        end = at + (free if dim == ANY else 1)
        found = shape[at:end]
        wanted = [int(dim)] if dim.isdigit() else known.get(dim, found)
        if not fits(found, wanted):
            return False
        known[dim] = [a if b == -1 else b for a, b in zip(found, wanted)]
        at = end
    return True


def _refusal(inputs: Sequence[tuple[str, Sequence[str]]], metas: Sequence[Any]) -> str:
    expected = "shapes " + ", ".join(f"{name} [{', '.join(dims)}]" for name, dims in inputs)
    if all(dims == [ANY] for _, dims in inputs):
        expected = "one shape"
    shapes: list[str] = []
    for (name, _), given in zip(inputs, metas):
        for meta in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(meta, Meta):
                shapes.append(f"{name} {list(meta.shape)}")
    return f"expected {expected}, got {', '.join(shapes)}"
