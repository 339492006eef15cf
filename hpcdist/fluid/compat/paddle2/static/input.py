"""What is fed: variables of a Program, and their description alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import creation
from hpcdist.fluid.layers.io import data_v2
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable


def data(name: str, shape: Sequence[int | None], dtype: Any = None, lod_level: int = 0) -> Variable:
    """Declare a variable to be fed, of this very shape; None or -1: any size."""
    return data_v2(name, shape, creation.get_default_dtype() if dtype is None else dtype, lod_level)


class InputSpec:
    """Shape, element type and name of what is fed."""

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: Any = "float32",
        name: str | None = None,
        stop_gradient: bool = False,
    ) -> None:
        self.shape = tuple(-1 if extent is None else int(extent) for extent in shape)
        self.dtype, self.name, self.stop_gradient = canonical(dtype), name, stop_gradient

    @classmethod
    def from_tensor(cls, tensor: Variable, name: str | None = None) -> InputSpec:
        """Return the description of a Variable."""
        return cls(tensor.shape, tensor.dtype, name or tensor.name)

    @classmethod
    def from_numpy(cls, ndarray: Any, name: str | None = None) -> InputSpec:
        """Return the description of an array."""
        return cls(ndarray.shape, ndarray.dtype, name)

    def batch(self, batch_size: int) -> InputSpec:
        """Put a batch's extent first."""
        if not isinstance(batch_size, int) or batch_size == 0:
            raise GraphError(f"InputSpec.batch: expected an integer, got {batch_size!r}")
        self.shape = (batch_size, *self.shape)
        return self

    def unbatch(self) -> InputSpec:
        """Take the first extent away."""
        if not self.shape:
            raise GraphError("InputSpec.unbatch: there is no extent to take away")
        self.shape = self.shape[1:]
        return self

    def __repr__(self) -> str:
        return f"InputSpec(shape={self.shape}, dtype={self.dtype}, name={self.name})"
