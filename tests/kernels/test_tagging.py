"""Conditional random fields against all paths, CTC against all alignments, chunks and distances."""

import itertools

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, GraphError, HpcdistError
from tests.support.thread_jobs import ranks_as_threads

LENGTHS = [2, 0, 3]


pytestmark = pytest.mark.usefixtures("programs")


def ragged(name, width, dtype="int64"):
    return layers.data(name, [width], dtype=dtype, lod_level=1)


def tensor(array, lengths=LENGTHS):
    return fluid.create_lod_tensor(np.asarray(array), [lengths])


def run(feed, fetches, **parameters):
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    for name, value in parameters.items():
        scope.find_var(name).get_tensor().set(value, fluid.CPUPlace())
    return exe.run(feed=feed, fetch_list=list(fetches), scope=scope)


def score(x, weights, path):
    total = weights[0, path[0]] + weights[1, path[-1]]
    total += sum(row[tag] for row, tag in zip(x, path))
    return total + sum(weights[a + 2, b] for a, b in itertools.pairwise(path))


def test_a_chain_knows_the_probability_of_every_path_and_the_likeliest_one():
    rng = np.random.default_rng(2)
    x, weights = rng.normal(size=(5, 3)).astype("float32"), rng.normal(size=(5, 3))
    labels, weights = rng.integers(0, 3, (5, 1)), weights.astype("float32")
    scores, tags = ragged("x", 3, "float32"), ragged("y", 1)
    cost = layers.linear_chain_crf(scores, tags, fluid.ParamAttr("crf"))
    best = layers.crf_decoding(scores, fluid.ParamAttr("crf"))
    right = layers.crf_decoding(scores, fluid.ParamAttr("crf"), label=tags)
    feed = {"x": tensor(x), "y": tensor(labels)}
    cost, best, right = run(feed, [cost, best, right], crf=weights)
    begin = 0
    for sequence, length in enumerate(LENGTHS):
        rows = slice(begin, begin + length)
        begin += length
        if not length:
            assert cost[sequence] == 0
            continue
        paths = list(itertools.product(range(3), repeat=length))
        scored = np.array([score(x[rows], weights, path) for path in paths])
        given = score(x[rows], weights, labels[rows, 0])
        np.testing.assert_allclose(cost[sequence], np.log(np.exp(scored).sum()) - given, rtol=1e-5)
        assert tuple(best[rows, 0]) == paths[int(scored.argmax())]
    np.testing.assert_array_equal(right, best == labels)


@pytest.mark.parametrize("operator", ["crf", "decoding", "chunks", "distance", "ctc"])
@pytest.mark.parametrize("odd", ["labels", "shorter labels", "lengths"])
def test_padded_rows_labels_and_lengths_must_be_of_each_other(operator, odd):
    """Kernels would read beside the labels, numpy use one length for all sequences."""
    sequences, longest = (
        (3, 4) if odd == "labels" else (2, 3) if odd == "shorter labels" else (2, 4)
    )
    shapes = {"x": [4, 2, 3] if operator == "ctc" else [2, 4, 3], "t": [2, 4]}
    shapes |= {"y": [sequences, longest], "n": [1 if odd == "lengths" else 2], "m": [sequences]}
    if operator == "distance" and odd == "shorter labels":
        shapes["m"] = [3]  # labels of any width are right, but there must be as many
    if operator == "ctc" and odd == "shorter labels":
        shapes["y"], shapes["m"] = [1, 3], [1]
    feed = {name: np.ones(shape, np.int64) for name, shape in shapes.items()}
    feed["x"] = feed["x"].astype("float32")
    v = {
        name: fluid.data(name, [None, None, 3][: array.ndim], array.dtype.name)
        for name, array in feed.items()
    }
    if operator == "crf":
        found = layers.linear_chain_crf(v["x"], v["y"], fluid.ParamAttr("crf"), v["n"])
    elif operator == "decoding":
        layers.linear_chain_crf(v["x"], v["t"], fluid.ParamAttr("crf"), v["n"])
        found = layers.crf_decoding(v["x"], fluid.ParamAttr("crf"), v["y"], v["n"])
    elif operator == "chunks":
        found = layers.chunk_eval(v["t"], v["y"], "IOB", 2, seq_length=v["n"])[0]
    elif operator == "distance":
        of_found, of_wanted = v["n"], v["m"]
        found = layers.edit_distance(
            v["t"], v["y"], False, input_length=of_found, label_length=of_wanted
        )[0]
    else:
        found = layers.warpctc(v["x"], v["y"], 0, input_length=v["n"], label_length=v["m"])
    with pytest.raises((FeedError, GraphError), match="expected"):
        run(feed, [found])


def test_a_label_that_is_no_tag_is_refused():
    cost = layers.linear_chain_crf(ragged("x", 3, "float32"), ragged("y", 1))
    feed = {"x": tensor(np.zeros((5, 3), "float32")), "y": tensor(np.full((5, 1), 3))}
    with pytest.raises(FeedError, match="labels must be in 0..2"):
        run(feed, [cost])


def test_decoding_without_a_field_says_what_to_give():
    with pytest.raises(GraphError, match="linear_chain_crf's by its name"):
        layers.crf_decoding(ragged("x", 3, "float32"), fluid.ParamAttr("nobody"))


def collapsed(path, blank):
    return tuple(k for k, _ in itertools.groupby(path) if k != blank)


