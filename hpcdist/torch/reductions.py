"""torch's ReduceOps, applied to tensors in rank order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from hpcdist.base.errors import CommError

BLOCK_BYTES = 2**19  # folded at once: the partial result stays in the second-level cache
_OPS = dist.ReduceOp.RedOpType
_INTO: dict[Any, Callable[..., Any]] = {
    _OPS.SUM: torch.add,
    _OPS.AVG: torch.add,
    _OPS.PREMUL_SUM: torch.add,
    _OPS.PRODUCT: torch.mul,
    _OPS.MIN: torch.minimum,
    _OPS.MAX: torch.maximum,
    _OPS.BAND: torch.bitwise_and,
    _OPS.BOR: torch.bitwise_or,
    _OPS.BXOR: torch.bitwise_xor,
}
_BITWISE = (_OPS.BAND, _OPS.BOR, _OPS.BXOR)
_ORDERED = (_OPS.MIN, _OPS.MAX)


@dataclass(frozen=True)
class TensorReduction:
    """One ReduceOp for tensors of one dtype, over a number of ranks."""

    name: str
    into: Callable[..., Any]  # (left, right, out=)
    size: int
    mean: bool = False
    factor: torch.Tensor | None = None  # what each rank's tensor is multiplied by first

    def prepare(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this rank's contribution: its tensor, or a new one."""
        return flat if self.factor is None else flat * self.factor

    def fold(self, rows: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Write the result over ``rows``, in their order, into ``out``, which may be one of them.

        All are vectors of one length.
        """
        step = max(1, BLOCK_BYTES // out.element_size())
        for begin in range(0, out.numel(), step) if out.numel() > step else (0,):
            parts = [row[begin : begin + step] for row in rows]
            target = out[begin : begin + step]
            if len(parts) == 1:
                target.copy_(parts[0])
            elif len(parts) == 2:
                self.into(parts[0], parts[1], out=target)
            else:
                total = self.into(parts[0], parts[1])
                for part in parts[2:-1]:
                    self.into(total, part, out=total)
                self.into(total, parts[-1], out=target)
            if self.mean:
                # Of complex numbers torch divides some as vectors, with other bits, some alone.
                numbers = torch.view_as_real(target) if target.is_complex() else target
                rounding = None if numbers.is_floating_point() else "trunc"
                numbers.div_(self.size, rounding_mode=rounding)


@cache
def _can(into: Callable[..., Any], dtype: torch.dtype) -> bool:
    """Return whether torch does this to tensors of ``dtype``."""
    nothing = torch.zeros(1, dtype=dtype)
    try:
        into(nothing, nothing, out=torch.zeros(1, dtype=dtype))
    except RuntimeError:
        return False
    return True


def reduction(op: Any, dtype: torch.dtype, size: int) -> TensorReduction:
    """Return the function of a ReduceOp for tensors of ``dtype``; CommError if there is none."""
    if isinstance(op, _OPS):
        return _plain(op, dtype, size)
    kind, factor = op.__getstate__()
    plain = _plain(kind, dtype, size)
    if kind != _OPS.PREMUL_SUM:
        return plain
    number = torch.as_tensor(factor)
    converted = number.to(dtype)  # as NCCL does; results have the tensors' dtype on all ranks
    if not torch.can_cast(number.dtype, dtype) and number != converted:
        raise CommError(f"ReduceOp.PREMUL_SUM of {dtype}: expected a factor in it, got {factor}")
    return replace(plain, factor=converted.reshape(()))


@cache
def _plain(kind: Any, dtype: torch.dtype, size: int) -> TensorReduction:
    name = str(kind).rpartition(".")[2]
    if kind not in _INTO:
        raise CommError(f"ReduceOp.{name} is not supported, expected one of SUM, AVG, PRODUCT, ...")
    integral = not (dtype.is_floating_point or dtype.is_complex)
    if (kind in _BITWISE and not integral) or (kind in _ORDERED and dtype.is_complex):
        raise CommError(f"ReduceOp.{name} is not for tensors of {dtype}")
    if kind == _OPS.AVG and dtype == torch.bool:
        raise CommError("ReduceOp.AVG is not for tensors of torch.bool: they have no mean")
    if not _can(_INTO[kind], dtype):
        raise CommError(
            f"ReduceOp.{name} is not for tensors of {dtype}: torch has no {_INTO[kind].__name__} "
            "for them on the CPU; convert them to another dtype"
        )
    return TensorReduction(name, _INTO[kind], size, kind == _OPS.AVG)
