"""``paddle.incubate.layers``: rows and columns of matrices, Fluid's."""

from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.contrib import matching, rows

_layer = declare.composed("paddle.incubate.layers")
fused_embedding_seq_pool = _layer(rows.fused_embedding_seq_pool)
partial_concat = _layer(rows.partial_concat)
partial_sum = _layer(rows.partial_sum)
shuffle_batch = _layer(rows.shuffle_batch)
tdm_child = _layer(matching.tdm_child)
tdm_sampler = _layer(matching.tdm_sampler)


__all__ = public(
    globals(),
    [
        "fused_embedding_seq_pool",
        "partial_concat",
        "partial_sum",
        "shuffle_batch",
        "tdm_child",
        "tdm_sampler",
    ],
)
