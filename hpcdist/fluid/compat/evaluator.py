"""``fluid.evaluator``: metrics that a Program adds up in variables, batch after batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.metrics import DetectionMAP
from hpcdist.graph import names
from hpcdist.graph.program import Program, default_main_program, program_guard
from hpcdist.graph.variable import Variable
from hpcdist.ops.sequence.crf import chunk_scores

__all__ = ["ChunkEvaluator", "DetectionMAP", "EditDistance"]


class Evaluator:
    """Totals over batches (`states`), which `reset` sets to 0, and values of a batch (`metrics`).

    It appends to block 0 of the default main program; every run of that adds to the totals.
    """

    def __init__(self, name: str) -> None:
        if default_main_program().current_block().idx:
            raise GraphError(
                f"{type(self).__name__} keeps its counts in block 0: create it outside loops"
            )
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []
        self._name = name

    def reset(self, executor: Any, reset_program: Program | None = None) -> None:
        """Set all totals to 0; to be called before the first batch."""
        program = Program() if reset_program is None else reset_program
        with program_guard(program):
            for state in self.states:
                state_var = state.copied_to(program.global_block())
                program.global_block().add_var(state_var)
                layers.fill_constant([1], state_var.dtype, 0.0, out=state_var)
        executor.run(program)

    def _add_up(self, suffix: str, value: Variable) -> None:
        """Add a value of shape (1,) to a new total in every run."""
        block = default_main_program().global_block()
        name = f"{names.generate(self._name)}_{suffix}"
        state = block.create_var(name, shape=[1], dtype=value.dtype, persistable=True)
        layers.sums([state, layers.reshape(value, [1])], out=state)
        self.states.append(state)

    def _totals(self, executor: Any, eval_program: Program | None) -> list[float]:
        """Return the totals, in the order in which they were made."""
        program = Program() if eval_program is None else eval_program
        for state in self.states:
            program.global_block().add_var(state.copied_to(program.global_block()))
        totals = executor.run(program, fetch_list=[state.name for state in self.states])
        return [float(np.reshape(value, -1)[0]) for value in totals]


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of the chunks of all batches; arguments as `layers.chunk_eval`."""

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ) -> None:
        super().__init__("chunk_eval")
        outputs = layers.chunk_eval(
            input, label, chunk_scheme, num_chunk_types, excluded_chunk_types
        )
        self.metrics = list(outputs[:3])
        for suffix, count in zip(("infer", "label", "correct"), outputs[3:]):
            self._add_up(f"num_{suffix}_chunks", count)

    def eval(
        self, executor: Any, eval_program: Program | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return precision, recall and F1 since the last `reset`, float32 of shape (1,)."""
        scores = chunk_scores(*self._totals(executor, eval_program))
        one, two, three = (np.array([value], np.float32) for value in scores)
        return one, two, three


class EditDistance(Evaluator):
    """Mean edit distance of all batches, and the share of sequences with any difference."""

    def __init__(
        self, input: Variable, label: Variable, ignored_tokens: Sequence[int] | None = None
    ) -> None:
        super().__init__("edit_distance")
        distances, sequences = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        zero = layers.fill_constant([1], "float32", 0.0)
        right = layers.reduce_sum(layers.cast(layers.equal(distances, zero), "int64"))
        total = layers.reduce_sum(distances)
        wrong = layers.elementwise_sub(layers.reshape(sequences, [1]), right)
        self.metrics = [total, wrong]
        self._add_up("total_distance", total)
        self._add_up("seq_num", sequences)
        self._add_up("instance_error", wrong)

    def eval(
        self, executor: Any, eval_program: Program | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean distance and the share since the last `reset`, of shape (1,)."""
        distance, sequences, wrong = (np.float32(v) for v in self._totals(executor, eval_program))
        if not sequences:
            raise GraphError("EditDistance: no sequences since reset()")
        return np.array([distance / sequences]), np.array([wrong / sequences])
