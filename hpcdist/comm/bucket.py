"""Which gradients are summed together: Fluid's grouping (coalesce_grad_tensor_pass). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.base import settings
from hpcdist.base.errors import PlanError

MIB = 2**20


@dataclass(frozen=True)
class Fusing:
    """How far gradients are combined.

    ``memory_mb``: 0 makes one bucket of all; below 0 makes one of each layer, which is what stands
    before the first dot of a parameter's name; above 0, layers are combined until they have so
    many MiB or, if ``groups_size`` is above 1, more gradients than that.
    """

    memory_mb: float = -1.0
    groups_size: int = 1

    def __post_init__(self) -> None:
        if not math.isfinite(self.memory_mb):
            raise PlanError(f"memory_mb: expected a number of MiB, got {self.memory_mb!r}")
        if self.groups_size < 1:
            raise PlanError(
                f"groups_size: expected a number of gradients, 1 or more, got {self.groups_size}"
            )

    @staticmethod
    def from_flags(default: Fusing) -> Fusing:
        """Return the options of FLAGS_fuse_parameter_*; those not set are as in ``default``."""
        memory, groups = settings.FUSE_MEMORY, settings.FUSE_GROUPS
        return Fusing(
            memory.read() if memory.is_set() else default.memory_mb,
            groups.read() if groups.is_set() else default.groups_size,
        )


@dataclass(frozen=True)
class Gradient:
    """One dense gradient: the name of its parameter, its type and its size in memory."""

    param: str
    dtype: str
    nbytes: int

    @property
    def layer(self) -> str:
        """The layer it belongs to, by Fluid's way to name parameters."""
        return self.param.partition(".")[0]


Bucket = tuple[int, ...]  # indices of gradients, in the order in which they lie in memory


def buckets(gradients: Sequence[Gradient], fusing: Fusing) -> tuple[Bucket, ...]:
    """Return the buckets of gradients given in backward order.

    Every gradient is in exactly one bucket, and those of one bucket are of one type. Buckets come
    in the order in which the backward pass fills them.
    """
    result: list[Bucket] = []
    # dict.fromkeys keeps the order of first appearance: the same on every rank.
    for dtype in dict.fromkeys(g.dtype for g in gradients):
        layers: dict[str, list[int]] = {}
        for index, gradient in enumerate(gradients):
            if gradient.dtype == dtype:
                layers.setdefault(gradient.layer, []).append(index)
        result += _joined(gradients, list(layers.values()), fusing)
    return tuple(sorted(result, key=max))


def _joined(gradients: Sequence[Gradient], layers: list[list[int]], fusing: Fusing) -> list[Bucket]:
    if fusing.memory_mb < 0:
        return [tuple(layer) for layer in layers]
    if fusing.memory_mb == 0:
        return [tuple(index for layer in layers for index in layer)]
    full: list[Bucket] = []
    current: list[int] = []
    nbytes = 0
    for layer in layers:
        current += layer
        nbytes += sum(gradients[index].nbytes for index in layer)
        crowded = fusing.groups_size > 1 and len(current) > fusing.groups_size
        if crowded or nbytes >= fusing.memory_mb * MIB:
            full.append(tuple(current))
            current, nbytes = [], 0
    return [*full, tuple(current)] if current else full
