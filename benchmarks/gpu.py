"""A training step on a GPU, beside PyTorch's: eager, compiled, and in mixed precision.

    python benchmarks/gpu.py --model resnet50 --batch 64
    python benchmarks/gpu.py --model mlp --batch 8 --place cpu --steps 3   # to see that it runs

Prints one line for each way: the median and the spread of a step, in milliseconds; where PyTorch is
not installed, ours alone. `hpcdist-fused` and `-compiled` are HPCDIST_KERNELS; `-amp` is mixed
precision, ours in float16 with a scaled loss, PyTorch's in bfloat16; `-bf16` is ours in bfloat16.
`--alternate` has the ways take turns, for a machine that is not always as fast.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import hpcdist as fluid

OURS = "hpcdist-own"  # the way that needs no PyTorch
WAYS = (
    *(OURS, "hpcdist-fused", "hpcdist-compiled", "torch-eager", "torch-compile"),
    *("hpcdist-fused-amp", "hpcdist-compiled-amp", "torch-eager-amp", "torch-compile-amp"),
    *("hpcdist-fused-bf16", "hpcdist-compiled-bf16"),
)
MIXED = {"amp": "decorate", "bf16": "decorate_bf16"}  # by the end of a way's name
CLASSES = 1000
WIDTHS = (1024, 1024)  # of the perceptron's hidden layers
FEATURES = 784
RESNET = Path(__file__).parents[1] / "examples" / "resnet.py"
BLOCKS, FILTERS, EXPANSION = (3, 4, 6, 3), (64, 128, 256, 512), 4

Step = Callable[[], object]


def shape_of(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the shape of a batch of images."""
    if options.model == "mlp":
        return (options.batch, FEATURES)
    return (options.batch, 3, options.image_size, options.image_size)


def loss_of(model: str, image: fluid.Variable, label: fluid.Variable) -> fluid.Variable:
    """Append a network of ours."""
    if model == "mlp":
        hidden = image
        for width in WIDTHS:
            hidden = fluid.layers.fc(hidden, width, act="relu")
        score = fluid.layers.fc(hidden, CLASSES)
    else:
        score = runpy.run_path(str(RESNET))["resnet"](image, CLASSES, 50)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(score, label))


def ours(
    options: argparse.Namespace, x: np.ndarray, y: np.ndarray, kernels: str, mixed: str
) -> tuple[Step, Step]:
    """Return a step, and what waits until the GPU has done all."""
    os.environ["HPCDIST_KERNELS"] = kernels
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        image = fluid.data("image", [None, *x.shape[1:]], "float32")
        label = fluid.data("label", [None, 1], "int64")
        loss = loss_of(options.model, image, label)
        optimizer = fluid.optimizer.Momentum(0.01, 0.9)
        if mixed:
            optimizer = getattr(fluid.contrib.mixed_precision, MIXED[mixed])(optimizer)
        optimizer.minimize(loss)
    place = fluid.CPUPlace() if options.place == "cpu" else fluid.CUDAPlace(0)
    exe = fluid.Executor(place)
    exe.run(startup, scope=scope)
    feed = {"image": x, "label": y}

    def told() -> float:
        (value,) = exe.run(main, feed, [loss], scope=scope)
        return float(value[0])

    return lambda: exe.run(main, feed, [], scope=scope), told


def of_torch(
    options: argparse.Namespace, x: np.ndarray, y: np.ndarray, compiled: bool, mixed: str
) -> tuple[Step, Step]:
    """Return the same for PyTorch, with the same network."""
    import torch

    where = "cpu" if options.place == "cpu" else "cuda"
    network = (torch_mlp if options.model == "mlp" else torch_resnet50)(torch).to(where)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if mixed and options.model != "mlp":
        network = network.to(memory_format=torch.channels_last)
    forward = torch.compile(network) if compiled else network
    host = [torch.from_numpy(x), torch.from_numpy(y).reshape(-1)]
    if where == "cuda":
        host = [tensor.pin_memory() for tensor in host]
    last = []

    def step() -> None:
        inputs, labels = (tensor.to(where, non_blocking=True) for tensor in host)
        optimizer.zero_grad()
        with torch.autocast(where, torch.bfloat16, enabled=bool(mixed)):
            loss = torch.nn.functional.cross_entropy(forward(inputs), labels)
        loss.backward()
        optimizer.step()
        last[:] = [loss]

    def told() -> float:
        step()
        return last[0].item()

    return step, told


