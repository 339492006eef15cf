"""The examples in docstrings of the package, and how they are run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
from pathlib import Path

import numpy as np

import hpcdist as fluid

PACKAGE = Path(fluid.__file__).parent
PARSER = doctest.DocTestParser()
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def examples(*, of_torch: bool) -> list[tuple[str, str, str]]:
    """Return (file and name, module, docstring) of what has examples, PyTorch's or the others."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if ">>>" not in text or ("torch" in path.parts) != of_torch:
            continue
        for node in ast.walk(ast.parse(text)):
            doc = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            # Those that need a job, or a table, say so: doctest: +SKIP.
            if doc and any(doctest.SKIP not in e.options for e in PARSER.get_examples(doc)):
                name = f"{path.relative_to(PACKAGE)}:{getattr(node, 'name', '')}"
                module = path.relative_to(PACKAGE.parent).with_suffix("")
                found.append((name, ".".join(module.parts).removesuffix(".__init__"), doc))
    return found


def of_families() -> list[tuple[str, str, str]]:
    """Return the same of layers that a function makes: their docstrings stand in no file."""
    written = {inspect.cleandoc(doc) for _, _, doc in examples(of_torch=False)}
    docs = {
        name: inspect.getdoc(getattr(fluid.layers, name)) or "" for name in fluid.layers.__all__
    }
    made = {name: doc for name, doc in docs.items() if ">>>" in doc and doc not in written}
    return [(f"layers.{name}", fluid.layers.__name__, doc) for name, doc in made.items()]


def run(module: str, doc: str) -> None:
    """Run the examples of a docstring; AssertionError if they give something else."""
    # Examples of functions inside the package call them as they are.
    names = {**vars(importlib.import_module(module)), "fluid": fluid, "hpcdist": fluid, "np": np}
    test = PARSER.get_doctest(doc, names, module, None, 0)
    runner, said = doctest.DocTestRunner(verbose=False), []
    failed, tried = runner.run(test, out=said.append)
    assert tried and not failed, "".join(said)
