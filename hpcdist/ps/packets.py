"""Packets: which variables travel together, and where each lies in the message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.base.errors import CommError
from hpcdist.comm.base import Array, contiguous

SMALL_BYTES = 65536
ALIGNMENT = 64  # of packets in an arena; a variable is aligned to its own item size


@dataclass(frozen=True)
class VarSpec:
    """A variable as both ends must know it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Packet:
    """One message: ``variables[i]`` begins ``offsets[i]`` bytes after its start.

    ``tag`` numbers the packets of one destination from 0.
    """

    tag: int
    variables: tuple[VarSpec, ...]
    nbytes: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        named = [spec.name for spec in self.variables if not spec.name.startswith("@")]
        return ", ".join(named or [spec.name for spec in self.variables])

    def views(self, buffer: Array) -> dict[str, Array]:
        """Return each variable as a view of ``buffer``, ``nbytes`` uint8 on its last axis.

        Leading axes of ``buffer`` stay in front of the variable's shape.
        """
        lead = buffer.shape[:-1]
        return {
            spec.name: buffer[..., begin : begin + spec.nbytes]
            .view(np.dtype(spec.dtype))
            .reshape(lead + spec.shape)
            for spec, begin in zip(self.variables, self.offsets, strict=True)
        }


def plan_packets(specs: Sequence[VarSpec], *, small: int = SMALL_BYTES) -> tuple[Packet, ...]:
    """Return the packets of the variables of one destination, given in the order they become ready.

    Variables of fewer than ``small`` bytes share one packet, which stands where its last member
    does; the others travel alone. The same specs give the same packets on every rank.
    """
    together = [spec for spec in specs if spec.nbytes < small]
    groups: list[tuple[VarSpec, ...]] = []
    for spec in specs:
        if spec.nbytes >= small:
            groups.append((spec,))
        elif spec is together[-1]:
            groups.append(tuple(together))
    return tuple(_packet(tag, group) for tag, group in enumerate(groups))


def twin_packets(packets: Iterable[Packet], twin: Mapping[str, str]) -> tuple[Packet, ...]:
    """Return the same packets under other variable names: ``twin`` maps gradient to parameter."""
    return tuple(
        Packet(
            packet.tag,
            tuple(VarSpec(twin[v.name], v.shape, v.dtype) for v in packet.variables),
            packet.nbytes,
            packet.offsets,
        )
        for packet in packets
    )


def layout(packets: Sequence[Packet]) -> tuple[tuple[int, ...], int]:
    """Return the byte offset of each packet in one arena, and the arena's bytes."""
    offsets, end = [], 0
    for packet in packets:
        begin = round_up(end, ALIGNMENT)
        offsets.append(begin)
        end = begin + packet.nbytes
    return tuple(offsets), round_up(end, ALIGNMENT)


def aligned_bytes(shape: tuple[int, ...]) -> Array:
    """Return zeroed uint8 of ``shape`` whose first byte is aligned like a packet."""
    nbytes = prod(shape)
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes].reshape(shape)


class PacketBuffer:
    """The bytes of a packet whose variables are in separate arrays.

    When the arrays already lie as the packet says (a lone variable, or views of one arena), the
    message is their own memory and nothing is ever copied; otherwise ``gather`` and ``scatter``
    copy to and from a staging buffer.
    """

    def __init__(self, packet: Packet, arrays: Mapping[str, Array]) -> None:
        self.packet = packet
        self._pairs: tuple[tuple[Array, Array], ...] = ()
        variables = [_checked(spec, arrays) for spec in packet.variables]
        place = _in_place(packet, variables)
        self.bytes = aligned_bytes((packet.nbytes,)) if place is None else place
        self.in_place = place is not None
        if place is None:
            staged = packet.views(self.bytes)
            self._pairs = tuple(
                (staged[spec.name], array)
                for spec, array in zip(packet.variables, variables, strict=True)
            )

    def gather(self) -> None:
        """Copy the variables into the message, unless they are the message."""
        for staged, array in self._pairs:
            staged[...] = array

    def scatter(self) -> None:
        """Copy the message into the variables, unless they are the message."""
        for staged, array in self._pairs:
            array[...] = staged


def _packet(tag: int, variables: tuple[VarSpec, ...]) -> Packet:
    offsets, end = [], 0
    for spec in variables:
        begin = round_up(end, np.dtype(spec.dtype).itemsize)
        offsets.append(begin)
        end = begin + spec.nbytes
    return Packet(tag, variables, end, tuple(offsets))


def _checked(spec: VarSpec, arrays: Mapping[str, Array]) -> Array:
    if spec.name not in arrays:
        raise CommError(f"no array for {spec}")
    array = contiguous(arrays[spec.name])
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise CommError(
            f"the array of {spec.name} must be {spec.dtype}{list(spec.shape)}, "
            f"got {array.dtype}{list(array.shape)}"
        )
    return array


def _in_place(packet: Packet, variables: Sequence[Array]) -> Array | None:
    """Return the packet's bytes as a view of the arrays' memory, None if they lie otherwise."""
    if len(variables) == 1:
        return variables[0].reshape(-1).view(np.uint8)
    start = variables[0].ctypes.data - packet.offsets[0]
    for array, begin in zip(variables, packet.offsets, strict=True):
        if array.ctypes.data != start + begin:
            return None
    for root in _bases(variables[0]):
        skip = start - root.ctypes.data
        inside = root.flags.c_contiguous and 0 <= skip <= root.nbytes - packet.nbytes
        if inside and all(any(root is base for base in _bases(array)) for array in variables):
            return root.reshape(-1).view(np.uint8)[skip : skip + packet.nbytes]
    return None


def _bases(array: Array) -> Iterator[Array]:
    base = array.base
    while isinstance(base, np.ndarray):
        yield base
        base = base.base
