"""Softmax, losses, metrics, normalizations and lookups against closed forms in numpy."""

import numpy as np
import pytest

import hpcdist.ops  # noqa: F401  (fills the table of operators)
from hpcdist.errors import FeedError, GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph import Program


def program_of(op_type, inputs, outputs, attrs=None):
    """Return a Program of one operator; its variables are named after their slots."""
    program = Program()
    block = program.global_block()
    for slot, value in inputs.items():
        block.create_var(slot, shape=value.shape, dtype=value.dtype.name, is_data=True)
    slots = {slot: slot for slot in inputs}, {slot: slot for slot in outputs}
    block.append_op(op_type, *slots, attrs)
    return program


def run_op(op_type, inputs, outputs, attrs=None):
    """Return the output arrays of one operator."""
    program = program_of(op_type, inputs, outputs, attrs)
    return Executor().run(program, feed=inputs, fetch_list=outputs, scope=Scope())


def probabilities(rng, *shape):
    raw = rng.random(shape) + 0.1
    return (raw / raw.sum(-1, keepdims=True)).astype("float32")


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# -- softmax ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_softmax_is_the_normalized_exponential(rng, axis):
    x = rng.standard_normal((3, 4, 5)).astype("float32")
    (out,) = run_op("softmax", {"X": x}, ["Out"], {"axis": axis})
    exponential = np.exp(x)
    expected = exponential / exponential.sum(axis, keepdims=True)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_softmax_of_large_numbers_neither_overflows_nor_reaches_zero():
    x = np.array([[1000.0, 0.0, -1000.0]], np.float32)
    (out,) = run_op("softmax", {"X": x}, ["Out"])
    np.testing.assert_allclose(out, [[1.0, np.exp(-64), np.exp(-64)]], rtol=1e-5)


def test_softmax_axis_outside_the_rank_is_refused():
    with pytest.raises(GraphError, match="axis 2 is outside a value of 2 dimensions"):
        program_of("softmax", {"X": np.zeros((2, 3), np.float32)}, ["Out"], {"axis": 2})


# -- cross entropies -------------------------------------------------------------------------------


def test_cross_entropy_picks_the_labelled_probability(rng):
    x, label = probabilities(rng, 6, 4), rng.integers(0, 4, (6, 1))
    y, match = run_op("cross_entropy2", {"X": x, "Label": label}, ["Y", "MatchX"])
    chosen = np.take_along_axis(x, label, 1)
    np.testing.assert_array_equal(match, chosen)
    np.testing.assert_allclose(y, -np.log(chosen), rtol=1e-6)
    y, match = run_op("cross_entropy2", {"X": x, "Label": label[:, 0]}, ["Y", "MatchX"])
    assert (y.shape, match.shape) == ((6,), (6, 1))  # as in Fluid


def test_ignored_labels_have_no_loss(rng):
    x, label = probabilities(rng, 3, 4), np.array([[1], [-100], [0]])
    y, match = run_op("cross_entropy2", {"X": x, "Label": label}, ["Y", "MatchX"])
    assert y[1, 0] == 0
    assert match[1, 0] == 1
    np.testing.assert_allclose(y[[0, 2], 0], -np.log(x[[0, 2], [1, 0]]), rtol=1e-6)


def test_cross_entropy_of_probability_zero_is_fluids_large_number():
    x, label = np.array([[0.0, 1.0]], np.float32), np.array([[0]])
    y, _ = run_op("cross_entropy2", {"X": x, "Label": label}, ["Y", "MatchX"])
    np.testing.assert_array_equal(y, np.float32([[1e20]]))


@pytest.mark.parametrize("label", [4, -1])
@pytest.mark.parametrize(
    "op_type, slot, out",
    [("cross_entropy2", "X", "Y"), ("softmax_with_cross_entropy", "Logits", "Loss")],
)
def test_a_label_that_is_no_class_is_refused_at_run_time(op_type, slot, out, label):
    outputs = ["Softmax", "Loss"] if out == "Loss" else ["Y", "XShape", "MatchX"]
    labels = np.array([[0], [label], [3]])
    with pytest.raises(FeedError, match=rf"{op_type}: id {label} \(element 1 of 3\).*0\.\.3"):
        run_op(op_type, {slot: np.full((3, 4), 0.25, np.float32), "Label": labels}, outputs)


