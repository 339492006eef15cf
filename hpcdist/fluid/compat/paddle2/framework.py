# ruff: noqa: F401 - what is imported here is what is offered
"""``paddle.framework``: the graph, and names that other modules have, too."""

from hpcdist.fluid.compat import core
from hpcdist.fluid.compat.framework import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    convert_np_dtype_to_dtype_,
    default_main_program,
    default_startup_program,
    switch_main_program,
    switch_startup_program,
)
from hpcdist.fluid.compat.layer_helper import LayerHelper
from hpcdist.fluid.compat.paddle2 import in_dynamic_mode, load, no_grad, save, seed
from hpcdist.fluid.compat.paddle2.creation import get_default_dtype, set_default_dtype
from hpcdist.fluid.compat.paddle2.param_attr import ParamAttr
from hpcdist.fluid.compat.public_names import imported as _imported

__all__ = _imported(globals(), ["core"])
