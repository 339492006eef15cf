"""A recommendation model in PyTorch: its table on hpcdist's servers, and by torch's own means.

mpirun -n 4 python -m hpcdist --pservers 2 benchmarks/torch_tables.py
mpirun -n 2 python benchmarks/torch_tables.py  # the table shared out over the trainers

26 slots of Zipf ids, rows of 16, products of pairs as in examples/torch/dlrm.py. The other is the
same model with nn.EmbeddingBag(sparse=True) and all parameters under DistributedDataParallel over
gloo, on the same trainers, in rounds that take turns. Prints examples/s of all trainers, medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcdist.torch

SLOTS, NUMBERS, WIDTH, ROWS = 26, 13, 16, 40_000  # rows of each slot
RATE = 0.05
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # ids, numbers, clicks


class Dlrm(nn.Module):
    """A bottom network of the numbers, products of all pairs of rows, a top network of both."""

    def __init__(self, rows: nn.Module) -> None:
        """``rows`` is an embedding bag over the ids of all slots."""
        super().__init__()
        self.rows = rows
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        first, second = torch.triu_indices(SLOTS + 1, SLOTS + 1, offset=1)
        self.pairs = first * (SLOTS + 1) + second
        self.top = nn.Sequential(nn.Linear(WIDTH + len(first), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits [n] of ids [n, SLOTS] and numbers [n, NUMBERS]."""
        dense = self.bottom(numbers)
        rows = self.rows(ids.reshape(-1, 1)).view(len(ids), SLOTS, WIDTH)
        every = torch.cat([dense[:, None], rows], 1)
        products = (every @ every.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([dense, products], 1)).flatten()

    @property
    def dense(self) -> list[nn.Parameter]:
        """The parameters of both networks."""
        return [*self.bottom.parameters(), *self.top.parameters()]


def batches(count: int, rows: int) -> list[Batch]:
    """Return batches of this trainer."""
    rng = np.random.default_rng(dist.get_rank())
    made = []
    for _ in range(count):
        ids = torch.from_numpy(rng.zipf(1.2, (rows, SLOTS)) % ROWS + np.arange(SLOTS) * ROWS)
        numbers = torch.from_numpy(rng.random((rows, NUMBERS), np.float32))
        made.append((ids, numbers, (ids[:, 0] % 2).float()))
    return made


def train(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], data: Iterable[Batch]
) -> float:
    """Train on batches; return the last loss."""
    loss = torch.zeros(())
    for ids, numbers, clicks in data:
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids, numbers), clicks)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return loss.item()


def served(group: dist.ProcessGroup, *, ahead: bool) -> Callable[[Sequence[Batch]], float]:
    """Return what trains with the table elsewhere, and dense gradients summed by us."""
    torch.manual_seed(0)
    initial = hpcdist.torch.Initial("uniform", -0.1, 0.1)
    model = Dlrm(hpcdist.torch.EmbeddingBag(SLOTS * ROWS, WIDTH, "sum", initial=initial))
    tables = hpcdist.torch.TableOptimizer(model, "Adagrad", lr=RATE, epsilon=1e-10)
    shared = DistributedDataParallel(model, process_group=group)
    optimizers = [tables, torch.optim.SGD(model.dense, RATE)]

    def run(data: Sequence[Batch]) -> float:
        known = hpcdist.torch.rows_ahead(data, lambda batch: {model.rows: batch[0]})
        return train(shared, optimizers, known if ahead else data)

    return run


def by_torch(group: dist.ProcessGroup) -> Callable[[Sequence[Batch]], float]:
    """Return what trains with the whole table in every trainer, all gradients over gloo."""
    torch.manual_seed(0)
    rows = nn.EmbeddingBag(SLOTS * ROWS, WIDTH, mode="sum", sparse=True)
    nn.init.uniform_(rows.weight, -0.1, 0.1)
    model = Dlrm(rows)
    shared = DistributedDataParallel(model, process_group=group)
    moved = torch.optim.Adagrad(rows.parameters(), lr=RATE)
    return partial(train, shared, [moved, torch.optim.SGD(model.dense, RATE)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--batch", type=int, default=512, help="rows of each trainer")
    parser.add_argument("--ahead", action="store_true", help="ask for the next step's rows")
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("hpcdist")
    contenders = {
        "hpcdist": served(dist.new_group(), ahead=args.ahead),
        "gloo": by_torch(dist.new_group(backend="gloo")),
    }
    data = batches(args.steps, args.batch)
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    losses = {}
    for round in range(args.rounds + 1):
        for name, run in contenders.items():
            dist.barrier()
            begin = time.perf_counter()
            losses[name] = run(data)
            dist.barrier()
            if round:  # the first one makes buffers and rows
                speed = args.batch * args.steps * dist.get_world_size()
                speeds[name].append(speed / (time.perf_counter() - begin))
    if dist.get_rank() == 0:
        ours, theirs = (statistics.median(speeds[name]) for name in contenders)
        for name, speed in (("hpcdist", ours), ("gloo", theirs)):
            print(f"{name:8} {speed:9.0f} examples/s, loss {losses[name]:.4f}")
        print(f"hpcdist / gloo {ours / theirs:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
