"""Clicks by a deep learning recommendation model (Naumov et al., 2019), its tables on servers.

python examples/torch/dlrm.py
mpirun -n 4 python -m hpcdist --as-torchrun examples/torch/dlrm.py  # the tables on trainers
mpirun -n 4 python -m hpcdist --as-torchrun --pservers 2 examples/torch/dlrm.py  # on servers

All slots share one table; the ids of each slot are shifted to a separate range, since any int64 is
an id. Ids follow Zipf's law, and clicks depend on ids and numbers.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcdist.torch

SLOTS, NUMBERS, WIDTH = 26, 13, 16
SLOT_BITS = 40  # of an id


class Dlrm(nn.Module):
    """A bottom network of the numbers, products of all pairs of rows, a top network of both."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = hpcdist.torch.Embedding(
            None, WIDTH, name="slots", initial=hpcdist.torch.Initial("uniform", -0.1, 0.1)
        )
        self.bottom = nn.Sequential(
            nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU()
        )
        first, second = torch.triu_indices(SLOTS + 1, SLOTS + 1, offset=1)
        self.register_buffer("pairs", first * (SLOTS + 1) + second, persistent=False)
        self.top = nn.Sequential(
            nn.Linear(WIDTH + len(first), 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits of clicks: ids [n, SLOTS] and numbers [n, NUMBERS] give [n]."""
        dense = self.bottom(numbers)
        slots = torch.arange(SLOTS) << SLOT_BITS
        every = torch.cat([dense[:, None], self.rows(ids + slots)], 1)
        products = (every @ every.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([dense, products], 1))


def batch_of(step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, numbers and clicks of a step."""
    rng = np.random.default_rng(step)
    ids = rng.zipf(1.2, (rows, SLOTS)) % (1 << SLOT_BITS)
    numbers = rng.random((rows, NUMBERS), np.float32)
    liking = np.sin(ids[:, :4]).sum(1) + 2 * numbers[:, 0] - 1
    clicks = (rng.random(rows) < 1 / (1 + np.exp(-2 * liking))).astype(np.float32)
    return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(clicks)


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512, help="rows of all trainers together")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync", help="of the tables")
    parser.add_argument("--save", metavar="DIR", help="go on from its latest checkpoint")
    args = parser.parse_args()

    dist.init_process_group("hpcdist")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Dlrm()
    tables = hpcdist.torch.TableOptimizer(model, "Adagrad", lr=0.05, mode=args.mode)
    dense = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=2e-3)
    shared = DistributedDataParallel(model)
    saver = None
    if args.save:
        objects = {"model": model, "tables": tables, "dense": dense}
        saver = hpcdist.torch.Saver(args.save, objects, every=100)
        saver.restore()
    begun, losses = time.monotonic(), []
    for step in range(saver.step if saver else 0, args.steps):
        ids, numbers, clicks = (part[rank::size] for part in batch_of(step, args.batch))
        loss = nn.functional.binary_cross_entropy_with_logits(shared(ids, numbers), clicks)
        tables.zero_grad()
        dense.zero_grad()
        loss.backward()
        tables.step()
        dense.step()
        losses.append(loss.detach())
        if saver:
            saver.after_step()
        if step % 50 == 49 or step == args.steps - 1:
            mean = torch.stack(losses).mean()
            dist.all_reduce(mean)
            if rank == 0:
                speed = args.batch * len(losses) / (time.monotonic() - begun)
                mean_loss = mean.item() / size
                print(f"step {step}: loss {mean_loss:.4f}, {speed:.0f} rows/s", flush=True)
            begun, losses = time.monotonic(), []
    if saver:
        saver.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
