"""The training of torch_step.py on several ranks, with gloo. Started by allreduce.py."""

from __future__ import annotations

import argparse
import json
import tempfile

import torch
from cases import CASES, batches
from torch_step import network, train


def work(rank: int, ranks: int, meeting: str, name: str, warmup: int, steps: int) -> None:
    """Be one rank; the first prints one JSON line, as torch_step.py does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks
    )
    case = CASES[name]
    model = torch.nn.parallel.DistributedDataParallel(network(case))
    pairs = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches(case, rank)]
    steps_per_s, losses = train(model, pairs, case.learning_rate, warmup, steps)
    if rank == 0:
        print(json.dumps({"steps_per_s": steps_per_s, "losses": losses[:50]}), flush=True)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Start the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="mlp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        facts = (options.ranks, folder + "/meeting", options.case, options.warmup, options.steps)
        torch.multiprocessing.spawn(work, facts, nprocs=options.ranks)


if __name__ == "__main__":
    main()
