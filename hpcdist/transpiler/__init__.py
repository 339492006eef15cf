"""The transpiler: one training program becomes the programs of trainers and parameter servers."""

from hpcdist.transpiler.config import (
    DistributedMode,
    DistributeTranspilerConfig,
    ServerRuntimeConfig,
)
from hpcdist.transpiler.dispatch import HashName, PSDispatcher, RoundRobin
from hpcdist.transpiler.distribute_transpiler import DistributeTranspiler
from hpcdist.transpiler.geo_sgd_transpiler import GeoSgdTranspiler
from hpcdist.transpiler.memory import memory_optimize, release_memory

__all__ = [
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "DistributedMode",
    "GeoSgdTranspiler",
    "HashName",
    "PSDispatcher",
    "RoundRobin",
    "ServerRuntimeConfig",
    "memory_optimize",
    "release_memory",
]
