"""``fluid.data(...)``: Fluid's function, under the name of the package that reads files.

The package `hpcdist.data` can be called once this module has been imported, and has the function
as ``data``, as Fluid's module of that name does.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import hpcdist.data as package
from hpcdist.fluid.layers.io import data_v2 as data


class _Data(ModuleType):
    __doc__ = data.__doc__
    __signature__ = inspect.signature(data)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return data(*args, **kwargs)


package.__class__ = _Data
package.data = data  # type: ignore[attr-defined]
