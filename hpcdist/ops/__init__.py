"""The operators, each whole in one place: importing this package fills the registry."""

from hpcdist.ops import (  # noqa: F401
    activation,
    arithmetic,
    control,
    elementwise,
    gelu,
    join,
    lookup,
    loss,
    matmul,
    metric,
    network,
    reduce,
    shape,
    softmax,
    tensor,
)
