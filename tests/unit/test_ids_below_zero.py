"""No id below 0 counts from the end in silence, as it would in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcdist.errors import HpcdistError
from hpcdist.lod_tensor import LoDTensor, create_lod_tensor
from tests.cases.operators.forward import WITHOUT_GRADIENT
from tests.support.ops import Case, Seeded, every_case
from tests.support.out_of_bounds import results

CASES = {**every_case(), **WITHOUT_GRADIENT}
SEEDS = 4

# Whole numbers of which one may be below 0: they are compared, counted with or hashed, or one
# below 0 has a meaning of its own (no class, the end of a path, a table that says what is missing).
NUMBERS = "bitwise_and bitwise_or bitwise_xor elementwise_floordiv elementwise_mod gcd lcm"
MAY_BE = {
    **dict.fromkeys(NUMBERS.split(), "X Y"),
    "accuracy": "Indices Label",
    "crf_decoding": "Label",
    "edit_distance": "Hyps Refs",
    "hash": "X",
    "hierarchical_sigmoid": "Label",  # not read where a path is given
    "hierarchical_sigmoid_path": "Label",
    "lookup_saved_rows": "Ids",
    "nce": "Classes Label",  # looked at before, by nce_classes
    "sequence_enumerate": "X",
    "sigmoid_focal_loss": "FgNum Label",
    "tdm_child": "TreeInfo",
}


def taken_below_zero(type: str) -> set[str]:
    """Return the inputs that may hold -1 where all were at least 0."""
    found = set()
    for seed in range(SEEDS):
        case = CASES[type](Seeded(seed))
        for slot, value in case.inputs.items():
            array = None if isinstance(value, list) else np.asarray(value)
            if array is None or array.dtype not in (np.int32, np.int64) or not array.size:
                continue
            other = array.copy()
            other.flat[0] = -1
            if isinstance(value, LoDTensor):
                other = create_lod_tensor(other, value.recursive_sequence_lengths())
            if array.min() >= 0 and gives(type, replace(case, inputs={**case.inputs, slot: other})):
                found.add(slot)
    return found


def gives(type: str, case: Case) -> bool:
    """Return whether an operator takes its inputs."""
    try:
        results(type, case)
    except (HpcdistError, TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("type", sorted(CASES))
def test_an_id_below_zero_is_refused_or_has_a_meaning(type):
    assert taken_below_zero(type) == set(MAY_BE.get(type, "").split())
