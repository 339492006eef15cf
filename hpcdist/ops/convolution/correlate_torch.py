"""Correlation and its gradients by torch, on the same memory: with HPCDIST_KERNELS=torch."""

from __future__ import annotations

from hpcdist.ops.by_torch import tensor_on, torch_for
from hpcdist.ops.convolution.windows import Axis, Correlation
from hpcdist.ops.types import Array, ArrayModule, Call, Operands


def padding_after(axis: Axis) -> int:
    """Return the padding after the last element; below 0, how many elements no window reads."""
    reach = (axis.windows - 1) * axis.stride + axis.dilation * (axis.taps - 1) + 1
    return reach - axis.before - axis.extent


def is_alike(axis: Axis) -> bool:
    """Return whether padding as before is as good behind."""
    return (
        axis.before >= 0 and padding_after(axis) <= axis.before < padding_after(axis) + axis.stride
    )


class Convolution:
    """How torch is to convolve: with padding of its own where both sides are alike."""

    def __init__(self, torch, c: Correlation) -> None:
        self._torch = torch
        axes = (c.rows, c.columns)
        symmetric = all(map(is_alike, axes))
        padding = [axis.before if symmetric else 0 for axis in axes]
        sides = [s for a in axes[::-1] for s in (a.before, padding_after(a))]
        self._sides = [0] * 4 if symmetric else sides
        self._settings = [axis.stride for axis in axes], padding, [a.dilation for a in axes]
        self._groups = c.groups

    def _padded(self, x, sides: list[int]) -> Array:
        return self._torch.nn.functional.pad(x, sides) if any(sides) else x

    def forward(self, x, w) -> Array:
        """Return the correlation of x with w."""
        padded = self._padded(x, self._sides)
        return self._torch.nn.functional.conv2d(padded, w, None, *self._settings, self._groups)

    def back(self, dy, x, w, wanted: tuple[bool, bool]) -> tuple[Array, Array]:
        """Return the gradients by x and by w; of one that is wanted only the shape is read."""
        ops = self._torch.ops.aten
        settings = (*self._settings, False, [0, 0], self._groups, [*wanted, False])
        padded = self._padded(x, self._sides)
        dx, dw, _ = ops.convolution_backward(dy, padded, w, None, *settings)
        return self._padded(dx, [-side for side in self._sides]) if wanted[0] else None, dw


def correlate(xp: ArrayModule, c: Correlation, x, w, y) -> Call:
    """Return the call that writes y."""
    f, (x, w, y) = _on_tensors(c, x, w, y)
    return lambda: y.copy_(f.forward(x, w))


def correlate_back(xp: ArrayModule, c: Correlation, w, dy, dx) -> Call:
    """Return the call that writes the gradient by x."""
    f, (w, dy, dx) = _on_tensors(c, w, dy, dx)
    return lambda: dx.copy_(f.back(dy, dx, w, (True, False))[0])


def correlate_weights(xp: ArrayModule, c: Correlation, x, dy, dw) -> Call:
    """Return the call that writes the gradient by w."""
    f, (x, dy, dw) = _on_tensors(c, x, dy, dw)
    return lambda: dw.copy_(f.back(dy, x, dw, (False, True))[1])


def _on_tensors(c: Correlation, *arrays) -> tuple[Convolution, Operands]:
    torch = torch_for("conv2d")
    return Convolution(torch, c), [tensor_on(torch, array) for array in arrays]
