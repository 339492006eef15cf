"""The parameters of ResNet-50 as Fluid's model names them: 161 tensors, 25.6 M floats."""

from __future__ import annotations

import math

CLASSES = 1000
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, width; the output is 4 times as wide
EXPANSION = 4

Parameter = tuple[str, tuple[int, ...]]


def parameters() -> list[Parameter]:
    """Return (name, shape) of every parameter, in forward order."""
    found = _convolution("conv1", 3, 64, 7)
    channels = 64
    for stage, (blocks, width) in enumerate(STAGES):
        for block in range(blocks):
            name = f"res{stage + 2}{chr(ord('a') + block)}"
            out = width * EXPANSION
            found += _convolution(f"{name}_branch2a", channels, width, 1)
            found += _convolution(f"{name}_branch2b", width, width, 3)
            found += _convolution(f"{name}_branch2c", width, out, 1)
            if block == 0:
                found += _convolution(f"{name}_branch1", channels, out, 1)
            channels = out
    return [*found, ("fc_weights", (channels, CLASSES)), ("fc_offset", (CLASSES,))]


def gradients() -> list[Parameter]:
    """Return (name of the parameter, shape) in the order in which backward makes gradients."""
    return parameters()[::-1]


def size(shape: tuple[int, ...]) -> int:
    """Return the number of elements."""
    return math.prod(shape)


def _convolution(name: str, channels: int, out: int, window: int) -> list[Parameter]:
    """Return a convolution's weights and its batch normalization's scale and offset."""
    norm = "bn_" + name if name == "conv1" else "bn" + name.removeprefix("res")
    return [
        (f"{name}_weights", (out, channels, window, window)),
        (f"{norm}_scale", (out,)),
        (f"{norm}_offset", (out,)),
    ]
