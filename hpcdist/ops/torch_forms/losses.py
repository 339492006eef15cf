"""Forms of softmax and of losses. Labels are checked apart, see `Checked`."""

from __future__ import annotations

import numpy as np

from hpcdist.ops.loss.softmax import FLOOR
from hpcdist.ops.torch_forms import Checked, dtype_name, form


# -- softmax ---------------------------------------------------------------------------------------
@form("softmax")
def softmax(torch, x, axis):
    """Not torch's: exponents end at FLOOR, as in Fluid, so that no probability is 0."""
    away = torch.exp(torch.clamp(x - torch.amax(x, axis, keepdim=True), min=FLOOR))
    return away / away.sum(axis, keepdim=True)


@form("softmax_grad")
def softmax_grad(torch, out, dout, axis):
    return (dout - (out * dout).sum(axis, keepdim=True)) * out


# -- cross entropy ---------------------------------------------------------------------------------
def _negative_log(torch, x):
    least = float(np.finfo(dtype_name(x)).smallest_subnormal)
    return torch.where(x == 0, 1e20, -torch.log(torch.clamp(x, min=least)))


def _valid(torch, label, ignore_index):
    """Return class labels with 0 in place of those to ignore."""
    return torch.where(label == ignore_index, 0, label)


def _at(torch, x, label, axis):
    """Return the elements at labels, which have 1 in ``axis``; of labels outside: some element."""
    index = torch.clamp(label.to(torch.int64), 0, x.shape[axis] - 1)
    return torch.gather(x, axis, index)


def _is_label(torch, like, label, axis):
    """Return which elements are those of the labels."""
    shape = [1] * like.ndim
    shape[axis] = like.shape[axis]
    return torch.arange(like.shape[axis], device=like.device).reshape(shape) == label


def _softmax_labels(logits, label, soft_label, ignore_index, axis, **_):
    if soft_label:
        return None
    valid = label.masked_fill(label == ignore_index, 0)
    return Checked(valid, logits.shape[axis], "classes")


@form("softmax_with_cross_entropy", checks=_softmax_labels)
def softmax_with_cross_entropy(torch, logits, label, soft_label, ignore_index, axis, **_):
    chances = softmax(torch, logits, axis)
    if soft_label:
        return chances, (_negative_log(torch, chances) * label).sum(axis, keepdim=True)
    valid = _valid(torch, label, ignore_index)
    loss = _negative_log(torch, _at(torch, chances, valid, axis))
    return chances, torch.where(label == ignore_index, 0, loss)


@form("softmax_with_cross_entropy_grad")
def softmax_with_cross_entropy_grad(
    torch, label, softmax, dloss, soft_label, ignore_index, axis, **_
):
    if soft_label:
        return (softmax - label) * dloss
    weight = torch.where(label == ignore_index, 0, dloss)
    valid = _valid(torch, label, ignore_index)
    return softmax * weight - torch.where(_is_label(torch, softmax, valid, axis), weight, 0)


def _columns(label, rank):
    """View labels as [..., 1]."""
    return label if label.ndim == rank else label.unsqueeze(-1)


def _class_labels(x, label, ignore_index):
    return Checked(label.masked_fill(label == ignore_index, 0), x.shape[-1], "classes")


@form("cross_entropy2", checks=_class_labels, outs=True)
def cross_entropy2(torch, x, label, ignore_index, outs):
    label = _columns(label, x.ndim)
    chance = _at(torch, x, _valid(torch, label, ignore_index), -1)
    match = torch.where(label == ignore_index, 1, chance)
    loss = _negative_log(torch, match)
    shape = outs[0].shape
    return loss.reshape(shape), x.new_empty(outs[1].shape), match.reshape(shape)


