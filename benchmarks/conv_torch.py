"""Time the layers of conv_cases with PyTorch, on one thread. Started by conv.py."""

from __future__ import annotations

import json

import torch
from conv_cases import LAYERS, Layer, least_time


def call(layer: Layer, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Return what the layer makes of x."""
    if layer.kind == "conv":
        facts = (layer.stride, layer.padding, 1, layer.groups)
        return torch.nn.functional.conv2d(x, weights[0], None, *facts)
    if layer.kind == "pool":
        return torch.nn.functional.max_pool2d(x, layer.size, layer.stride, layer.padding)
    running = torch.zeros(layer.channels), torch.ones(layer.channels)
    return torch.nn.functional.batch_norm(x, *running, *weights, training=True)


def times(layer: Layer) -> list[float]:
    """Return the seconds of the layer and of its gradient."""
    x = torch.rand(layer.images, layer.channels, layer.extent, layer.extent, requires_grad=True)
    w = (layer.filters, layer.channels // layer.groups, layer.size, layer.size)
    shapes = {"conv": [w], "pool": [], "norm": [(layer.channels,)] * 2}[layer.kind]
    weights = [torch.rand(shape, requires_grad=True) for shape in shapes]
    y = call(layer, x, weights)
    slope = torch.rand_like(y)

    def forward() -> None:
        with torch.no_grad():
            call(layer, x, weights)

    def backward() -> None:
        torch.autograd.grad(y, [x, *weights], slope, retain_graph=True)

    return [least_time(forward), least_time(backward)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: times(layer) for name, layer in LAYERS.items()}), flush=True)
