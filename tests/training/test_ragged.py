"""LoDTensors, and Programs that meet batches of other lengths at every step."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, GraphError
from hpcdist.executor.compile import Compiler
from hpcdist.fluid.compat.core import LoDTensor
from hpcdist.graph.lod import Lod


# -- LoDTensor -------------------------------------------------------------------------------------
def test_a_lod_tensor_is_made_as_in_fluid():
    tensor = LoDTensor()
    tensor.set(np.arange(10).reshape(5, 2), fluid.CPUPlace())
    tensor.set_recursive_sequence_lengths([[2, 3]])
    assert tensor.lod() == [[0, 2, 5]]
    assert tensor.recursive_sequence_lengths() == [[2, 3]]
    assert tensor.has_valid_recursive_sequence_lengths()
    assert tensor.shape() == [5, 2]
    np.testing.assert_array_equal(np.array(tensor), np.arange(10).reshape(5, 2))
    tensor.set_lod([[0, 4]])
    assert not tensor.has_valid_recursive_sequence_lengths()
    tensor.set_lod([[0, 1, 2], [0, 3, 5]])
    assert tensor.recursive_sequence_lengths() == [[1, 1], [3, 2]]


def test_lists_become_rows_of_one_number():
    tensor = fluid.create_lod_tensor([[1, 2, 3], [4, 5]], [[3, 2]], fluid.CPUPlace())
    np.testing.assert_array_equal(tensor, [[1], [2], [3], [4], [5]])
    again = fluid.create_lod_tensor(tensor, [[1, 4]], fluid.CPUPlace())
    assert again.lod() == [[0, 1, 5]]
    drawn = fluid.create_random_int_lodtensor([[2, 1]], [4], fluid.CPUPlace(), 3, 5)
    assert drawn.shape() == [3, 4]
    assert set(np.ravel(drawn)) <= {3, 4, 5}


@pytest.mark.parametrize(
    ("data", "lengths", "message"),
    [
        ([[1], [2]], [[2]], r"lengths \[\[1, 1\]\], recursive_seq_lens says \[\[2\]\]"),
        (np.zeros((5, 1)), [[2, 2]], "the sequences have 4 rows together, the data has 5"),
        (np.zeros((5, 1)), [[2], [5]], "level 0 of a lod ends at 2, but the next .* 1 sequences"),
        (np.zeros((5, 1)), [[6, -1]], r"offsets must ascend from 0, got \[0, 6, 5\]"),
        ("words", [[5]], "must be a LoDTensor, an array or a list, got str"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(data, lengths, message):
    with pytest.raises(FeedError, match=message):
        fluid.create_lod_tensor(data, lengths, None)


def test_a_constant_like_ragged_input_has_a_row_for_each_of_its_rows():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2], lod_level=1)
        like = layers.fill_constant_batch_size_like(x, [-1, 3], "float32", 4.0)
    fed = fluid.create_lod_tensor(np.zeros((5, 2), "float32"), [[2, 3]], fluid.CPUPlace())
    (made,) = fluid.Executor(fluid.CPUPlace()).run(main, feed={"x": fed}, fetch_list=[like])
    np.testing.assert_array_equal(made, np.full((5, 3), 4.0, "float32"))


def test_a_part_is_the_outermost_sequences_with_their_rows():
    lod = Lod.of_lengths([[1, 2, 0], [2, 0, 3]])
    tensor = LoDTensor(np.arange(5), lod)
    assert tensor.samples == 3
    part = tensor.part(1, 3)
    np.testing.assert_array_equal(part, [2, 3, 4])
    assert part.recursive_sequence_lengths() == [[2, 0], [0, 3]]


# -- Programs --------------------------------------------------------------------------------------
def classifier(dropout=0.0):
    """Return main and startup Programs, the loss and the weighted rows of a small text model."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        words = layers.data("words", [1], dtype="int64", lod_level=1)
        tags = layers.data("tags", [1], dtype="int64", lod_level=1)
        label = layers.data("label", [1], dtype="int64")
        rows = layers.embedding(words, [20, 6], is_sparse=True)
        hidden = layers.fc(rows, 6, act="tanh")
        if dropout:
            hidden = layers.dropout(hidden, dropout)
        weights = layers.sequence_softmax(layers.fc(hidden, 1))
        weighted = layers.elementwise_mul(hidden, weights, axis=0)
        bag = layers.sequence_pool(weighted, "sum")
        near = layers.sequence_pool(layers.sequence_conv(rows, 4, act="relu"), "max")
        tag = layers.sequence_pool(layers.embedding(tags, [20, 6], param_attr="tags.w"), "average")
        twice = layers.sequence_pool(layers.sequence_concat([rows, hidden]), "sqrt")
        guess = layers.fc([bag, near, tag, twice], 3, act="softmax")
        loss = layers.mean(layers.cross_entropy(guess, label))
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    return main, startup, loss, weighted


