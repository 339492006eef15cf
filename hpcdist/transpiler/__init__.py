"""The transpiler: one training program becomes the programs of trainers and parameter servers."""

from hpcdist.ps.dispatch import HashName, PSDispatcher, RoundRobin
from hpcdist.ps.plan import DistributedMode
from hpcdist.transpiler.config import DistributeTranspilerConfig, ServerRuntimeConfig
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
