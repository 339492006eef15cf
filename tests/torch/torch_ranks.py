"""Groups of ranks for tests of hpcdist.torch: each twice, of ours and of gloo's, torch's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

import hpcdist.torch  # noqa: E402, F401
from hpcdist.errors import CommError  # noqa: E402

WITH_AND_WITHOUT_MEMORY = pytest.mark.parametrize("k", [0, 1])


def drawn(count: int, **choices: Sequence[object]) -> pytest.MarkDecorator:
    """Call a test with arguments drawn at random, the same on all ranks.

    Not by hypothesis: it would look for a smaller example on the rank that failed only.
    """
    random = Random(" ".join(choices))
    cases = [tuple(map(random.choice, choices.values())) for _ in range(count)]
    return pytest.mark.parametrize(list(choices), cases)


@dataclass(frozen=True)
class Pair:
    """The same ranks in a group of ours and in one of gloo's."""

    ranks: tuple[int, ...]
    ours: dist.ProcessGroup
    gloo: dist.ProcessGroup

    @property
    def here(self) -> bool:
        """Whether this process is in it."""
        return dist.get_rank() in self.ranks

    @property
    def me(self) -> int:
        """This process's number in it."""
        return self.ranks.index(dist.get_rank())

    @property
    def size(self) -> int:
        return len(self.ranks)


@cache
def pairs() -> list[Pair]:
    """Return pairs of groups: all ranks; all but the first; the first and the last. Collective.

    Each of them with memory that its ranks share, and without, as between hosts.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("hpcdist")
    size = dist.get_world_size()
    sets = {tuple(range(size)), tuple(range(1, size)), tuple(sorted({0, size - 1}))} - {()}
    found = []
    for ranks in sorted(sets):
        gloo = dist.new_group(list(ranks), backend="gloo")
        for memory in (True, False):
            ours = dist.new_group(list(ranks))
            if not memory and dist.get_rank() in ranks:
                ours.queue.memory = None
            found.append(Pair(ranks, ours, gloo))
    return found


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return a tensor of small numbers that follow from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 5, shape, generator=generator)
    if dtype.is_floating_point or dtype.is_complex:
        return (numbers + torch.rand(shape, generator=generator)).to(dtype)
    return numbers.to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return an equal tensor that is not contiguous, if it has elements enough."""
    room = tensor.new_zeros((*tensor.shape, 2))
    room[..., 1] = tensor
    return room[..., 1]


def of_all(k: int) -> Pair:
    """Return the group of all ranks, with memory that they share (0) or without (1)."""
    return [pair for pair in pairs() if pair.size == dist.get_world_size()][k]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Two sums may differ by their order, more so with three ranks and more."""
    torch.testing.assert_close(ours, theirs, rtol=2e-2 if ours.element_size() < 4 else 1e-5, atol=0)


def refused_when_forked(call: Callable[[], object]) -> str:
    """Return the CommError that ``call`` raises in a process that this rank forks; "" if none."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
        except CommError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as message:
        text = message.read()
    os.waitpid(child, 0)
    return text


def rank_and_size() -> tuple[int, int]:
    """Return those of the group of all ranks. Collective."""
    pairs()
    return dist.get_rank(), dist.get_world_size()
