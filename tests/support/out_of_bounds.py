"""Runs every operator on inputs that do not fit each other, with numba's checks of bounds.

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=DIR python -m tests.support.out_of_bounds [TYPE ...]

Compiled loops do not look whether a place is in an array: what is beside it becomes a number that
nobody asked for. Prints a line for each operator and input that was not refused before.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcdist import unique_name
from hpcdist.errors import HpcdistError
from hpcdist.graph import lookup
from hpcdist.lod_tensor import LoDTensor, create_lod_tensor
from tests.cases.operators.forward import WITHOUT_GRADIENT
from tests.support.ops import Case, Graph, Seeded, every_case

SEEDS = 2
BESIDE = "index is out of bounds"  # as numba says it, where numpy says of which axis


def one_off(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield an array with one row or column fewer, with one more, with only one, and with none."""
    for axis, extent in enumerate(array.shape):
        kinds = {"fewer": range(extent - 1), "more": [*range(extent), 0], "one": [0]}
        for name, kept in kinds.items():
            if extent and len(kept) != extent:
                yield f"{name} along {axis}", np.take(array, kept, axis)
    yield "empty", array[:0]


def other_numbers(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield whole numbers with one that is below, above, and far above the others."""
    if array.dtype in (np.int32, np.int64) and array.size:
        for number in (-1, int(array.max()) + 1, 1 << 20):
            for place in (0, -1):
                other = array.copy()
                other.flat[place] = number
                yield f"{number} at {place}", other


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an input in all the ways in which it may not fit the others."""
    if isinstance(value, list):
        yield "fewer arrays", value[:-1]
        for at, one in enumerate(value):
            for what, other in changed(one):
                yield f"array {at}: {what}", [*value[:at], other, *value[at + 1 :]]
    elif isinstance(value, LoDTensor):
        levels = value.recursive_sequence_lengths()
        rows = np.asarray(value)
        *outer, last = levels or [[len(rows)]]
        if not outer:
            yield "another sequence", create_lod_tensor(rows, [[*last, 0]])
            yield "one sequence", create_lod_tensor(rows, [[sum(last)]])
        yield "no sequences", rows
        for what, other in one_off(rows):
            if len(other) == len(rows):
                yield what, create_lod_tensor(other, levels)
    else:
        array = np.asarray(value)
        yield from one_off(array)
        yield from other_numbers(array)


def ways(type: str, case: Case) -> Iterator[tuple[str, Case]]:
    """Yield a case with one input or number among its attributes changed."""
    for slot, value in case.inputs.items():
        for what, other in changed(value):
            yield f"{slot}: {what}", replace(case, inputs={**case.inputs, slot: other})
    for name, value in {**lookup(type).attrs, **case.attrs}.items():
        if isinstance(value, int) and not isinstance(value, bool):
            for other in (-9, 9):
                yield f"{name}={other}", replace(case, attrs={**case.attrs, name: other})


def results(type: str, case: Case) -> list[np.ndarray]:
    """Return all that an operator gives."""
    with unique_name.guard():
        graph = Graph(type, case)
        written = {name for op in graph.block.ops for name in op.output_arg_names}
        wanted = [v for held in graph.outputs.values() for v in held if v.name in written]
        return [np.asarray(value) for value in graph.run(wanted)]


def beside(type: str, case: Case) -> bool:
    """Return whether a loop would read or write beside its arrays."""
    try:
        results(type, case)
    except (HpcdistError, TypeError, ValueError) as error:
        return BESIDE in str(error)
    return False


def main(types: list[str]) -> int:
    """Print what is read beside; return 1 if anything is."""
    warnings.simplefilter("ignore")
    cases = {**every_case(), **WITHOUT_GRADIENT}
    tried, found = 0, []
    for type in types or sorted(cases):
        for seed in range(SEEDS):
            try:
                case = cases[type](Seeded(seed))
            except pytest.skip.Exception:  # it needs torch
                break
            for what, other in ways(type, case):
                tried += 1
                if beside(type, other):
                    found.append(f"{type}: {what}")
    print(f"{tried} tried")
    print("\n".join(sorted(set(found))))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
