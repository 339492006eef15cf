"""Examples in docstrings are run, and the names that users meet first have one."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

import hpcdist as fluid

PACKAGE = Path(fluid.__file__).parent
PARSER = doctest.DocTestParser()
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def examples():
    """Return the examples of every docstring of the Fluid tower, by file and line."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if ">>>" not in text or "torch" in path.parts:
            continue
        for node in ast.walk(ast.parse(text)):
            doc = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            # Those that need a job, or a table, say so: doctest: +SKIP.
            if doc and any(doctest.SKIP not in e.options for e in PARSER.get_examples(doc)):
                name = f"{path.relative_to(PACKAGE)}:{getattr(node, 'name', '')}"
                module = path.relative_to(PACKAGE.parent).with_suffix("")
                found.append((name, ".".join(module.parts).removesuffix(".__init__"), doc))
    return found


EXAMPLES = examples()


@pytest.mark.parametrize(
    ("module", "doc"), [each[1:] for each in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_the_examples_of_a_docstring(module, doc, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    # Examples of functions inside the package call them as they are.
    names = {**vars(importlib.import_module(module)), "fluid": fluid, "np": np}
    test = PARSER.get_doctest(doc, names, module, None, 0)
    runner, said = doctest.DocTestRunner(verbose=False), []
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        failed, tried = runner.run(test, out=said.append)
    assert tried and not failed, "".join(said)


def test_how_many_names_have_examples():
    assert len(EXAMPLES) >= 175
