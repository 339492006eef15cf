"""Calls are those of Paddle 2.6.2: by place and by name, what is left out there may be here."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdist.compat import aspaddle
from hpcdist.fluid.compat.paddle2 import methods
from tests.paddle_2_6.signatures import MODULES

LINES = (Path(__file__).parents[1] / "paddle_2_6/signatures.txt").read_text().splitlines()
DIFFER = {  # and why; none of these takes an argument for another one
    "paddle.Tensor": "scripts make none by hand",
    "paddle.bitwise_and": "without out",
    "paddle.bitwise_or": "without out",
    "paddle.bitwise_xor": "without out",
    "paddle.optimizer.Optimizer": "the base, of which scripts make none",
    "paddle.static.Print": "without print_tensor_layout",
    "paddle.static.Variable": "scripts make none by hand",
    "paddle.static.append_backward": "without distop_context",
    "paddle.static.ctr_metric_bundle": "without ins_tag_weight",
    "paddle.static.nn.cond": "without return_names",
}


@pytest.fixture(autouse=True)
def paddle() -> Iterator[None]:
    aspaddle.install()
    methods.install()
    yield
    aspaddle.uninstall()


def found(path: str) -> Any:
    """Return what stands at a path, or None."""
    words = path.split(".")
    for count in range(len(words), 0, -1):
        try:
            value = importlib.import_module(".".join(words[:count]))
        except ImportError:
            continue
        for word in words[count:]:
            value = getattr(value, word, None)
        return value
    return None


def differs(of: Any, theirs: list[str]) -> str:
    """Return how a call differs from one of Paddle's, or an empty string."""
    declared = not inspect.isclass(of) or getattr(of, "__signature__", None)
    signature = inspect.signature(of if declared else of.__init__)
    ours = [p for p in signature.parameters.values() if p.name != "self"]
    places = [p for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    for one, name in zip([*places, *[None] * len(theirs)], theirs):
        if one is None or one.name != name.rstrip("="):
            return f"{[p.name for p in ours]}, there {theirs}"
        if name.endswith("=") and one.default is one.empty:
            return f"{name} may be left out there"
    return ""


def module_of(path: str) -> str:
    return max((m for m in MODULES if path.startswith(f"{m}.")), key=len)


@pytest.mark.parametrize("module", MODULES)
def test_parameters_are_those_of_paddle(module: str) -> None:
    wrong, seen = {}, 0
    for path, *theirs in (line.split() for line in LINES):
        value = found(path) if module_of(path) == module else None
        if callable(value) and path not in DIFFER:
            seen += 1
            if difference := differs(value, theirs):
                wrong[path] = difference
    assert not wrong, "\n".join(f"{path}: {what}" for path, what in wrong.items())
    assert seen
