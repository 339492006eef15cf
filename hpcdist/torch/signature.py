"""A number that describes each collective call, to detect ranks that call different ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcdist.base.errors import CommError

KINDS = (
    "barrier",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
)
DTYPES = tuple(sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str))
_KIND = {kind: k for k, kind in enumerate(KINDS)}
_DTYPE = {dtype: k for k, dtype in enumerate(DTYPES)}
OPS = ("", "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_OP = {op: k for k, op in enumerate(OPS)}
ANY_LENGTH = 2**32 - 1


@dataclass(frozen=True)
class Call:
    """A collective as all ranks of a group must call it."""

    kind: str
    dtype: torch.dtype
    length: int | None = None  # elements; None where ranks may give different numbers
    op: str = ""
    root: int = 0

    def encoded(self) -> int:
        """Return it as a number below 2**63."""
        length = ANY_LENGTH if self.length is None else self.length % ANY_LENGTH
        words = (_KIND[self.kind], _DTYPE[self.dtype], _OP[self.op], self.root % 2**12)
        number = 0
        for word, bits in zip(words, (4, 7, 4, 12)):
            number = number << bits | word
        return number << 32 | length

    @staticmethod
    def decoded(number: int) -> Call:
        """Return the value that `encoded` has made a number of."""
        length = number & ANY_LENGTH
        number >>= 32
        root, number = number & 0xFFF, number >> 12
        op, number = OPS[number & 0xF], number >> 4
        dtype, kind = DTYPES[number & 0x7F], KINDS[number >> 7]
        return Call(kind, dtype, None if length == ANY_LENGTH else length, op, root)

    def __str__(self) -> str:
        words = [self.kind, self.op, "of", str(self.dtype).removeprefix("torch.")]
        text = " ".join(filter(None, words)) + ("" if self.length is None else f"[{self.length}]")
        rooted = self.kind in ("reduce", "broadcast", "gather", "scatter")
        return f"{text} with root {self.root}" if rooted else text


def agree(local: int, everyone: list[int], names: tuple[int, ...], rank: int, number: int) -> None:
    """Refuse ranks that call different things; all ranks of the group come to the same words."""
    if all(peer == local for peer in everyone):
        return
    calls = [Call.decoded(peer) for peer in everyone]
    first = calls[0]
    peer = next(k for k, call in enumerate(calls) if call != first)
    raise CommError(
        f"rank {names[rank]}: ranks call different collectives as number {number} of their group: "
        f"{first} on rank {names[0]}, {calls[peer]} on rank {names[peer]}; every rank must call "
        "the same ones in the same order, with the same dtypes and numbers of elements"
    )
