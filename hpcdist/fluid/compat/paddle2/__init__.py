"""Names of Paddle 2.0 for static programs, as far as hpcdist has what they mean.

Found under ``--as-paddle`` only. Names and parameters are Paddle's; what they do is Fluid's.
"""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers import concat, matmul, mean, reshape
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph.program import default_main_program, default_startup_program

__all__ = [
    "ParamAttr",
    "concat",
    "disable_static",
    "enable_static",
    "in_dynamic_mode",
    "matmul",
    "mean",
    "reshape",
    "seed",
]


def enable_static() -> None:
    """Do nothing: programs are always static here."""


def disable_static(place: object = None) -> None:
    """Refuse: nothing runs but Programs."""
    raise GraphError(
        "paddle.disable_static: hpcdist runs static programs only: build one with "
        "paddle.static.data and layers, and run it with paddle.static.Executor"
    )


def in_dynamic_mode() -> bool:
    """Return False."""
    return False


def seed(seed: int) -> None:
    """Start the random numbers of both default programs from ``seed``."""
    default_main_program().random_seed = default_startup_program().random_seed = int(seed)
