"""All operators: importing this module enters each of them into the table."""

from hpcdist.ops import control_flow, instance_tags, print_py_func, torch_module, trees  # noqa: F401
from hpcdist.ops.algebra import (  # noqa: F401
    by_torch,
    matmul,
    norms,
    norms_distances,
    products,
    reduce,
)
from hpcdist.ops.communication import allreduce, pipeline, send_recv  # noqa: F401
from hpcdist.ops.convolution import (  # noqa: F401
    conv,
    interpolate,
    patches,
    pool,
    pyramid,
    volumes,
)
from hpcdist.ops.detection import (  # noqa: F401
    bipartite_match,
    boxes,
    nms,
    prior_boxes,
    proposal_targets,
    proposals,
    roi_pool,
    roi_warp,
    yolo_loss,
)
from hpcdist.ops.elementwise import (  # noqa: F401
    activation,
    binary,
    fused,
    gelu,
    quantize,
    rare_activation,
    sum_scale_clip,
    where,
)
from hpcdist.ops.embedding import lookup, sparse_ops  # noqa: F401
from hpcdist.ops.loss import (  # noqa: F401
    cross_entropy,
    elementwise_loss,
    hierarchical_sigmoid,
    pair_loss,
    rare_loss,
    sample_logits,
    sampled_softmax,
    softmax,
)
from hpcdist.ops.metric import accuracy, auc, detection_map  # noqa: F401
from hpcdist.ops.normalization import (  # noqa: F401
    batch_norm,
    group_instance_norm,
    layer_norm,
    lrn,
    sync_batch_norm,
)
from hpcdist.ops.optimize import (  # noqa: F401
    average_accumulates,
    dgc,
    dpsgd,
    local_sgd,
    mixed_precision,
    operators,
    proximal,
    whole_norms,
)
from hpcdist.ops.random import dropout, seeded, shuffle_batch  # noqa: F401
from hpcdist.ops.recurrent import cudnn_lstm, gru, lstm  # noqa: F401
from hpcdist.ops.sequence import (  # noqa: F401
    beam_search,
    crf,
    edit_distance_ctc,
    fused_layers,
    match_matrix,
    pad,
    pool_softmax_conv,
    regroup,
    slice_scatter,
)
from hpcdist.ops.tensor import (  # noqa: F401
    concat_split,
    constant,
    creation,
    first_versions,
    gather_scatter,
    masked_rows,
    rare_moves,
    rearrange,
    reshape,
    segments,
    slice,
    tensor_array,
    where_unique,
)
