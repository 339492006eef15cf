# ruff: noqa: F401 - what is imported here is what is offered
"""``paddle.io``: data sets, samplers, and the loader that makes batches of their samples."""

from hpcdist.fluid.compat.paddle2.data.loader import DataLoader, default_collate, get_worker_info
from hpcdist.fluid.compat.paddle2.data.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from hpcdist.fluid.compat.paddle2.data.sets import (
    ChainDataset,
    ComposeDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from hpcdist.fluid.compat.public_names import imported as _imported

__all__ = _imported(globals())
