"""Tables that begin with given vectors, in one process and on any number of ranks."""

from __future__ import annotations

import functools
import gzip
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import DataError, GraphError, GraphTypeError, TableError
from hpcdist.executor.scope import Scope
from tests.support.thread_jobs import ranks_as_threads

VECTORS = np.arange(40, dtype="float32").reshape(10, 4) / 64
IDS = np.array([3, -5, 2**62, 7, 0, 11, 13, -(2**63), 17, 19])
WORDS = [f"word{i}" for i in range(10)]
Vectors = fluid.initializer.Vectors


def build(initializer: Any, distributed: bool, height: int = -1) -> Any:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = layers.data("ids", [1], dtype="int64")
        y = layers.data("y", [1])
        attr = fluid.ParamAttr("table", initializer=initializer)
        rows = fluid.embedding(ids, [height, 4], True, distributed, None, attr)
        rows = layers.reshape(rows, [-1, 4])
        loss = layers.mean(layers.square_error_cost(layers.fc(rows, 1, name="last"), y))
        test = main.clone(for_test=True)
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    return main, startup, test, loss, rows


def train(built: Any, ids: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return the rows as they begin, and some losses."""
    main, startup, test, loss, rows = built
    exe, scope = fluid.Executor(), Scope()
    exe.run(startup, scope=scope)
    feed = {"ids": ids[:, None], "y": np.ones((len(ids), 1), "float32")}
    (first,) = exe.run(test, feed=feed, fetch_list=[rows], scope=scope)
    losses = [exe.run(main, feed=feed, fetch_list=[loss], scope=scope)[0].item() for _ in range(3)]
    exe.close()
    return first, losses


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 2), (2, 0), (3, 0)])
def test_a_distributed_table_begins_with_given_vectors(trainers: int, servers: int) -> None:
    asked = np.array([*IDS, 1, 2])
    others = fluid.initializer.Constant(0.5)
    wanted = train(build(Vectors(VECTORS, IDS, otherwise=others), True), asked)
    np.testing.assert_array_equal(wanted[0], np.vstack([VECTORS, np.full((2, 4), 0.5)]))

    def script() -> Any:
        init = Vectors(VECTORS, IDS, otherwise=others)
        return functools.partial(train, build(init, True), asked)

    scripts = [script() for _ in range(trainers + servers)]
    with ranks_as_threads() as run:
        told = run(trainers, servers, scripts)
    for first, losses in told:
        np.testing.assert_array_equal(first, wanted[0])
        np.testing.assert_allclose(losses, wanted[1], 1e-6)


@pytest.mark.parametrize("distributed", [True, False])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_vectors_of_a_file_of_words(distributed: bool, ending: str, tmp_path: Any) -> None:
    path = tmp_path / f"vectors.txt{ending}"
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, VECTORS.tolist())]
    text = "\n".join(["10 4", *lines[:5], "", *lines[5:], ". . . 1 2 3 4"]).encode()
    path.write_bytes(gzip.compress(text) if ending else text)
    vocabulary = {word: i for i, word in enumerate(WORDS[:8])} | {". . .": 9}
    init = Vectors(path, vocabulary=vocabulary)
    first, _ = train(build(init, distributed, 12), np.arange(12))
    np.testing.assert_array_equal(first[:8], VECTORS[:8])
    np.testing.assert_array_equal(first[9], [1, 2, 3, 4])
    without, _ = train(build(fluid.initializer.Xavier(), distributed, 12), np.arange(12))
    np.testing.assert_array_equal(first[[8, 10, 11]], without[[8, 10, 11]])


def test_vectors_of_a_file_of_ids(tmp_path: Any) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{i}\t{' '.join(map(str, r))}\n" for i, r in zip(IDS, VECTORS)))
    first, _ = train(build(Vectors(path), True), IDS)
    np.testing.assert_array_equal(first, VECTORS)


WRONG = {
    "1 2 3": (DataError, "line 1: expected an id or a word and 4 numbers, got 3 fields"),
    "10 3\n1 2 3 4 5": (DataError, "line 1: the file has vectors of 3 numbers, .* rows of 4"),
    "one 1 2 3 4": (DataError, "'one' is not an id: pass vocabulary="),
    "1 2 3 x 4": (DataError, "line 1: could not convert"),
    "1 2 3 4 5\n2 1 1 1 1\n1 2 3 4 6": (TableError, "two vectors are given for one id, 1"),
    "7 2 nan 4 5": (TableError, "the vector given for id 7 is not finite"),
}


@pytest.mark.parametrize("text", WRONG)
def test_files_of_wrong_vectors_are_refused(text: str, tmp_path: Any) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    error, message = WRONG[text]
    with pytest.raises(error, match=message):
        train(build(Vectors(path), True), IDS)


def test_wrong_vectors_are_refused() -> None:
    with pytest.raises(GraphError, match="there is no file 'nowhere.txt'"):
        Vectors("nowhere.txt")
    with pytest.raises(GraphTypeError, match="expected 10 integers as ids"):
        Vectors(VECTORS, [1, 2])
    with (
        pytest.raises(GraphError, match="vectors have 4 numbers, but the rows of 'table' 3"),
        fluid.program_guard(fluid.Program(), fluid.Program()),
    ):
        attr = fluid.ParamAttr("table", initializer=Vectors(VECTORS))
        layers.create_parameter([10, 3], "float32", attr=attr)
    with pytest.raises(GraphError, match="has 9 rows: id 9 is no row of it"):
        build(Vectors(VECTORS), False, 9)
    with pytest.raises(GraphError, match="has 9 rows: id 1 is given twice"):
        build(Vectors(VECTORS[:2], [1, 1]), False, 9)
