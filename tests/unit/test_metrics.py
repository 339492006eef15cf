"""The area under a curve, layers.auc, and the metrics that scripts add up."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import fleet, layers, metrics
from hpcdist.errors import FeedError, FleetError, GraphError, HpcdistError
from hpcdist.fluid.compat.layer_helper import LayerHelper
from hpcdist.ops.metric.auc import area


def scored(seed, rows=60):
    """Return probabilities of the positive class [n] and labels [n, 1], neither independent."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (rows, 1))
    return np.clip(rng.uniform(0, 0.7, rows) + 0.3 * labels.ravel(), 0, 1), labels


def exact_area(scores, labels):
    """Return the share of pairs of a positive and a negative that are ordered right."""
    positive, negative = scores[labels.ravel() > 0], scores[labels.ravel() == 0]
    better = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    return better / (len(positive) * len(negative))


def counts(scores, labels, thresholds):
    at = (scores.astype("float32") * thresholds).astype(int)
    return [
        np.bincount(at[there.ravel()], minlength=thresholds + 1)
        for there in (labels > 0, labels == 0)
    ]


# -- areas -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(5))
def test_area_is_the_share_of_ordered_pairs(seed):
    scores, labels = scored(seed)
    rounded = np.round(scores * 50) / 50  # many ties
    for given in (scores, rounded):
        found = area(*counts(given, labels, 2**18))
        assert found == pytest.approx(exact_area(given, labels), abs=2e-3)


def test_areas_of_hardly_any_data():
    some, none = np.array([1, 0, 2]), np.zeros(3)
    assert area(some, none) == area(none, some) == area(none, none) == 0
    assert area(np.array([0, 0, 1]), np.array([1, 0, 0])) == 1
    assert area(np.array([1, 0, 0]), np.array([0, 0, 1])) == 0
    assert area(none, some, "PR") == 0
    assert area(np.array([0, 0, 2]), np.array([3, 0, 0]), "PR") == 1


def test_precision_over_recall():
    # Called one by one from the best: hit, miss, hit: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1.
    found = area(np.array([1, 0, 1]), np.array([0, 1, 0]), "PR")
    assert found == pytest.approx(0.5 * 1 + 0.5 * (1 / 2 + 2 / 3) / 2)


# -- precision and recall --------------------------------------------------------------------------
BATCHES = [
    {
        "found": [0, 1, 1, 2, 3, 1, 0],
        "wanted": [0, 1, 2, 2, 0, 1, 1],
        "w": [1, 0.5, 2, 1, 0.25, 1, 4],
    },
    {"found": [2, 2, 3], "wanted": [2, 1, 3], "w": [2, 0.5, 1]},
]
# Of each batch, and of both: what Fluid 1.8.5 computes of them.
OF_FLUID = {
    False: [
        ([0.5416667, 0.6666667, 0.5977012, *[0.5714286] * 3],) * 2,
        ([0.875, 0.75, 0.8076923, *[0.6666667] * 3], [0.5833334, 0.6666667, 0.6222223, *[0.6] * 3]),
    ],
    True: [
        ([0.4071429, 0.6015152, 0.4856009, *[0.3589744] * 3],) * 2,
        (
            [0.95, 0.75, 0.8382353, *[0.8571429] * 3],
            [0.5714286, 0.6625, 0.6136035, *[0.490566] * 3],
        ),
    ],
}
COUNTED = {
    False: [[1, 1, 7, 1], [2, 1, 5, 2], [2, 1, 6, 1], [1, 1, 8, 0]],
    True: [[1, 4, 8, 0.25], [1.5, 2, 5.25, 4.5], [3, 0.5, 7.75, 2], [1, 0.25, 12, 0]],
}


