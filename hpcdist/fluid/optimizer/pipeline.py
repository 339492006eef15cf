"""An optimizer that cuts its Program into pipeline stages, one per rank of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.checks import GRAPH, integer
from hpcdist.base.errors import GraphError
from hpcdist.fluid.optimizer.base import ParamGrads
from hpcdist.fluid.optimizer.wrapper import AnyOptimizer, OptimizerWrapper
from hpcdist.graph.operator import as_names
from hpcdist.graph.pipeline import PipelineCut
from hpcdist.graph.program import program_of
from hpcdist.graph.variable import Variable

_CUTS = "PipelineOptimizer: cut_list: expected lists of Variables, the last one [loss]"


class PipelineOptimizer(OptimizerWrapper):
    """Notes where the Program is cut; a process alone trains as by the optimizer within.

    ``cut_list``: for each stage the Variables that later ones read, and [loss] for the last;
    without it `device_guard` says which operators form a stage. ``num_microbatches``: into how many
    parts a replica cuts its rows, by default twice the number of stages. Fluid's other arguments
    are checked and have no effect: stages run at the executor's place, one micro-batch at a time,
    and replicas add their gradients in every step.
    """

    type = "pipeline"

    def __init__(
        self,
        optimizer: AnyOptimizer,
        cut_list: Sequence[Sequence[Variable | str]] | None = None,
        place_list: Sequence[Any] | None = None,
        concurrency_list: Sequence[int] | None = None,
        queue_size: int = 30,
        sync_steps: int = 1,
        start_cpu_core_id: int = 0,
        num_microbatches: int | None = None,
    ) -> None:
        super().__init__(optimizer)
        self._cuts: tuple[tuple[str, ...], ...] | None = None
        if cut_list is not None:
            if not isinstance(cut_list, (list, tuple)) or not cut_list:
                raise GraphError(f"{_CUTS}, got {cut_list!r}")
            self._cuts = tuple(_names(entry) for entry in cut_list)
        for name, values in (("place_list", place_list), ("concurrency_list", concurrency_list)):
            sections = 2 * len(self._cuts or ()) - 1
            if values is not None and self._cuts is not None and len(values) != sections:
                raise GraphError(
                    f"PipelineOptimizer: {name}: expected {sections} entries, for the "
                    f"{len(self._cuts)} stages forward and back again, got {len(values)}"
                )
        for name, number in (("queue_size", queue_size), ("sync_steps", sync_steps)):
            integer(f"PipelineOptimizer: {name}", number, 1, errors=GRAPH)
        integer("PipelineOptimizer: start_cpu_core_id", start_cpu_core_id, 0, errors=GRAPH)
        if num_microbatches is not None:
            argument = "PipelineOptimizer: num_microbatches"
            num_microbatches = integer(argument, num_microbatches, 1, errors=GRAPH)
        self._micro_batches = num_microbatches

    def _backward(self, loss: Variable, *arguments: Any) -> ParamGrads:
        if self._cuts is not None and loss.name not in self._cuts[-1]:
            raise GraphError(
                f"PipelineOptimizer: the last entry of cut_list is that of the last stage: "
                f"expected [{loss.name!r}], the loss, got {list(self._cuts[-1])}"
            )
        program = program_of(loss)
        if self._cuts is None or len(self._cuts) > 1:
            cuts = None if self._cuts is None else self._cuts[:-1]
            program.pipeline = PipelineCut(cuts, self._micro_batches)
        return super()._backward(loss, *arguments)


def _names(entry: Any) -> tuple[str, ...]:
    """Return the names in one entry of cut_list: a list of Variables or names, or one of them."""
    several = entry if isinstance(entry, (list, tuple)) else [entry]
    if wrong := [value for value in several if not isinstance(value, (Variable, str))]:
        raise GraphError(f"{_CUTS}, got {wrong[0]!r} in an entry")
    return tuple(as_names(entry))
