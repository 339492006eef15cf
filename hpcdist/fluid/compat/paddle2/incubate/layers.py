"""``paddle.incubate.layers``: rows and columns of matrices, Fluid's."""

from hpcdist.fluid.contrib.matching import tdm_child, tdm_sampler
from hpcdist.fluid.contrib.rows import (
    fused_embedding_seq_pool,
    partial_concat,
    partial_sum,
    shuffle_batch,
)

__all__ = [
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
    "tdm_child",
    "tdm_sampler",
]