def torch_mlp(torch):
    """Return the perceptron of `ours`."""
    layers, width = [], FEATURES
    for following in WIDTHS:
        layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
        width = following
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES))


def torch_resnet50(torch):
    """Return the network of examples/resnet.py: strides lie in the 3x3 convolutions."""
    nn = torch.nn

    def conv(ins, outs, size, stride=1):
        bare = nn.Conv2d(ins, outs, size, stride, (size - 1) // 2, bias=False)
        return [bare, nn.BatchNorm2d(outs)]

    class Block(nn.Module):
        def __init__(self, ins, width, stride):
            super().__init__()
            outs = width * EXPANSION
            self.body = nn.Sequential(
                *conv(ins, width, 1),
                nn.ReLU(),
                *conv(width, width, 3, stride),
                nn.ReLU(),
                *conv(width, outs, 1),
            )
            same = ins == outs and stride == 1
            self.short = nn.Identity() if same else nn.Sequential(*conv(ins, outs, 1, stride))

        def forward(self, x):
            return torch.relu(self.body(x) + self.short(x))

    layers, ins = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, (blocks, width) in enumerate(zip(BLOCKS, FILTERS)):
        for block in range(blocks):
            layers.append(Block(ins, width, 2 if block == 0 and stage > 0 else 1))
            ins = width * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, CLASSES))


def made(options: argparse.Namespace, x: np.ndarray, y: np.ndarray, way: str) -> tuple[Step, Step]:
    """Return a step of a way, and what waits until the GPU has done all."""
    whose, how, *rest = way.split("-")
    mixed = rest[0] if rest else ""
    if whose == "hpcdist":
        return ours(options, x, y, how, mixed)
    return of_torch(options, x, y, how == "compile", mixed)


def timed(
    options: argparse.Namespace, x: np.ndarray, y: np.ndarray, together: Sequence[str]
) -> None:
    """Print milliseconds per step, of groups that end when the GPU has done all; and a loss."""
    steps, losses, found = {}, {}, {way: [] for way in together}
    for way in together:  # what a step is compiled to is settled by its first runs
        step, told = steps[way] = made(options, x, y, way)
        for _ in range(options.warmup):
            step()
        losses[way] = told()
    for _ in range(options.groups):
        for way, (step, told) in steps.items():
            begin = time.perf_counter()
            for _ in range(options.steps - 1):
                step()
            told()
            found[way].append((time.perf_counter() - begin) / options.steps * 1e3)
    for way, times in found.items():
        line = {"way": way, "ms": round(statistics.median(times), 3)}
        line |= {"least": round(min(times), 3), "most": round(max(times), 3)}
        print(json.dumps({**line, "loss": round(losses[way], 4)}), flush=True)


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is trained, where, and how often."""
    parser.add_argument("--model", choices=["mlp", "resnet50"], default="mlp")
    parser.add_argument("--place", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=20, help="in a group that is timed together")
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_step_arguments(parser)
    parser.add_argument("--alternate", action="store_true", help="a group of each way in turn")
    parser.add_argument("--ways", default=",".join(WAYS), help="by default all")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape_of(options), np.float32)
    y = rng.integers(0, CLASSES, (options.batch, 1))
    ways = options.ways.split(",")
    if importlib.util.find_spec("torch") is None:
        left_out = [way for way in ways if way != OURS]
        print(f"left out, PyTorch is not installed: {', '.join(left_out)}", file=sys.stderr)
        ways = [way for way in ways if way == OURS]
    for together in [ways] if options.alternate else [[way] for way in ways]:
        try:
            timed(options, x, y, together)
        except fluid.HpcdistError as error:
            sys.exit(f"left out: {', '.join(ways)}: {error}")


if __name__ == "__main__":
    main()
