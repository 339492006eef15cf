"""``paddle.static.nn``: layers with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.fluid import layers
from hpcdist.fluid.layers import batch_norm, conv2d, conv2d_transpose, create_parameter, layer_norm
from hpcdist.fluid.layers.embedding import embedding_v2 as embedding
from hpcdist.graph.variable import Variable

__all__ = [
    "batch_norm",
    "conv2d",
    "conv2d_transpose",
    "create_parameter",
    "embedding",
    "fc",
    "layer_norm",
]


def fc(
    x: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return Fluid's ``fc``."""
    return layers.fc(x, size, num_flatten_dims, weight_attr, bias_attr, activation, name)
