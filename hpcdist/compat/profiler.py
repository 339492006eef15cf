"""Fluid's module ``profiler``: accepted, with a warning that nothing is recorded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist.errors import GraphError

__all__ = ["profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_STATES = ("CPU", "GPU", "All")
_OPTIONS = ("Default", "OpDetail", "AllOpDetail")
_SORTED_BY = (None, "default", "calls", "total", "max", "min", "ave")


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Check the arguments, and warn that nothing is recorded."""
    _expect("state", state, _STATES)
    _expect("tracer_option", tracer_option, _OPTIONS)
    warnings.warn(
        "fluid.profiler records nothing here: measure with py-spy or cProfile", stacklevel=3
    )


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Check the arguments; no file is written."""
    _expect("sorted_key", sorted_key, _SORTED_BY)


def reset_profiler() -> None:
    """Do nothing: nothing was recorded."""


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str = "/tmp/profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Run what is inside the ``with`` between `start_profiler` and `stop_profiler`."""
    start_profiler(state, tracer_option)
    yield
    stop_profiler(sorted_key, profile_path)


def _expect(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise GraphError(f"profiler: {name} must be one of {known}, got {value!r}")
