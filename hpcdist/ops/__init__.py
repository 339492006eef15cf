"""The operators, each whole in one place: importing this package fills the registry."""

from hpcdist.ops import (  # noqa: F401
    activation,
    arithmetic,
    elementwise,
    lookup,
    loss,
    matmul,
    metric,
    reduce,
    softmax,
    tensor,
)