@form("cross_entropy_grad2", outs=True)
def cross_entropy_grad2(torch, label, match, xshape, dy, ignore_index, outs):
    shape = outs[0].shape
    label, match, dy = (_columns(value, len(shape)) for value in (label, match, dy))
    slope = torch.where(label == ignore_index, 0, -(dy / match))
    like = slope.expand(shape)
    return torch.where(_is_label(torch, like, _valid(torch, label, ignore_index), -1), slope, 0)


def _hard_labels(x, label, soft_label, ignore_index):
    return None if soft_label else _class_labels(x, label, ignore_index)


@form("cross_entropy", checks=_hard_labels, outs=True)
def cross_entropy(torch, x, label, soft_label, ignore_index, outs):
    if soft_label:
        return (_negative_log(torch, x) * label).sum(-1, keepdim=True)
    label = _columns(label, x.ndim)
    chance = _at(torch, x, _valid(torch, label, ignore_index), -1)
    match = torch.where(label == ignore_index, 1, chance)
    return _negative_log(torch, match).reshape(outs[0].shape)


@form("cross_entropy_grad")
def cross_entropy_grad(torch, x, label, dy, soft_label, ignore_index):
    if soft_label:
        return -(label / x * dy)
    label, dy = (_columns(value, x.ndim) for value in (label, dy))
    valid = _valid(torch, label, ignore_index)
    slope = torch.where(label == ignore_index, 0, -(dy / _at(torch, x, valid, -1)))
    return torch.where(_is_label(torch, x, valid, -1), slope.expand(x.shape), 0)


# -- of two classes --------------------------------------------------------------------------------
def _normalized(torch, value, label, ignore_index, normalize):
    """Return a loss, or its gradient, that is 0 at ignored labels; divided by how many others."""
    valid = torch.where(label == ignore_index, 0, value)
    if not normalize:
        return valid
    count = (label != ignore_index).sum(dtype=label.dtype)
    return valid / torch.clamp(count, min=1e-5)


@form("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy(torch, x, label, ignore_index, normalize):
    loss = torch.log1p(torch.exp(-torch.abs(x))) + (torch.relu(x) - x * label)
    return _normalized(torch, loss, label, ignore_index, normalize)


@form("sigmoid_cross_entropy_with_logits_grad")
def sigmoid_cross_entropy_grad(torch, x, label, dout, ignore_index, normalize):
    slope = (torch.sigmoid(x) - label) * dout
    return _normalized(torch, slope, label, ignore_index, normalize)


# -- robust regression, label_smooth ---------------------------------------------------------------
@form("huber_loss")
def huber_loss(torch, x, y, delta):
    residual = y - x
    size = torch.abs(residual)
    near = torch.clamp(size, max=delta)
    return residual, near * (size - near / 2)


@form("huber_loss_grad")
def huber_loss_grad(torch, residual, dout, delta):
    dy = torch.clamp(residual, -delta, delta) * dout
    return -dy, dy


@form("smooth_l1_loss")
def smooth_l1_loss(torch, x, y, inside, outside, sigma):
    diff = x - y if inside is None else (x - y) * inside
    size = torch.abs(diff)
    near = torch.clamp(size, max=1 / sigma**2)
    error = (size - near / 2) * near * sigma**2
    error = error if outside is None else error * outside
    return diff, error.reshape(len(x), -1).sum(1, keepdim=True)


@form("smooth_l1_loss_grad")
def smooth_l1_loss_grad(torch, inside, outside, diff, dout, sigma):
    slope = torch.clamp(diff * sigma**2, -1, 1)
    for weight in (inside, outside):
        slope = slope if weight is None else slope * weight
    dx = slope * dout.reshape(-1, *[1] * (slope.ndim - 1))
    return dx, -dx


@form("label_smooth")
def label_smooth(torch, x, prior, epsilon):
    return x * (1 - epsilon) + (epsilon / x.shape[-1] if prior is None else epsilon * prior)


@form("label_smooth_grad")
def label_smooth_grad(torch, dout, epsilon):
    return dout * (1 - epsilon)
