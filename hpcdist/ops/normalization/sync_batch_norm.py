"""batch_norm by the moments of all trainers' rows together, Fluid's sync_batch_norm.

Forward and backward each need sums over all trainers: an operator gives its summands
(`local_sums`) and continues with those of all trainers, in one order (`take`). The runtime
exchanges them, so these operators have no kernel. Sums are in double precision, as within one
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import arguments, declared_attrs, define, lookup
from hpcdist.ops.common import like_inputs
from hpcdist.ops.normalization.batch_norm import (
    ATTRS,
    FORWARD,
    GRAD,
    as_planes,
    bind_batch_norm,
    bind_batch_norm_grad,
    grad_of,
    infer_batch_norm,
    normed_rows,
)
from hpcdist.ops.types import ArrayModule, Call, DeviceArray

OPS = ("sync_batch_norm", "sync_batch_norm_grad")
# Weight: 0 on a trainer whose rows do not count, as it has none of its own.
_SYNC_FORWARD = FORWARD.replace("Variance ->", "Variance, Weight? ->")
_SYNC_GRAD = GRAD.replace("Y@GRAD\n", "Y@GRAD").replace(" -> X@GRAD", ", Weight? -> X@GRAD")


class Exchanged(Protocol):
    """One operator in a step: first it tells what it adds, then it takes what all have told."""

    def local_sums(self) -> np.ndarray:
        """Return [number of elements of a channel, two sums of every channel], float64."""

    def take(self, everyones: Sequence[np.ndarray]) -> None:
        """Compute the outputs from what all trainers told, in trainer order."""


def bind_sync(op: Operator, xp: ArrayModule, arrays) -> Exchanged | Call:
    """Return an operator bound to its arrays; a plain call if it needs nothing of others."""
    definition = lookup(op.type)
    ins = arguments(
        definition.inputs, {s: [arrays.get(n) for n in v] for s, v in op.inputs.items()}
    )
    outs = arguments(
        definition.outputs, {s: [arrays.get(n) for n in v] for s, v in op.outputs.items()}
    )
    attrs = declared_attrs(definition, op.attrs)
    *ins, weight = ins
    forward = op.type == "sync_batch_norm"
    if attrs["is_test"] or attrs["use_global_stats"]:
        return (bind_batch_norm if forward else bind_batch_norm_grad)(xp, *ins, *outs, **attrs)
    return (_Forward if forward else _Backward)(xp, weight, *ins, *outs, **attrs)


class _RowMoments:
    """What forward and backward have in common: where the channels are, and what is told."""

    def __init__(self, xp: ArrayModule, weight, x, data_layout: str) -> None:
        self._xp, self._weight = xp, weight
        self._last = data_layout != "NCHW"
        self._x = self._planes(x)
        self._channels = self._x.shape[2 if self._last and xp is np else 1]
        self._count = x.size // self._channels
        self._told = np.empty(1 + 2 * self._channels)

    def _planes(self, array) -> DeviceArray:
        """View values as the loops take them; on a device as [n, channels, elements]."""
        planes = as_planes(array, "NHWC" if self._last else "NCHW")
        return (
            planes.swapaxes(1, 2) if self._last and self._xp is np and array is not None else planes
        )

    def _kernel(self, name: str) -> Any:
        from hpcdist.ops.normalization import batch_norm_kernels  # numba takes 0.3 s to import

        return getattr(batch_norm_kernels, f"{name}_channels_last" if self._last else name)

    def _begin(self) -> bool:
        """Return whether the rows here count; if not, nothing is told of them."""
        self._told.fill(0)
        if self._weight is not None and not float(self._weight[0]):
            return False
        self._told[0] = self._count
        return True

    def _sums(self) -> tuple[np.ndarray, np.ndarray]:
        return self._told[1 : 1 + self._channels], self._told[1 + self._channels :]


class _Forward(_RowMoments):
    def __init__(
        self,
        xp: ArrayModule,
        weight,
        x,
        scale,
        bias,
        mean,
        variance,
        y,
        mean_out,
        variance_out,
        saved_mean,
        saved_deviation,
        momentum: float,
        epsilon: float,
        data_layout: str,
        **_,
    ) -> None:
        super().__init__(xp, weight, x, data_layout)
        self._scale, self._bias, self._y = scale, bias, self._planes(y)
        self._running = mean, variance, mean_out, variance_out
        self._saved = saved_mean, saved_deviation
        self._momentum, self._epsilon = momentum, epsilon

    def local_sums(self) -> np.ndarray:
        if self._begin():
            means, squares = self._sums()
            if self._xp is np:
                self._kernel("moments")(self._x, means, squares)
            else:
                x = self._x.astype("float64")
                channel_means = x.sum((0, 2)) / self._count
                means[:] = on_host(channel_means)
                squares[:] = on_host(((x - channel_means.reshape(1, -1, 1)) ** 2).sum((0, 2)))
        return self._told

    def take(self, everyones: Sequence[np.ndarray]) -> None:
        count, means, squares = joined_moments(everyones)
        xp, x, y = self._xp, self._x, self._y
        saved_mean, saved_deviation = self._saved
        if count == 1:  # as in Fluid, left alone
            xp.copyto(y, x)
            saved_mean[...] = x[0].reshape(-1)
            saved_deviation.fill(0)  # multiplied where no row is: not by what was in memory
            return
        number = x.dtype.type
        rest, momentum = number(1 - self._momentum), number(self._momentum)
        variances = squares / count
        if xp is np:
            numbers = (momentum, rest, number(self._epsilon))
            unused = np.empty_like(means)
            moments_out = (means, variances, unused, unused, saved_mean, saved_deviation)
            self._kernel("normalize")(x, self._scale, self._bias, y, moments_out, numbers, False)
        else:
            means, variances = xp.asarray(means), xp.asarray(variances)
            saved_mean[...], saved_deviation[...] = means, 1 / xp.sqrt(variances + self._epsilon)
            factor = (self._scale * saved_deviation).reshape(1, -1, 1)
            y[...] = (x - saved_mean.reshape(1, -1, 1)) * factor + self._bias.reshape(1, -1, 1)
        mean, variance, mean_out, variance_out = self._running
        mean_out[...] = mean * momentum + saved_mean * rest
        variance_out[...] = variance * momentum + variances.astype(x.dtype) * rest


class _Backward(_RowMoments):
    def __init__(
        self,
        xp: ArrayModule,
        weight,
        x,
        scale,
        bias,
        saved_mean,
        saved_deviation,
        mean,
        variance,
        dy,
        dx,
        dscale,
        dbias,
        data_layout: str,
        **_,
    ) -> None:
        super().__init__(xp, weight, x, data_layout)
        self._scale, self._saved = scale, (saved_mean, saved_deviation)
        self._dy, self._dx = self._planes(dy), self._planes(dx)
        self._dscale, self._dbias = dscale, dbias
        self._counted = True

    def local_sums(self) -> np.ndarray:
        sums, products = self._sums()
        self._counted = self._begin()
        saved_mean, saved_deviation = self._saved
        if self._xp is np:
            self._kernel("slopes")(self._x, saved_mean, self._dy, sums, products)
            deviation: DeviceArray = saved_deviation
        else:
            dy = self._dy.astype("float64")
            sums[:] = on_host(dy.sum((0, 2)))
            deviations = self._x - saved_mean.reshape(1, -1, 1)
            products[:] = on_host((dy * deviations).sum((0, 2)))
            deviation = on_host(saved_deviation)
        # Gradients of scale and bias are of the rows here: they are added up like all others.
        for gradient, local_sum in ((self._dbias, sums), (self._dscale, products * deviation)):
            if gradient is not None:
                gradient[...] = self._xp.asarray(local_sum)
        if not self._counted:
            self._told.fill(0)
        return self._told

    def take(self, everyones: Sequence[np.ndarray]) -> None:
        xp, x, dy, dx = self._xp, self._x, self._dy, self._dx
        total = np.sum(everyones, axis=0)
        count = int(total[0])
        if not self._counted:  # no element of the batch is here: nothing depends on those that are
            if dx is not None:
                dx.fill(0)
        elif count == 1:
            for gradient in (self._dscale, self._dbias):
                if gradient is not None:
                    gradient.fill(0)
            if dx is not None:
                xp.copyto(dx, dy)
        elif dx is not None:
            saved_mean, saved_deviation = self._saved
            sums, products = total[1 : 1 + self._channels], total[1 + self._channels :]
            if xp is np:
                arrays = (x, self._scale, saved_mean, saved_deviation, dy, dx)
                self._kernel("back")(*arrays, sums, products, count)
                return
            deviation = saved_deviation.reshape(1, -1, 1)
            normed = (x - saved_mean.reshape(1, -1, 1)) * deviation
            slope = xp.asarray(sums / count).reshape(1, -1, 1)
            slant = xp.asarray(products / count).reshape(1, -1, 1) * deviation
            factor = self._scale.reshape(1, -1, 1) * deviation
            dx[...] = factor * (dy - slope - normed * slant)


def joined_moments(parts: Sequence[np.ndarray]) -> tuple[int, np.ndarray, np.ndarray]:
    """Return (count, means, sums of squared distances) of all parts together, added in order.

    By Chan, Golub and LeVeque (1979), which loses nothing where the means are far from 0.
    """
    channels = (len(parts[0]) - 1) // 2
    count, means, squares = 0, np.zeros(channels), np.zeros(channels)
    for part in parts:
        more = int(part[0])
        if not more:
            continue
        away = part[1 : 1 + channels] - means
        together = count + more
        means = means + away * (more / together)
        squares = squares + part[1 + channels :] + away * away * (count * (more / together))
        count = together
    return count, means, squares


define(
    "sync_batch_norm",
    _SYNC_FORWARD,
    rows=normed_rows,
    attrs=ATTRS,
    infer=lambda x, scale, bias, mean, variance, weight, **a: infer_batch_norm(
        x, scale, bias, mean, variance, **a
    ),
    grad=grad_of("sync_batch_norm_grad", _SYNC_GRAD),
)
define("sync_batch_norm_grad", _SYNC_GRAD, attrs=ATTRS, infer=like_inputs(_SYNC_GRAD))
