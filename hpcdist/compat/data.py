"""``from hpcdist.data import read``: the module behind ``hpcdist.data``, which is a function.

The module can be called, too: an import may put it in the function's place.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from hpcdist.columnar import Images, Vocabulary, packed, read
from hpcdist.layers.io import data_v2 as data

__all__ = ["Images", "Vocabulary", "data", "packed", "read"]


class _Data(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return data(*args, **kwargs)


sys.modules[__name__].__class__ = _Data
