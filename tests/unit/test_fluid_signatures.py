"""Functions, classes and methods take what Fluid 1.8.5's take, in the same order."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import HpcdistError

TABLE = Path(__file__).parents[1] / "fluid_1_8" / "signatures.txt"

# What takes others here, and why.
OTHERS = {
    r"fluid\.Executor\.run": "every Program is compiled once, whatever use_program_cache says",
    r"fluid\.memory_optimize": "1.8.5's does nothing, so that skip_grads has no meaning",
    r"fluid\.Variable": "blocks make variables: block.create_var",
    r"fluid\.contrib\.Basic\w+Unit\.forward": "a unit is called",
    r"fluid\.incubate\.\S+Strategy\.check_\w+": "setters check what they are given",
    r"fluid\.incubate\.\S+\.TrainerRuntimeConfig\.display": "print(config) shows it",
}


@pytest.fixture(autouse=True)
def paddle():
    aspaddle.install()
    yield
    aspaddle.uninstall()


def found(name: str) -> Any:
    """Return what has this name here, None if it is refused by name."""
    parts = ["paddle", *name.split(".")]
    held: Any = importlib.import_module("paddle")
    for i, part in enumerate(parts[1:], 2):
        try:
            held = getattr(held, part)
        except HpcdistError:
            try:
                held = importlib.import_module(".".join(parts[:i]))
            except HpcdistError:
                return None
    return held


def differs(name: str, words: list[str]) -> str:
    """Say how what has a name here takes other arguments than Fluid's; "" if it does not."""
    try:
        held = found(name)
    except AttributeError as error:
        return str(error)
    if held is None:
        return ""
    try:
        parameters = inspect.signature(held).parameters.values()
    except (TypeError, ValueError):  # a value, or a class made by C
        return ""
    return compared([p for p in parameters if p.name != "self"], words)


def compared(ours: list[inspect.Parameter], words: list[str]) -> str:
    kinds = {p.kind for p in ours}
    if inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds:
        return ""
    named = [p for p in ours if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for i, word in enumerate(words):
        if word.startswith("*"):
            continue
        name, equals, default = word.partition("=")
        if i >= len(named) or named[i].name != name:
            return f"expected {name} as number {i}, got {[p.name for p in named]}"
        mine = named[i].default
        if equals and default != "?":
            if mine is inspect.Parameter.empty:
                return f"{name} has no default, expected {default}"
            theirs = ast.literal_eval(default)
            theirs = tuple(theirs) if isinstance(theirs, list) else theirs
            if mine != theirs and not (theirs == {} and mine is None):
                return f"{name} is {mine!r} by default, expected {default}"
    for p in named[len(words) :]:
        if p.default is p.empty and not any(w.startswith("*") for w in words):
            return f"{p.name} must be given, which Fluid does not have"
    return ""


def test_they_take_the_same_arguments():
    other, unused = {}, set(OTHERS)
    for line in TABLE.read_text().splitlines():
        name, *words = line.split()
        if why := differs(name, words):
            expected = [pattern for pattern in OTHERS if re.fullmatch(pattern, name)]
            unused.difference_update(expected)
            if not expected:
                other[name] = why
    assert other == {}
    assert not unused, "these take the same ones now"
