"""What is fed to the devices of a process: a list of feeds, or one that is divided among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.division import ceil_div, equal_parts
from hpcdist.base.errors import FeedError, FleetTypeError
from hpcdist.graph.lod_tensor import LoDTensor, concatenated
from hpcdist.transpiler.data_parallel import DataParallel


def only_feed(feed: object) -> Mapping[str, Any]:
    """Return the feed of the only device. An empty list is none, as `even_batches` gives it."""
    if isinstance(feed, (list, tuple)):
        if not feed:
            return {}
        if len(feed) != 1:
            raise FeedError(f"feed: expected one dict, or a list of one, got {len(feed)} dicts")
        feed = feed[0]
    return _mapping(feed)


def _mapping(feed: object) -> Mapping[str, Any]:
    if feed is not None and not isinstance(feed, Mapping):
        raise FleetTypeError(f"feed: expected a dict, got {type(feed).__name__}")
    return feed or {}


def divided(feed: object, parallel: DataParallel) -> dict[str, Any]:
    """Return the feeds of all devices together, by the names of their variables.

    What devices share, such as a learning rate, is fed whole.
    """
    devices = parallel.devices
    if isinstance(feed, (list, tuple)):
        if len(feed) != devices:
            raise FeedError(
                f"feed: expected a list of {devices} dicts, one for each device, got {len(feed)}"
            )
        parts = [_mapping(part) for part in feed]
        _check_shared(parts, parallel)
        return {parallel.names(n)[d]: v for d, part in enumerate(parts) for n, v in part.items()}
    mapping = _mapping(feed)
    if devices == 1:
        return dict(mapping)
    fed: dict[str, Any] = {}
    for name, value in mapping.items():
        if name not in parallel.of:
            fed[name] = value
            continue
        tensor = value if isinstance(value, LoDTensor) else LoDTensor(value)
        rows = samples(value)
        if rows < devices:
            raise FeedError(
                f"feed {name!r}: {rows} rows cannot be divided among {devices} devices "
                f"({settings.CPU_NUM.name}); feed at least one row for each"
            )
        for name_there, (begin, end) in zip(parallel.names(name), pairwise(_cuts(rows, devices))):
            part = tensor.part(begin, end)
            fed[name_there] = part.value if part.sequences is None else part
    return fed


def _check_shared(parts: Sequence[Mapping[str, Any]], parallel: DataParallel) -> None:
    blocks = parallel.program.blocks
    read = {n for block in blocks for op in block.ops for n in op.input_arg_names}
    for name in sorted(read.intersection(set().union(*parts)) - parallel.of.keys()):
        first, *others = (np.asarray(part[name]) for part in parts if name in part)
        if not all(np.array_equal(first, other) for other in others):
            raise FeedError(
                f"feed {name!r}: all {parallel.devices} devices share it, and are fed different "
                "values; feed one value"
            )


def joined(values: Sequence[Any]) -> Any:
    """Return the values of all devices as one: arrays, tensors with their sequences, or lists."""
    if isinstance(values[0], list):
        return [joined(parts) for parts in zip(*values, strict=True)]
    return concatenated(values) if isinstance(values[0], LoDTensor) else np.concatenate(values)


def samples(value: Any) -> int:
    """Return how many samples an array, or a tensor of sequences, has."""
    tensor = value if isinstance(value, LoDTensor) else LoDTensor(value)
    return tensor.samples if np.ndim(value) else 0


def used(samples: int, devices: int) -> int:
    """Return on how many devices a batch that is not trained runs: all but the last are full."""
    return ceil_div(samples, ceil_div(samples, devices)) if samples else 1


def _cuts(samples: int, devices: int) -> list[int]:
    """Return where the parts of a batch begin, and its end: as in Fluid, the last is the small one.

    Where that would leave a device with nothing, which Fluid refuses, they are nearly equal.
    """
    full = ceil_div(samples, devices)
    if full * (devices - 1) < samples:
        return [min(full * device, samples) for device in range(devices + 1)]
    return equal_parts(samples, devices)
