"""The cuts of Fluid's slice_variable."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hpcdist.ps.slicing import slice_variables
from tests.golden.loader import golden

CASES = golden("programs.json")["slice_variable"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['shape']} on {c['slice_count']}")
def test_blocks_have_the_golden_sizes(case):
    variable = SimpleNamespace(name="w", shape=tuple(case["shape"]))
    slices = slice_variables([variable], case["slice_count"], case["min_block_size"])
    assert [s.size for s in slices] == case["blocks"]
