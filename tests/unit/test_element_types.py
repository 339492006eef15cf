"""Layers refuse what Fluid's refuse: other things than Variables, and other element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers


def data(dtype: str, *shape: int) -> Any:
    return layers.data(f"{dtype}_{len(shape)}", list(shape), False, dtype)


REFUSED: dict[str, Callable[[], Any]] = {
    "relu of int32": lambda: layers.relu(data("int32", 12, 10)),
    "softmax of int32": lambda: layers.softmax(data("int32", 12, 10)),
    "dropout of int32": lambda: layers.dropout(data("int32", 3, 4), 0.5),
    "dropout of an array": lambda: layers.dropout(np.ones((3, 4), "float32"), 0.5),
    "mul of int32": lambda: layers.mul(data("int32", 4), data("int32", 4)),
    "matmul of int32": lambda: layers.matmul(data("int32", 4, 4), data("int32", 4, 4)),
    "log_softmax of int32": lambda: layers.log_softmax(data("int32", 12, 10)),
    "cast of int16": lambda: layers.cast(data("int16", 4), "int32"),
    "reshape of uint8": lambda: layers.reshape(data("uint8", 2, 25), [2, 5, 5]),
    "reshape to a number": lambda: layers.reshape(data("float32", 2, 25), 50),
    "concat of uint8": lambda: layers.concat([data("uint8", 4), data("uint8", 4)]),
    "concat of arrays": lambda: layers.concat([np.ones(2), np.ones(2)]),
    "mean of int32": lambda: layers.mean(data("int32", 4)),
    "conv2d of int32": lambda: layers.conv2d(data("int32", 2, 3, 8, 8), 2, 3),
    "batch_norm of int32": lambda: layers.batch_norm(data("int32", 2, 3, 8, 8)),
    "accuracy of int32": lambda: layers.accuracy(data("int32", 2, 3), data("int64", 2, 1)),
    "embedding of float32": lambda: layers.embedding(data("float32", 4, 1), [10, 6]),
    "the other embedding of float32": lambda: fluid.embedding(data("float32", 4, 6), [10, 6]),
    "one_hot of float32": lambda: layers.one_hot(data("float32", 4, 1), 3),
    "logical_and of float32": lambda: layers.logical_and(data("float32", 4), data("float32", 4)),
    "cross_entropy of int32": lambda: layers.cross_entropy(
        data("int32", 3, 4), data("int64", 3, 1)
    ),
    "less_than into a number": lambda: layers.less_than(data("int32", 4), data("int32", 4), 1),
    "less_than on some device": lambda: layers.less_than(
        data("int32", 4), data("int32", 4), force_cpu="yes"
    ),
    "concat along a fraction": lambda: layers.concat([data("float32", 4)] * 2, 3.2),
    "is_empty into float32": lambda: layers.is_empty(data("float32", 4), data("float64", 1)),
    "full_like of int16": lambda: layers.full_like(data("float32", 4), 1, dtype="int16"),
    "randint of float32": lambda: layers.randint(0, 5, [3], dtype="float32"),
    "dynamic_lstm of int32": lambda: layers.dynamic_lstm(data("int32", 4, 8), 8),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_fluid_takes_for_a_wrong_type_is_one(what):
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(TypeError):
        REFUSED[what]()


def test_the_message_says_what_is_expected():
    x = data("int32", 12, 10)
    with pytest.raises(
        TypeError,
        match=r"layers.relu: x must be of float16 or float32 or float64, got 'int32_2' of int32",
    ):
        layers.relu(x)


@pytest.mark.parametrize("shape", [[-1, -1, 5], [2, 5, 5, 0], [-1, -2, 5]])
def test_a_shape_that_cannot_be_is_refused_as_fluid_does(shape):
    x = data("float32", 2, 25)
    with pytest.raises(AssertionError, match="cannot have shape"):
        layers.reshape(x, shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_floats_are_taken_where_fluid_takes_one(dtype):
    assert layers.clip_by_norm(data(dtype, 4), 1.0).dtype == dtype


def test_what_fluid_does_not_look_at_is_taken():
    assert layers.log_softmax(data("int32", 3), dtype="float32").dtype == "float32"
    assert layers.stack([data("bool", 3)] * 2).shape == (2, 3)


def test_the_message_names_the_types_of_python():
    with pytest.raises(TypeError, match=r"layers.concat: axis must be of type Variable or int"):
        layers.concat([data("float32", 4)] * 2, 3.2)
    with pytest.raises(TypeError, match=r"dtype must be of int32 or int64, got float32"):
        layers.randint(0, 5, [3], dtype="float32")
    with pytest.raises(TypeError, match=r"layers.eye: num_rows must be of type int, got 9.2"):
        layers.eye(9.2)
    with pytest.raises(TypeError, match="no negative extents"):
        layers.eye(-1)
    with pytest.raises(TypeError, match=r"pool2d: use_cudnn must be of type bool, got 'yes'"):
        layers.pool2d(data("float32", 4), 2, use_cudnn="yes")


def test_whole_numbers_are_taken_for_floats_and_tuples_for_lists():
    x = layers.data("numbers", [2, 3], False)
    assert layers.clip_by_norm(x, 1).shape == (2, 3)
    assert layers.transpose(x, (1, 0)).shape == (3, 2)
    assert layers.expand(x, (np.int64(2), 1)).shape == (4, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: layers.IfElse(set()), "layers.IfElse: cond must be a Variable"),
        (lambda: layers.StaticRNN(3), "layers.StaticRNN: name must be of type None or str, got 3"),
        (lambda: layers.Normal(0.0, 1.0).sample(2), "Normal.sample: shape must be of type list"),
        (lambda: layers.Uniform(0.0, 1.0).log_prob([2.0]), "value must be a Variable"),
        (lambda: layers.Categorical(1.0), "logits must be of type Variable or list or ndarray"),
    ],
)
def test_methods_of_classes_refuse_what_fluids_refuse(call, words):
    with pytest.raises(TypeError, match=words):
        call()
