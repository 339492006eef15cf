"""The recipe of CONTRIBUTING.md for an operator is run; the files and names of the others exist."""

import re
from pathlib import Path

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.fluid.layers.activation import apply
from hpcdist.graph import registry
from hpcdist.ops import formulas

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def soft_cap():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(code, "CONTRIBUTING.md", "exec"), {})
    yield
    for type in ("soft_cap", "soft_cap_grad"):
        del registry.operators[type], formulas.formulas()[type]


def test_the_operator_of_the_recipe_trains(soft_cap):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        weight = fluid.ParamAttr("w", fluid.initializer.Constant(0.5))
        out = apply("soft_cap", fluid.layers.fc(x, 1, param_attr=weight, bias_attr=False), cap=2.0)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(out))
    fed = np.arange(6, dtype=np.float32).reshape(2, 3)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        (found,) = exe.run(main, feed={"x": fed}, fetch_list=[out])
        moved = np.array(fluid.global_scope().find_var("w").get_tensor())
    hidden = fed.sum(1, keepdims=True) / 2
    np.testing.assert_allclose(found, 2 * np.tanh(hidden / 2), rtol=1e-6)
    slope = (1 - np.tanh(hidden / 2) ** 2) / 2
    np.testing.assert_allclose(moved, 0.5 - 0.1 * fed.T @ slope, rtol=1e-5)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:hpcdist|tests)/[\w./]+)`", TEXT))))
def test_paths_of_recipes_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("OPTIMIZERS", "hpcdist/base/optimizers.py"),
        ("RowOptimizer", "hpcdist/ps/table_metadata.py"),
        ("CollectiveOperations", "hpcdist/comm/collective.py"),
        ("FORMATS", "hpcdist/data/columnar/formats.py"),
    ],
)
def test_names_of_recipes_are_where_they_say(name, file):
    assert f"`{name}`" in TEXT
    assert re.search(rf"^(class )?{name}\b", (ROOT / file).read_text("utf-8"), re.M)
