"""Which shapes inputs must have, beside one another: patterns with names of extents.

    infer=shaped("X: n c; Label: n 1", lambda x, label: same(x))

One name is one extent wherever it stands, a number is itself, and ``...`` is any number of
dimensions, the same ones wherever it stands. Numpy would broadcast what does not fit, and give a
number that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.ops.common import fits

Infer = Callable[..., Any]
ANY = "..."


class Patterns:
    """Patterns of several inputs, which share the names of extents."""

    def __init__(self, text: str) -> None:
        parts = [part.partition(":") for part in text.split(";")]
        self._inputs = [(name.strip(), dims.split()) for name, _, dims in parts]
        self.names = [name for name, _ in self._inputs]

    def check(self, given: Sequence[Any]) -> None:
        """Raise GraphError with patterns and shapes if the inputs do not fit, as far as known.

        One may be None, an absent input, or a list of inputs of one pattern.
        """
        known: dict[str, Sequence[int]] = {}
        for (_, dims), one in zip(self._inputs, given):
            if not all(_fits(dims, shape, known) for shape in _shapes(one)):
                raise GraphError(self._refusal(given))

    def _refusal(self, given: Sequence[Any]) -> str:
        expected = "shapes " + ", ".join(f"{n} [{', '.join(dims)}]" for n, dims in self._inputs)
        if all(dims == [ANY] for _, dims in self._inputs):
            expected = "one shape"
        shapes = [f"{n} {list(s)}" for n, one in zip(self.names, given) for s in _shapes(one)]
        return f"expected {expected}, got {', '.join(shapes)}"


def shaped(patterns: str, infer: Infer) -> Infer:
    """Return ``infer`` behind a check of its first arguments, in the order of an operator's slots.

    The check raises GraphError.
    """
    of_inputs = Patterns(patterns)

    def checked(*metas: Any, **attrs: Any) -> Any:
        of_inputs.check(metas)
        return infer(*metas, **attrs)

    return checked


def _shapes(given: Any) -> list[Sequence[int]]:
    many = given if isinstance(given, (list, tuple)) else [given]
    return [one.shape for one in many if one is not None]


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
