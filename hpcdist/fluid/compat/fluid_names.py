"""The names of Fluid 1.8.5, and what to use instead of those that hpcdist does not have.

``fluid_names.txt`` lists every name of each of Fluid's modules, whether hpcdist has it or not, and
for names that a module has only imported, from where: such a name is found where its home is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from hpcdist.base import text_tables
from hpcdist.base.nearest import did_you_mean

ROOT = "paddle"
FLUID = "paddle.fluid"

# Names that Fluid had before.
_EARLIER = {
    "fluid.AsyncExecutor": "exe.train_from_dataset trains from files, docs/data.md says how",
}


class Home(NamedTuple):
    """Where a name comes from that a module of Fluid's has imported."""

    module: str
    name: str  # empty: the module itself


@functools.cache
def table() -> dict[str, dict[str, Home | None]]:
    """Return the names of each Fluid module: its `Home`, or None for the module's own."""
    sections = text_tables.sections(__package__, "fluid_names.txt").items()
    return {module: dict(map(_entry, " ".join(names).split())) for module, names in sections}


def _entry(entry: str) -> tuple[str, Home | None]:
    name, _, home = entry.partition("@")
    if not home:
        return name, None
    if home.endswith(":"):
        return name, Home(home[:-1], "")
    module, _, its_name = home.rpartition(".")
    return name, Home(module, its_name)


def home(module: str, name: str) -> Home | None:
    """Return where a module of Fluid's has imported a name from; None if it is its own."""
    return table().get(module, {}).get(name)


def is_known(module: str, name: str) -> bool:
    """Return whether a module of Fluid's has this name, or a submodule of it."""
    return name in table().get(module, ()) or f"{module}.{name}" in table()


def instead(name: str) -> str:
    """Return the replacement for a name of Fluid's, given in full."""
    from hpcdist.fluid.compat import instead as advice  # for whoever asks for what is not there

    below = name.removeprefix(f"{ROOT}.")
    found = advice.instead(advice.FLUID, below)
    return found or "see docs/differences.md, and dir() of the module for what is there"


def describe_missing(module: str, name: str, names: Iterable[str]) -> str:
    """Say why a module of Fluid's has no such name; ``names`` are those that it has."""
    shown = module.replace(FLUID, "fluid", 1)
    if is_known(module, name):
        return f"{shown}.{name} of Fluid 1.8.5 is not in hpcdist: {instead(f'{module}.{name}')}"
    if earlier := _EARLIER.get(f"{shown}.{name}"):
        return f"{shown}.{name} is not in Fluid 1.8.5, nor here: {earlier}"
    hint = did_you_mean(name, [n for n in names if not n.startswith("_")], most=3)
    return f"{shown} has no {name!r}, neither here nor in Fluid 1.8.5{hint}"
