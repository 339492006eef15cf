"""States of torch's objects as checkpoints keep them: tensors by name, plain data. Pure."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn.parameter import is_lazy

from hpcdist.base.errors import CheckpointError, HpcdistError
from hpcdist.base.plain_data import MAX_INTEGER, typed
from hpcdist.torch.embedding import TableModule, dense_state_dict

MISSING = "nothing"
LOOKED_AT = 1 << 20  # elements at once, which are in the cache then
AS_THEY_ARE = (torch.float32, torch.float64, torch.int32, torch.int64)  # other dtypes: as bytes


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a state: the variable of a checkpoint that keeps it, its shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def check_has_state(name: object, obj: Any) -> None:
    """Raise CheckpointError for what cannot be saved, or has no text for a name."""
    if not isinstance(name, str):
        raise CheckpointError(f"names of objects: expected text, got {name!r}")
    if not (callable(getattr(obj, "state_dict", None)) and hasattr(obj, "load_state_dict")):
        raise CheckpointError(
            f"{name!r}: a {type(obj).__name__} has no state_dict and load_state_dict, so it "
            "cannot be saved"
        )


def state_of(obj: Any) -> Any:
    """Return an object's state; a module's is without its tables."""
    return dense_state_dict(obj) if isinstance(obj, nn.Module) else obj.state_dict()


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
        if is_lazy(state):
            raise CheckpointError(f"{name}: has no values before the model has run once")
        if type(state) not in (torch.Tensor, nn.Parameter):
            raise CheckpointError(
                f"{name}: a {type(state).__name__} is in parts on several ranks: save such models "
                "with torch.distributed.checkpoint"
            )
        if state.layout is not torch.strided or state.is_meta or state.is_quantized:
            kind = (
                "meta"
                if state.is_meta
                else str(state.dtype if state.is_quantized else state.layout)
            )
            raise CheckpointError(
                f"{name}: expected a tensor with all its values, got a {kind} one"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise CheckpointError(f"{name!r}: cannot be a name in a file; rename a key") from None
        if name in tensors:  # as of {1: ..., "1": ...}
            raise CheckpointError(f"{name}: two tensors would have this name; rename a key")
        if state.numel():
            tensors[name] = state.detach()
        return {"tensor": name, "shape": list(state.shape), "dtype": str(state.dtype)[6:]}
    if isinstance(state, Mapping):
        pairs = [[key, split_state(f"{name}/{key}", v, tensors)] for key, v in state.items()]
        for key, _ in pairs:
            _check_plain(name, key)
        versions = getattr(state, "_metadata", None)  # of a module's parts, which read by them
        if versions is None:
            return {"pairs": pairs}
        return {"pairs": pairs, "versions": split_state(f"{name}/@versions", versions, tensors)}
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
        case {"pairs": list(pairs), **more}:
            described = typed(tuple[tuple[Any, Any], ...], pairs)
            found = {_plain(key): state_from(value, tensors) for key, value in described}
            if "versions" in more:
                return _with_versions(found, state_from(more["versions"], tensors))
            return found
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
        values = {key: put_together(value, tensor_of) for key, value in state.items()}
        if hasattr(state, "_metadata"):
            return _with_versions(values, put_together(state._metadata, tensor_of))
        return values
    if isinstance(state, (list, tuple)):
        return type(state)(put_together(item, tensor_of) for item in state)
    return state


def _with_versions(state: Mapping[Any, Any], versions: Any) -> Any:
    """Return the state of a module, and the versions of its parts, as torch keeps them together."""
    together: Any = OrderedDict(state)
    together._metadata = versions
    return together


def check_fits(name: str, obj: Any, state: Any) -> None:
    """Raise CheckpointError unless what `state_from` returned can be this object's state.

    Any exception for what is no such state. A module that loads in a way of its own may rename and
    cut.
    """
    if isinstance(obj, torch.optim.Optimizer) and not obj._optimizer_load_state_dict_pre_hooks:
        sizes = [len(group["params"]) for group in state["param_groups"]]
        expected_sizes = [len(group["params"]) for group in obj.param_groups]
        if sizes != expected_sizes:
            raise CheckpointError(
                f"{name} was saved with groups of {sizes} parameters, expected {expected_sizes}"
            )
    if not isinstance(obj, nn.Module):
        return
    now, own_way = dense_state_dict(obj), any(map(_loads_in_its_way, obj.modules()))
    for key in {**now, **state}:
        saved, expected = _described(state, key), _described(now, key)
        if own_way:  # but not convert: it would train on with other numbers
            saved, expected = saved.partition("[")[0], expected.partition("[")[0]
        if saved != expected and not (own_way and MISSING in (saved, expected)):
            raise CheckpointError(
                f"{name}: {key!r} was saved as {saved}, expected {expected}: the model differs "
                "from the one that was saved"
            )


def load_state(name: str, obj: Any, state: Any) -> None:
    """Load an object's state; CheckpointError for an optimizer that the state is not of."""
    if not isinstance(obj, torch.optim.Optimizer):
        obj.load_state_dict(state)
        return
    needed = [key for key in obj.param_groups[0] if key in obj.defaults]
    obj.load_state_dict(state)
    for key in needed:
        if any(key not in group for group in obj.param_groups):
            raise CheckpointError(
                f"{name}: {type(obj).__name__} needs {key!r}, which was not saved: it was another "
                "kind of optimizer"
            )


def _loads_in_its_way(module: nn.Module) -> bool:
    loads = (type(module).load_state_dict, type(module)._load_from_state_dict)
    others = any(one.__module__.partition(".")[0] not in ("torch", "hpcdist") for one in loads)
    return others or bool(module._load_state_dict_pre_hooks)


def _described(state: Mapping[str, Any], key: str) -> str:
    value = state.get(key)
    if isinstance(value, (torch.Tensor, SavedTensor)):
        shape = "" if isinstance(value, torch.Tensor) and is_lazy(value) else list(value.shape)
        return f"{str(value.dtype)[6:]}{shape}"
    return "a state" if key in state else MISSING


def not_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of any dtype holds NaN or infinity."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    parts = torch.split(tensor.detach().reshape(-1), LOOKED_AT)
    return not all(_finite(part.float() if part.itemsize == 1 else part) for part in parts)


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def individually(name: str, trainer: int) -> str:
    """Return the variable in which a trainer, not the first, saves a tensor as it has it."""
    return f"{name}@trainer_{trainer}"


def array_type(tensor: SavedTensor) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of the array in which a checkpoint keeps a tensor; not empty ones."""
    if tensor.dtype not in AS_THEY_ARE:
        return (math.prod(tensor.shape) * tensor.dtype.itemsize,), "uint8"
    return tensor.shape or (1,), str(tensor.dtype)[6:]


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's values as `array_type` says: on its memory where that can be."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
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


def take(name: str, call: Callable[[str, Any, Any], None], obj: Any, state: Any) -> None:
    """Load a state into an object; CheckpointError for whatever exception that raises."""
    try:
        call(name, obj, state)
    except HpcdistError:
        raise
    except Exception as error:
        raise CheckpointError(f"{name} cannot load its saved state: {error!r}") from error


def digest_of(array: np.ndarray) -> list[str]:
    """Return an array's type and the digest of its values."""
    return [f"{array.dtype}{list(array.shape)}", xxhash.xxh3_64_hexdigest(array.data)]


def encoded(record: object) -> np.ndarray:
    """Return plain data as bytes of JSON, shape [n], uint8."""
    return np.frombuffer(bytearray(json.dumps(record).encode()), np.uint8)
