"""Names of Paddle 2 called with wrong arguments: one error, which names function and parameter."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import hpcdist
from hpcdist.errors import GraphError, HpcdistError
from hpcdist.fluid.compat import paddle2_names
from hpcdist.fluid.compat.paddle2 import _C_ops, geometric, nn, optimizer, tensor
from hpcdist.fluid.compat.paddle2.nn import functional, layer

# Their bodies say what they take; anything is a constant, or a layer that does nothing.
ANYTHING = {"to_tensor", "assign", "is_tensor", "Identity", "Layer", "RNNCellBase", "BiRNN", "RNN"}
ALIASES = {  # a second name of a function, which errors call by its first
    "broadcast_to": "expand",
    "empty": "zeros",
    "floor_mod": "mod",
    "remainder": "mod",
    "standard_normal": "randn",
    "RNNCellBase": "Layer",
}
# Required parameters that are no Variables.
PLAIN = {"shape": [2], "axes": [0], "starts": [0], "ends": [1], "perm": [1, 0], "k": 1}
PYTHONS_OWN = {"einsum", "get_default_dtype", "is_tensor", "meshgrid", "set_default_dtype"}


def _functions() -> Iterator[tuple[str, Any]]:
    homes = {tensor: "paddle", functional: "paddle.nn.functional", geometric: "paddle.geometric"}
    for module, prefix in homes.items():
        for name in module.__all__:
            if not name.endswith("_"):  # second names of the others
                yield f"{prefix}.{name}", getattr(module, name)


def _classes() -> Iterator[tuple[str, Any]]:
    for name, value in vars(layer).items():
        if inspect.isclass(value):
            yield f"paddle.nn.{name}", value


CALLED = [*_functions(), *_classes()]


def _required(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    places = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    return [p.name for p in parameters if p.default is p.empty and p.kind in places]


def _refused(name: str, call: Any) -> None:
    with hpcdist.program_guard(hpcdist.Program(), hpcdist.Program()):
        x = hpcdist.data("x", [4, 3])
        with pytest.raises((GraphError, TypeError)) as caught:
            call(x)
    message, last = str(caught.value), name.rpartition(".")[2]
    assert ALIASES.get(last, last) in message or "operator" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(("name", "function"), CALLED, ids=[name for name, _ in CALLED])
def test_a_parameter_that_is_not_there_is_refused(name, function):
    if name == "paddle.nn.Identity":
        assert function(no_such_parameter=1)(3) == 3  # takes anything, as Paddle's does
        return
    _refused(name, lambda x: function(*[x] * len(_required(function)), no_such_parameter=1))


WITH_NEEDS = [
    (name, function)
    for name, function in CALLED
    if _required(function) and name.rpartition(".")[2] not in ANYTHING | PYTHONS_OWN
]


@pytest.mark.parametrize(("name", "function"), WITH_NEEDS, ids=[name for name, _ in WITH_NEEDS])
@pytest.mark.parametrize("value", [None, object()], ids=["None", "object"])
def test_values_of_a_wrong_kind_are_refused(name, function, value):
    _refused(name, lambda x: function(*[value] * len(_required(function))))


OPTIONAL = [
    (name, function, parameter)
    for name, function in _functions()
    for parameter in sorted(getattr(function, "__checks__", {}))
    if parameter not in _required(function)
]


@pytest.mark.parametrize(
    ("name", "function", "parameter"),
    OPTIONAL,
    ids=[f"{name}-{word}" for name, _, word in OPTIONAL],
)
def test_an_option_of_a_wrong_kind_is_refused(name, function, parameter):
    def call(x: Any) -> None:
        given = [PLAIN.get(word, x) for word in _required(function)]
        function(*given, **{parameter: object()})

    _refused(name, call)


def test_names_are_tried_with_wrong_options() -> None:
    assert len({name for name, _, _ in OPTIONAL}) >= 100
    assert len(CALLED) >= 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(3.5, 2), r"paddle.nn.Linear: in_features: expected an integer, got 3.5"),
        (lambda: nn.Linear(0, 2), "paddle.nn.Linear: in_features: expected at least 1, got 0"),
        (lambda: nn.Embedding(5, 2, padding_idx=9), "padding_idx 9 is outside a table of 5 rows"),
        (lambda: nn.LSTM(3, 4, direction="up"), "direction: 'forward' or 'bidirect', got 'up'"),
        (lambda: nn.Softmax(axis="1"), "paddle.nn.Softmax: axis: expected an integer, got '1'"),
        (lambda: nn.MultiHeadAttention(5, 2), "embed_dim 5 cannot be divided among 2 heads"),
        (lambda: optimizer.Adam(lr=0.1), "paddle.optimizer.Adam.*unexpected keyword argument 'lr'"),
        (lambda: optimizer.SGD(multi_precision=True), "multi_precision is False here"),
        (
            lambda: optimizer.lr.PiecewiseDecay([1, 2], [0.1]),
            "one value more than boundaries, got 2 boundaries and 1 values",
        ),
        (
            lambda: importlib.import_module("hpcdist.fluid.compat.paddle2").set_device("tpu"),
            "expected 'cpu', 'gpu' or 'gpu:0', got 'tpu'",
        ),
    ],
)
def test_what_is_said_of_wrong_values(make, message):
    with pytest.raises(HpcdistError, match=message):
        make()


@pytest.mark.parametrize(
    ("append", "message"),
    [
        # What a function appends is refused in its own name.
        (lambda x, y: functional.softmax(x, axis=9), "paddle.nn.functional.softmax: op #0 softmax"),
        (lambda x, y: tensor.heaviside(x, y), "paddle.heaviside: op .* cannot broadcast"),
        (lambda x, y: tensor.inverse(x), "paddle.inverse: op #0 inverse.* square matrices"),
        (lambda x, y: tensor.broadcast_tensors([x, y]), "paddle.broadcast_tensors: op .*broadcast"),
        (lambda x, y: tensor.broadcast_shape([2, 3], [2, 4]), r"broadcast_shape: shapes \[2, 3\]"),
        (lambda x, y: x / 0, "'x' / 0: expected another number"),
        (lambda x, y: functional.gumbel_softmax(x, 0.0), "temperature must be above 0, got 0.0"),
        (lambda x, y: functional.max_unpool3d(x, x, 2), "max_unpool3d: expected x of 5 dimensions"),
        (lambda x, y: tensor.iinfo(None), "iinfo: dtype: expected a type of integers.* got None"),
        (
            lambda x, y: tensor.quantile(x, 1.5),
            "quantile: q: expected numbers within 0..1, got 1.5",
        ),
        (lambda x, y: tensor.index_add(x, x, 0, x), "index_add: index: expected integers in one"),
        (lambda x, y: tensor.index_put(x, [x], x), "index_put: indices: expected integers for"),
        (lambda x, y: tensor.randint_like(x, 0), "randint_like: no integers from 0 to below 0"),
        (
            lambda x, y: nn.initializer.Dirac(0)(x, x.block),
            "Dirac: 'x' has shape .*, expected kern",
        ),
    ],
)
def test_what_is_said_of_values_that_do_not_fit(append, message):
    pytest.importorskip("torch")
    with hpcdist.program_guard(hpcdist.Program(), hpcdist.Program()):
        x, y = hpcdist.data("x", [None, 3]), hpcdist.data("y", [None, 5])
        with pytest.raises(HpcdistError, match=message):
            append(x, y)


def test_an_operator_that_runs_at_once_is_refused_when_it_is_called():
    relu = _C_ops.relu  # libraries import it for their dygraph mode
    with pytest.raises(GraphError, match=r"paddle\._C_ops\.relu: no operator runs at once here"):
        relu(3)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("paddle", "dygraph", "paddle has no 'dygraph', neither here nor in Paddle 2.6.2"),
        ("paddle", "pir_utils", "paddle.pir_utils of Paddle 2.6.2 is not in hpcdist"),
        ("paddle.base", "libpaddle", "paddle.base.libpaddle of Paddle 2.6.2 is not in hpcdist"),
        # What is in these modules the table does not say, and so neither does the error.
        ("paddle.distributed.fleet.meta_parallel", "x", "meta_parallel has no 'x' in hpcdist"),
    ],
)
def test_an_error_says_of_paddle_only_what_is_known(module, name, message):
    assert message in paddle2_names.describe_missing(module, name, ())
