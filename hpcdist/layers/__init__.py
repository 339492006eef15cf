"""Functions that append operators to the default main program."""

from hpcdist.layers.embedding import embedding, one_hot
from hpcdist.layers.io import data
from hpcdist.layers.loss import (
    cross_entropy,
    huber_loss,
    label_smooth,
    log_loss,
    mse_loss,
    sigmoid_cross_entropy_with_logits,
    smooth_l1,
    softmax_with_cross_entropy,
    square_error_cost,
)
from hpcdist.layers.metric import accuracy, topk
from hpcdist.layers.nn import cos_sim, dropout, fc, l2_normalize, layer_norm, softmax

__all__ = [
    "accuracy",
    "cos_sim",
    "cross_entropy",
    "data",
    "dropout",
    "embedding",
    "fc",
    "huber_loss",
    "l2_normalize",
    "label_smooth",
    "layer_norm",
    "log_loss",
    "mse_loss",
    "one_hot",
    "sigmoid_cross_entropy_with_logits",
    "smooth_l1",
    "softmax",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "topk",
]
