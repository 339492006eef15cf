"""How fast this process moves memory and multiplies matrices, measured in its job.

From these rates and shapes follows the least time of an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

COPIED_BYTES = 2**23  # more than the caches of one core hold
WIDTH = 384  # of a product: large enough for BLAS to be fast, and done in milliseconds
TIMES = 3  # the quickest counts


@dataclass(frozen=True)
class Rates:
    """What was measured; 0: not measured."""

    bytes_per_s: float = 0.0  # read and written, both
    flops_per_s: float = 0.0  # multiplications and additions of float32
    call_s: float = 0.0  # of numpy's on one number

    def least_s(self, nbytes: float, flops: float) -> float:
        """Return how long an operator takes at least that moves and multiplies so much."""
        if not self.bytes_per_s:
            return 0.0
        return self.call_s + max(nbytes / self.bytes_per_s, flops / self.flops_per_s)


def measured() -> Rates:
    """Measure this process, in some 20 ms; ranks that share a machine measure together."""
    source = np.ones(COPIED_BYTES, np.uint8)
    target, one = np.empty_like(source), np.ones(1, np.float32)
    matrix = np.ones((WIDTH, WIDTH), np.float32)
    product = np.empty_like(matrix)
    return Rates(
        bytes_per_s=2 * COPIED_BYTES / _least_s(lambda: np.copyto(target, source)),
        flops_per_s=2 * WIDTH**3 / _least_s(lambda: np.dot(matrix, matrix, product)),
        call_s=_least_s(lambda: np.add(one, one, one)),
    )


def _least_s(call: Callable[[], object]) -> float:
    call()  # touches memory for the first time
    took = []
    for _ in range(TIMES):
        begin = perf_counter()
        call()
        took.append(perf_counter() - begin)
    return max(min(took), 1e-9)
