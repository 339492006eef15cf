"""Inference models that Paddle 2.6.2 has saved: read here, with the values that they have there.

`tests/paddle_2_6/models.py` made them, of the expressions of functions.txt.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

import hpcdist
from hpcdist.errors import CheckpointError
from hpcdist.fluid.compat.paddle2 import static
from hpcdist.fluid.compat.paddle2.static.operators import in_words_of_fluid
from hpcdist.fluid.io.program_data import from_data, to_data
from tests.paddle_2_6 import functions

FILES = Path(functions.__file__).parent
MODELS = json.loads((FILES / "models.json").read_text())
EXPECTED = json.loads((FILES / "expected.json").read_text())
ARRAYS = functions.feeds()
REFUSED = {
    "F.binary_cross_entropy_with_logits(x, b2, pos_weight=w3)": "does not read slot 'pos_weight'",
    "F.pad(img, [0, 1, 2, 0], mode='reflect')": "pad: mode 'reflect' of 5 dimensions",
    "F.cross_entropy(F.softmax(x), lab, use_softmax=False)": "with use_softmax=False",
    "rnn": "operator 'rnn' of Paddle 2.6.2 is not in hpcdist: build the network in a script",
    "multinomial": "operator 'multinomial' of Paddle 2.6.2 is not in hpcdist",
}


def _refusal(expression: str) -> str | None:
    """Return what is said of a model that cannot be run."""
    if expression in REFUSED:
        return REFUSED[expression]
    if re.match(r"nn\.(GRU|LSTM|SimpleRNN)\(", expression):
        return REFUSED["rnn"]
    return REFUSED["multinomial"] if "multinomial" in expression else None


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _written(expression: str, folder: Path) -> str:
    facts = MODELS[expression]
    (folder / "model.pdmodel").write_bytes(_unpack(facts["model"]))
    if facts["parameters"]:
        (folder / "model.pdiparams").write_bytes(_unpack(facts["parameters"]))
    return str(folder / "model")


def _run(prefix: str) -> np.ndarray:
    with hpcdist.scope_guard(hpcdist.Scope()):
        exe = hpcdist.Executor(hpcdist.CPUPlace())
        program, fed, fetched = static.load_inference_model(prefix, exe)
        (value,) = exe.run(program, feed={n: ARRAYS[n] for n in fed}, fetch_list=fetched)
    return np.asarray(value)


READ = [e for e in MODELS if _refusal(e) is None]


def _is_normalized(expression: str) -> bool:
    return "BatchNorm" in expression  # by running means, those of the batch in `EXPECTED`


@pytest.mark.parametrize("expression", [e for e in READ if _is_normalized(e)])
def test_a_model_of_paddle_2_normalizes_by_running_means(expression, tmp_path) -> None:
    value = _run(_written(expression, tmp_path))
    fed = ARRAYS[MODELS[expression]["feed"][0]]
    np.testing.assert_allclose(value, fed / np.sqrt(np.float32(1 + 1e-5)), rtol=1e-5)


@pytest.mark.parametrize("expression", [e for e in READ if not _is_normalized(e)])
def test_a_model_of_paddle_2_has_its_values(expression, tmp_path) -> None:
    value = _run(_written(expression, tmp_path))
    expected = EXPECTED[expression]
    assert list(value.shape) == expected["shape"]
    wanted = np.asarray(expected["value"], "float64")
    np.testing.assert_allclose(value.astype("float64").reshape(-1), wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("expression", [e for e in MODELS if _refusal(e) is not None])
def test_an_operator_that_is_not_here_is_refused_by_name(expression, tmp_path) -> None:
    with pytest.raises(CheckpointError, match=_refusal(expression)) as caught:
        _run(_written(expression, tmp_path))
    assert "model.pdmodel" in str(caught.value)


def test_a_value_where_an_attribute_is_expected_is_refused(tmp_path) -> None:
    prefix = _written("paddle.tile(x, [2, 1])", tmp_path)
    model = Path(f"{prefix}.pdmodel")
    # The slot of what is read; operators of Paddle 2 have others that replace attributes.
    model.write_bytes(model.read_bytes().replace(b"\n\x01X\x12\x01x", b"\n\x01Y\x12\x01x"))
    with pytest.raises(CheckpointError, match="operator tile with a value for 'Y'"):
        _run(prefix)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_a_sum_has_the_element_type_that_its_operator_says(dtype) -> None:
    program = hpcdist.Program()
    with hpcdist.program_guard(program, hpcdist.Program()):
        x = hpcdist.data("tmp_1", [3], "bool")  # as layers name values that they make on the way
        out = program.global_block().create_var("out", dtype=dtype, shape=[1])
    facts = to_data(program)
    reduced = {"dim": [0], "reduce_all": True, "keep_dim": True, "out_dtype": dtype}
    op = {"inputs": {"X": [x.name]}, "outputs": {"Out": [out.name]}, "attrs": reduced}
    facts["blocks"][0]["ops"].append({"type": "reduce_sum", **op})
    read = from_data({**facts, "blocks": in_words_of_fluid(facts["blocks"])}, "model")
    fed = np.array([True, False, True])
    (value,) = hpcdist.Executor().run(read, feed={"tmp_1": fed}, fetch_list=["out"])
    assert value.dtype == dtype and value.item() == 2