def test_ctc_sums_over_all_alignments():
    rng = np.random.default_rng(4)
    x, labels = rng.normal(size=(7, 3)).astype("float32"), np.array([[1], [1], [2], [1]])
    lengths, counts = [4, 3], [2, 2]
    loss = layers.warpctc(ragged("x", 3, "float32"), ragged("y", 1, "int32"), blank=0)
    feed = {"x": tensor(x, lengths), "y": tensor(labels.astype("int32"), counts)}
    (loss,) = run(feed, [loss])
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    for sequence, (rows, wanted) in enumerate([(shares[:4], (1, 1)), (shares[4:], (2, 1))]):
        paths = itertools.product(range(3), repeat=len(rows))
        of = [np.prod([r[k] for r, k in zip(rows, p)]) for p in paths if collapsed(p, 0) == wanted]
        np.testing.assert_allclose(loss[sequence, 0], -np.log(sum(of)), rtol=1e-5)


def test_chunks_are_counted_by_where_they_begin_and_end_and_by_type():
    found, label = ragged("x", 1), ragged("y", 1)
    fetches = layers.chunk_eval(found, label, "IOB", 2)
    # B0 I0 O B1 I1 against B0 I0 O B1 B1: two of two are found, of which one is right, of three.
    feed = {
        "x": tensor([[0], [1], [4], [2], [3]], [3, 2]),
        "y": tensor([[0], [1], [4], [2], [2]], [3, 2]),
    }
    values = [value[0] for value in run(feed, fetches)]
    np.testing.assert_allclose(values, [1 / 2, 1 / 3, 0.4, 2, 3, 1], rtol=1e-6)


def test_edit_distances():
    out, count = layers.edit_distance(ragged("x", 1), ragged("y", 1), normalized=False)
    words = {"x": ["kitten", "", "abc"], "y": ["sitting", "ab", "abc"]}
    feed = {
        name: tensor(np.array([[ord(c)] for c in "".join(w)]), [len(t) for t in w])
        for name, w in words.items()
    }
    distances, count = run(feed, [out, count])
    np.testing.assert_array_equal(distances[:, 0], [3, 2, 0])
    assert count[0] == 3


def test_a_distance_from_nothing_cannot_be_normalized():
    out, _ = layers.edit_distance(ragged("x", 1), ragged("y", 1))
    feed = {"x": tensor([[1]], [1]), "y": tensor(np.zeros((0, 1), int), [0])}
    with pytest.raises(HpcdistError, match="normalized=False"):
        run(feed, [out])


def test_blanks_alone_are_as_many_sequences_without_anything():
    x, y = ragged("x", 3, "float32"), ragged("y", 1)
    found = layers.ctc_greedy_decoder(x, blank=2)
    distance, count = layers.edit_distance(found, y, normalized=False)
    blanks = np.tile(np.array([[0, 0, 1]], "float32"), (5, 1))
    feed = {"x": tensor(blanks, [1, 2, 2]), "y": tensor(np.ones((5, 1), "int64"))}
    distance, count = run(feed, [distance, count])
    assert distance.ravel().tolist() == LENGTHS and count == [3]


def recognizer():
    """Return a script that trains by CTC on 4 sequences, of which in its second step the first two,
    in its third step all are found empty; it returns costs, distances, and tokens found."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = ragged("x", 3, "float32"), ragged("y", 1, "int32")
        scores = layers.fc(x, 3, param_attr=fluid.initializer.Constant(0.01))
        scores = layers.elementwise_add(scores, x)
        cost = layers.reduce_sum(layers.warpctc(scores, y, blank=2))
        found = layers.ctc_greedy_decoder(scores, blank=2)
        distance, count = layers.edit_distance(found, layers.cast(y, "int64"), normalized=False)
        fluid.optimizer.SGD(0.01).minimize(cost)
    certain = 9 * np.eye(3, dtype="float32")

    def train():
        exe, told = fluid.Executor(), []
        exe.run(startup)
        for tokens in ([0, 1, 2, 1, 0, 0, 2, 1], [2, 2, 2, 2, 0, 1, 1, 2], [2] * 8):
            feed = {
                "x": tensor(certain[tokens], [2, 2, 2, 2]),
                "y": tensor(np.array([[0], [1], [1], [0], [1]], "int32"), [1, 1, 1, 2]),
            }
            fetches = [cost, distance, count, found]
            values = exe.run(main, feed=feed, fetch_list=fetches, return_numpy=False)
            told.append([np.array(value).tolist() for value in values])
            told[-1].append(values[-1].recursive_sequence_lengths())
        return told

    return train


def test_what_trainers_of_shared_batches_decode_is_what_one_process_decodes():
    with fluid.scope_guard(fluid.Scope()):
        alone = recognizer()()
    assert [step[3] for step in alone] == [
        [[0], [1], [1], [0], [1]],
        [[0], [1], [1]],
        [[-1]],
    ]
    assert alone[2][4] == [[0, 0, 0, 0]]
    with ranks_as_threads() as run:
        for trainers, servers in ((2, 0), (2, 1)):
            for told in run(trainers, servers, [recognizer() for _ in range(trainers + servers)]):
                for step, wanted in zip(told, alone, strict=True):
                    np.testing.assert_allclose(step[0], wanted[0], rtol=1e-5)
                    assert step[1:] == wanted[1:]