def test_cross_entropy_with_soft_labels_is_the_expected_logarithm(rng):
    x, label = probabilities(rng, 5, 4), probabilities(rng, 5, 4)
    attrs = {"soft_label": True}
    (y,) = run_op("cross_entropy", {"X": x, "Label": label}, ["Y"], attrs)
    np.testing.assert_allclose(y, -(label * np.log(x)).sum(1, keepdims=True), rtol=1e-5)


def log_softmax(x, axis):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_with_cross_entropy_equals_its_parts(rng, axis):
    x = (5 * rng.standard_normal((3, 4, 5))).astype("float32")
    shape = list(x.shape)
    shape[axis] = 1
    label = rng.integers(0, x.shape[axis], shape)
    label[0, 0, 0] = 2
    inputs = {"Logits": x, "Label": label}
    attrs = {"axis": axis, "ignore_index": 2}
    softmax, loss = run_op("softmax_with_cross_entropy", inputs, ["Softmax", "Loss"], attrs)
    logs = log_softmax(x, axis)
    expected = np.where(label == 2, 0, -np.take_along_axis(logs, label, axis))
    np.testing.assert_allclose(softmax, np.exp(logs), rtol=1e-5)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_softmax_with_cross_entropy_takes_soft_labels(rng):
    x, label = rng.standard_normal((5, 4)).astype("float32"), probabilities(rng, 5, 4)
    inputs, attrs = {"Logits": x, "Label": label}, {"soft_label": True}
    _, loss = run_op("softmax_with_cross_entropy", inputs, ["Softmax", "Loss"], attrs)
    expected = -(label * log_softmax(x, 1)).sum(1, keepdims=True)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "label, message",
    [
        (np.zeros((5, 1), np.int64), r"hard labels of shape \(3, 1\), got \(5, 1\)"),
        (np.zeros((4,), np.int64), r"hard labels of shape \(3, 1\), got \(4, 1\)"),
        (np.zeros((3, 1, 1), np.int64), r"hard labels of shape \(3, 1\), got \(3, 1, 1\)"),
        (np.zeros((3, 1), np.float32), "hard labels of an integer dtype, got float32"),
    ],
)
def test_labels_that_do_not_fit_the_scores_are_refused_when_building(label, message):
    inputs = {"X": np.zeros((3, 4), np.float32), "Label": label}
    with pytest.raises(GraphError, match=message):
        program_of("cross_entropy2", inputs, ["Y", "XShape", "MatchX"])


# -- other losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
def test_sigmoid_cross_entropy_ignores_and_normalizes(rng, normalize):
    x = (10 * rng.standard_normal((3, 4))).astype("float32")
    label = rng.random((3, 4)).round().astype("float32")
    label[1, 2] = -1
    attrs = {"ignore_index": -1, "normalize": normalize}
    op_type = "sigmoid_cross_entropy_with_logits"
    (out,) = run_op(op_type, {"X": x, "Label": label}, ["Out"], attrs)
    x64 = x.astype("float64")
    expected = np.logaddexp(0, x64) - x64 * label
    expected[1, 2] = 0
    np.testing.assert_allclose(out, expected / (11 if normalize else 1), rtol=1e-4, atol=1e-7)


def test_log_loss_is_the_logarithm_of_the_likelihood(rng):
    p = rng.random((6, 1)).astype("float32")
    label = rng.random((6, 1)).round().astype("float32")
    inputs, attrs = {"Predicted": p, "Labels": label}, {"epsilon": 1e-3}
    (loss,) = run_op("log_loss", inputs, ["Loss"], attrs)
    expected = -label * np.log(p + 1e-3) - (1 - label) * np.log(1 - p + 1e-3)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_huber_loss_is_square_inside_and_linear_outside():
    x, y = np.zeros((3, 1), np.float32), np.array([[0.5], [-2.0], [3.0]], np.float32)
    inputs, attrs = {"X": x, "Y": y}, {"delta": 1.0}
    residual, out = run_op("huber_loss", inputs, ["Residual", "Out"], attrs)
    np.testing.assert_array_equal(residual, y)
    np.testing.assert_allclose(out, [[0.125], [1.5], [2.5]])


def test_smooth_l1_sums_over_the_row():
    x, y = np.array([[0.25, 2.0]], np.float32), np.zeros((1, 2), np.float32)
    diff, out = run_op("smooth_l1_loss", {"X": x, "Y": y}, ["Diff", "Out"], {"sigma": 1.0})
    np.testing.assert_array_equal(diff, x)
    np.testing.assert_allclose(out, [[0.25**2 / 2 + 1.5]])


