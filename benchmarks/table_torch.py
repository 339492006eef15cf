"""The same look-ups and updates in PyTorch, on one thread. Started by sparse_table.py."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch


def main() -> None:
    """Print one JSON line: seconds of look-up and of update, for each optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("rows", "ids", "dim", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    found = {}
    for name, make in (
        ("adagrad", lambda p: torch.optim.Adagrad(p, lr=0.01)),
        ("adam", lambda p: torch.optim.SparseAdam(list(p), lr=0.01)),
    ):
        bag = torch.nn.EmbeddingBag(options.rows, options.dim, mode="sum", sparse=True)
        optimizer = make(bag.parameters())
        offsets = torch.arange(options.ids)
        wanted = torch.ones(options.ids, options.dim)
        pull, push = [], []
        for _ in range(options.rounds + 1):
            ids = torch.from_numpy(generator.permutation(options.rows)[: options.ids])
            optimizer.zero_grad()
            begin = time.perf_counter()
            rows = bag(ids, offsets)
            pulled = time.perf_counter()
            rows.backward(wanted)
            optimizer.step()
            pull.append(pulled - begin)
            push.append(time.perf_counter() - pulled)
        found[name] = {"pull_s": pull[1:], "push_s": push[1:]}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
