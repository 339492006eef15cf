"""What detectors learn from is sampled at random, the same way in every process of a job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import FeedError

RNG = np.random.default_rng(0)
CORNERS = RNG.uniform(0, 60, (400, 2))
ANCHORS = np.concatenate([CORNERS, CORNERS + RNG.uniform(8, 30, (400, 2))], 1).astype("float32")
TRUE = np.array([[5, 5, 30, 30], [20, 30, 60, 50], [40, 0, 70, 20]], "float32")
INFO = np.array([[100, 100, 1], [100, 100, 1]], "float32")


def boxes(rows: Any) -> Any:
    return fluid.create_lod_tensor(rows, [[2, 1]], fluid.CPUPlace())


def sampled(random: bool, steps: int = 1, size: int = 20) -> list[list[np.ndarray]]:
    """Labels and places of chosen anchors, for some steps."""
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        true = fluid.data("true", [None, 4], lod_level=1)
        crowd = fluid.data("crowd", [None, 1], dtype="int32", lod_level=1)
        info = fluid.data("info", [None, 3])
        every = layers.assign(np.arange(2 * len(ANCHORS), dtype="float32").reshape(2, -1, 1))
        codes = layers.assign(np.zeros((2, len(ANCHORS), 4), "float32"))
        anchors = layers.assign(ANCHORS)
        found = layers.rpn_target_assign(
            codes, every, anchors, anchors, true, crowd, info, size, use_random=random
        )
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"true": boxes(TRUE), "crowd": boxes(np.zeros((3, 1), "int32")), "info": INFO}
    return [exe.run(main, feed=feed, fetch_list=[found[2], found[0]]) for _ in range(steps)]


def test_sampled_anchors_are_some_of_all_in_the_shares_asked_for() -> None:
    ((labels, places),) = sampled(random=False, size=100000)
    kinds = dict(zip(places.reshape(-1).tolist(), labels.reshape(-1).tolist()))
    ((labels, places),) = sampled(random=True)
    assert len(labels) == 2 * 20  # of two images
    for place, label in zip(places.reshape(-1).tolist(), labels.reshape(-1).tolist()):
        assert kinds[place] == label
    assert 2 <= labels.sum() <= 2 * 10
    assert len(set(places.reshape(-1).tolist())) == len(places)


def test_every_process_samples_the_same_and_every_step_others() -> None:
    first, second = sampled(random=True, steps=2), sampled(random=True, steps=2)
    for (_, one), (_, other) in zip(first, second):
        np.testing.assert_array_equal(one, other)
    assert set(first[0][1].reshape(-1)) != set(first[1][1].reshape(-1))


def test_regions_are_sampled_within_their_shares() -> None:
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        regions = fluid.data("regions", [None, 4], lod_level=1)
        kinds = fluid.data("kinds", [None, 1], dtype="int32", lod_level=1)
        crowd = fluid.data("crowd", [None, 1], dtype="int32", lod_level=1)
        true = fluid.data("true", [None, 4], lod_level=1)
        info = fluid.data("info", [None, 3])
        found = layers.generate_proposal_labels(
            regions, kinds, crowd, true, info, 16, fg_fraction=0.25, fg_thresh=0.3, class_nums=4
        )
    feed = {
        "regions": fluid.create_lod_tensor(ANCHORS, [[200, 200]], fluid.CPUPlace()),
        "kinds": boxes(np.array([[1], [2], [3]], "int32")),
        "crowd": boxes(np.zeros((3, 1), "int32")),
        "true": boxes(TRUE),
        "info": INFO,
    }
    exe = fluid.Executor(fluid.CPUPlace())
    labels, weights = exe.run(main, feed=feed, fetch_list=[found[1], found[3]])
    assert labels.shape == (32, 1)
    for image, own in (([1, 2], labels[:16]), ([3], labels[16:])):
        assert set(own[own > 0]) <= set(image)
        assert 1 <= (own > 0).sum() <= 4
    np.testing.assert_array_equal(weights.sum(1), 4 * (labels[:, 0] > 0))


def test_polygons_that_are_not_convex_are_refused() -> None:
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        box = layers.assign(np.array([[[0, 0, 4, 0, 1, 1, 0, 4]]], "float32"))
        score = layers.assign(np.ones((1, 1, 1), "float32"))
        out = layers.locality_aware_nms(box, score, 0.1, -1, -1)
    with pytest.raises(FeedError, match="box 0 of image 0 is a polygon that is not convex"):
        fluid.Executor(fluid.CPUPlace()).run(main, fetch_list=[out])
