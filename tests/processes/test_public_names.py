"""``import hpcdist`` imports little; its public names are there when they are used."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import hpcdist

PACKAGES = {path.parent.name for path in Path(hpcdist.__file__).parent.glob("*/__init__.py")}


def printed(code):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout


def test_importing_the_package_imports_little_and_hooks_in_nothing():
    loaded, hooks, collected = json.loads(
        printed(
            "import gc, json, sys; before = [*sys.meta_path], sys.excepthook, sys.path_hooks[:];"
            "import hpcdist;"
            "added = [type(f).__module__ for f in sys.meta_path if f not in before[0]];"
            "assert before[1:] == (sys.excepthook, sys.path_hooks);"
            "print(json.dumps([[*sys.modules], added, len(gc.callbacks)]))"
        )
    )
    assert sum(name.partition(".")[0] == "hpcdist" for name in loaded) < 12
    assert not {"numpy", "logging", "inspect"} & set(loaded)
    assert hooks == ["hpcdist.fluid.compat.modules"] and collected == 0


@pytest.mark.parametrize("package", sorted(PACKAGES - {"torch"}))
def test_a_package_is_an_attribute_without_the_public_names(package):
    code = f"import hpcdist, sys; print(hpcdist.{package}.__name__, *sys.modules)"
    name, *loaded = printed(code).split()
    assert name == f"hpcdist.{package}" and "hpcdist.fluid.facade" not in loaded


@pytest.mark.parametrize(
    "statement",
    [
        "from hpcdist.layers import fc",
        "import hpcdist.layers.rnn, hpcdist.layers; assert callable(hpcdist.layers.rnn)",
        "from hpcdist.layers.rnn import LSTMCell",
        "import hpcdist.layers.embedding, hpcdist.layers as l; assert callable(l.embedding)",
        "from hpcdist.optimizer import SGD",
        "from hpcdist.errors import GraphError",
        "from hpcdist.executor import Executor, global_scope",
        "from hpcdist.transpiler.collective import GradAllReduce",
        "from hpcdist.transpiler.distribute_transpiler import DistributeTranspiler",
        "from hpcdist.incubate.fleet.collective import fleet",
        "from hpcdist.data import data, read",
        "from hpcdist import torch",
        "import hpcdist; hpcdist.errors.GraphError",
        "import hpcdist; hpcdist.compat.fluid_names",
        "import hpcdist; hpcdist.core.VarDesc.VarType.FP32",
        "import hpcdist as fluid; fluid.layers.rnn, fluid.evaluator.ChunkEvaluator",
        "import hpcdist as fluid; assert fluid.data('x', [None, 3]).shape == (-1, 3)",
        "import hpcdist; import hpcdist.io; assert hpcdist.io is hpcdist.fluid.io",
    ],
)
def test_a_public_name_can_be_the_first_thing_that_is_imported(statement):
    if "torch" in statement:
        pytest.importorskip("torch")
    assert printed(f"{statement}\nprint('there')") == "there\n"


@pytest.mark.parametrize(
    "module",
    [
        "executor.executor",
        "fluid.layers",
        "transpiler",
    ],
)
def test_whoever_builds_or_runs_programs_has_all_operators(module):
    operators = "from hpcdist.graph import registry; print(*registry.defined())"
    full = {*printed(f"import hpcdist.ops; {operators}").split()}
    assert len(full) > 500 and {*printed(f"import hpcdist.{module}; {operators}").split()} >= full


def test_public_names_are_listed_completed_and_imported_by_a_star():
    names = printed("import hpcdist; print(*dir(hpcdist))").split()
    assert {*hpcdist.__all__, "__version__"} <= {*names}
    namespace: dict[str, object] = {}
    exec("from hpcdist import *", namespace)
    assert {*hpcdist.__all__} <= {*namespace}
    assert all(getattr(hpcdist, name) is namespace[name] for name in hpcdist.__all__)


def test_public_classes_can_be_pickled():
    classes = [hpcdist.Program, hpcdist.CPUPlace, hpcdist.ParamAttr, hpcdist.HpcdistError]
    script = f"import pickle; print([c.__name__ for c in pickle.loads({pickle.dumps(classes)!r})])"
    assert printed(script) == f"{[kind.__name__ for kind in classes]}\n"
    with pytest.raises(AttributeError, match=r"fluid has no 'Excutor'.*did you mean 'Executor'"):
        _ = hpcdist.Excutor


def test_the_package_of_readers_has_the_signature_of_the_function():
    code = "import inspect, hpcdist; print(inspect.signature(hpcdist.data)); help(hpcdist.data)"
    assert printed(code).startswith("(name: ")
