"""The states of torch's objects as checkpoints keep them: tensors by name, and plain data. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcdist.errors import CheckpointError
from hpcdist.torch.embedding import TableModule, dense_state_dict

AS_THEY_ARE = (torch.float32, torch.float64, torch.int32, torch.int64)  # other dtypes: as bytes


def state_of(name: str, held: Any) -> Any:
    """Return an object's state; a module's is without its tables. CheckpointError without one."""
    if isinstance(held, nn.Module):
        return dense_state_dict(held)
    if not (callable(getattr(held, "state_dict", None)) and hasattr(held, "load_state_dict")):
        raise CheckpointError(
            f"{name!r}: a {type(held).__name__} has no state_dict and load_state_dict, so it "
            "cannot be saved"
        )
    return held.state_dict()


def tables_in(objects: Mapping[str, Any]) -> set[str]:
    """Return the names of the tables among modules."""
    modules = (
        m for held in objects.values() if isinstance(held, nn.Module) for m in held.modules()
    )
    return {module.name for module in modules if isinstance(module, TableModule)}


def taken_apart(name: str, state: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a state as plain data that names its tensors, which are added to ``tensors``.

    CheckpointError, with the place in it, for what is neither.
    """
    if isinstance(state, torch.Tensor):
        if type(state) not in (torch.Tensor, nn.Parameter):
            raise CheckpointError(
                f"{name}: a {type(state).__name__} is in parts on several ranks: save such models "
                "with torch.distributed.checkpoint"
            )
        if state.numel():
            tensors[name] = state.detach()
        return {"tensor": name, "shape": list(state.shape), "dtype": str(state.dtype)[6:]}
    if isinstance(state, Mapping):
        pairs = [[key, taken_apart(f"{name}/{key}", v, tensors)] for key, v in state.items()]
        for key, _ in pairs:
            _check_plain(name, key)
        return {"pairs": pairs}
    if isinstance(state, (list, tuple)):
        items = [taken_apart(f"{name}/{i}", v, tensors) for i, v in enumerate(state)]
        return {"tuple" if isinstance(state, tuple) else "list": items}
    _check_plain(name, state)
    return {"plain": state}


def put_together(said: Any, tensor_of: Callable[[str], torch.Tensor]) -> Any:
    """Return the state that `taken_apart` was given."""
    if "tensor" in said:
        if 0 in said["shape"]:
            return torch.empty(said["shape"], dtype=getattr(torch, said["dtype"]))
        return tensor_of(said["tensor"])
    if "pairs" in said:
        return {key: put_together(value, tensor_of) for key, value in said["pairs"]}
    if "plain" in said:
        return said["plain"]
    items = [put_together(value, tensor_of) for value in said.get("list", said.get("tuple"))]
    return items if "list" in said else tuple(items)


def tensors_said(said: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shapes and dtypes of all tensors that plain data names."""
    if "tensor" in said and 0 in said["shape"]:
        return {}
    if "tensor" in said:
        return {said["tensor"]: (tuple(said["shape"]), getattr(torch, said["dtype"]))}
    if "pairs" in said:
        parts = [value for _, value in said["pairs"]]
    else:
        parts = said.get("list", said.get("tuple", ()))
    described: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for part in parts:
        described |= tensors_said(part)
    return described


def array_for(shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    """Return an array in which a checkpoint keeps a tensor; not empty ones."""
    if dtype not in AS_THEY_ARE:
        return np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    return np.empty(shape or (1,), str(dtype)[6:])


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's values as `array_for` keeps them: on its memory where that can be."""
    flat = tensor.detach().cpu().contiguous()
    if tensor.dtype not in AS_THEY_ARE:
        return np.asarray(flat.reshape(-1).view(torch.uint8).numpy())
    return np.asarray(flat.reshape(tensor.shape or (1,)).numpy())


def as_tensor(array: np.ndarray, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor that an array keeps."""
    tensor = torch.from_numpy(array)
    if dtype not in AS_THEY_ARE:
        tensor = tensor.view(dtype)
    return tensor.reshape(shape)


def _check_plain(name: str, value: Any) -> None:
    if value is None or type(value) in (bool, int, float, str):
        return
    raise CheckpointError(
        f"{name}: a checkpoint keeps tensors, numbers, text, and lists and dictionaries of them, "
        f"got a {type(value).__name__}"
    )
