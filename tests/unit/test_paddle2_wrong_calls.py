"""Wrong calls of Paddle 2's names: each is refused at once, by what it expected and got."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import HpcdistError
from hpcdist.fluid.compat.paddle2 import io, nn, optimizer, param_attr, regularizer, tensor
from hpcdist.fluid.compat.paddle2.kinds import KINDS, kind_of

lr, F, initializer = optimizer.lr, nn.functional, nn.initializer  # type: ignore[attr-defined]
A: Any = "a"


def x(*shape: int | None, dtype: str = "float32") -> Any:
    return fluid.data(f"x{len(shape)}{dtype}", shape or [None, 3], dtype)


def ints() -> Any:
    return x(None, 3, dtype="int64")


# The call, and what is said behind the name: of which argument, what is expected, what was given.
CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: optimizer.Adam(beta1=2.0), "beta1: expected a number from 0 on, below 1, got 2.0"),
    (lambda: optimizer.AdamW(beta2=-0.1), "beta2: expected a number from 0 on, below 1, got -0.1"),
    (lambda: optimizer.Adam(epsilon=-1.0), "epsilon: expected a number from 0 on, got -1.0"),
    (lambda: optimizer.Adam(epsilon=A), "epsilon: expected a number, got 'a'"),
    (lambda: optimizer.Adam(lazy_mode=A), "lazy_mode: expected True or False, got 'a'"),
    (lambda: optimizer.SGD(weight_decay=A), "weight_decay: expected a factor, or paddle.regular"),
    (lambda: optimizer.SGD(parameters=A), "parameters: expected a list of parameters, got 'a'"),
    (lambda: optimizer.Momentum(momentum=A), "momentum: expected a number, got 'a'"),
    (lambda: optimizer.RMSProp(0.1, rho=2.0), "rho: expected a number within 0..1, got 2.0"),
    (lambda: optimizer.AdamW(apply_decay_param_fun=3), "_fun: expected a function, got 3"),
    (
        lambda: optimizer.Lamb(exclude_from_weight_decay_fn=5),
        "_fn: expected a function, got 5",
    ),
    (lambda: lr.NoamDecay(0, 3), "d_model: expected a number above 0, got 0"),
    (lambda: lr.PolynomialDecay(0.1, 0), "decay_steps: expected at least 1, got 0"),
    (lambda: lr.LinearWarmup(0.1, 3, A, 0.1), "start_lr: expected a number, got 'a'"),
    (lambda: lr.PiecewiseDecay([3, 1], [1, 2, 3]), "boundaries: expected a list of rising numb"),
    (lambda: lr.PiecewiseDecay([1], [A, 0.2]), "values: expected a number, got 'a'"),
    (lambda: lr.MultiStepDecay(0.1, 5), "milestones: expected a list of rising numbers, got 5"),
    (lambda: lr.StepDecay(0.1, 2, 1.5), "gamma: expected a number below 1, got 1.5"),
    (lambda: lr.StepDecay(0.1, 0), "step_size: expected at least 1, got 0"),
    (lambda: lr.LambdaDecay(0.1, 3), "lr_lambda: expected a function, got 3"),
    (lambda: lr.CosineAnnealingWarmRestarts(0.1, 0), "T_0: expected at least 1, got 0"),
    (lambda: lr.LinearLR(0.1, 5, 2.0), "start_factor: expected a number above 0, up to 1, got 2"),
    (lambda: lr.ReduceOnPlateau(0.1, mode="up"), "mode: expected 'min' or 'max', got 'up'"),
    (lambda: lr.ReduceOnPlateau(0.1).step(A), "step: metrics: expected a number, got 'a'"),
    (lambda: lr.ExponentialDecay(0.1, 0.9).step(A), "step: epoch: expected a number, got 'a'"),
    (lambda: lr.ExponentialDecay(0.1, 0.9).set_state_dict(3), "expected a dict, got 3"),
    (lambda: io.DataLoader(3), "DataLoader: dataset: expected a data set, with __getitem__ and"),
    (lambda: io.DataLoader(A), "dataset: expected a data set, with __getitem__ and __len__, or"),
    (lambda: io.DataLoader([1], batch_size=0), "batch_size: expected at least 1, got 0"),
    (lambda: io.DataLoader([1], shuffle=A), "shuffle: expected True or False, got 'a'"),
    (lambda: io.DataLoader([1], collate_fn=3), "collate_fn: expected a function, got 3"),  # type: ignore[arg-type]
    (lambda: io.DataLoader([1], feed_list=[3]), "feed_list: expected a Variable .*, got 3"),
    (lambda: io.DataLoader([1], batch_sampler=3), "batch_sampler: expected a list, or something"),
    (lambda: io.DataLoader([1], timeout=-1), "timeout: expected a number from 0 on, got -1"),
    (lambda: io.BatchSampler(3), "dataset: expected something with a length, such as a data set"),
    (lambda: io.RandomSampler([1], num_samples=5), "at most 1 without replacement, got 5"),
    (lambda: io.WeightedRandomSampler([1, -2], 2), "weights: expected a list of numbers from 0"),
    (lambda: io.WeightedRandomSampler([1, 0], 2, False), "at most 1 without replacement, got 2"),
    (lambda: io.ConcatDataset([]), "datasets: expected at least one data set"),
    (lambda: io.ChainDataset([3]), "datasets: expected a data set"),
    (lambda: io.random_split([1, 2], 3), "lengths: expected a list of integers, got 3"),  # type: ignore[arg-type]
    (lambda: nn.Dropout(2.0), "paddle.nn.Dropout: p: expected a number within 0..1, got 2.0"),
    (lambda: nn.Dropout(mode="up"), "mode: expected 'upscale_in_train' or 'downscale_in_infer'"),
    (lambda: nn.Dropout2D(data_format="NWHC"), "data_format: expected 'NCHW' or 'NHWC', got"),
    (lambda: nn.CrossEntropyLoss(reduction="avg"), "expected 'mean', 'sum' or 'none', got 'avg'"),
    (lambda: nn.KLDivLoss(reduction="x"), "expected 'mean', 'batchmean', 'sum' or 'none', got"),
    (lambda: nn.SmoothL1Loss(delta=-1.0), "delta: expected a number above 0, got -1.0"),
    (lambda: nn.Conv2D(3, 4, 0), "Conv2D: kernel_size: expected at least 1, got 0"),
    (lambda: nn.Conv2D(3, 4, [3, 3, 3]), "kernel_size: expected one number or 2, got"),
    (lambda: nn.Conv2D(3, 4, 3, data_format="x"), "data_format: expected 'NCHW' or 'NHWC', got"),
    (lambda: nn.Conv1D(3, 4, 3, stride=0), "Conv1D: stride: expected at least 1, got 0"),
    (lambda: nn.Conv2DTranspose(3, 4, 3, groups=0), "groups: expected at least 1, got 0"),
    (lambda: nn.BatchNorm1D(3, momentum=2.0), "momentum: expected a number within 0..1, got 2.0"),
    (lambda: nn.BatchNorm1D(3, data_format="x"), "data_format: expected 'NC', 'NCL',"),
    (lambda: nn.BatchNorm(3, act="no"), "act: no function of paddle.nn.functional is called 'no'"),
    (lambda: nn.GroupNorm(2, 3), "num_channels: expected a multiple of 2 groups, got 3"),
    (lambda: nn.LSTM(3, 4)(x()), r"LSTM: inputs: expected \[batch, steps, 3\], got \[-1, 3\]"),
    (lambda: nn.GRU(5, 4)(x(None, 6, 3)), r"GRU: inputs: expected \[batch, steps, 5\], got"),
    (lambda: nn.LSTM(3, 4, dropout=2.0), "dropout: expected a number within 0..1, got 2.0"),
    (lambda: nn.LSTM(3, 4)(x(None, 6, 3), 3), r"initial_states: expected 2 Variable\(s\)"),
    (lambda: nn.LSTMCell(3, 4)(x(), x()), r"states: expected \(hidden, cell\), got"),
    (lambda: nn.GRUCell(3, 4)(x(), x()), r"states: expected \[batch, 4\], got \[-1, 3\]"),
    (lambda: nn.RNN(3), "RNN: expected a cell such as GRUCell, got 3"),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, activation="x"), "activation: no function of"),
    (lambda: nn.LayerList([3]), "LayerList: expected a Layer, got 3"),
    (lambda: nn.ParameterList(3), "ParameterList: expected a list of Parameter, got 3"),  # type: ignore[arg-type]
    (lambda: nn.MaxPool2D(2, stride=0), "stride: expected at least 1, got 0"),
    (lambda: nn.Softplus(beta=0.0), "beta: expected a number above 0, got 0.0"),
    (lambda: nn.ClipGradByNorm(-1.0), "clip_norm: expected a number from 0 on, got -1.0"),
    (lambda: nn.ClipGradByValue(1.0, 2.0), "expected min up to max, got 2.0 and 1.0"),
    (lambda: initializer.Normal(std=-1.0), "std: expected a number from 0 on, got -1.0"),
    (lambda: initializer.XavierNormal(fan_in=-3), "fan_in: expected a number above 0, got -3"),
    (lambda: F.cosine_similarity(x(), ints()), "one element type, got x1 of float32, x2 of int64"),
    (lambda: F.mse_loss(x(), ints()), "one element type, got input of float32, label of int64"),
    (lambda: tensor.add(x(), ints()), "expected one element type, got x of float32, y of int64"),
    (lambda: tensor.concat([ints(), x()]), "concat: x: expected one element type"),
    (lambda: param_attr.ParamAttr(learning_rate=A), "learning_rate: expected a number, got 'a'"),
    (lambda: param_attr.ParamAttr(regularizer=3), "regularizer: expected paddle.regularizer.L1D"),
    (lambda: regularizer.L2Decay(-1.0), "coeff: expected a number from 0 on, got -1.0"),
]


@pytest.mark.parametrize(("call", "said"), CALLS, ids=[said for _, said in CALLS])
def test_a_wrong_call_is_refused_where_it_is_made(call: Any, said: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(HpcdistError) as why:
        call()
    message = str(why.value)
    assert re.search(said, message), message
    assert message[0] != " " and len(message.splitlines()) == 1


def test_right_calls_that_are_close_are_taken() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        nn.Dropout(0)
        nn.Dropout(1, axis=[0, 1])
        nn.Conv2D(3, 4, (3, 1), stride=[2, 1], data_format="NHWC")
        optimizer.Adam(0.1, beta1=np.float32(0.5), weight_decay=1, parameters=[])  # type: ignore[attr-defined]
        optimizer.SGD(0.1, weight_decay=regularizer.L1Decay(0.1))  # type: ignore[attr-defined]
        lr.PiecewiseDecay([1e3, 2e3], (0.1, 0.2, 0.3))
        lr.LinearWarmup(lr.StepDecay(0.1, 2), 2.5, 0, 0.1)
        io.DataLoader([1, 2], batch_size=None, feed_list=[x(), ints()])
        nn.GRUCell(3, 4)(x(None, 3))
        nn.LSTM(3, 4, time_major=True)(x(6, None, 3))


def test_kinds_refuse_what_is_no_number_of_theirs() -> None:
    for name in ("Positive", "Unsigned", "Probability", "Fraction"):
        for value in (float("nan"), -1.0, True, "1"):
            with pytest.raises(HpcdistError, match=f"k: expected .*, got {value!r}"):
                KINDS[name]("k", value)
    kind = kind_of("Literal['on', 1]")
    assert kind is not None and kind("k", 1) == 1 and kind("k", "on") == "on"
    with pytest.raises(HpcdistError, match="k: expected 'on' or 1, got True"):
        kind("k", True)
