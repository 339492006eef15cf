"""Inference models are written as Paddle 2.6.2 has them: its operators, their types, our values.

`tests/paddle_2_6/operators.py` has listed its operators. 2.6.2 itself has computed the values of
510 models of the expressions of functions.txt that were written here.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcdist
from hpcdist.compat import aspaddle
from hpcdist.errors import CheckpointError
from hpcdist.fluid.io.protobuf import parsed
from hpcdist.graph.registry import defined
from tests.paddle_2_6 import functions

FILES = Path(functions.__file__).parent
EXPRESSIONS = [
    *json.loads((FILES / "models.json").read_text()),
    "paddle.trace(x3, axis1=1, axis2=2)",
    "paddle.roll(x, 1)",
    "paddle.flip(x3, [0, 2])",
    "paddle.fluid.layers.mean(x)",
    "paddle.fluid.layers.reduce_sum(x)",
    "paddle.arange(4)",
    "x > 0",
]
ARRAYS = functions.feeds()
OPERATORS = {
    words[0]: {name: int(kind) for name, kind in (word.split("=") for word in words[1:])}
    for words in map(str.split, (FILES / "operators.txt").read_text().splitlines())
}
# Types of which the file's may be the other: INT, LONG; INTS, LONGS; a number, a scalar.
ALIKE = [{0, 9}, {3, 11}, {1, 15, 16}, {0, 16}, {4, 12, 17}, {6, 16}]


@pytest.fixture(scope="module")
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    import paddle

    paddle.enable_static()
    yield paddle
    aspaddle.uninstall()


@pytest.fixture(autouse=True)
def anew(paddle):
    with (
        hpcdist.program_guard(hpcdist.Program(), hpcdist.Program()),
        hpcdist.scope_guard(hpcdist.Scope()),
        hpcdist.unique_name.guard(),
    ):
        yield


def saved(paddle, expression, prefix, **options):
    """Save what an expression computes; return what is fed, and its value."""
    words = {n.id for n in ast.walk(ast.parse(expression)) if isinstance(n, ast.Name)}
    data = {
        name: paddle.static.data(name, list(array.shape), str(array.dtype))
        for name, array in ARRAYS.items()
        if name in words
    }
    attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.1))
    known = {"paddle": paddle, "nn": paddle.nn, "F": paddle.nn.functional, "C": attr, "np": np}
    out = eval(expression, known, data)
    exe = paddle.static.Executor()
    exe.run(paddle.static.default_startup_program())
    paddle.static.save_inference_model(str(prefix), list(data.values()), [out], exe, **options)
    feed = {name: ARRAYS[name] for name in data}
    program = paddle.static.default_main_program().clone(for_test=True)
    return feed, exe.run(program, feed=feed, fetch_list=[out])[0]


def loaded(paddle, prefix, feed):
    with hpcdist.scope_guard(hpcdist.Scope()):
        exe = paddle.static.Executor()
        program, names, fetched = paddle.static.load_inference_model(str(prefix), exe)
        return exe.run(program, feed={n: feed[n] for n in names}, fetch_list=fetched)[0]


def operators(prefix):
    (block,) = parsed("program", memoryview(Path(f"{prefix}.pdmodel").read_bytes()))["blocks"]
    return [op for op in block["ops"] if op["type"] not in ("feed", "fetch")]


def refused(expression):
    return (
        expression.startswith(("nn.GRU(", "nn.LSTM(", "nn.SimpleRNN(", "nn.RNN("))
        or "reflect" in expression
    )


@pytest.mark.parametrize("expression", [e for e in EXPRESSIONS if not refused(e)])
def test_a_model_has_operators_of_2_6_2_and_the_values_of_here(paddle, expression, tmp_path):
    feed, value = saved(paddle, expression, tmp_path / "m")
    for op in operators(tmp_path / "m"):
        declared = OPERATORS[op["type"]]
        for attr in op["attrs"]:
            kinds = {attr["type"], declared.get(attr["name"], attr["type"])}
            assert len(kinds) == 1 or kinds in ALIKE, (op["type"], attr)
    if "multinomial" not in expression and "dropout" not in expression:
        again = loaded(paddle, tmp_path / "m", feed)
        assert (again.shape, again.dtype) == (value.shape, value.dtype)
        np.testing.assert_allclose(again, value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("expression", [e for e in EXPRESSIONS if refused(e)])
def test_what_2_6_2_does_not_have_is_refused_by_name(paddle, expression, tmp_path):
    operator = "pad2d" if "reflect" in expression else "recurrent"
    said = f"operator '{operator}' cannot be written for Paddle 2.6.2: format='hdf5' saves"
    with pytest.raises(CheckpointError, match=said):
        saved(paddle, expression, tmp_path / "m")
    assert not list(tmp_path.glob("m.pd*"))


# Of training, and of jobs: no inference model has them.
OF_JOBS = """
    barrier dgc distributed_lookup_table exchange fake_init fused_elemwise_activation gen_nccl_id
    hierarchical_sigmoid_path lars_momentum_of_norms local_sgd_interval lookup_sparse_table
    make_table merge_ids nce_classes no_rows pipeline_recv pipeline_send prefetch proximal_adagrad
    pull_sparse push_sparse rated_adadelta recv ref_by_trainer_id split_byref split_ids
    split_selected_rows unbiased_lamb
"""


def test_every_operator_here_is_there_or_refused() -> None:
    from hpcdist.fluid.compat.paddle2.static.written import MISSING, RENAMED

    assert MISSING.isdisjoint(OPERATORS.keys() - {"pad2d", "recurrent"})
    assert {there for there, _ in RENAMED.values()} <= OPERATORS.keys()
    known = MISSING | RENAMED.keys() | OPERATORS.keys() | set(OF_JOBS.split())
    ours = [t for t in defined() if "_grad" not in t and not t.startswith("c_")]
    assert not set(ours) - known
