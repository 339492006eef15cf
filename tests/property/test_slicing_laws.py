"""Laws of slicing: every element lies in one block, whatever the shape and the servers."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from hpcdist.ps.slicing import slice_variables

SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple)


@given(SHAPES, st.integers(1, 9), st.integers(1, 20_000))
def test_blocks_cover_the_variable_once_in_order(shape, servers, min_block_size):
    slices = slice_variables([SimpleNamespace(name="w", shape=shape)], servers, min_block_size)
    assert 1 <= len(slices) <= servers
    assert [s.index for s in slices] == list(range(len(slices)))
    assert slices[0].begin == 0
    assert slices[-1].end == shape[0]
    assert all(a.end == b.begin for a, b in pairwise(slices))
    assert all(s.shape == (s.end - s.begin, *shape[1:]) for s in slices)
    assert sum(s.size for s in slices) == math.prod(shape)
    assert [s.offset for s in slices] == [s.begin * math.prod(shape[1:]) for s in slices]


@given(SHAPES, st.integers(2, 9), st.integers(1, 20_000))
def test_all_blocks_but_the_last_are_equal_and_large_enough(shape, servers, min_block_size):
    slices = slice_variables([SimpleNamespace(name="w", shape=shape)], servers, min_block_size)
    sizes = [s.size for s in slices]
    assert len(set(sizes[:-1])) <= 1
    assert sizes[-1] <= sizes[0]
    if len(sizes) > 1:
        assert sizes[0] >= min_block_size


@given(st.lists(SHAPES, min_size=1, max_size=5), st.integers(1, 5))
def test_variables_are_cut_one_by_one(shapes, servers):
    variables = [SimpleNamespace(name=f"w{i}", shape=s) for i, s in enumerate(shapes)]
    together = slice_variables(variables, servers, 8192)
    alone = [piece for v in variables for piece in slice_variables([v], servers, 8192)]
    assert list(together) == alone