def append_precision_recall(weighted, classes=4):
    """Append the operator as scripts do; return (of a batch, of all, counts)."""
    helper = LayerHelper("precision_recall")
    kinds = {"found": "int32", "wanted": "int32", "w": "float32"}
    data = {name: fluid.data(name, [None, 1], kind) for name, kind in kinds.items()}
    facts = {"dtype": "float32", "shape": [classes, 4]}
    counts, _ = helper.create_or_get_global_variable("counts", persistable=True, **facts)
    helper.set_variable_initializer(counts, fluid.initializer.Constant(0.0))
    outs = [helper.create_variable_for_type_inference("float32") for _ in range(3)]
    inputs = {"MaxProbs": data["w"], "Indices": data["found"], "Labels": data["wanted"]}
    weights = {"Weights": data["w"]} if weighted else {}
    helper.append_op(
        type="precision_recall",
        inputs={**inputs, **weights, "StatesInfo": counts},
        outputs=dict(zip(["BatchMetrics", "AccumMetrics", "AccumStatesInfo"], outs)),
        attrs={"class_number": classes},
    )
    layers.assign(outs[2], counts)
    return outs


def columns(batch):
    kinds = {"found": "int32", "wanted": "int32", "w": "float32"}
    return {name: np.array(batch[name], kind).reshape(-1, 1) for name, kind in kinds.items()}


@pytest.mark.parametrize("weighted", [False, True])
def test_precision_and_recall_are_those_of_fluid(weighted):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        outs = append_precision_recall(weighted)
        exe = fluid.Executor()
        exe.run(startup)
        for batch, wanted in zip(BATCHES, OF_FLUID[weighted], strict=True):
            *metrics, counts = exe.run(main, columns(batch), outs)
            assert [m.dtype for m in metrics] == ["float64"] * 2
            np.testing.assert_allclose(metrics, wanted, rtol=5e-7)
        np.testing.assert_array_equal(counts, COUNTED[weighted])


def test_counts_may_be_added_in_place():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        counts = append_precision_recall(False)[2].block.var("counts")
        op = next(op for op in main.global_block().ops if op.type == "precision_recall")
        op.outputs["AccumStatesInfo"] = ["counts"]
        main.global_block().ops = [op]
        main.touch()
        exe = fluid.Executor()
        exe.run(startup)
        for batch in BATCHES:
            (found,) = exe.run(main, columns(batch), [counts])
        np.testing.assert_array_equal(found, COUNTED[False])


def test_classes_that_there_are_not_are_refused():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        outs = append_precision_recall(False, classes=3)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        with pytest.raises(FeedError, match=r"each index to be in 0\.\.2, got 0\.\.3"):
            exe.run(feed=columns(BATCHES[0]), fetch_list=outs)
        with pytest.raises(FeedError, match=r"each label to be in 0\.\.2, got -1\.\.2"):
            exe.run(
                feed=columns({**BATCHES[1], "found": [0] * 3, "wanted": [-1, 0, 2]}),
                fetch_list=outs,
            )


# -- the layer -------------------------------------------------------------------------------------
def auc_program(**facts):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        guess = layers.data("guess", [facts.pop("width", 2)])
        label = layers.data("label", [1], dtype="int64")
        made = layers.auc(guess, label, **facts)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    return lambda feed, fetch: exe.run(main, feed, fetch, scope=scope), made


def feed_of(seed, width=2, rows=60):
    scores, labels = scored(seed, rows)
    columns = [1 - scores, scores][2 - width :]
    return {"guess": np.stack(columns, 1).astype("float32"), "label": labels}


@pytest.mark.parametrize("width", [1, 2])
def test_auc_is_of_all_batches_and_of_the_last_ones(width):
    run, (total, last, stats) = auc_program(width=width, num_thresholds=9999, slide_steps=2)
    batches = [scored(seed) for seed in range(5)]
    for step in range(5):
        found = run(feed_of(step, width), [total, last, *stats])
        everything = [np.concatenate(parts) for parts in zip(*batches[: step + 1])]
        recent = [np.concatenate(parts) for parts in zip(*batches[max(step - 1, 0) : step + 1])]
        assert found[0].shape == found[1].shape == (1,)
        assert found[0][0] == pytest.approx(exact_area(*everything), abs=2e-3)
        assert found[1][0] == pytest.approx(exact_area(*recent), abs=2e-3)
        assert found[4].sum() + found[5].sum() == 60 * (step + 1)


