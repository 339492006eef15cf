"""The dense part of a model as ONNX: exported once, then written with its values at any time.

torch exports it: a Program is a module of its operators' forms, so there is one exporter for all.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdist.base.errors import PublicationError
from hpcdist.base.extras import install_command
from hpcdist.base.replaced import write_whole
from hpcdist.ps.published.members import RowsInput

NEEDED = ("torch", "onnx", "onnxscript")
LONGEST = 250  # characters of a reason
TRACED_BATCH = 3  # rows of the batch with which a graph is traced: neither 0 nor 1, which broadcast


@dataclass(frozen=True)
class DenseParts:
    """What is exported: a torch module with its inputs in order, and which of their extents vary.

    ``open``: the axes of each input that may have any extent. ``outputs``: their names.
    """

    module: Any
    inputs: Mapping[str, Any]
    open: Mapping[str, Sequence[int]]
    outputs: Sequence[str]


class OnnxModel:
    """A dense part as ONNX; made by `fluid.io.onnx_model` and `hpcdist.torch.onnx_model`.

    ``rows`` are those of its inputs that are rows of tables. It is exported when it is first
    written, or by `prepare`, and then keeps the graph: `encode` puts present values into it.
    """

    def __init__(
        self,
        what: str,
        rows: Mapping[str, RowsInput],
        parts: Callable[[], contextlib.AbstractContextManager[DenseParts]],
        values: Callable[[], Mapping[str, Any]],
    ) -> None:
        """``values`` returns tensors of torch's by the names that they have in the module."""
        for package in NEEDED:
            if importlib.util.find_spec(package) is None:
                raise PublicationError(
                    f"onnx_model: {what} cannot be exported without {package}, which is not "
                    f"installed: {install_command('onnx')}"
                )
        self.what, self.rows = what, dict(rows)
        self._parts, self._values = parts, values
        self._graph: Any = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        self.prepare()
        return tuple(value.name for value in self._graph.graph.inputs)

    def prepare(self) -> None:
        """Export the graph, once; PublicationError, which names what cannot be exported."""
        if self._graph is None:
            with self._parts() as parts:
                self._graph = _exported(self.what, parts)

    def encode(self) -> bytes:
        """Return the model in ONNX, with its present values."""
        self.prepare()
        import onnx_ir

        values, kept = self._values(), self._graph.graph.initializers
        for name in kept.keys() & values.keys():
            tensor = values[name].detach().cpu().contiguous()
            kept[name].const_value = onnx_ir.tensor_adapters.TorchTensor(tensor, name=name)
        encoded: bytes = onnx_ir.to_proto(self._graph).SerializeToString()
        return encoded

    def save(self, path: str | Path) -> None:
        """Write the model to a file, which appears whole or not at all. OSError if it cannot be."""
        write_whole(Path(path), self.encode())


def _exported(what: str, parts: DenseParts) -> Any:
    """Return the graph, of type ``onnx_ir.Model``."""
    import torch

    axes = tuple(dict.fromkeys(parts.open[name], torch.export.Dim.DYNAMIC) for name in parts.inputs)
    try:
        with _quiet(), torch.no_grad():
            traced = torch.export.export(
                parts.module,
                tuple(parts.inputs.values()),
                dynamic_shapes=(axes,),  # of one parameter, `*inputs`
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            program: Any = torch.onnx.export(
                traced,
                dynamo=True,
                optimize=False,  # which would fold values that are to be replaced
                input_names=list(parts.inputs),
                output_names=list(parts.outputs),
                verbose=False,
            )
    except Exception as error:  # whatever torch, onnxscript or a form raises
        raise PublicationError(
            f"onnx_model: {what} cannot be exported: {_innermost(error)}"
        ) from error
    graph = program.model.graph
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)  # ids, whose rows are an input in their place
    return program.model


def _innermost(error: BaseException) -> str:
    """Return the first reason, in one line: torch tells long stories."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return " ".join(f"{error}".split())[:LONGEST] or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch's exporter says of itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
