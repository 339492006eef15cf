"""Correlation and its gradients by torch, on the same memory: with HPCDIST_KERNELS=torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdist.ops.by_torch import tensor_on, torch_for
from hpcdist.ops.windows import Axis

if TYPE_CHECKING:
    from hpcdist.ops.scratch import Call
    from hpcdist.ops.windows import Correlation


def _after(axis: Axis) -> int:
    """Return the padding behind the last element; below 0, how many elements no window reads."""
    reach = (axis.windows - 1) * axis.stride + axis.dilation * (axis.taps - 1) + 1
    return reach - axis.before - axis.extent


def _alike(axis: Axis) -> bool:
    """Tell whether padding as before is as good behind."""
    return axis.before >= 0 and _after(axis) <= axis.before < _after(axis) + axis.stride


class _Convolution:
    """How torch is to convolve: with padding of its own where both sides are alike."""

    def __init__(self, c: Correlation) -> None:
        self.torch = torch_for("conv2d")
        axes = (c.rows, c.columns)
        whole = all(map(_alike, axes))
        self.padding = [axis.before if whole else 0 for axis in axes]
        self.sides = [0] * 4 if whole else [s for a in axes[::-1] for s in (a.before, _after(a))]
        self.how = [axis.stride for axis in axes], self.padding, [a.dilation for a in axes]
        self.groups = c.groups

    def padded(self, x: Any) -> Any:
        return self.torch.nn.functional.pad(x, self.sides) if any(self.sides) else x

    def back(self, dy: Any, x: Any, w: Any, wanted: list[bool]) -> Any:
        """Return the gradients by x, padded, and by w."""
        ops = self.torch.ops.aten
        how = (*self.how, False, [0, 0], self.groups, [*wanted, False])
        return ops.convolution_backward(dy, x, w, None, *how)


def correlate(xp: Any, c: Correlation, x: Any, w: Any, y: Any) -> Call:
    """Return what writes y."""
    f = _Convolution(c)
    x, w, y = (tensor_on(f.torch, array) for array in (x, w, y))

    def run() -> None:
        y.copy_(f.torch.nn.functional.conv2d(f.padded(x), w, None, *f.how, f.groups))

    return run


def correlate_back(xp: Any, c: Correlation, w: Any, dy: Any, dx: Any) -> Call:
    """Return what writes the gradient by x."""
    f = _Convolution(c)
    w, dy, dx = (tensor_on(f.torch, array) for array in (w, dy, dx))

    def run() -> None:
        made = f.back(dy, f.padded(dx), w, [True, False])[0]  # of dx, its shape is read
        dx.copy_(f.torch.nn.functional.pad(made, [-side for side in f.sides]))

    return run


def correlate_weights(xp: Any, c: Correlation, x: Any, dy: Any, dw: Any) -> Call:
    """Return what writes the gradient by w."""
    f = _Convolution(c)
    x, dy, dw = (tensor_on(f.torch, array) for array in (x, dy, dw))

    def run() -> None:
        dw.copy_(f.back(dy, f.padded(x), dw, [False, True])[1])

    return run