def test_labels_that_are_those_of_another_variable_are_told_once(recwarn):
    run, (total, *_) = auc_program()
    run(feed_of(0), [total])
    assert not recwarn
    run, (total, *_) = auc_program()
    for _ in range(2):
        run(feed_of(0) | {"label": np.arange(-1, 59)[:, None]}, [total])
    (told,) = recwarn
    assert "expected labels 0 and 1, got -1 to 58" in str(told.message)
    assert told.filename == __file__


def test_auc_without_sliding_counts_all_batches_twice():
    run, (total, last, stats) = auc_program(num_thresholds=9999, slide_steps=0)
    batches = [scored(seed) for seed in range(3)]
    for step in range(3):
        found = run(feed_of(step), [total, last, *stats])
        everything = [np.concatenate(parts) for parts in zip(*batches[: step + 1])]
        assert found[0][0] == found[1][0] == pytest.approx(exact_area(*everything), abs=2e-3)
    assert [v.size for v in found[2:]] == [10001, 10001, 10000, 10000]


def test_counts_in_variables_of_their_own_are_written_and_leave_the_old_ones():
    main = fluid.Program()
    with fluid.program_guard(main):
        guess = layers.data("guess", [2])
        label = layers.data("label", [1], dtype="int64")
        before = [layers.data(n, [10], dtype="int64", append_batch_size=False) for n in "pn"]
        block = main.current_block()
        outs = [
            block.create_var(name=n, dtype=t) for n, t in zip("PNA", ["int64"] * 2 + ["float64"])
        ]
        block.append_op(
            type="auc",
            inputs={"Predict": guess, "Label": label, "StatPos": before[0], "StatNeg": before[1]},
            outputs={"AUC": outs[2], "StatPosOut": outs[0], "StatNegOut": outs[1]},
            attrs={"curve": "ROC", "num_thresholds": 9, "slide_steps": 0},
        )
    feed = {**feed_of(0), "p": np.arange(10), "n": np.arange(10)[::-1].copy()}
    exe, names = fluid.Executor(), [*before, *outs[:2]]
    old_pos, old_neg, pos, neg = exe.run(main, feed, names)
    np.testing.assert_array_equal(old_pos, np.arange(10))
    np.testing.assert_array_equal(old_neg, np.arange(10)[::-1])
    assert pos.sum() + neg.sum() == 90 + 60 and (pos >= old_pos).all() and (neg >= old_neg).all()


def test_auc_is_that_of_fluid():
    """Areas of Fluid 1.8.5 over 8 batches: fluid.layers.auc(p, y, num_thresholds=200,
    slide_steps=3), one label in each batch -1."""
    run, (total, last, _) = auc_program(num_thresholds=200, slide_steps=3)
    found = []
    for step in range(8):
        draw = np.random.RandomState(step)
        label = draw.randint(0, 2, (20, 1))
        scores = np.clip(draw.uniform(0, 1, (20, 1)) * 0.7 + 0.3 * label, 0, 1)
        label[step] = -1
        guess = np.concatenate([1 - scores, scores], 1).astype("float32")
        found.append(run({"guess": guess, "label": label}, [total, last]))
    expected = [[0.807395994, 0.839506173], [0.82178442, 0.835591133], [0.819300069, 0.818965517]]
    np.testing.assert_allclose(np.squeeze(found[-3:]), expected, rtol=1e-8)


def test_auc_refuses_what_is_no_probability():
    run, (total, _, _) = auc_program()
    feed = feed_of(0)
    feed["guess"][3, 1] = 1.5
    with pytest.raises(FeedError, match=r"auc: expected probabilities within 0..1, got .*1.5"):
        run(feed, [total])
    feed["guess"][3, 1] = np.nan
    with pytest.raises(FeedError, match="auc: expected probabilities within 0..1, got nan"):
        run(feed, [total])
    with pytest.raises(GraphError, match="curve must be one of ROC, PR, got 'DET'"):
        auc_program(curve="DET")
    with pytest.raises(GraphError, match=r"probabilities \[rows, 2\], .* got \(-1, 3\)"):
        auc_program(width=3)


