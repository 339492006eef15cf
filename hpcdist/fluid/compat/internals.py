"""Functions of Fluid's own modules that its scripts and tests call though they are private."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphAssertionError
from hpcdist.graph.dtypes import DTypeLike, canonical
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.names import grad_name
from hpcdist.graph.program import Program
from hpcdist.ps.slicing import Shaped, slice_variables


def _as_lodtensor(data: Any, place: Any, dtype: DTypeLike | None = None) -> LoDTensor:
    """Return an array, or one number of element type ``dtype``, as a tensor.

    FeedError for a list: what is ragged is a LoDTensor already.
    """
    if isinstance(data, list):
        raise FeedError(f"_as_lodtensor: expected an array or a LoDTensor, got {data!r:.80}")
    if np.isscalar(data):
        if dtype is None:
            raise GraphAssertionError(
                f"_as_lodtensor: expected an element type for the number {data!r}"
            )
        data = np.array([data]).astype(canonical(dtype))
    return LoDTensor(np.array(data))


def slice_variable(var_list: Iterable[Shaped], slice_count: int, min_block_size: int) -> list[str]:
    """Return the blocks that variables are cut into for ``slice_count`` servers, as
    "NAME:INDEX:ELEMENTS"."""
    cut = slice_variables(var_list, slice_count, min_block_size)
    return [f"{block.variable}:{block.index}:{block.size}" for block in cut]


def _get_stop_gradients_(program: Program) -> dict[int, set[str]]:
    """Return, by the number of a block, names of the gradients that its variables stop."""
    return {
        block.idx: {grad_name(name) for name, var in block.vars.items() if var.stop_gradient}
        for block in program.blocks
    }
