"""A recommendation model in PyTorch: its tables on hpcdist's servers, and by torch's own means.

mpirun -n 4 python -m hpcdist --pservers 2 benchmarks/torch_tables.py
mpirun -n 2 python benchmarks/torch_tables.py  # the tables shared out over the trainers

DLRM (Naumov et al., 2019): 26 slots of Zipf ids, an embedding bag of rows of 16 for each, products
of pairs as in examples/torch/dlrm.py; --one-table puts all slots into one bag instead. The other is
the same model with nn.EmbeddingBag(sparse=True), all its parameters under DistributedDataParallel
over gloo, on the same trainers, in rounds that take turns. Prints examples/s of all trainers,
medians. Over gloo PyTorch 2.13 now and then ends with "malloc(): unaligned tcache chunk detected",
without hpcdist too (1 of 16 runs): its sums of several sparse tensors at a time. Run it again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from gloo import gloo_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcdist.torch

SLOTS, NUMBERS, WIDTH, ROWS = 26, 13, 16, 40_000  # rows of each slot
RATE = 0.05
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # ids, numbers, clicks
Bags = Callable[[int], nn.Module]  # makes the bag of so many ids


class Dlrm(nn.Module):
    """A bottom network of the numbers, products of all pairs of rows, a top network of both."""

    def __init__(self, bag: Bags, *, one: bool) -> None:
        """``one``: a single bag for the ids of all slots, which are shifted to be different."""
        super().__init__()
        self.bags = nn.ModuleList([bag(SLOTS * ROWS)] if one else map(bag, [ROWS] * SLOTS))
        self.slots = torch.arange(SLOTS) * ROWS
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        first, second = torch.triu_indices(SLOTS + 1, SLOTS + 1, offset=1)
        self.pairs = first * (SLOTS + 1) + second
        self.top = nn.Sequential(nn.Linear(WIDTH + len(first), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits [n] of ids [n, SLOTS] and numbers [n, NUMBERS]."""
        rows = [bag(given[:, None]) for bag, given in self.ids_of(ids).items()]
        by_slot = [part.view(len(ids), -1, WIDTH) for part in rows]
        every = torch.cat([self.bottom(numbers)[:, None], *by_slot], 1)
        products = (every @ every.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([every[:, 0], products], 1)).flatten()

    def ids_of(self, ids: torch.Tensor) -> dict[nn.Module, torch.Tensor]:
        """Return what each bag looks up of ids [n, SLOTS]: flat, by rows of the batch."""
        if len(self.bags) == 1:
            return {self.bags[0]: (ids + self.slots).flatten()}
        return dict(zip(self.bags, ids.unbind(1), strict=True))

    @property
    def dense(self) -> list[nn.Parameter]:
        """The parameters of both networks."""
        return [*self.bottom.parameters(), *self.top.parameters()]


def batches(count: int, rows: int) -> list[Batch]:
    """Return batches of this trainer."""
    rng = np.random.default_rng(dist.get_rank())
    made = []
    for _ in range(count):
        ids = torch.from_numpy(rng.zipf(1.2, (rows, SLOTS)) % ROWS)
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


def served(
    group: dist.ProcessGroup, *, one: bool, ahead: bool
) -> Callable[[Sequence[Batch]], float]:
    """Return what trains with the tables elsewhere, and dense gradients summed by us."""
    torch.manual_seed(0)
    initial = hpcdist.torch.Initial("uniform", -0.1, 0.1)
    model = Dlrm(
        lambda rows: hpcdist.torch.EmbeddingBag(rows, WIDTH, "sum", initial=initial), one=one
    )
    tables = hpcdist.torch.TableOptimizer(model, "Adagrad", lr=RATE, epsilon=1e-10)
    shared = DistributedDataParallel(model, process_group=group)
    optimizers = [tables, torch.optim.SGD(model.dense, RATE)]

    def run(data: Sequence[Batch]) -> float:
        known = hpcdist.torch.rows_ahead(data, lambda batch: model.ids_of(batch[0]))
        return train(shared, optimizers, known if ahead else data)

    return run


def by_torch(group: dist.ProcessGroup, *, one: bool) -> Callable[[Sequence[Batch]], float]:
    """Return what trains with all tables in every trainer, all gradients over gloo."""
    torch.manual_seed(0)
    model = Dlrm(lambda rows: nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True), one=one)
    for weight in model.bags.parameters():
        nn.init.uniform_(weight, -0.1, 0.1)
    shared = DistributedDataParallel(model, process_group=group)
    moved = torch.optim.Adagrad(model.bags.parameters(), lr=RATE)
    return partial(train, shared, [moved, torch.optim.SGD(model.dense, RATE)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--batch", type=int, default=512, help="rows of each trainer")
    parser.add_argument("--one-table", action="store_true", help="of all slots")
    parser.add_argument("--not-ahead", action="store_true", help="look rows up without rows_ahead")
    args = parser.parse_args()
    dist.init_process_group("hpcdist")
    contenders = {
        "hpcdist": served(dist.new_group(), one=args.one_table, ahead=not args.not_ahead),
        "gloo": by_torch(gloo_group(), one=args.one_table),
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
