"""Layers, schedulers and loaders of Paddle 2: names, state, order."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcdist
from hpcdist.compat import aspaddle
from hpcdist.errors import GraphError
from hpcdist.fluid.compat.paddle2 import tensor
from tests.paddle_2_6 import optimizers, schedulers

RATES = json.loads((Path(schedulers.__file__).parent / "rates.json").read_text())
LOSSES = json.loads((Path(optimizers.__file__).parent / "losses.json").read_text())


@pytest.fixture
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    import paddle

    paddle.enable_static()
    with (
        hpcdist.program_guard(hpcdist.Program(), hpcdist.Program()),
        hpcdist.scope_guard(hpcdist.Scope()),
        hpcdist.unique_name.guard(),
    ):
        yield paddle
    aspaddle.uninstall()


@pytest.mark.parametrize("expression", schedulers.EXPRESSIONS)
def test_rates_are_those_of_2_6(paddle, expression):
    found = schedulers.rates(paddle.optimizer.lr, expression)
    np.testing.assert_allclose(found, RATES[expression], rtol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_optimizers_move_as_those_of_2_6(paddle, name):
    expression = name.removesuffix(" sparse")
    found = optimizers.losses(paddle, expression, sparse=name != expression)
    np.testing.assert_allclose(found, LOSSES[name], rtol=2e-5)


def test_a_stepped_rate_moves_parameters(paddle):
    x = paddle.static.data("x", [None, 2])
    linear = paddle.nn.Linear(2, 1, weight_attr=paddle.ParamAttr(name="w"), bias_attr=False)
    rate = paddle.optimizer.lr.StepDecay(1.0, step_size=1, gamma=0.5)
    paddle.optimizer.SGD(rate).minimize(paddle.sum(linear(x)))
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    values = []
    for _ in range(3):
        exe.run(feed={"x": np.ones((1, 2), "float32")})
        values.append(np.array(paddle.static.global_scope().find_var("w").get_tensor())[0, 0])
        rate.step()
    np.testing.assert_allclose(np.diff(values), [-0.5, -0.25], rtol=1e-6)


# Losses of 2.6.2, from these values.
DECAYED = {
    "number": [0.0305211, 0.0459017, 0.0213656, 0.0143627, 0.0168324, 0.0120666],
    "scheduler": [0.0305211, 0.0459017, 0.0213656, 0.0151003, 0.0133903, 0.0129917],
}


@pytest.mark.parametrize("kind", DECAYED)
def test_adamw_decays_by_the_rate_of_each_step(paddle, kind):
    random = np.random.RandomState(0)
    feed = {"x": random.rand(6, 3).astype("float32"), "y": random.rand(6, 1).astype("float32")}
    x, y = paddle.static.data("x", [None, 3]), paddle.static.data("y", [None, 1])
    constant = paddle.nn.initializer.Constant
    weight = paddle.ParamAttr(initializer=constant(0.3))
    bias = paddle.ParamAttr(initializer=constant(0.2), learning_rate=0.5)
    loss = paddle.nn.functional.mse_loss(paddle.nn.Linear(3, 1, weight, bias)(x), y)
    rate = paddle.optimizer.lr.StepDecay(0.1, step_size=2, gamma=0.5)
    given = rate if kind == "scheduler" else 0.1
    paddle.optimizer.AdamW(given, weight_decay=0.2).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    losses = []
    for _ in range(6):
        losses.append(float(exe.run(feed=feed, fetch_list=[loss])[0].item()))
        rate.step()
    np.testing.assert_allclose(losses, DECAYED[kind], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "shape", "layout"),
    [("Dropout2D", [8, 5, 3, 2], "NCHW"), ("Dropout3D", [8, 5, 3, 2, 2], "NCDHW"),
     ("Dropout2D", [8, 3, 2, 5], "NHWC")],
)  # fmt: skip
def test_channels_are_dropped_as_one(paddle, make, shape, layout):
    x = paddle.static.data("x", [None, *shape[1:]])
    out = getattr(paddle.nn, make)(0.4, data_format=layout)(x)
    exe = paddle.static.Executor()
    (value,) = exe.run(feed={"x": np.ones(shape, "float32")}, fetch_list=[out])
    channel = layout.index("C")
    others = tuple(d for d in range(len(shape)) if d not in (0, channel))
    np.testing.assert_array_equal(value.min(axis=others), value.max(axis=others))
    kept = np.unique(value)
    np.testing.assert_allclose(kept, [0.0, 1 / 0.6], rtol=1e-6)
    test = paddle.static.default_main_program().clone(for_test=True)
    assert (exe.run(test, {"x": np.ones(shape, "float32")}, [out.name])[0] == 1).all()
    with pytest.raises(GraphError, match=r"dropout.d: expected a value of \d dimensions"):
        getattr(paddle.nn, make)()(paddle.static.data("flat", [None, 3]))


def test_a_mask_is_drawn_along_given_dimensions(paddle):
    x = paddle.static.data("x", [None, 50])
    out = paddle.nn.functional.dropout(x, 0.5, axis=1)
    exe = paddle.static.Executor()
    (value,) = exe.run(feed={"x": np.ones((4, 50), "float32")}, fetch_list=[out])
    np.testing.assert_array_equal(value, np.broadcast_to(value[:1], value.shape))
    assert set(np.unique(value)) == {0.0, 2.0}


def test_a_layer_keeps_parameters_and_layers_by_name(paddle):
    nn = paddle.nn

    class TwoTowers(nn.Layer):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(3, 2)
            self.towers = nn.LayerList([nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 1), nn.ReLU())])
            self.scale = self.create_parameter([1])
            self.shared = self.left

        def forward(self, x):
            return self.shared(x) + self.left(x) * self.scale

    model = TwoTowers()
    assert model.full_name() == "two_towers_0"
    assert list(model.state_dict()) == [
        "scale",
        "left.weight",
        "left.bias",
        "towers.0.weight",
        "towers.0.bias",
        "towers.1.0.weight",
        "towers.1.0.bias",
        "shared.weight",
        "shared.bias",
    ]
    names = [parameter.name for parameter in model.parameters()]
    assert names == [
        "two_towers_0.w_0",
        *(f"linear_{k}.{part}_0" for k in range(3) for part in "wb"),
    ]
    before = len(paddle.static.default_main_program().all_parameters())
    model(paddle.static.data("x", [None, 3]))
    assert len(paddle.static.default_main_program().all_parameters()) == before

    paddle.static.Executor().run(paddle.static.default_startup_program())
    missing, unused = model.set_state_dict({"scale": np.array([2.5], "float32"), "more": 1})
    assert "left.weight" in missing
    assert unused == ["more"]
    kept = paddle.static.global_scope().find_var("two_towers_0.w_0").get_tensor()
    assert np.array(kept) == 2.5
    with pytest.raises(GraphError, match=r"'scale' has shape \(2,\), expected \(1,\)"):
        model.set_state_dict({"scale": np.zeros(2, "float32")})
    with pytest.raises(AttributeError, match="has no attribute 'right'"):
        _ = model.right


def test_signs_broadcast_by_numpys_rules_once_static_is_enabled(paddle):
    x, row = paddle.static.data("x", [None, 4, 3]), paddle.static.data("row", [None, 3])
    assert (x + row).shape == (-1, 4, 3)  # Fluid would place the row's batch at the front
    assert (x[..., 0]).shape == (-1, 4)
    assert (x[:, None, 0]).shape == (-1, 1, 3)


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        return np.full(2, place, "float32"), place


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_loader_gives_batches_in_order(paddle, workers):
    loader = paddle.io.DataLoader(Numbers(10), batch_size=4, num_workers=workers)
    batches = list(loader)
    assert [places.tolist() for _, places in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[0][0].shape == (4, 2)
    assert len(loader) == 3


def test_a_worker_reads_its_part_of_an_iterable_data_set(paddle):
    class Stream(paddle.io.IterableDataset):
        def __iter__(self):
            info = paddle.io.get_worker_info()
            return iter(range(info.id, 8, info.num_workers))

    batches = list(paddle.io.DataLoader(Stream(), batch_size=2, num_workers=2))
    assert [batch.tolist() for batch in batches] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    with pytest.raises(TypeError, match="an IterableDataset has no length"):
        len(paddle.io.DataLoader(Stream()))


def test_an_error_of_a_worker_reaches_the_loop(paddle):
    class Broken(Numbers):
        def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
            raise ValueError(f"sample {place}")

    with pytest.raises(ValueError, match="sample 0"):
        list(paddle.io.DataLoader(Broken(4), num_workers=2))


def test_trainers_share_the_places_of_a_data_set(paddle):
    parts = [
        list(paddle.io.DistributedBatchSampler(Numbers(10), 2, num_replicas=2, rank=rank))
        for rank in (0, 1)
    ]
    assert parts == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]


# By which scripts fetch, and configurations name what is saved for inference: 2.6.2's.
NAMES = {
    "F.sigmoid(x)": "sigmoid_0.tmp_0",
    "F.softmax(x)": "softmax_0.tmp_0",
    "paddle.clip(x, 0.0, 1.0)": "clip_0.tmp_0",
    "paddle.slice(x, [1], [0], [1])": "slice_0.tmp_0",
    "paddle.concat([x, x], 1)": "concat_0.tmp_0",
    "paddle.mean(x)": "mean_0.tmp_0",
    "paddle.sum(x)": "sum_0.tmp_0",
    "paddle.argmax(x, axis=1)": "argmax_0.tmp_0",
    "paddle.argmin(x, axis=1)": "argmin_0.tmp_0",
    "paddle.sort(x)": "sort_0.tmp_0",
    "paddle.numel(x)": "numel_0.tmp_0",
    "paddle.flatten(x)": "flatten_0.tmp_0",
    "paddle.tile(x, [2, 1])": "tile_0.tmp_0",
    "paddle.expand(x, [4, 3])": "expand_0.tmp_0",
    "paddle.ones_like(x)": "full_like_0.tmp_0",
    "paddle.static.auc(x[:, :2], y)[0]": "auc_0.tmp_0",
    "F.layer_norm(x, 3)": "layer_norm_0.tmp_2",
    "paddle.nn.BatchNorm1D(3)(x)": "batch_norm_0.tmp_2",
    "paddle.nn.Linear(3, 2)(x)": "linear_1.tmp_1",
}


@pytest.mark.parametrize("expression", NAMES)
def test_results_have_the_names_that_scripts_fetch_by(paddle, expression):
    known = {"paddle": paddle, "F": paddle.nn.functional}
    x, y = paddle.static.data("x", [4, 3]), paddle.static.data("y", [4, 1], "int64")
    assert eval(expression, known, {"x": x, "y": y}).name == NAMES[expression]


# What Paddle 2.6.2 makes of each: every parameter and running mean is of the default type.
MADE = """
    Linear(3, 4)                            Embedding(3, 4)              Bilinear(3, 4, 2)
    Conv1D(2, 3, 1)                         Conv2DTranspose(2, 3, 1)     PReLU()
    BatchNorm1D(4)                          LayerNorm(8)                 GroupNorm(2, 6)
    InstanceNorm2D(6)                       GRU(3, 4)                    LSTMCell(3, 4)
    TransformerEncoderLayer(4, 2, 8)        BatchNorm(4,dtype='float64')
