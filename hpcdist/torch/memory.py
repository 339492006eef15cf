"""Tensors as plain memory: flat, contiguous, without autograd, and as the bytes of messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hpcdist.comm.base import Array
from hpcdist.errors import CommError


def checked(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse tensors that are not plain memory of the host."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise CommError(
                f"a tensor on {tensor.device}: hpcdist moves tensors of the CPU; initialise the "
                "group with nccl for those of GPUs"
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise CommError(f"a tensor of {tensor.layout}, {tensor.dtype}: expected a dense one")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as a vector: its own memory if it is contiguous, or a copy."""
    own = tensor.detach()
    if own.is_conj() or own.is_neg():
        own = own.resolve_conj().resolve_neg()
    vector = own.contiguous().view(-1)
    if vector.stride(0) != 1:  # of one element, which then says nothing
        vector = vector.as_strided(vector.shape, (1,))
    if own.is_inference() and vector.numel():
        # What is written outside inference mode must not look like one of its tensors.
        return torch.from_numpy(as_bytes(vector)).view(own.dtype)
    return vector


def is_same_memory(vector: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Tell whether `flat` has returned a tensor's own memory."""
    return bool(vector.data_ptr() == tensor.data_ptr())


def put_back(vectors: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy vectors into the tensors that they were made from, where they are copies."""
    for vector, tensor in zip(vectors, tensors, strict=True):
        if vector.numel() and not is_same_memory(vector, tensor):
            tensor.detach().copy_(vector.view(tensor.shape))


def as_bytes(vector: torch.Tensor) -> Array:
    """Return the memory of a contiguous vector as bytes."""
    if not vector.numel():
        return np.empty(0, np.uint8)
    found: Array = vector.view(torch.uint8).numpy()
    return found