@pytest.mark.parametrize("prior", [None, [0.7, 0.2, 0.1]])
def test_label_smooth_mixes_with_the_prior(prior):
    x = np.eye(3, dtype=np.float32)
    inputs = {"X": x}
    if prior is not None:
        inputs["PriorDist"] = np.array([prior], np.float32)
    (out,) = run_op("label_smooth", inputs, ["Out"], {"epsilon": 0.3})
    uniform = np.full(3, 1 / 3) if prior is None else np.array(prior)
    np.testing.assert_allclose(out, 0.7 * x + 0.3 * uniform, rtol=1e-6)


# -- metrics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 4])
def test_top_k_descends_and_prefers_the_first_of_equals(k):
    x = np.array([[1, 3, 3, 0], [2, 2, 1, 2], [-1, -np.inf, 4, 5]], np.float32)
    out, indices = run_op("top_k", {"X": x}, ["Out", "Indices"], {"k": k})
    np.testing.assert_array_equal(indices, [[1, 2, 0, 3][:k], [0, 1, 3, 2][:k], [3, 2, 0, 1][:k]])
    np.testing.assert_array_equal(out, np.take_along_axis(x, indices, 1))


def test_top_k_of_more_than_there_are_is_refused():
    with pytest.raises(GraphError, match=r"cannot take the 5 largest .* \(2, 4\)"):
        program_of("top_k", {"X": np.zeros((2, 4), np.float32)}, ["Out", "Indices"], {"k": 5})


def test_accuracy_counts_rows_whose_label_is_among_the_indices():
    inputs = {
        "Out": np.zeros((4, 2), np.float32),
        "Indices": np.array([[0, 1], [2, 1], [3, 0], [1, 2]]),
        "Label": np.array([[1], [0], [3], [1]]),
    }
    share, correct, total = run_op("accuracy", inputs, ["Accuracy", "Correct", "Total"])
    np.testing.assert_array_equal(share, np.float32([0.75]))
    assert (correct.dtype, correct[0], total.dtype, total[0]) == ("int32", 3, "int32", 4)


# -- normalizations --------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [1, 2])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_has_mean_zero_and_variance_one(rng, begin, affine):
    x = (3 + 2 * rng.standard_normal((2, 3, 4))).astype("float32")
    rows = x.reshape(int(np.prod(x.shape[:begin])), -1)
    inputs = {"X": x}
    scale, bias = np.float32(1), np.float32(0)
    if affine:
        scale, bias = (rng.standard_normal(rows.shape[1]).astype("float32") for _ in range(2))
        inputs |= {"Scale": scale, "Bias": bias}
    attrs = {"begin_norm_axis": begin, "epsilon": 1e-5}
    y, mean, variance = run_op("layer_norm", inputs, ["Y", "Mean", "Variance"], attrs)
    np.testing.assert_allclose(mean, rows.mean(1), rtol=1e-5)
    np.testing.assert_allclose(variance, rows.var(1), rtol=1e-5)
    expected = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    expected = (expected * scale + bias).reshape(x.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_refuses_a_scale_of_another_width():
    inputs = {"X": np.zeros((2, 3, 4), np.float32), "Scale": np.zeros(3, np.float32)}
    with pytest.raises(GraphError, match=r"scale must be of shape \(12,\), got \(3,\)"):
        program_of("layer_norm", inputs, ["Y", "Mean", "Variance"])


def test_norm_divides_by_the_length(rng):
    x = rng.standard_normal((3, 4, 2)).astype("float32")
    out, norm = run_op("norm", {"X": x}, ["Out", "Norm"], {"axis": 1, "epsilon": 1e-12})
    length = np.sqrt((x**2).sum(1, keepdims=True))
    np.testing.assert_allclose(norm, length, rtol=1e-6)
    np.testing.assert_allclose(out, x / length, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 5])
def test_cos_sim_is_the_cosine_of_rows(rng, rows):
    x, y = (rng.standard_normal((n, 4)).astype("float32") for n in (5, rows))
    out, *_ = run_op("cos_sim", {"X": x, "Y": y}, ["Out", "XNorm", "YNorm"])
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(out[:, 0], (x * y).sum(1) / lengths, rtol=1e-5)


