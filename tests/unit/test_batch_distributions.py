"""Samples of distributions whose parameters belong to a batch, of rows that only a step knows."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError

LOW = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_each_row_has_samples_of_its_own_parameters():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        low, width = layers.data("low", [3]), layers.data("width", [3])
        drawn = [
            layers.Uniform(low, low + width).sample([1000]),
            layers.Normal(low, width).sample([1000]),
        ]
        assert drawn[0].shape == (1000, -1, 3)
        for rows in (1, 2):
            fed = {"low": LOW[:rows], "width": np.full((rows, 3), 0.5, np.float32)}
            between, around = fluid.Executor().run(feed=fed, fetch_list=drawn)
            assert between.shape == around.shape == (1000, rows, 3)
            assert (between >= LOW[:rows]).all() and (between < LOW[:rows] + 0.5).all()
            np.testing.assert_allclose(between.mean(0), LOW[:rows] + 0.25, atol=0.05)
            np.testing.assert_allclose(around.mean(0), LOW[:rows], atol=0.1)
            np.testing.assert_allclose(around.std(0), 0.5, atol=0.1)


def test_other_extents_must_be_known():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        low = fluid.data("low", [2, None])
        with pytest.raises(GraphError, match="only the first extent may be -1"):
            layers.Uniform(low, low).sample([1])
