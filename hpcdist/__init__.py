"""hpcdist: one training program, on one machine or on many ranks. ``import hpcdist as fluid``.

The public names are those of `hpcdist.fluid.facade`: the first one that is used imports them all.
"""

from __future__ import annotations

import hpcdist.base.hidden  # before what a file may hide

# isort: split
import hpcdist.base.signals  # noqa: F401  # a warning waits while the rest is imported

# isort: split
import importlib
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import HpcdistError as _HpcdistError
from hpcdist.fluid.compat import modules as _modules

if TYPE_CHECKING:
    from hpcdist.fluid.facade import *  # noqa: F403
    from hpcdist.fluid.facade import __all__ as __all__

    __version__: str

# Packages that are attributes of this one: none of them needs the public names to be imported.
_ROOMS = (
    "base",
    "checkpoint",
    "comm",
    "data",
    "executor",
    "fluid",
    "graph",
    "launch",
    "ops",
    "ps",
    "runtime",
    "torch",
    "transpiler",
)
_modules.install()
_guard = _modules.NameGuard(sys.modules[__name__], __name__)


@cache
def _load() -> ModuleType:
    """Import the public names, and make them attributes of this package.

    A name that a script has set by then (``fluid.CUDAPlace = ...``) stays as it is.
    """
    facade = importlib.import_module(f"{__name__}.fluid.facade")
    for name in facade.__all__:
        # What imports have set: packages of these names, some of which the facade has others for.
        if globals().get(name) is sys.modules.get(f"{__name__}.{name}"):
            globals()[name] = getattr(facade, name)
    return facade


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except (ImportError, _HpcdistError) as error:
            # An extra is missing or too old. Whoever looks through all modules for a name (pickle,
            # and torch.compile with it) takes no other error for "not here".
            raise AttributeError(f"hpcdist.{name}: {error}") from error
    if name == "__all__":
        return _load().__all__
    if name == "__version__":
        return importlib.import_module(f"{__name__}.base.version").version()
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name] if name in globals() else _guard(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_load().__all__, "__version__"})
