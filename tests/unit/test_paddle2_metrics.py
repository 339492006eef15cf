"""paddle.metric's classes, need_clip of parameters, calls by place: values worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import FeedError, GraphTypeError


@pytest.fixture(autouse=True)
def paddle() -> Iterator[object]:
    aspaddle.install()
    import paddle

    paddle.enable_static()
    yield paddle
    aspaddle.uninstall()


def test_accuracy_counts_in_a_program_and_outside(paddle):
    metric = paddle.metric.Accuracy(topk=(1, 2))
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        x = paddle.static.data("x", [None, 3])
        y = paddle.static.data("y", [None, 1], "int64")
        correct = metric.compute(x, y)
    scores = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], np.float32)
    feed = {"x": scores, "y": np.array([[1], [0]])}
    (right,) = paddle.static.Executor().run(main, feed, [correct])  # by place, as scripts do
    assert right.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert metric.update(right) == [0.5, 1.0] and metric.name() == ["acc_top1", "acc_top2"]
    metric.update(np.zeros((2, 2), np.float32))
    assert metric.accumulate() == [0.25, 0.5]
    metric.reset()
    assert metric.accumulate() == [0.0, 0.0]


def test_a_half_is_positive(paddle):
    half, truth = np.array([0.5, 0.4, 0.5]), np.array([1, 1, 0])
    precision, recall = paddle.metric.Precision(), paddle.metric.Recall("found")
    for metric in (precision, recall):
        metric.update(half, truth)
    assert (precision.accumulate(), recall.accumulate()) == (0.5, 0.5)
    assert (precision.name(), recall.name()) == ("precision", "found")
    with pytest.raises(
        FeedError, match=r"paddle\.metric\.Recall: preds must be an array, got list"
    ):
        recall.update([0.5], truth)


def test_area_of_scores_by_class(paddle):
    auc = paddle.metric.Auc("ROC", 4095)
    auc.update(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0], [1]]))
    assert auc.accumulate() == 1.0 and auc.name() == "auc"


def test_wrong_counts_are_refused(paddle):
    with pytest.raises(GraphTypeError, match="topk: expected counts from 1 on, got"):
        paddle.metric.Accuracy(topk=(0,))


def test_a_parameter_may_be_left_out_of_a_clip_of_all(paddle):
    def rows(**facts: bool) -> list[float]:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            ones = paddle.nn.initializer.Constant(1.0)
            left, right = (
                paddle.create_parameter([1], "float32", attr=paddle.ParamAttr(n, ones, **f))
                for n, f in (("left", {}), ("right", facts))
            )
            loss = paddle.sum(left * 3.0 + right * 4.0)
            clip = paddle.nn.ClipGradByGlobalNorm(1.0)
            paddle.optimizer.SGD(1.0, grad_clip=clip).minimize(loss, parameters=[left, right])
        exe, scope = paddle.static.Executor(), paddle.static.Scope()
        exe.run(startup, scope=scope)
        return [float(v[0]) for v in exe.run(main, {}, [left, right], "feed", "fetch", scope)]

    np.testing.assert_allclose(rows(), [1 - 3 / 5, 1 - 4 / 5], rtol=1e-6)
    np.testing.assert_allclose(rows(need_clip=False), [0.0, -3.0], atol=1e-6)
    with pytest.raises(
        GraphTypeError, match=r"paddle\.ParamAttr: need_clip: expected True or False"
    ):
        rows(need_clip="no")


def test_windows_are_cut_as_paddle_names_them(paddle):
    layer = paddle.nn.Unfold(3, 2, 1, 4)  # kernel_sizes, dilations, paddings, strides
    assert layer.extra_repr() == "kernel_sizes=3, dilations=2, paddings=1, strides=4"
