"""Functions that append operators to the default main program."""

from hpcdist.layers.embedding import embedding, one_hot
from hpcdist.layers.io import data
from hpcdist.layers.loss import cross_entropy, softmax_with_cross_entropy, square_error_cost
from hpcdist.layers.metric import accuracy, topk
from hpcdist.layers.nn import fc, softmax

__all__ = [
    "accuracy",
    "cross_entropy",
    "data",
    "embedding",
    "fc",
    "one_hot",
    "softmax",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "topk",
]