def batch(word_lengths, tag_lengths, seed):
    rng = np.random.default_rng(seed)

    def ids(lengths):
        return fluid.create_lod_tensor(rng.integers(0, 20, (sum(lengths), 1)), [list(lengths)])

    label = rng.integers(0, 3, (len(word_lengths), 1))
    return {"words": ids(word_lengths), "tags": ids(tag_lengths), "label": label}


def train(batches, *, keep_executor):
    """Return what every step fetches; without one executor each step is compiled from scratch."""
    main, startup, loss, weighted = classifier()
    scope, exe = fluid.Scope(), fluid.Executor()
    exe.run(startup, scope=scope)
    found = []
    for number, lengths in enumerate(batches):
        exe = exe if keep_executor else fluid.Executor()
        feed = batch(*lengths, number)
        fetched = exe.run(main, feed, [loss, weighted], scope=scope, return_numpy=False)
        found += [np.array(value) for value in fetched]
        assert fetched[1].recursive_sequence_lengths() == [lengths[0]]
    return found


lengths = st.lists(st.integers(0, 5), min_size=3, max_size=3)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(lengths, lengths), min_size=2, max_size=6))
def test_a_program_that_is_fitted_gives_the_bits_of_one_compiled_for_each_batch(batches):
    fitted = train(batches, keep_executor=True)
    compiled = train(batches, keep_executor=False)
    for a, b in zip(fitted, compiled, strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_lengths_are_soon_compiled_no_more(monkeypatch):
    compiled = []
    compile_ = Compiler.compile
    monkeypatch.setattr(
        Compiler, "compile", lambda self, *a, **k: compiled.append(1) or compile_(self, *a, **k)
    )
    rng = np.random.default_rng(0)
    batches = [(list(rng.integers(0, 9, 16)), list(rng.integers(0, 9, 16))) for _ in range(40)]
    main, startup, loss, _ = classifier()
    scope, exe = fluid.Scope(), fluid.Executor()
    exe.run(startup, scope=scope)
    counts = []
    for number, lengths in enumerate(batches):
        exe.run(main, batch(*lengths, number), [loss], scope=scope)
        counts.append(len(compiled))
    assert counts[-1] - counts[0] <= 4  # memory for longer batches is found a few times
    assert counts[-1] == counts[20]


def test_other_numbers_of_sequences_and_batches_without_any_row():
    batches = [([2, 1], [1, 1]), ([1, 2, 3], [0, 0, 0]), ([0, 0], [0, 0]), ([4, 4], [2, 3])]
    fitted, compiled = (train(batches, keep_executor=keep) for keep in (True, False))
    for a, b in zip(fitted, compiled, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_masks_go_on_when_lengths_change():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = layers.data("x", [1], lod_level=1)
        kept = layers.dropout(x, 0.5)
    exe, masks = fluid.Executor(), []
    for rows in (60, 61, 60):
        feed = {"x": fluid.create_lod_tensor(np.ones((rows, 1), "float32"), [[rows]])}
        masks.append(exe.run(main, feed, [kept], scope=fluid.Scope())[0][:60])
    assert (masks[0] != masks[1]).any()
    assert (masks[1] != masks[2]).any()


def test_a_conditional_block_sees_the_sequences_of_every_batch():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = layers.data("x", [1], lod_level=1)
        out = layers.create_global_var([3, 1], 0.0, "float32", persistable=True)
        with layers.Switch() as switch, switch.case(layers.equal(out, out)):
            layers.assign(layers.sequence_pool(x, "sum"), out)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    for lengths in ([1, 2, 0], [3, 0, 4]):
        feed = {"x": fluid.create_lod_tensor(np.ones((sum(lengths), 1), "float32"), [lengths])}
        (found,) = exe.run(main, feed, [out], scope=scope)
        np.testing.assert_array_equal(found.ravel(), lengths)


def test_rows_of_sequences_can_be_fetched_as_arrays_or_with_their_lengths():
    main, startup, _, weighted = classifier()
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = batch([2, 0, 3], [1, 1, 1], 0)
    (array,) = exe.run(main, feed, [weighted], scope=scope)
    (tensor,) = exe.run(main, feed, [weighted], scope=scope, return_numpy=False)
    assert type(array) is np.ndarray
    assert array.shape == (5, 6)
    assert tensor.lod() == [[0, 2, 2, 5]]
    assert tensor.shape() == [5, 6]


def test_rows_that_do_not_fit_their_sequences_are_refused():
    main, startup, loss, _ = classifier()
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = batch([2, 0, 3], [1, 1, 1], 0)
    feed["words"].set_lod([[0, 2, 2, 4]])
    with pytest.raises(FeedError, match="'words': its sequences have 4 rows together, got 5 rows"):
        exe.run(main, feed, [loss], scope=scope)


# -- sequences that are computed -------------------------------------------------------------------
def trained(make, feed):
    """Return the values of what ``make`` builds, and the gradient of its sum by ``x``."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.data("x", [None, *np.shape(feed["x"])[1:]])
        x.stop_gradient = False
        out = make(x)
        total = layers.reduce_sum(out * out)
        (gradient,) = fluid.gradients([total], [x])
        exe, scope = fluid.Executor(), fluid.Scope()
        return exe.run(main, feed=feed, fetch_list=[out, gradient], scope=scope)


def test_lengths_of_sequences_may_be_computed():
    def make(x):
        lengths = layers.reshape(fluid.data("n", [None, 1], "int64"), [-1]) + 1
        return layers.sequence_pool(layers.sequence_unpad(x, lengths), "sum")

    x = np.arange(12, dtype="float32").reshape(2, 3, 2)
    for n in ([0, 1], [1, 2]):
        out, gradient = trained(make, {"x": x, "n": np.array(n)[:, None]})
        wanted = np.stack([x[0, : n[0] + 1].sum(0), x[1, : n[1] + 1].sum(0)])
        np.testing.assert_array_equal(out, wanted)
        there = np.arange(3)[None, :] <= np.array(n)[:, None]
        np.testing.assert_array_equal(gradient, 2 * wanted[:, None] * there[:, :, None])


@pytest.mark.parametrize("sparse", [False, True])
def test_lengths_may_be_the_sum_of_a_mask(sparse):
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        ids = fluid.data("ids", [None, 3], "int64")
        lengths = layers.reduce_sum(fluid.data("mask", [None, 3]), dim=1)
        table = fluid.ParamAttr("t", initializer=fluid.initializer.Constant(1.0))
        rows = fluid.embedding(ids, [9, 2], is_sparse=sparse, param_attr=table)
        pooled = layers.sequence_pool(layers.sequence_unpad(rows, lengths), "sum")
        fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(pooled))
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        mask = np.array([[1, 0, 0], [1, 1, 1]], "float32")
        feed = {"ids": np.array([[0, 1, 2], [3, 3, 4]]), "mask": mask}
        found, after = exe.run(feed=feed, fetch_list=[pooled, "t"])
    assert found.tolist() == [[1, 1], [3, 3]]
    assert after[:, 0].tolist() == [0, 1, 1, -1, 0, 1, 1, 1, 1]


def test_sparse_gradients_of_ids_of_computed_lengths_are_refused():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        lengths = layers.reduce_sum(fluid.data("mask", [None, 3]), dim=1)
        ids = layers.sequence_unpad(fluid.data("ids", [None, 3], "int64"), lengths)
        rows = layers.embedding(ids, [9, 2], is_sparse=True)
        fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(rows))
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        feed = {"ids": np.zeros((2, 3), "int64"), "mask": np.ones((2, 3), "float32")}
        with pytest.raises(GraphError, match=r"lookup_table_grad.* apply sequence_unpad to the"):
            exe.run(feed=feed)


def test_rows_are_grouped_by_offsets_that_are_fed():
    def make(x):
        offsets = fluid.data("n", [None], "int32")
        return layers.sequence_pool(layers.lod_reset(layers.scale(x, 1.0), y=offsets), "sum")

    x = np.arange(10, dtype="float32").reshape(5, 2)
    for n in ([0, 2, 5], [0, 1, 1, 5]):
        out, gradient = trained(make, {"x": x, "n": np.array(n, "int32")})
        wanted = np.stack([x[a:b].sum(0) for a, b in itertools.pairwise(n)])
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(gradient, 2 * np.repeat(wanted, np.diff(n), axis=0))
    for n, message in (([0, 2], "X has 5 rows, the sequences have 2"), ([1, 5], "must ascend")):
        with pytest.raises(FeedError, match=message):
            trained(make, {"x": x, "n": np.array(n, "int32")})


def test_a_part_of_a_tensor_keeps_its_dimensions_as_in_fluid():
    tensor = LoDTensor(np.arange(6.0).reshape(3, 2))
    for part, expected in (
        (0, [[0, 1]]),
        (-1, [[4, 5]]),
        ((1, 0), [[2]]),
        ((slice(0, 2), 1), [[1], [3]]),
        (slice(2, 0, -1), [[4, 5], [2, 3]]),
    ):
        assert np.array(tensor[part]).tolist() == expected
    with pytest.raises(IndexError):
        tensor[3]
    assert len(list(tensor)) == 3


def test_lengths_have_as_many_rows_as_there_are():
    tensor = fluid.core.LoDTensor()
    tensor.set(np.zeros((5, 2)), None)
    with pytest.raises(FeedError, match="4 rows together, the tensor has 5"):
        tensor.set_recursive_sequence_lengths([[2, 2]])
    tensor.set_recursive_sequence_lengths([[2, 3]])
    assert tensor.lod() == [[0, 2, 5]]
