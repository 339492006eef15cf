# ruff: noqa: F401 - what is imported here is what is offered
"""``paddle.common_ops_import``: what modules that define operators import."""

from hpcdist.fluid.compat import core
from hpcdist.fluid.compat.data_checks import (
    check_dtype,
    check_type,
    check_variable_and_dtype,
    convert_dtype,
)
from hpcdist.fluid.compat.framework import (
    Variable,
    convert_np_dtype_to_dtype_,
    default_main_program,
)
from hpcdist.fluid.compat.layer_helper import LayerHelper
from hpcdist.fluid.compat.op_protos import OpProtoHolder
from hpcdist.fluid.compat.paddle2 import in_dynamic_mode as in_dygraph_mode
from hpcdist.fluid.compat.paddle2.param_attr import ParamAttr
from hpcdist.fluid.compat.public_names import imported as _imported

__all__ = _imported(globals(), ["core"])
