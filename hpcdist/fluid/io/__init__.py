"""``fluid.io``: saving and loading variables and inference models; loaders and readers."""

from hpcdist.data.reader import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)
from hpcdist.fluid.data_loader import DataLoader, PyReader
from hpcdist.fluid.io import descs  # noqa: F401 - gives the graph's parts their desc
from hpcdist.fluid.io.load_variables import (
    load_model_on_server,
    load_params,
    load_persistables,
    load_vars,
)
from hpcdist.fluid.io.model import holds_model, load_inference_model, save_inference_model
from hpcdist.fluid.io.onnx_model import onnx_model
from hpcdist.fluid.io.selection import (
    get_parameter_value,
    get_parameter_value_by_name,
    get_program_parameter,
    get_program_persistable_vars,
    is_belong_to_optimizer,
    is_parameter,
    is_persistable,
)
from hpcdist.fluid.io.state import load, load_program_state, save, set_program_state
from hpcdist.fluid.io.variables import save_params, save_persistables, save_vars

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_parameter_value",
    "get_parameter_value_by_name",
    "get_program_parameter",
    "get_program_persistable_vars",
    "holds_model",
    "is_belong_to_optimizer",
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_model_on_server",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "onnx_model",
    "save",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "xmap_readers",
]
