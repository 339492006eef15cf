"""Loops on the host: those that numba compiles, and those for values that lie elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np

from hpcdist.base import device
from hpcdist.ops.types import ArrayModule, Call, Operands


def compiled(kernels: str, name: str, *arrays) -> Call:
    """Bind the loop ``name`` of the module ``kernels`` of this package, which numba compiles."""
    from hpcdist.base.jit import bound  # numba takes 0.3 s to import

    return bound(getattr(importlib.import_module(f"hpcdist.ops.{kernels}"), name), *arrays)


def run_on_host(
    xp: ArrayModule,
    loop: Callable[[Operands, Operands], None],
    inputs: Operands,
    outputs: Operands,
) -> Call:
    """Bind ``loop(inputs, outputs)``, of numpy arrays; those of a GPU are copied there and back.

    An absent operand is None.
    """
    if xp is np:
        return lambda: loop(inputs, outputs)

    def run() -> None:
        results = [None if a is None else np.empty(a.shape, a.dtype) for a in outputs]
        loop([None if a is None else device.download(a) for a in inputs], results)
        for array, result in zip(outputs, results):
            if array is not None and result is not None:
                device.upload(array, result)

    return run
