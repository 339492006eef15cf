"""Dense parts as ONNX: equal to what trains, published beside the rows, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install .[onnx]")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed: pip install .[onnx]"
)

import hpcdist as fluid  # noqa: E402
import hpcdist.torch  # noqa: E402
from hpcdist.compat import aspaddle  # noqa: E402
from hpcdist.errors import GraphError, PublicationError, TableError  # noqa: E402
from hpcdist.serving import Lookup, compact, dense  # noqa: E402
from tests.support.published import Publication  # noqa: E402

pytestmark = pytest.mark.usefixtures("programs")
BATCHES = (1, 5, 16)  # also one row, which others could be broadcast to
layers = fluid.layers


def run(model, feeds):
    session = onnxruntime.InferenceSession(model)
    return session.run(None, feeds)


def clicks():
    """Return a chance of clicks by rows of tables, one of which two kinds of ids share."""
    ids = layers.data("ids", [1], dtype="int64")
    words = fluid.data("words", [None, 3], dtype="int64")
    x = layers.data("x", [5])
    table = {"size": [-1, 4], "is_sparse": True, "is_distributed": True, "param_attr": "t"}
    many = fluid.embedding(words, padding_idx=2, **table)
    rows = [layers.embedding(ids, padding_idx=2, **table), layers.reduce_sum(many, dim=1)]
    hidden = layers.fc(layers.concat([*rows, x], 1), 16, act="relu")
    hidden = layers.dropout(layers.batch_norm(hidden), 0.5)
    return layers.fc(hidden, 1, act="sigmoid")


def batch(draw, rows):
    return {
        "ids": draw.randint(0, 9, (rows, 1)),
        "words": draw.randint(0, 9, (rows, 3)),
        "x": draw.rand(rows, 5).astype("float32"),
    }


def test_a_program_s_dense_part_is_published_with_the_rows_of_each_version(tmp_path):
    chance, draw = clicks(), np.random.RandomState(0)
    test = fluid.default_main_program().clone(for_test=True)
    loss = layers.mean(chance)
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    model = fluid.io.onnx_model(["ids", "words", "x"], chance)
    publisher = fluid.checkpoint.Publisher(tmp_path, every=2, dense=model)
    for step in range(1, 5):
        exe.run(feed=batch(draw, 16), fetch_list=[loss])
        publisher.after_step()
        publisher.wait()
        if step % 2:
            continue
        with Lookup(tmp_path, watch=False) as lookup:
            for rows in BATCHES:
                fed = batch(draw, rows)
                (got,) = run(lookup.current.dense, lookup.current.feeds(fed))
                (expected,) = exe.run(test, feed=fed, fetch_list=[chance])
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    publisher.close()
    with Lookup(tmp_path, watch=False) as lookup:
        newest = lookup.current.dense
        assert set(lookup.current.feeds(fed)) == {"x", "t[ids]", "t[words]"}
        with pytest.raises(TableError, match="feeds: expected words too, got ids, x"):
            lookup.current.feeds({"ids": fed["ids"], "x": fed["x"]})
    compact(tmp_path)
    assert [path.read_bytes() for path in tmp_path.glob("*.onnx")] == [newest]
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.current.dense == newest
    (damaged,) = tmp_path.glob("*.onnx")
    damaged.write_bytes(newest[:-1] + b"?")
    with pytest.raises(PublicationError, match=f"its file {damaged.name} is damaged"):
        Lookup(tmp_path, watch=False)


def test_the_example_of_the_documents_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    (script,) = re.findall(r"```python\n(# clicks.py.*?)```", page, re.S)
    known = {}
    exec(compile(script, "clicks.py", "exec"), known)
    odd, even = known["chances"][:, 0]
    assert odd > even
    assert known["version"].step == 20


def test_a_version_without_dense_part_says_so(tmp_path):
    Publication(tmp_path).publish({1: np.ones(3)}, base=True)
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.current.dense is None
        with pytest.raises(PublicationError, match="has no dense part: publish with dense="):
            lookup.current.feeds({})


@pytest.fixture
def paddle():
    aspaddle.install()
    import paddle

    paddle.enable_static()
    yield paddle
    aspaddle.uninstall()


def test_a_script_of_paddle_2_gives_onnx(paddle, tmp_path):
    x = paddle.static.data("x", [None, 2, 6], dtype="float32")
    hidden = paddle.nn.functional.gelu(paddle.nn.Linear(6, 8)(paddle.nn.LayerNorm(6)(x)))
    hidden = paddle.nn.functional.softmax(paddle.transpose(hidden, [0, 2, 1]), axis=-1)
    sums = paddle.concat([hidden.sum(axis=2), hidden[:, :, 1]], axis=-1)
    out, best = paddle.tanh(sums * 2 - 1), paddle.argmax(x, axis=-1)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    fluid.io.onnx_model(["x"], [out, best]).save(tmp_path / "model.onnx")
    for rows in BATCHES:
        fed = {"x": np.random.RandomState(rows).randn(rows, 2, 6).astype("float32")}
        expected = exe.run(feed=fed, fetch_list=[out, best])
        for a, b in zip(run(tmp_path / "model.onnx", fed), expected):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


class Clicks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = hpcdist.torch.Embedding(None, 4, 2, name="users")
        self.items = hpcdist.torch.EmbeddingBag(None, 4, mode="sum", name="items")
        wide = torch.nn.Linear(13, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout()
        self.dense = torch.nn.Sequential(*wide, torch.nn.Linear(16, 1))

    def forward(self, user, bags, x):
        rows = [self.users(user[:, 0]), self.items(bags), x]
        return torch.sigmoid(self.dense(torch.cat(rows, 1)))


def test_a_model_of_torch_s_is_exported_behind_its_tables(no_tables_yet):
    model, draw = Clicks(), torch.Generator().manual_seed(1)
    integers = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    made = hpcdist.torch.onnx_model(model, (*integers, torch.zeros(4, 5)), outputs=["chance"])
    assert made.inputs == ("x", "users[0]", "items[bags]")
    assert (made.rows["users[0]"].table, made.rows["users[0]"].padding) == ("users", 2)
    assert model.training
    for _ in range(2):  # the values of when it is written
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, generator=draw)
        for rows in BATCHES:
            parts = [torch.randn(rows, n, generator=draw) for n in (5, 4, 4)]
            (got,) = run(made.encode(), dict(zip(made.inputs, (p.numpy() for p in parts))))
            model.eval()
            with torch.no_grad():
                expected = torch.sigmoid(model.dense(torch.cat([*parts[1:], parts[0]], 1)))
            model.train()
            np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=1e-6)


# -- what is refused -------------------------------------------------------------------------------
def _computed_ids():
    ids = layers.data("ids", [1], dtype="int64")
    table = {"size": [-1, 4], "is_sparse": True, "is_distributed": True}
    return ["ids"], layers.embedding(ids + ids, **table)


def _sequences():
    return ["x"], layers.sequence_pool(layers.data("x", [2], lod_level=1), "sum")


def _plain_sequences():
    return ["x"], layers.relu(layers.data("x", [2], lod_level=1))


def _random():
    return ["x"], layers.data("x", [2]) + layers.uniform_random([2])


def _branches():
    x = layers.data("x", [2])
    return ["x"], layers.cond(layers.mean(x) > 0, lambda: x + 1, lambda: x - 1)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_computed_ids, "the ids '.*' of table '.*' are not fed"),
        (_sequences, "operator 'sequence_pool' .* has no form in ONNX"),
        (_plain_sequences, "'x' is a batch of sequences"),
        (_random, "operator 'uniform_random' .* has no form in ONNX"),
        (_branches, "has no form in ONNX"),
    ],
)
def test_a_program_that_cannot_be_exported_is_refused_by_name(program, message):
    feeds, target = program()
    with pytest.raises(PublicationError, match=message):
        fluid.io.onnx_model(feeds, target)


def test_what_must_be_fed_too_is_named():
    layers.data("x", [2])
    with pytest.raises(GraphError, match="x would have to be fed too"):
        fluid.io.onnx_model([], layers.relu(fluid.default_main_program().global_block().var("x")))


class FixedBatch(torch.nn.Module):
    def forward(self, x):
        return x.reshape(8)


class LooksAtValues(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (FixedBatch, "FixedBatch cannot be exported: .* a static shape of 4"),
        (LooksAtValues, "LooksAtValues cannot be exported: .* data-dependent"),
    ],
)
def test_a_model_that_cannot_be_exported_is_refused_before_anything_is_written(
    model, message, tmp_path
):
    with pytest.raises(PublicationError, match=message):
        hpcdist.torch.onnx_model(model(), (torch.zeros(4, 2),)).save(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_do_not_tell_what_varies_are_refused():
    with pytest.raises(PublicationError, match=r"FixedBatch: expected tensors .* got \[1, 2\]"):
        hpcdist.torch.onnx_model(FixedBatch(), (torch.zeros(1, 2),))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(
        dense.importlib.util, "find_spec", lambda name: name != "onnxscript" or None
    )
    with pytest.raises(PublicationError, match="without onnxscript, .* pip install"):
        hpcdist.torch.onnx_model(FixedBatch(), (torch.zeros(4, 2),))
