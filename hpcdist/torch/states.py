"""States of torch's objects as checkpoints keep them: tensors by name, plain data. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcdist.errors import CheckpointError
from hpcdist.plain_data import MAX_INTEGER, typed
from hpcdist.torch.embedding import TableModule, dense_state_dict

AS_THEY_ARE = (torch.float32, torch.float64, torch.int32, torch.int64)  # other dtypes: as bytes


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a state: the variable of a checkpoint that keeps it, its shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def state_of(name: str, obj: Any) -> Any:
    """Return an object's state; a module's is without its tables. CheckpointError without one."""
    if isinstance(obj, nn.Module):
        return dense_state_dict(obj)
    if not (callable(getattr(obj, "state_dict", None)) and hasattr(obj, "load_state_dict")):
        raise CheckpointError(
            f"{name!r}: a {type(obj).__name__} has no state_dict and load_state_dict, so it "
            "cannot be saved"
        )
    return obj.state_dict()


def tables_in(objects: Mapping[str, Any]) -> set[str]:
    """Return the names of the tables among modules."""
    modules = (m for obj in objects.values() if isinstance(obj, nn.Module) for m in obj.modules())
    return {module.name for module in modules if isinstance(module, TableModule)}


def split_state(name: str, state: object, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a state as plain data that names its tensors, which are added to ``tensors``.

    CheckpointError, with the place in it, for what is neither.
    """
    if isinstance(state, np.generic):  # a rate that numpy has computed
        state = state.item()
    if isinstance(state, torch.Tensor):
        if type(state) not in (torch.Tensor, nn.Parameter):
            raise CheckpointError(
                f"{name}: a {type(state).__name__} is in parts on several ranks: save such models "
                "with torch.distributed.checkpoint"
            )
        if name in tensors:  # as of {1: ..., "1": ...}
            raise CheckpointError(f"{name}: two tensors would have this name; rename a key")
        if state.numel():
            tensors[name] = state.detach()
        return {"tensor": name, "shape": list(state.shape), "dtype": str(state.dtype)[6:]}
    if isinstance(state, Mapping):
        pairs = [[key, split_state(f"{name}/{key}", v, tensors)] for key, v in state.items()]
        for key, _ in pairs:
            _check_plain(name, key)
        return {"pairs": pairs}
    if isinstance(state, (list, tuple)):
        items = [split_state(f"{name}/{i}", v, tensors) for i, v in enumerate(state)]
        return {"tuple" if isinstance(state, tuple) else "list": items}
    _check_plain(name, state)
    return {"plain": state}


def state_from(state: object, tensors: dict[str, SavedTensor]) -> Any:
    """Return the state that JSON from anybody describes, with SavedTensors in place of tensors.

    Those that have elements are added to ``tensors``. ValueError if it describes no state.
    """
    match state:
        case {"tensor": str(name), "shape": list(shape), "dtype": str(dtype)}:
            tensor = SavedTensor(name, typed(tuple[int, ...], shape), _dtype(dtype))
            if math.prod(extent for extent in tensor.shape if extent) >= MAX_INTEGER:
                raise ValueError(f"tensor {name!r:.80} has too many elements")
            if 0 not in tensor.shape and tensors.setdefault(name, tensor) != tensor:
                raise ValueError(f"tensor {name!r:.80} is described twice")
            return tensor
        case {"pairs": list(pairs)}:
            described = typed(tuple[tuple[Any, Any], ...], pairs)
            return {_plain(key): state_from(value, tensors) for key, value in described}
        case {"list": list(items)}:
            return [state_from(item, tensors) for item in items]
        case {"tuple": list(items)}:
            return tuple(state_from(item, tensors) for item in items)
        case {"plain": value}:
            return _plain(value)
    raise ValueError(f"{state!r:.80} is not a state")


def put_together(state: object, tensor_of: Callable[[SavedTensor], torch.Tensor]) -> Any:
    """Return the state that `split_state` was given, from what `state_from` has returned."""
    if isinstance(state, SavedTensor):
        if 0 in state.shape:
            return torch.empty(state.shape, dtype=state.dtype)
        return tensor_of(state)
    if isinstance(state, dict):
        return {key: put_together(value, tensor_of) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(put_together(item, tensor_of) for item in state)
    return state


def array_type(tensor: SavedTensor) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of the array in which a checkpoint keeps a tensor; not empty ones."""
    if tensor.dtype not in AS_THEY_ARE:
        return (math.prod(tensor.shape) * tensor.dtype.itemsize,), "uint8"
    return tensor.shape or (1,), str(tensor.dtype)[6:]


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's values as `array_type` says: on its memory where that can be."""
    flat = tensor.detach().cpu().contiguous()
    if tensor.dtype not in AS_THEY_ARE:
        return np.asarray(flat.reshape(-1).view(torch.uint8).numpy())
    return np.asarray(flat.reshape(tensor.shape or (1,)).numpy())


def as_tensor(array: np.ndarray, of: SavedTensor) -> torch.Tensor:
    """Return the tensor that an array keeps."""
    tensor = torch.from_numpy(array)
    if of.dtype not in AS_THEY_ARE:
        tensor = tensor.view(of.dtype)
    return tensor.reshape(of.shape)


def _check_plain(name: str, value: object) -> None:
    if not _is_plain(value):
        raise CheckpointError(
            f"{name}: a checkpoint keeps tensors, numbers, text, and lists and dictionaries of "
            f"them, got a {type(value).__name__}"
        )


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _plain(value: object) -> Any:
    if not _is_plain(value):
        raise ValueError(f"expected a number or text, got {value!r:.80}")
    return value


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r:.80} is not a dtype")
    return dtype
