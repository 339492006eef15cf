"""Losses that are negative logarithms of likelihoods."""

from __future__ import annotations

import math

from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare, reductions
from hpcdist.fluid.compat.paddle2.kinds import Reduction, Unsigned
from hpcdist.fluid.compat.paddle2.reductions import reduced_losses
from hpcdist.fluid.compat.paddle2.tensor import DECLARED
from hpcdist.graph.variable import Variable


def multi_label_soft_margin_loss(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return the mean over the labels 0 or 1 of each row of -log of their chances."""
    losses = label * layers.logsigmoid(input) + (1.0 - label) * layers.logsigmoid(-input)
    losses = losses if weight is None else losses * weight
    of_rows = reductions.mean(-losses, -1)  # type: ignore[attr-defined]
    return reduced_losses("multi_label_soft_margin_loss", of_rows, reduction)


def poisson_nll_loss(
    input: Variable,
    label: Variable,
    log_input: bool = True,
    full: bool = False,
    epsilon: Unsigned = 1e-8,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return input - label log(input), input being exp(input) with log_input.

    full: with Stirling's approximation of log(label!) where the label is above 1.
    """
    if log_input:
        losses = layers.exp(input) - label * input
    else:
        losses = input - label * layers.log(input + epsilon)
    if full:
        safe = layers.elementwise_max(label, DECLARED["full_like"](label, 1.0))
        more = safe * layers.log(safe) - safe + 0.5 * layers.log(safe * (2.0 * math.pi))
        losses = losses + more * (label > 1.0).astype(input.dtype)
    return reduced_losses("poisson_nll_loss", losses, reduction)


def gaussian_nll_loss(
    input: Variable,
    label: Variable,
    variance: Variable,
    full: bool = False,
    epsilon: Unsigned = 1e-6,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return (log(variance) + (input - label)^2 / variance) / 2, variance being at least epsilon.

    full: with log(2 pi) / 2.
    """
    spread = layers.clip(variance, epsilon, 3.4028234e38)
    losses = 0.5 * (layers.log(spread) + layers.square(input - label) / spread)
    return reduced_losses(
        "gaussian_nll_loss", losses + 0.5 * math.log(2.0 * math.pi) if full else losses, reduction
    )


def ctc_loss(
    log_probs: Variable,
    labels: Variable,
    input_lengths: Variable,
    label_lengths: Variable,
    blank: int = 0,
    reduction: Reduction = "mean",
    norm_by_times: bool = False,
) -> Variable:
    """Return the CTC loss of ``log_probs`` [longest, sequences, classes], before softmax.

    ``labels`` int32 [sequences, most]; reduction "mean": of losses divided by ``label_lengths``.
    """
    lengths = input_lengths, label_lengths
    losses = layers.squeeze(layers.warpctc(log_probs, labels, blank, norm_by_times, *lengths), [-1])
    if reduction == "mean":
        losses = losses / layers.cast(label_lengths, losses.dtype)
    return reduced_losses("ctc_loss", losses, reduction)


_PAIR = "input: ...; label: ..."
_SHAPES = dict.fromkeys(("multi_label_soft_margin_loss", "poisson_nll_loss"), _PAIR)
__all__ = declare.offered("paddle.nn.functional", globals(), shapes=_SHAPES)
