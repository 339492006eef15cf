"""What names and docstrings of the package have in common."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import hpcdist

PACKAGE = Path(hpcdist.__file__).parent

# Names that two modules of Fluid or Paddle have for different classes, or two of our doors.
TWICE = {
    "BeamSearchDecoder": "Fluid's in layers and in contrib.decoder",
    "ChunkEvaluator": "Fluid's in metrics and in evaluator",
    "Collective": "Fluid's in transpiler.collective and in incubate.fleet.collective",
    "DistributedStrategy": "Fluid's of servers and of collectives, and Paddle 2's of fleet",
    "EditDistance": "Fluid's in metrics and in evaluator",
    "Publisher": "of tables for Fluid's scripts and for PyTorch's",
    "Saver": "of checkpoints for Fluid's scripts and for PyTorch's",
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return all modules, by path; not while tests are collected, since it takes seconds."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in paths}


def test_a_class_has_a_name_of_its_own():
    where = defaultdict(list)
    for path, tree in trees().items():
        # Paddle 2's names, which may be Fluid's or PyTorch's too, are all in one folder.
        for statement in [] if "paddle2" in path else tree.body:
            if isinstance(statement, ast.ClassDef):
                where[statement.name].append(path)
    several = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert len(where) > 800
    assert {name: paths for name, paths in several.items() if name not in TWICE} == {}
    assert several.keys() == TWICE.keys(), "a name in TWICE stands once: take it out"


# They hide the noun, or what is done: "Return the call that ...", "Register ...", "Notify ...".
VAGUE = re.compile(r"(Return (what|whatever|who|whose)|Be|Have|Let|Tell)\b")


def test_docstrings_name_what_is_done_and_returned():
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        f"{path}: {getattr(node, 'name', 'module')}": ast.get_docstring(node) or ""
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, documented)
    }
    assert len(docstrings) > 8000
    vague = {where: text for where, text in docstrings.items() if VAGUE.match(text)}
    assert vague == {}
