"""Values as arrays, under the names that Fluid's module ``executor`` has for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.executor.scope import Scope, ScopeTensor, global_scope
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.variable import Variable


def as_numpy(tensor: object) -> Any:
    """Return a tensor as an array, a list of tensors as a list of arrays; None if it holds none.

    Rows of sequences are refused, as an array does not say where each begins.
    """
    if isinstance(tensor, list):
        return [as_numpy(each) for each in tensor]
    if isinstance(tensor, LoDTensor) and tensor.lod():
        raise FeedError(
            "as_numpy: an array does not hold sequences: take np.array(tensor) for the rows and "
            "tensor.lod() for the sequences"
        )
    if isinstance(tensor, LoDTensor | ScopeTensor) and not tensor._is_initialized():
        return None
    return np.array(tensor)


def fetch_var(name: str | Variable, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """Return the value of a variable of a scope; FeedError if there is none of that name."""
    name = name.name if isinstance(name, Variable) else name
    variable = (scope or global_scope()).find_var(name)
    if variable is None:
        raise FeedError(f"the scope has no variable {name!r}: only persistable ones stay there")
    return as_numpy(variable.get_tensor()) if return_numpy else variable.get_tensor()
