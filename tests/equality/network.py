"""What the levels of features build with: the inputs of a network, and how it is updated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcdist import layers
from hpcdist.graph import Variable, default_main_program
from hpcdist.lod_tensor import create_lod_tensor

FEATURES, WIDTH, WORDS, CLASSES = 6, 8, 11, 2
INPUTS = {  # shape of a row, type (None: the network's), levels of sequences
    "x": ([FEATURES], None, 0),
    "y": ([1], None, 0),
    "label": ([1], "int64", 0),
    "word": ([1], "int64", 0),
    "other_word": ([1], "int64", 0),
    "words": ([1], "int64", 1),
    "line": ([3], None, 1),
}


@dataclass
class Net:
    """A network while it is built; ``kept`` are layers whose values recomputing keeps."""

    dtype: str
    kept: list[Variable] = field(default_factory=list)

    def input(self, name: str) -> Variable:
        """Return what is fed by this name, which is declared when it is first asked for."""
        block = default_main_program().global_block()
        shape, dtype, levels = INPUTS[name]
        if block.has_var(name):
            return block.var(name)
        return layers.data(name, shape, dtype=dtype or self.dtype, lod_level=levels)


@dataclass(frozen=True)
class Update:
    """What an optimizer is made with."""

    rate: Any
    how: dict[str, Any]


def batch(step: int, rows: int, dtype: str) -> dict[str, Any]:
    """Return what is fed in a step, by name; sequences as (rows, lengths)."""
    rng = np.random.default_rng([7, step])
    lengths = [int(n) for n in rng.integers(1, 4, rows)]
    fed: dict[str, Any] = {}
    for name, (shape, of, levels) in INPUTS.items():
        count = sum(lengths) if levels else rows
        if of == "int64":
            value = rng.integers(0, CLASSES if name == "label" else WORDS, (count, *shape))
        else:
            value = rng.uniform(-1, 1, (count, *shape)).astype(of or dtype)
        fed[name] = (value, lengths) if levels else value
    return fed


def part(fed: dict[str, Any], index: int, parts: int) -> dict[str, Any]:
    """Return the rows that the trainer ``index`` of ``parts`` feeds by itself, in trainer order."""
    rows = len(fed["x"])
    begin, end = rows * index // parts, rows * (index + 1) // parts
    own: dict[str, Any] = {}
    for name, value in fed.items():
        if isinstance(value, tuple):
            array, lengths = value
            first, last = sum(lengths[:begin]), sum(lengths[:end])
            own[name] = (array[first:last], lengths[begin:end])
        else:
            own[name] = value[begin:end]
    return own


def as_feed(fed: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the inputs of these names as `Executor.run` takes them."""
    return {
        name: create_lod_tensor(value[0], [value[1]]) if isinstance(value, tuple) else value
        for name, value in fed.items()
        if name in names
    }