"""


@pytest.mark.parametrize("layer", re.findall(r"\w+\(.*?\)(?=\s)", MADE))
def test_layers_have_parameters_of_the_default_type(paddle, layer):
    paddle.set_default_dtype("float64")
    try:
        state = eval(f"paddle.nn.{layer}").state_dict()
        kept_as_said = paddle.nn.BatchNorm(4).weight.dtype
    finally:
        paddle.set_default_dtype("float32")
    assert state and {variable.dtype for variable in state.values()} == {"float64"}
    assert (kept_as_said, paddle.nn.Linear(3, 4).weight.dtype) == ("float32", "float32")


def test_the_greatest_of_as_many_as_are_fed(paddle):
    scores, open_rank = hpcdist.data("scores", [None, None]), hpcdist.data("x", [2, None, 3])
    found = [*paddle.topk(scores, 2), *paddle.topk(open_rank, 1)]
    fed = {
        "scores": np.array([[1, 3, 2], [5, 4, 6]], "float32"),
        "x": np.arange(12, dtype="float32").reshape(2, 2, 3),
    }
    results = hpcdist.Executor().run(feed=fed, fetch_list=found)
    with pytest.raises(GraphError, match="topk: of .* one extent may be unknown"):
        paddle.topk(hpcdist.data("y", [None, None, 3]), 1)
    wanted = [[[3, 2], [6, 5]], [[1, 2], [2, 0]], [[[2], [5]], [[8], [11]]], [[[2]] * 2] * 2]
    for one, other in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_squeeze_leaves_dimensions_that_are_not_1():
    with hpcdist.program_guard(hpcdist.Program(), hpcdist.Program()):
        x, y = hpcdist.data("x", [4, 3, 1]), hpcdist.data("y", [2, 3])
        wanted = [tensor.squeeze(x, [1, 2]), tensor.squeeze(y, 1), tensor.squeeze(x)]
        assert [v.shape for v in wanted] == [(4, 3), (2, 3), (4, 3)]
        feed = {"x": np.ones((4, 3, 1), "float32"), "y": np.ones((2, 3), "float32")}
        main = hpcdist.default_main_program()
        found = hpcdist.Executor(hpcdist.CPUPlace()).run(main, feed=feed, fetch_list=wanted)
    assert [v.shape for v in found] == [(4, 3), (2, 3), (4, 3)]  # as in 2.6.2
