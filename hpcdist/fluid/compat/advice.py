"""Advice for a script that imports paddle, though it was started without ``--as-paddle``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from hpcdist.base.errors import MissingModuleError
from hpcdist.base.warned import warn
from hpcdist.fluid.compat.fluid_names import ROOT


class Teller(MetaPathFinder):
    """Tells a script that imports paddle, though it was started without ``--as-paddle``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT:
            return None
        advice = "python -m hpcdist --as-paddle ... lets the script find hpcdist as paddle"
        if PathFinder.find_spec(ROOT) is None:
            raise MissingModuleError(f"the script imports paddle, which is not installed: {advice}")
        warn(
            f"the script imports the paddle that is installed, not hpcdist, so that every rank "
            f"trains alone: {advice}"
        )
        return None


def tell() -> None:
    """From now on, tell a script that imports paddle of ``--as-paddle``."""
    sys.meta_path.insert(0, Teller())
