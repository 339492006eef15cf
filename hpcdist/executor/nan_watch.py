"""NaN in fetched values of training programs and, with FLAGS_check_nan_inf, in all results."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import NotFiniteError
from hpcdist.base.trace.position import here
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.operator import Operator
from hpcdist.ops.embedding.selected_rows import SelectedRows

logger = logging.getLogger("hpcdist")


def leave_to_messages() -> None:
    """Show no warnings of numpy's about numbers that a Program computes.

    They name a line of this package, and only some kernels give them: what holds NaN is told here.
    """
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"hpcdist\.(executor|ops)\.")


leave_to_messages()


class NanWatch:
    """Looks at fetched values until it has found a NaN."""

    def __init__(self) -> None:
        self.watching = True

    def look(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Warn of a NaN, or raise NotFiniteError if `--on-nan end` asks for it."""
        if len(values) == 1 and type(values[0]) is np.ndarray and values[0].size == 1:
            number = values[0].item()  # a loss: as quick as can be
            if number == number:
                return
        for name, value in zip(names, values):
            parts = value if isinstance(value, list) else [value]  # what an array of a loop holds
            if any(_has_nan(_array(part)) for part in parts):
                self.watching = False
                tell(f"{_where()}: fetched {name!r} holds NaN")
                return


def tell(words: str, *, end: bool = False) -> None:
    """Warn, or raise NotFiniteError: to ``end`` the job, or as `--on-nan end` asks."""
    if end or settings.ON_NAN.read() == "end":
        raise NotFiniteError(words)
    logger.warning("%s (this is said once; --on-nan end ends the job)", words)


def with_checks(
    steps: Sequence[Callable[[], object]], ops: Sequence[Operator], arrays: Mapping[str, Any]
) -> list[Callable[[], object]]:
    """Return steps that raise NotFiniteError if what their operator has written is not finite."""

    def checked(call: Callable[[], object], op: Operator) -> Callable[[], object]:
        def run() -> None:
            replaced = _ranges(op, arrays, in_place=True)  # gone when it is known that they matter
            call()
            for name in op.output_arg_names:
                array = _array(arrays.get(name))
                if getattr(getattr(array, "dtype", None), "kind", "") != "f":
                    continue
                if not np.isfinite(array).all():
                    kind = "NaN" if np.isnan(array).any() else "infinity"
                    ranges = _ranges(op, arrays, in_place=False) | replaced
                    inputs = dict.fromkeys(op.input_arg_names)
                    read = ", ".join(f"{n} {ranges[n]}" for n in inputs if n in ranges)
                    raise NotFiniteError(
                        f"{_where()}, {op.place} {op}: {name!r} holds {kind}"
                        + (f"; read: {read}" if read else "")
                    )

        return run

    # What fake_init leaves are no values: those of the table are the servers'.
    return [call if op.type == "fake_init" else checked(call, op) for call, op in zip(steps, ops)]


def _ranges(op: Operator, arrays: Mapping[str, Any], *, in_place: bool) -> dict[str, str]:
    """Return the ranges of an operator's inputs, as words: those it writes over, or the others."""
    written = [_array(arrays.get(name)) for name in op.output_arg_names]
    written = [array for array in written if isinstance(array, np.ndarray)]
    ranges = {}
    for name in op.input_arg_names:
        array = _array(arrays.get(name))
        if hasattr(array, "dtype") and in_place == any(
            isinstance(array, np.ndarray) and np.may_share_memory(array, other) for other in written
        ):
            ranges[name] = _range(array)
    return ranges


def _range(array: Any) -> str:
    """Return the least and the greatest finite value of an array, and what else it holds."""
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array.reshape(-1)
    text = f"in [{finite.min():.6g}, {finite.max():.6g}]" if finite.size else "without numbers"
    if array.dtype.kind == "f" and finite.size < array.size:
        text += " with NaN" if np.isnan(array).any() else " with infinity"
    return text


def _where() -> str:
    rank = settings.RANK.read()
    return f"step {here.step}" if rank is None else f"rank {rank}, step {here.step}"


def _array(value: object) -> Any:
    """Return the numbers of a ragged value or a sparse gradient."""
    return value.value if isinstance(value, (LoDTensor, SelectedRows)) else value


def _has_nan(array: Any) -> bool:
    if array.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):  # a sum of infinities may be NaN as well
        return bool(np.isnan(array.sum()) and np.isnan(array).any())