# -- metrics ---------------------------------------------------------------------------------------
def test_auc_metric_counts_as_the_layer_does():
    run, (total, _, _) = auc_program()
    metric = metrics.Auc("auc")
    for step in range(3):
        feed = feed_of(step)
        (found,) = run(feed, [total])
        metric.update(feed["guess"], feed["label"])
        assert metric.eval() == pytest.approx(found[0], rel=1e-12)
    metric.reset()
    assert metric.eval() == 0
    with pytest.raises(FeedError, match="labels must be an array, got list"):
        metric.update(feed["guess"], [1])


def test_accuracy_is_weighted():
    metric = metrics.Accuracy()
    with pytest.raises(FeedError, match="nothing to average"):
        metric.eval()
    metric.update(0.5, 10)
    metric.update(np.array([1.0]), 30)
    assert metric.eval() == 0.875
    with pytest.raises(FeedError, match="must not be negative"):
        metric.update(0.5, -1)
    metric.reset()
    assert metric.weight == 0


def test_precision_and_recall_together():
    both = metrics.CompositeMetric("both")
    both.add_metric(metrics.Precision())
    both.add_metric(metrics.Recall())
    preds, labels = np.array([[0.1], [0.7], [0.8], [0.9], [0.2]]), np.array([0, 1, 1, 0, 1])
    both.update(preds, labels)
    both.update(preds, labels)
    assert both.eval() == [pytest.approx(2 / 3), pytest.approx(2 / 3)]
    both.reset()
    assert both.eval() == [0.0, 0.0]
    with pytest.raises(FeedError, match="expected a metric, got int"):
        both.add_metric(3)


def test_a_weighted_average():
    average = fluid.average.WeightedAverage()
    with pytest.raises(ValueError, match="nothing was added"):
        average.eval()
    average.add(2.0, 1)
    average.add(value=np.array([4.0]), weight=2)
    assert average.eval() == pytest.approx(10 / 3)
    average.reset()
    average.add(np.array([[1.0, 2.0]]), 3)
    average.add(np.float32(4), np.array([1.0]))
    np.testing.assert_allclose(average.eval(), [[1.75, 2.5]])
    for value, weight in (([1.0], 1), (1.0, "1"), (1.0, np.ones(2))):
        with pytest.raises(ValueError, match="expected a number"):
            average.add(value, weight)


def test_fleets_metrics_of_one_process_are_its_own():
    scope = fluid.Scope()
    scope.var("hits").get_tensor().set(np.array([3, 1]), None)
    assert fleet.metrics.sum("hits", scope).tolist() == [3, 1]
    assert fleet.metrics.max(np.array([1.5]))[0] == fleet.metrics.min(np.array([1.5]))[0] == 1.5
    assert fleet.metrics.acc(3.0, 4.0) == 0.75
    assert fleet.metrics.rmse(8.0, 2.0) == 2.0
    assert fleet.metrics.mae(8.0, 2.0) == fleet.metrics.mse(8.0, 2.0) == 4.0
    positives, negatives = counts(*scored(0), 100)
    assert fleet.metrics.auc(positives, negatives) == area(positives, negatives)
    with pytest.raises(FleetError, match="no variable 'misses'"):
        fleet.metrics.sum("misses", scope)
    assert issubclass(FleetError, HpcdistError)


def test_counts_that_were_fetched_give_arrays_of_one_as_in_fluid():
    chunks, edits = metrics.ChunkEvaluator(), metrics.EditDistance()
    assert chunks.eval() == (0, 0, 0)
    for _ in range(2):
        chunks.update(*(np.array([count]) for count in (3, 4, 2)))
        edits.update(np.array([[1.0], [0.0]], np.float32), np.array([2]))
    found = [*chunks.eval(), *edits.eval()]
    assert [value.shape for value in found] == [(1,)] * 5
    wanted = [2 / 3, 0.5, 4 / 7, 0.5, 0.5]
    assert [float(value) for value in found] == pytest.approx(wanted)
    chunks.reset()
    chunks.update(1, 2, 1)
    assert chunks.eval()[1] == 0.5
