"""What detectors learn from is sampled at random, the same way in every process of a job."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import FeedError, GraphError
from tests.support.thread_jobs import ranks_as_threads

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


def held(lengths: list[int], *width: int) -> Any:
    return fluid.create_lod_tensor(
        np.ones((sum(lengths), *width), "float32"), [lengths], fluid.CPUPlace()
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"info": INFO[:1]}, "images in each, got 2 in RpnRois, .* 1 in ImInfo"),
        ({"kinds": held([3], 1)}, "images in each, got 2 in RpnRois, 1 in GtClasses"),
        (
            {"crowd": held([1, 1], 1)},
            "boxes of image 0 in each, got 2 in GtBoxes, 2 in GtClasses, 1 in IsCrowd",
        ),
    ],
)
def test_regions_and_true_boxes_are_of_the_same_images(changed: Any, told: str) -> None:
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        names = {"regions": 4, "kinds": 1, "crowd": 1, "true": 4}
        given = [fluid.data(name, [None, width], lod_level=1) for name, width in names.items()]
        given[1], given[2] = (layers.cast(x, "int32") for x in given[1:3])
        found = layers.generate_proposal_labels(
            *given, fluid.data("info", [None, 3]), 16, class_nums=4
        )
    feed = {name: held([2, 1], width) for name, width in names.items()}
    with pytest.raises(FeedError, match=f"generate_proposal_labels: expected as many {told}"):
        fluid.Executor().run(main, feed={**feed, "info": INFO, **changed}, fetch_list=[found[0]])


def test_anchors_and_true_boxes_are_of_the_same_images() -> None:
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        true, crowd = (fluid.data(n, [None, w], lod_level=1) for n, w in (("t", 4), ("c", 1)))
        anchors = layers.assign(ANCHORS)
        found = layers.rpn_target_assign(
            layers.assign(np.zeros((2, len(ANCHORS), 4), "float32")),
            layers.assign(np.zeros((2, len(ANCHORS), 1), "float32")),
            anchors, anchors, true, layers.cast(crowd, "int32"), fluid.data("info", [None, 3]),
        )  # fmt: skip
    for crowds, info, told in (
        ([2, 1], INFO[:1], "images in each, got 2 in GtBoxes, 1 in ImInfo"),
        ([2, 2], INFO, "boxes in each, got 3 in GtBoxes, 4 in IsCrowd"),
    ):
        feed = {"t": held([2, 1], 4), "c": held(crowds, 1), "info": info}
        with pytest.raises(FeedError, match=f"rpn_target_assign: expected as many {told}"):
            fluid.Executor().run(main, feed=feed, fetch_list=[found[2]])


def test_scores_and_boxes_are_of_the_same_images() -> None:
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        anchors, spread = layers.anchor_generator(
            layers.assign(np.zeros((1, 1, 2, 2), "float32")), [8.0], [1.0], stride=[8.0, 8.0]
        )
        info, scores = fluid.data("info", [None, 3]), fluid.data("scores", [None, 1, 2, 2])
        codes = fluid.data("codes", [None, 4, 2, 2])
        proposed = layers.generate_proposals(scores, codes, info, anchors, spread)
        flat, boxes = fluid.data("flat", [None, 4, 3]), fluid.data("boxes", [None, 4, 4])
        corners = layers.reshape(anchors, [-1, 4])
        detected = layers.retinanet_detection_output([boxes], [flat], [corners], info)
        low, high = (fluid.data(name, [None, 4], lod_level=1) for name in ("low", "high"))
        chances = [fluid.data(name, [None, 1], lod_level=1) for name in ("of low", "of high")]
        collected = layers.collect_fpn_proposals([low, high], chances, 2, 3, 5)
    ones = {name: np.ones((2, *shape), "float32") for name, shape in (
        ("scores", (1, 2, 2)), ("codes", (4, 2, 2)), ("flat", (4, 3)), ("boxes", (4, 4))
    )}  # fmt: skip
    lists = {"low": held([2, 1], 4), "of low": held([2, 1], 1), "of high": held([3, 1], 1)}
    for out, feed, told in (
        (proposed[0], {**ones, "info": INFO[:1]}, "got 2 in Scores, 2 in BboxDeltas, 1 in ImInfo"),
        (detected, {**ones, "info": INFO[:1]}, r"got 2 in Scores\[0\], 2 in BBoxes\[0\], 1 in"),
        (collected, {**lists, "high": held([4], 4)}, r"2 in MultiLevelRois\[0\], 1 in"),
        (collected, {**lists, "high": held([2, 1], 4)}, r"regions in each, got 3 in .*\[1\], 4 in"),
    ):
        with pytest.raises(FeedError, match=told):
            fluid.Executor().run(main, feed=feed, fetch_list=[out])


def test_classes_must_be_counted() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, classes = fluid.data("x", [None, 4]), fluid.data("classes", [None, 1], "int32")
        with pytest.raises(GraphError, match="generate_proposal_labels: class_nums must be given"):
            fluid.layers.generate_proposal_labels(x, classes, classes, x, x)


# -- a detector of two stages, in one process and in jobs ------------------------------------------
def detector() -> Callable[[], list[float]]:
    """Build the first stage of a small detector, and classes of the regions it proposes.

    Return what trains it: ranks that are threads build no Programs.
    """
    layers, main, startup = fluid.layers, fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        image = fluid.data("image", [None, 3, 8, 8])
        info = fluid.data("info", [None, 3])
        true = fluid.data("true", [None, 4], lod_level=1)
        crowd = fluid.data("crowd", [None, 1], dtype="int32", lod_level=1)
        kinds = fluid.data("kinds", [None, 1], dtype="int32", lod_level=1)
        seen = layers.conv2d(image, 6, 3, padding=1, act="relu")
        score, code = layers.conv2d(seen, 2, 1), layers.conv2d(seen, 8, 1)
        anchors, spread = layers.anchor_generator(
            seen, [16.0, 32.0], [1.0], stride=[8.0, 8.0], variance=[1.0] * 4
        )
        flat = layers.reshape(anchors, [-1, 4])
        found = layers.rpn_target_assign(
            layers.reshape(layers.transpose(code, [0, 2, 3, 1]), [0, -1, 4]),
            layers.reshape(layers.transpose(score, [0, 2, 3, 1]), [0, -1, 1]),
            flat, layers.reshape(spread, [-1, 4]), true, crowd, info, 16,
        )  # fmt: skip
        score_of, code_of, label, wanted, weight = found
        label = layers.cast(label, "float32")
        cost = layers.mean(layers.sigmoid_cross_entropy_with_logits(score_of, label))
        cost = cost + layers.mean(layers.smooth_l1(code_of, wanted, weight, weight))
        regions, _ = layers.generate_proposals(
            layers.sigmoid(score), code, info, anchors, spread, 60, 20, 0.7
        )
        chosen = layers.generate_proposal_labels(
            regions, kinds, crowd, true, info, 8, fg_thresh=0.3, class_nums=4
        )
        guess = layers.fc(layers.scale(chosen[0], 1 / 64), 4, act="softmax")
        names = layers.cast(chosen[1], "int64")
        cost = cost + layers.mean(layers.cross_entropy(guess, names))
        fluid.optimizer.SGD(0.05).minimize(cost)

    def train() -> list[float]:
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = []
        for step in range(4):
            feed = {
                "image": np.random.default_rng(step).normal(size=(2, 3, 8, 8)).astype("float32"),
                "info": np.array([[64, 64, 1]] * 2, "float32"),
                "true": boxes(TRUE),
                "crowd": boxes(np.zeros((3, 1), "int32")),
                "kinds": boxes(np.array([[1], [2], [3]], "int32")),
            }
            losses.append(float(exe.run(main, feed=feed, fetch_list=[cost])[0][0]))
        return losses

    return train


def test_a_detector_in_a_job_learns_what_one_process_learns() -> None:
    with fluid.scope_guard(fluid.Scope()):
        alone = detector()()
    assert alone[-1] < alone[0]
    with ranks_as_threads() as run:
        for trainers, servers in ((2, 0), (2, 1)):
            for losses in run(trainers, servers, [detector() for _ in range(trainers + servers)]):
                np.testing.assert_allclose(losses, alone, rtol=1e-5)


@pytest.mark.parametrize(
    ("boxes", "scores"),
    [([None, 5, 4], [None, 3, 6]), ([None, 3, 4], [None, 5]), ([None, 4], [None, 3])],
)
def test_boxes_and_scores_that_do_not_fit_are_refused(boxes: Any, scores: Any) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        given = fluid.data("boxes", boxes), fluid.data("scores", scores)
        with pytest.raises(GraphError, match="multiclass_nms: expected boxes"):
            fluid.layers.multiclass_nms(*given, 0.1, 4, 5)


def test_boxes_of_single_classes_are_chosen_as_boxes_that_all_classes_share() -> None:
    random = np.random.default_rng(3)
    corners = random.uniform(0, 9, (2, 5, 2)).astype("float32")
    boxes = np.concatenate([corners, corners + 4], 2)
    scores = random.uniform(0, 1, (2, 3, 5)).astype("float32")
    how: dict[str, Any] = {"score_threshold": 0.2, "nms_top_k": 4, "keep_top_k": 5}
    layers, main = fluid.layers, fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        shared = fluid.data("boxes", [None, 5, 4]), fluid.data("scores", [None, 3, 5])
        by_image = layers.multiclass_nms(*shared, **how)
        data = functools.partial(fluid.data, lod_level=1)
        own = data("own_boxes", [None, 3, 4]), data("own_scores", [None, 3])
        by_box = layers.multiclass_nms(*own, **how)
    each = np.repeat(boxes.reshape(10, 1, 4), 3, axis=1)
    feed = {
        "boxes": boxes,
        "scores": scores,
        "own_boxes": fluid.create_lod_tensor(each, [[5, 5]]),
        "own_scores": fluid.create_lod_tensor(scores.swapaxes(1, 2).reshape(10, 3), [[5, 5]]),
    }
    wanted, found = fluid.Executor().run(
        main, feed=feed, fetch_list=[by_image, by_box], return_numpy=False
    )
    assert found.recursive_sequence_lengths() == wanted.recursive_sequence_lengths()
    assert sorted(np.array(found).tolist()) == sorted(np.array(wanted).tolist())
    assert len(found) > 4
    # Within a class they stand in the order of the boxes, as in Fluid, not of the scores.
    for image, (a, b) in enumerate(itertools.pairwise(found.lod()[0])):
        rows = np.array(found)[a:b]
        places = [np.flatnonzero((boxes[image] == row[2:]).all(1))[0] for row in rows]
        assert [*zip(rows[:, 0], places)] == sorted(zip(rows[:, 0], places))


def test_images_without_a_box_are_answered_as_in_fluid() -> None:
    """By one row [[-1]] in one sequence; of `multiclass_nms2` by no row in sequences of each."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        given = fluid.data("boxes", [None, 5, 4]), fluid.data("scores", [None, 3, 5])
        marked = fluid.layers.multiclass_nms(*given, 2.0, 4, 5)
        empty = fluid.contrib.layers.multiclass_nms2(*given, 2.0, 4, 5, return_index=True)
    ones = {"boxes": np.ones((3, 5, 4), "float32"), "scores": np.ones((3, 3, 5), "float32")}
    mark, none, index = fluid.Executor().run(
        main, feed=ones, fetch_list=[marked, *empty], return_numpy=False
    )
    assert np.array(mark).tolist() == [[-1.0]]
    assert mark.recursive_sequence_lengths() == [[1]]
    assert np.array(none).shape == (0, 6)
    assert none.recursive_sequence_lengths() == [[0, 0, 0]]
    assert index.recursive_sequence_lengths() == [[0, 0, 0]]
