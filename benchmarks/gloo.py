"""PyTorch's own gloo, which benchmarks of hpcdist.torch compare with."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist


def gloo_group() -> dist.ProcessGroup:
    """Return torch's own group of all ranks; end the job where it would be ours. Collective."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    group = dist.new_group(backend="gloo")
    if type(group) is not dist.ProcessGroup:
        sys.exit("under --as-torchrun gloo is hpcdist's, too: start the benchmark without it")
    return group
