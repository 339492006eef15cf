"""Cutting parameters into blocks of rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hpcdist.ps.slicing import Slice, slice_variables


def cut(shape, servers, min_block_size=8192):
    return slice_variables([SimpleNamespace(name="w", shape=shape)], servers, min_block_size)


def test_a_small_parameter_stays_whole_and_keeps_its_name():
    (only,) = cut((13, 1), 3)
    assert only == Slice("w", 0, 0, 13, (13, 1), uncut=True)
    assert only.name == "w"
    assert only.of("w@GRAD") == "w@GRAD"


def test_blocks_are_rows_that_follow_each_other():
    slices = cut((1000, 1000), 3)
    assert [(s.begin, s.end) for s in slices] == [(0, 334), (334, 668), (668, 1000)]
    assert [s.shape for s in slices] == [(334, 1000), (334, 1000), (332, 1000)]
    assert [s.offset for s in slices] == [0, 334_000, 668_000]
    assert [s.name for s in slices] == ["w.block0", "w.block1", "w.block2"]
    assert slices[1].of("w@GRAD") == "w@GRAD.block1"


def test_min_block_size_bounds_the_number_of_blocks():
    assert len(cut((20000,), 5)) == 2
    assert len(cut((20000,), 5, min_block_size=20000)) == 1
    assert len(cut((1000, 1000), 5, min_block_size=300_000)) == 3


def test_filters_are_cut_between_output_channels():
    slices = cut((512, 256, 3, 3), 5)
    assert all(s.shape[1:] == (256, 3, 3) for s in slices)
    assert sum(s.shape[0] for s in slices) == 512


def test_a_row_that_is_all_of_it_cannot_be_cut():
    assert [s.shape for s in cut((1, 1_000_000), 4)] == [(1, 1_000_000)]


def test_a_scalar_is_one_block():
    assert [s.shape for s in cut((), 4)] == [()]


@pytest.mark.parametrize("shape", [(-1, 10), (0,), (5, 0)])
def test_unknown_and_empty_extents_are_refused(shape):
    with pytest.raises(ValueError, match=r"'w'.*every dimension must be at least 1"):
        cut(shape, 2)
