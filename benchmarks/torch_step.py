"""The training of train.py in PyTorch eager, on one thread. Started by local_step.py."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

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


def train(
    model: torch.nn.Module,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    learning_rate: float,
    warmup: int,
    steps: int,
) -> tuple[float, list[float]]:
    """Run the steps; return the steps per second of those after the warm-up, and all losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses = []
    begin = 0.0
    for step in range(warmup + steps):
        if step == warmup:
            begin = time.perf_counter()
        x, y = pairs[step % len(pairs)]
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return steps / (time.perf_counter() - begin), losses


def main() -> None:
    """Train; print one JSON line: steps per second after the warm-up, and losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=sorted(CASES), default="mlp")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[options.case]
    pairs = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches(case, 0)]
    steps_per_s, losses = train(
        network(case), pairs, case.learning_rate, options.warmup, options.steps
    )
    print(json.dumps({"steps_per_s": steps_per_s, "losses": losses[:50]}), flush=True)


if __name__ == "__main__":
    main()
