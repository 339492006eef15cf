"""Tensors as plain memory: flat, contiguous, without autograd, and as the bytes of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from hpcdist.base.errors import CommError
from hpcdist.comm.base import Array

Modes: Any = torch._C._TorchDispatchModeKey


def checked(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
    """Refuse tensors that are not plain memory of the host, of each element if it is written."""
    for tensor in (*read, *written):
        if type(tensor) is not torch.Tensor and _computes_itself(tensor):
            parts = "its local part, to_local()" if hasattr(tensor, "to_local") else "its parts"
            raise CommError(
                f"a {type(tensor).__name__}: collectives move plain tensors; give them {parts}"
            )
        if tensor.device.type != "cpu":
            raise CommError(
                f"a tensor on {tensor.device}: hpcdist moves CPU tensors; initialise the group "
                "with nccl for GPU tensors, from torch 2.14 on with cpu:hpcdist,cuda:nccl for both"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            kind = "nested tensors" if tensor.is_nested else f"{tensor.layout}, {tensor.dtype}"
            raise CommError(f"a tensor of {kind}: expected a dense one")
    for tensor in written:
        if tensor.is_contiguous():
            continue
        repeated = any(not step and n > 1 for n, step in zip(tensor.shape, tensor.stride()))
        if repeated and tensor.numel():
            raise CommError(
                f"{described(tensor)} with strides {list(tensor.stride())} is to be written, but "
                "several of its elements are one in memory, as expand() makes them: clone() it"
            )


def _computes_itself(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's class has a __torch_dispatch__: what it has may be elsewhere."""
    if hasattr(tensor, "trigger_wait") or torch._C._get_dispatch_mode(Modes.FAKE) is not None:
        return False
    return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python))


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or what a functional collective has promised (AsyncCollectiveTensor)."""
    if type(tensor) is torch.Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    plain: torch.Tensor = tensor.trigger_wait()
    return plain


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as a vector: its own memory if it is contiguous, or a copy."""
    data = _waited(tensor).detach()
    if data.is_conj() or data.is_neg():
        data = data.resolve_conj().resolve_neg()
    vector = data.contiguous().view(-1)
    if vector.stride(0) != 1:  # of one element, which then says nothing
        vector = vector.as_strided(vector.shape, (1,))
    return _for_any_thread(vector)


def outside_modes() -> AbstractContextManager[Any]:
    """Return the context of a collective's steps: each may run in another thread.

    A thread is in inference mode or not, and outside it a tensor that was made in it is read-only.
    In modes that see or replace what is computed (FakeTensorMode) steps would be seen or replaced.
    """
    if torch._C._len_torch_dispatch_stack():
        return _outside_dispatch_modes()
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _outside_dispatch_modes() -> Iterator[None]:
    inference = torch.is_inference_mode_enabled()
    outside_inference = torch.inference_mode(False) if inference else nullcontext()
    with torch._C._DisableTorchDispatch(), outside_inference:
        yield


def _for_any_thread(vector: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory that may be written outside inference mode, too."""
    if not vector.is_inference():
        return vector
    with torch.inference_mode(False):
        memory, begin = vector.untyped_storage(), vector.storage_offset()
        return torch.empty(0, dtype=vector.dtype).set_(memory, begin, vector.shape, vector.stride())


def unwatched(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of the same memory, changes of which autograd does not count.

    torch's own groups write without its knowledge, too, in operations on one tensor: a script that
    uses what was saved for the backward pass would raise here, and not there.
    """
    return [_waited(tensor).data for tensor in tensors]


def is_same_memory(vector: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether `flat` has returned a tensor's own memory."""
    return bool(vector.data_ptr() == tensor.data_ptr())


def put_back(vectors: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy vectors into the tensors that they were made from, where they are copies."""
    for vector, target in zip(vectors, tensors, strict=True):
        tensor = _waited(target)
        if vector.numel() and not is_same_memory(vector, tensor):
            with torch.inference_mode():  # there tensors of either mode may be written
                tensor.detach().copy_(vector.view(tensor.shape))


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors to be written, of one dtype, as one vector: its own memory if it is one."""
    if not tensors:
        raise CommError("expected at least one tensor, got none")
    checked((), tensors)
    if len(tensors) == 1:
        return flat(tensors[0])
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise CommError(f"expected tensors of one dtype, got {', '.join(map(described, tensors))}")
    return _for_any_thread(torch.cat([flat(tensor) for tensor in tensors]))


def put_back_joined(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Undo `joined`.

    Copies the parts of the joined vector into the tensors that it was made of.
    """
    if len(tensors) == 1:
        put_back([vector], tensors)
    else:
        put_back(vector.split([tensor.numel() for tensor in tensors]), tensors)


def equal_parts(vector: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """Return a vector cut equally; CommError if it cannot be."""
    if vector.numel() % ranks:
        raise CommError(f"{ranks} ranks cannot share {vector.numel()} elements equally")
    return list(vector.view(ranks, -1)) if vector.numel() else [vector] * ranks


def parts_by_rows(
    vector: torch.Tensor, like: torch.Tensor, rows: Sequence[int], ranks: int
) -> list[torch.Tensor]:
    """Return the vector of ``like`` cut by its rows, one number for each rank; none: equally."""
    if not rows:
        return equal_parts(vector, ranks)
    if len(rows) != ranks or sum(rows) != len(like):
        raise CommError(
            f"splits {list(rows)} of {described(like)}: expected {ranks} that add up to {len(like)}"
        )
    row = vector.numel() // len(like) if len(like) else 0
    return list(vector.split([row * count for count in rows]))


def described(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype and shape, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def as_bytes(vector: torch.Tensor) -> Array:
    """Return the memory of a contiguous vector as bytes."""
    if not vector.numel():
        return np.empty(0, np.uint8)
    data: Array = vector.view(torch.uint8).numpy()
    return data