def test_the_cosine_of_a_row_of_zeros_is_zero():
    """Behind a relu a row may be all zeros; Fluid's values, with a slope that is no NaN."""
    x = np.float32([[0, 0, 0], [1e-5, 0, 1e-5]])
    y = np.float32([[1, 2, 3], [1e-5, 0, 0]])
    out, x_norm, y_norm = run_op("cos_sim", {"X": x, "Y": y}, ["Out", "XNorm", "YNorm"])
    np.testing.assert_allclose(out[:, 0], [0, 0.01], rtol=1e-5)
    given = {"X": x, "Y": y, "Out": out, "XNorm": x_norm, "YNorm": y_norm}
    ones = {"Out@GRAD": np.ones((2, 1), "float32")}
    dx, dy = run_op("cos_sim_grad", given | ones, ["X@GRAD", "Y@GRAD"])
    np.testing.assert_allclose(dx[0], 1e4 * y[0] / np.sqrt(14), rtol=1e-5)
    np.testing.assert_array_equal(dy[0], [0, 0, 0])


# -- lookups ---------------------------------------------------------------------------------------

TABLE = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.mark.parametrize(
    "op_type, ids",
    [("lookup_table", (4, 1)), ("lookup_table", (2, 3, 1)), ("lookup_table_v2", (2, 3))],
)
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_lookup_takes_rows_and_clears_padding(rng, op_type, ids, padding_idx):
    ids = rng.integers(0, 5, ids)
    ids.flat[0] = 2
    inputs, attrs = {"W": TABLE, "Ids": ids}, {"padding_idx": padding_idx}
    (out,) = run_op(op_type, inputs, ["Out"], attrs)
    squeezed = ids[..., 0] if op_type == "lookup_table" else ids
    expected = TABLE[squeezed]
    expected[squeezed == padding_idx] = 0
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("bad", [5, -1, 2**40])
def test_an_id_outside_the_table_is_refused_at_run_time(bad):
    ids = np.array([[0], [4], [bad]])
    with pytest.raises(FeedError, match=rf"lookup_table: id {bad} \(element 2 of 3\).*5 rows"):
        run_op("lookup_table", {"W": TABLE, "Ids": ids}, ["Out"])


def test_ids_must_end_in_one_for_the_first_version():
    inputs = {"W": TABLE, "Ids": np.zeros((2, 3), np.int64)}
    with pytest.raises(GraphError, match=r"\(2, 3\) must end in a dimension of 1"):
        program_of("lookup_table", inputs, ["Out"])


@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_sparse_and_dense_table_gradients_agree(rng, padding_idx):
    ids = np.array([[2], [0], [2], [4]])
    dout = rng.standard_normal((4, 3)).astype("float32")
    inputs = {"W": TABLE, "Ids": ids, "Out@GRAD": dout}
    dense, sparse = (
        run_op(
            "lookup_table_grad",
            inputs,
            ["W@GRAD"],
            {"is_sparse": is_sparse, "padding_idx": padding_idx},
        )[0]
        for is_sparse in (False, True)
    )
    expected = np.zeros_like(TABLE)
    np.add.at(expected, ids[:, 0], dout)
    if padding_idx != -1:
        expected[padding_idx] = 0
    np.testing.assert_allclose(dense, expected, rtol=1e-6)
    np.testing.assert_array_equal(sparse.rows, ids[:, 0])
    np.testing.assert_allclose(sparse.to_dense(), expected, rtol=1e-6)


@pytest.mark.parametrize("op_type, shape", [("one_hot", (3, 1)), ("one_hot_v2", (3,))])
def test_one_hot_marks_the_id(op_type, shape):
    ids = np.array([2, 0, 3]).reshape(shape)
    (out,) = run_op(op_type, {"X": ids}, ["Out"], {"depth": 4})
    np.testing.assert_array_equal(out, np.eye(4, dtype=np.float32)[[2, 0, 3]])


def test_one_hot_of_an_id_out_of_range_is_refused_unless_allowed():
    ids = np.array([[0], [4]])
    with pytest.raises(FeedError, match=r"one_hot: id 4 \(element 1 of 2\)"):
        run_op("one_hot", {"X": ids}, ["Out"], {"depth": 4})
    (out,) = run_op("one_hot", {"X": ids}, ["Out"], {"depth": 4, "allow_out_of_range": True})
    np.testing.assert_array_equal(out, [[1, 0, 0, 0], [0, 0, 0, 0]])
