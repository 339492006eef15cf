"""The training of train.py in PyTorch eager, on one thread. Started by local_step.py."""

from __future__ import annotations

import argparse
import json
import time

import torch
from cases import CASES, Case, batches, layer_shapes


def network(case: Case) -> torch.nn.Sequential:
    """Return the perceptron of ``case`` with its initial weights."""
    modules: list[torch.nn.Module] = []
    for rows, width in layer_shapes(case):
        layer = torch.nn.Linear(rows, width)
        torch.nn.init.constant_(layer.weight, case.weight)
        torch.nn.init.zeros_(layer.bias)
        modules += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def main() -> None:
    """Train; print one JSON line: steps per second after the warm-up, and losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="mlp")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[options.case]
    model = network(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=case.learning_rate)
    pairs = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches(case, 0)]
    losses = []
    begin = 0.0
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            begin = time.perf_counter()
        x, y = pairs[step % len(pairs)]
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    elapsed = time.perf_counter() - begin
    print(json.dumps({"steps_per_s": options.steps / elapsed, "losses": losses[:50]}), flush=True)


if __name__ == "__main__":
    main()
