"""``paddle.save`` and ``paddle.load``: objects and Programs in one file, as 2.6.2 has them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError, GraphError, GraphTypeError
from hpcdist.base.temporary import temporary_folder
from hpcdist.checkpoint.files import open_plain, read_whole
from hpcdist.checkpoint.fluid_files import encoded, tensors_of
from hpcdist.checkpoint.pickled import is_pickled
from hpcdist.checkpoint.pickled_objects import read_object
from hpcdist.checkpoint.pickling import Eval, pickled
from hpcdist.checkpoint.write import write_bytes
from hpcdist.executor.scope import ScopeTensor
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer
from hpcdist.fluid.compat.paddle2.static.operators import in_words_of_fluid
from hpcdist.fluid.compat.paddle2.static.written import in_words_of_paddle
from hpcdist.fluid.compat.paddle2.values import NAMES_OF_LAYERS
from hpcdist.fluid.io.model import MAX_MODEL
from hpcdist.fluid.io.program_desc import parsed_program, program_bytes
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable

_TENSORS = (LoDTensor, ScopeTensor)
_PARTS = "UnpackBigParamInfor@@"  # an entry that tells which arrays are cut, in protocols 2 and 3


def save(obj: Any, path: str | BytesIO, protocol: int = 4, **configs: Any) -> None:
    """Save dicts, lists, tensors, arrays, numbers and text, nested, or a Program, in one file.

    ``protocol``: any of 2, 3 and 4 gives a file of protocol 4. ``use_binary_format=True``: one
    tensor as Fluid saves it. Each rank that calls this writes its file, which is complete, or as it
    was before. GraphTypeError naming what cannot be saved.
    """
    binary = configs.pop("use_binary_format", False)
    if configs:
        raise GraphTypeError(f"paddle.save: no parameter {sorted(configs)}")
    if protocol not in (2, 3, 4):
        raise GraphError(f"paddle.save: protocol: expected 2, 3 or 4, got {protocol!r}")
    if binary:
        if not isinstance(obj, _TENSORS):
            raise GraphTypeError(
                f"paddle.save: use_binary_format is for one tensor, got a {type(obj).__name__}"
            )
        parts = list(encoded(np.asarray(obj)))
    elif isinstance(obj, Program):
        parts = [program_bytes(obj, in_words_of_paddle)]
    else:
        state = isinstance(obj, dict) and _is_state(obj)
        parts = pickled(obj, _saved if state else _saved_as_tensor)
    if isinstance(path, BytesIO):
        path.write(b"".join(parts))
        return
    if not isinstance(path, (str, Path)) or not Path(path).name:
        raise GraphTypeError(f"paddle.save: path: expected that of a file, got {path!r}")
    write_bytes(Path(path), *parts)


def load(path: str | BytesIO, **configs: Any) -> Any:
    """Return the object that `save` has saved, here or in 2.6.2; arrays are tensors, or with
    ``return_numpy=True`` arrays.

    Pickled files are read without running any code. CheckpointError for what cannot be read.
    """
    as_array, keep = configs.pop("return_numpy", False), configs.pop("keep_name_table", False)
    if configs:
        raise GraphTypeError(f"paddle.load: no parameter {sorted(configs)}")
    if isinstance(path, BytesIO):
        with temporary_folder() as directory:
            write_bytes(directory / "object", path.read())
            return _load(directory / "object", as_array, keep)
    return _load(Path(path), as_array, keep)


def _load(path: Path, as_array: bool, keep: bool) -> Any:
    if path.is_dir():
        raise CheckpointError(
            f"paddle.load: {path} is a directory: paddle.static.load_program_state reads what "
            "save_vars has saved in one"
        )
    if not path.is_file():
        raise CheckpointError(f"paddle.load: there is no file {path}")
    leaf = np.asarray if as_array else LoDTensor
    if not is_pickled(path):
        with open_plain(path) as file:
            version = file.read(4)
        if version == b"\0\0\0\0":  # as Fluid's tensors begin
            return leaf(tensors_of(path.parent, path.name, 1)[0].read())
        return parsed_program(read_whole(path, MAX_MODEL), str(path), in_words_of_fluid)
    loaded = read_object(path, leaf)
    if isinstance(loaded, dict):
        try:
            for key, cut in loaded.pop(_PARTS, {}).items():
                pieces = [np.asarray(loaded.pop(part)) for part in cut["slices"]]
                loaded[key] = leaf(np.concatenate(pieces).reshape(cut["OriginShape"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"paddle.load: {path}: what it says of arrays that are cut does not fit them: "
                f"{type(error).__name__}: {error}"
            ) from None
        if not keep:
            loaded.pop(NAMES_OF_LAYERS, None)
    return loaded


def _is_state(obj: dict[Any, Any]) -> bool:
    """Return whether 2.6.2 saves a dict's tensors as arrays: it has only these, and plain dicts."""
    return all(
        isinstance(value, _TENSORS)
        or (isinstance(value, dict) and not any(map(_holds_tensor, value.values())))
        for value in obj.values()
    )


def _holds_tensor(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value
    many = isinstance(value, (dict, list, tuple))
    return any(map(_holds_tensor, inner)) if many else isinstance(value, _TENSORS)


def _saved(value: Any, place: str) -> np.ndarray:
    """Return the array of a value that is no plain data; GraphTypeError for other values."""
    if isinstance(value, _TENSORS):
        return np.asarray(value)
    own = isinstance(value, (Variable, Layer, Program))
    raise GraphTypeError(
        f"paddle.save: {place} is a {type(value).__name__}; expected dicts, lists, tuples, sets, "
        f"text, numbers, None, arrays and tensors"
        + (": program.state_dict() and variable.get_value() give these" if own else "")
    )


def _saved_as_tensor(value: Any, place: str) -> Eval:
    return Eval(_saved(value, place))


__all__ = ["load", "save"]
