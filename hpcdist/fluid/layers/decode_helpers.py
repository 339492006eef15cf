"""Inputs of a `BasicDecoder`: from the feed, or from its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hpcdist.fluid.layers.cells import other_major
from hpcdist.fluid.layers.control_flow import equal, less_equal
from hpcdist.fluid.layers.creation import sampling_id
from hpcdist.fluid.layers.decoders import Decoder
from hpcdist.fluid.layers.math import argmax, scale
from hpcdist.fluid.layers.nn import softmax
from hpcdist.fluid.layers.rearrange import pad
from hpcdist.fluid.layers.structure import map_structure
from hpcdist.fluid.layers.tensor import (
    cast,
    fill_constant,
    fill_constant_batch_size_like,
    gather,
    squeeze,
)
from hpcdist.graph.variable import Variable

__all__ = [
    "BasicDecoder",
    "DecodeHelper",
    "GreedyEmbeddingHelper",
    "SampleEmbeddingHelper",
    "TrainingHelper",
]


class DecodeHelper:
    """Chooses tokens and makes the next inputs: subclasses write these methods."""

    def initialize(self) -> tuple[Any, Variable]:
        """Return the first inputs, and which sequences have ended (bool [N])."""
        raise NotImplementedError(f"{type(self).__name__} must have a method initialize()")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return a token for each row of a step's outputs."""
        raise NotImplementedError(f"{type(self).__name__} must have a method sample(...)")

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> Any:
        """Return which sequences have ended (bool [N]), the next inputs, and the states."""
        raise NotImplementedError(f"{type(self).__name__} must have a method next_inputs(...)")


class TrainingHelper(DecodeHelper):
    """Takes the inputs of all steps, [N, steps, ...], from what is given.

    ``sequence_length`` int [N], not all 0, at most the steps: at a step FeedError for others.
    ``time_major``: inputs are [steps, N, ...].
    """

    def __init__(self, inputs: Any, sequence_length: Variable, time_major: bool = False) -> None:
        self.inputs = inputs
        self.sequence_length = sequence_length
        self.time_major = time_major
        # One step more, which is read after the last one and not computed.
        self._by_steps = map_structure(self._with_one_more, inputs)

    def _with_one_more(self, x: Variable) -> Variable:
        if not self.time_major:
            x = other_major(x)
        return pad(x, [0, 1] + [0, 0] * (len(x.shape) - 1))

    def initialize(self) -> tuple[Any, Variable]:
        """Return the first step, and which sequences are empty.

        Returns [batch, ...], the first step of the inputs, and bool [batch].
        """
        zero = fill_constant([1], self.sequence_length.dtype, 0)
        first = map_structure(lambda x: x[0] if self.time_major else x[:, 0], self.inputs)
        return first, equal(self.sequence_length, zero)

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the likeliest tokens.

        outputs: [batch, classes]. Returns int64 [batch].
        """
        return argmax(outputs, axis=-1)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> Any:
        """Return the next step.

        Returns bool [batch] (which have ended), inputs [batch, ...] and states.
        """
        after = scale(time, bias=1.0)
        after.stop_gradient = True
        ended = less_equal(cast(self.sequence_length, after.dtype), after)
        following = map_structure(lambda x: squeeze(gather(x, after), [0]), self._by_steps)
        return ended, following, states


class GreedyEmbeddingHelper(DecodeHelper):
    """Takes the likeliest token of a step as the next step's input, until it is ``end_token``.

    ``embedding_fn`` turns tokens int64 [N] into inputs; ``start_tokens`` int64 [N].
    """

    def __init__(
        self, embedding_fn: Callable[[Variable], Any], start_tokens: Variable, end_token: int
    ) -> None:
        self.embedding_fn = embedding_fn
        self.start_tokens = start_tokens
        self.end_token = fill_constant([1], "int64", end_token)

    def initialize(self) -> tuple[Any, Variable]:
        """Return the start tokens as inputs.

        Returns what ``embedding_fn`` gives for ``start_tokens`` [batch], and bool [batch], all
        False.
        """
        ended = fill_constant_batch_size_like(self.start_tokens, [-1], "bool", 0)
        return self.embedding_fn(self.start_tokens), ended

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the likeliest tokens.

        outputs: [batch, classes]. Returns int64 [batch].
        """
        return argmax(outputs, axis=-1)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> Any:
        """Return the tokens as inputs."""
        return equal(sample_ids, self.end_token), self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Draws the token of a step with the probabilities that its outputs, as logits, say.

    ``softmax_temperature`` divides the logits: above 1 tokens become more alike in probability.
    """

    def __init__(
        self,
        embedding_fn: Callable[[Variable], Any],
        start_tokens: Variable,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding_fn, start_tokens, end_token)
        self.softmax_temperature = softmax_temperature
        self.seed = seed

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return tokens that are drawn.

        outputs: [batch, classes], logits. Returns int64 [batch].
        """
        if self.softmax_temperature is not None:
            outputs = scale(outputs, 1.0 / self.softmax_temperature)
        probabilities = softmax(outputs)
        probabilities.stop_gradient = True
        return sampling_id(probabilities, seed=self.seed or 0)


class BasicDecoder(Decoder):
    """A cell whose inputs come from a `DecodeHelper`.

    ``output_fn`` turns the cell's outputs into scores of tokens, say. Outputs of a step are
    ``cell_outputs`` and ``sample_ids``.
    """

    class OutputWrapper(NamedTuple):
        """What a step gives."""

        cell_outputs: Any
        sample_ids: Any

    def __init__(
        self, cell: Any, helper: Any, output_fn: Callable[[Any], Any] | None = None
    ) -> None:
        self.cell, self.helper, self.output_fn = cell, helper, output_fn

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        """Return the helper's first inputs, and the states."""
        inputs, ended = self.helper.initialize()
        return inputs, initial_cell_states, ended

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Compute the cell, and ask the helper for tokens and the next inputs."""
        outputs, states = self.cell(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        tokens = self.helper.sample(time=time, outputs=outputs, states=states)
        tokens.stop_gradient = True
        ended, following, states = self.helper.next_inputs(
            time=time, outputs=outputs, states=states, sample_ids=tokens
        )
        return self.OutputWrapper(outputs, tokens), states, following, ended
