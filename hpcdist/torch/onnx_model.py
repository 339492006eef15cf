"""Models of torch's as ONNX: the part behind the look-ups in tables."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hpcdist.base.errors import PublicationError
from hpcdist.ps.published.dense import DenseParts, OnnxModel
from hpcdist.ps.published.members import RowsInput
from hpcdist.torch.embedding import EmbeddingBag, TableModule

OUTPUT = "output"


def onnx_model(
    model: nn.Module, inputs: Sequence[torch.Tensor], *, outputs: Sequence[str] = (OUTPUT,)
) -> OnnxModel:
    """Return a model's dense part, to be written as ONNX.

    ``inputs``: an example of what ``forward`` is given, two rows or more; the first extent of each
    varies. Instead of ids it takes their rows, of an EmbeddingBag those of its bags, as inputs
    named ``TABLE[IDS]``: IDS is the parameter of ``forward`` that the ids are, or the number of the
    look-up. Nothing is looked up. PublicationError for a model that cannot be exported.

    >>> dense = hpcdist.torch.onnx_model(model, (ids, x))  # doctest: +SKIP
    >>> dense.save("dense.onnx")  # doctest: +SKIP
    """
    what = type(model).__name__
    parameters = list(inspect.signature(model.forward).parameters)
    if len(parameters) < len(inputs) or any(x.dim() == 0 or len(x) < 2 for x in inputs):
        raise PublicationError(
            f"onnx_model: {what}: expected tensors of two rows or more for "
            f"{', '.join(parameters)}, got {', '.join(str(list(x.shape)) for x in inputs)}"
        )
    given = dict(zip(parameters, inputs))
    rows: dict[str, RowsInput] = {}
    examples: dict[str, torch.Tensor] = {}

    def record(table: TableModule, ids: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        known = next((name for name, x in given.items() if x is ids), str(len(examples)))
        bag = isinstance(table, EmbeddingBag)
        named = f"{table.name}[{known}]"
        examples[named] = pooled
        if not bag:
            rows[named] = RowsInput(table.name, known, table.padding_idx)
        return pooled

    try:
        with _dense(model, record), torch.no_grad():
            model(*inputs)
    except Exception as error:
        raise PublicationError(f"onnx_model: {what}: {error}") from error

    @contextlib.contextmanager
    def parts() -> Iterator[DenseParts]:
        every = {**given, **examples}
        pending: list[torch.Tensor] = []

        class Dense(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *tensors: torch.Tensor) -> Any:
                pending[:] = tensors[len(given) :]
                return self.model(*tensors[: len(given)])

        with _dense(model, lambda *_: pending.pop(0)):
            yield DenseParts(Dense(), every, dict.fromkeys(every, (0,)), outputs)

    def values() -> dict[str, torch.Tensor]:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return {f"model.{name}": tensor for name, tensor in tensors}

    return OnnxModel(what, rows, parts, values)


@contextlib.contextmanager
def _dense(
    model: nn.Module, answer: Callable[[TableModule, torch.Tensor, torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Evaluate the model with ``answer(table, ids, zeros of what it gives)`` in place of tables."""
    tables = [module for module in model.modules() if isinstance(module, TableModule)]
    training = [module for module in model.modules() if module.training]

    def forward_of(table: TableModule) -> Callable[..., torch.Tensor]:
        def forward(ids: torch.Tensor, offsets: Any = None, *_: Any, **__: Any) -> torch.Tensor:
            places: tuple[int, ...] = tuple(ids.shape)
            if isinstance(table, EmbeddingBag):
                last = int(table.include_last_offset)
                places = ids.shape[:1] if offsets is None else (offsets.shape[0] - last,)
            return answer(table, ids, torch.zeros(*places, table.embedding_dim))

        return forward

    try:
        model.eval()
        for table in tables:
            table.__dict__["forward"] = forward_of(table)
        yield
    finally:
        for table in tables:
            table.__dict__.pop("forward", None)
        for module in training:
            module.training = True
