"""torch.distributed over hpcdist and over gloo, in one run on the same ranks.

mpirun -n 2 python benchmarks/torch_backend.py

Prints, for each collective and for DistributedDataParallel, both times and their ratio: the median
over rounds that take turns, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from gloo import gloo_group
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hpcdist.torch  # noqa: F401

MIB = 2**20


def seconds(call: Callable[[], object], times: int, group: dist.ProcessGroup) -> float:
    """Return how long one call takes, in seconds, as the slowest rank sees it."""
    dist.barrier(group=group)
    begin = time.perf_counter()
    for _ in range(times):
        call()
    took = torch.tensor([(time.perf_counter() - begin) / times], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
    return took.item()


def calls(group: dist.ProcessGroup) -> dict[str, tuple[Callable[[], object], int]]:
    """Return what is measured: a call, and how often it is made in a round."""
    size = group.size()
    small, large = torch.ones(16), torch.ones(64 * MIB // 4)
    part = torch.ones(16 * MIB // 4 // size)
    whole = torch.ones(part.numel() * size)
    turned = torch.ones_like(whole)
    return {
        "all_reduce, 64 bytes": (lambda: dist.all_reduce(small, group=group), 300),
        "all_reduce, 64 MiB": (lambda: dist.all_reduce(large, group=group), 3),
        "all_gather, 16 MiB": (
            lambda: dist.all_gather_single(whole, part, group=group),
            10,
        ),
        "reduce_scatter, 16 MiB": (
            lambda: dist.reduce_scatter_single(part, whole, group=group),
            10,
        ),
        "all_to_all, 16 MiB": (
            lambda: dist.all_to_all_single(turned, whole, group=group),
            10,
        ),
        "DDP, MLP of 4 x 1024, batch 64": (ddp_step(group), 5),
        "FSDP2, transformer of 2 layers": (fsdp_step(group), 3),
    }


def ddp_step(group: dist.ProcessGroup) -> Callable[[], object]:
    """Return one step of training a multi-layer perceptron."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
    return step_of(model, torch.rand(64, 1024))


def fsdp_step(group: dist.ProcessGroup) -> Callable[[], object]:
    """Return one step of training a small transformer, its parameters sharded."""
    from torch.distributed.device_mesh import DeviceMesh

    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0) for _ in range(2)]
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return step_of(fully_shard(nn.Sequential(*layers), mesh=mesh), torch.rand(16, 8, 128))


def step_of(model: nn.Module, batch: torch.Tensor) -> Callable[[], object]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of what is measured")
    args = parser.parse_args()
    dist.init_process_group("hpcdist")
    everyone = list(range(dist.get_world_size()))
    groups = {"hpcdist": dist.new_group(everyone), "gloo": gloo_group()}
    measured = {name: calls(group) for name, group in groups.items()}
    first = dist.get_rank() == 0
    if first:
        print(f"{len(everyone)} ranks, {torch.get_num_threads()} threads each; milliseconds")
        print(f"{'':34}{'hpcdist':>10}{'gloo':>10}{'gloo / hpcdist':>16}")
    for name in measured["gloo"]:
        if args.only not in name:
            continue
        took: dict[str, list[float]] = {backend: [] for backend in groups}
        for round in range(args.rounds + 1):
            for backend, group in groups.items():
                call, times = measured[backend][name]
                value = seconds(call, times, group)
                if round:  # the first one makes buffers and connections
                    took[backend].append(value * 1e3)
        ours, theirs = (statistics.median(took[backend]) for backend in groups)
        if first:
            print(f"{name:34}{ours:10.3f}{theirs:10.3f}{theirs / ours:16.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
