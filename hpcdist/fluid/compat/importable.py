"""Names that can be imported, though whoever uses them is told what to use instead.

Scripts of Fluid import names of its imperative mode that their static graph never uses, or define
classes of both. So such a name is found; a call of it, or of a class derived from it, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpcdist.base.errors import MissingNameError

PACKAGE = "hpcdist.dygraph"  # Fluid's names in here, and below


class OnlyImported(type):
    """The class of such names: they can be derived from and compared with, not called."""

    _refusal: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise MissingNameError(cls._refusal)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingNameError(cls._refusal)


def stand_in(modules: Iterable[str], name: str, refusal: str) -> OnlyImported:
    """Make the class that is found under a name that Fluid has in one of these modules.

    Its calls raise MissingNameError; so does this for a name that only modules elsewhere have.
    """
    home = next((m for m in modules if m == PACKAGE or m.startswith(f"{PACKAGE}.")), None)
    if home is None:
        raise MissingNameError(refusal)
    return OnlyImported(name, (), {"__module__": home, "__doc__": refusal, "_refusal": refusal})
