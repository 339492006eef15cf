"""The operators, each whole in one place: importing this package fills the registry."""

from hpcdist.ops import (  # noqa: F401
    activation,
    arithmetic,
    control,
    cross_entropy,
    dropout,
    elementwise,
    gelu,
    join,
    lookup,
    loss,
    matmul,
    metric,
    network,
    norm,
    optimize,
    random,
    reduce,
    shape,
    softmax,
    tensor,
)
