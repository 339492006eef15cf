"""Forms of losses of ranks and clicks that are no formulas for arrays, too."""

from __future__ import annotations

from hpcdist.ops.formulas import softplus
from hpcdist.ops.torch_forms import Checked, form


# -- of the scores of a row ------------------------------------------------------------------------
def _scored(x, label):
    return Checked(label, x.shape[1], "classes")


def _label_index(torch, x, label):
    """Return the label's place in each row of scores, and which elements are the labels'."""
    index = torch.clamp(label.reshape(-1, 1), 0, x.shape[1] - 1).to(torch.int64)
    return index, torch.arange(x.shape[1], device=x.device) == index


@form("bpr_loss", checks=_scored, outs=True)
def bpr_loss(torch, x, label, outs):
    index, is_own = _label_index(torch, x, label)
    terms = softplus(torch, x - torch.gather(x, 1, index))
    total = torch.where(is_own, 0, terms).sum(1)
    return (total / (x.shape[1] - 1)).reshape(outs[0].shape)


@form("bpr_loss_grad")
def bpr_loss_grad(torch, x, label, dy):
    index, is_own = _label_index(torch, x, label)
    slope = torch.where(is_own, 0, torch.sigmoid(x - torch.gather(x, 1, index)))
    dx_rows = torch.where(is_own, -slope.sum(1, keepdim=True), slope)
    return dx_rows * dy.reshape(-1, 1) / (x.shape[1] - 1)


# -- clicks ---------------------------------------------------------------------------------------
@form("cvm")
def cvm(torch, x, cvm, use_cvm):
    if not use_cvm:
        return x[:, 2:]
    shows, clicks = torch.log(x[:, :1] + 1), torch.log(x[:, 1:2] + 1)
    return torch.cat([shows, clicks - shows, x[:, 2:]], 1)


@form("cvm_grad")
def cvm_grad(torch, x, cvm, dy, use_cvm):
    return torch.cat([cvm.expand(len(x), 2), dy[:, 2:] if use_cvm else dy], 1)


# -- sigmoid_focal_loss ----------------------------------------------------------------------------
def _focal_parts(torch, x, label, count, alpha):
    """Return the probability, its falling logarithm, and weights of both kinds of classes."""
    labels, classes = label.reshape(-1, 1), torch.arange(1, x.shape[1] + 1, device=x.device)
    foreground = torch.clamp(count.reshape(()), min=1).to(x.dtype)
    hit = (labels == classes) * (alpha / foreground)
    miss = ((labels != -1) & (labels != classes)) * ((1 - alpha) / foreground)
    return torch.sigmoid(x), -softplus(torch, x), hit, miss


@form("sigmoid_focal_loss")
def sigmoid_focal_loss(torch, x, label, count, gamma, alpha):
    p, log_miss, hit, miss = _focal_parts(torch, x, label, count, alpha)
    return hit * (1 - p) ** gamma * softplus(torch, -x) - miss * p**gamma * log_miss


@form("sigmoid_focal_loss_grad")
def sigmoid_focal_loss_grad(torch, x, label, count, dout, gamma, alpha):
    p, log_miss, hit, miss = _focal_parts(torch, x, label, count, alpha)
    up = hit * (1 - p) ** gamma * (1 - p + gamma * p * softplus(torch, -x))
    down = miss * p**gamma * (gamma * (1 - p) * log_miss - p)
    return -(up + down) * dout
