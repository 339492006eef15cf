"""Decoders, which `dynamic_decode` repeats until all sequences have ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.activation import log
from hpcdist.fluid.layers.arrays import array_read, array_write, tensor_array_to_tensor
from hpcdist.fluid.layers.beam_search import gather_tree
from hpcdist.fluid.layers.cells import either, other_major
from hpcdist.fluid.layers.control_flow import (
    equal,
    increment,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
)
from hpcdist.fluid.layers.gather_scatter import gather_nd
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.loops import While
from hpcdist.fluid.layers.math import (
    elementwise_add,
    elementwise_floordiv,
    elementwise_mod,
    elementwise_mul,
    elementwise_sub,
    scale,
)
from hpcdist.fluid.layers.metric import topk
from hpcdist.fluid.layers.nn import softmax
from hpcdist.fluid.layers.norms_distances import cumsum, reduce_all
from hpcdist.fluid.layers.structure import flatten, map_structure
from hpcdist.fluid.layers.tensor import (
    assign,
    cast,
    expand,
    fill_constant,
    fill_constant_batch_size_like,
    ones_like,
    reshape,
    stack,
    transpose,
    unsqueeze,
    zeros_like,
)
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.values import ARRAY
from hpcdist.graph.variable import Variable

__all__ = ["BeamSearchDecoder", "Decoder", "dynamic_decode"]

_FAR_BELOW = -1e9  # the score of a beam that does not count


class Decoder:
    """What `dynamic_decode` repeats: subclasses write these methods."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """Return the first inputs, the first states, and which sequences have ended (bool).

        Values are [batch, ...]; ended: bool [batch]. Called once by `dynamic_decode`, before its
        loop.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method initialize(inits)")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Return outputs, new states, new inputs, and which sequences have ended (bool).

        time: int64 [1], counted from 0; inputs and states: [batch, ...]; ended: bool [batch].
        Called in each step of the loop.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method step(...)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> Any:
        """Return outputs [steps, ...] and states as the caller gets them; need not be there."""
        raise NotImplementedError


class BeamSearchDecoder(Decoder):
    """Keep the ``beam_size`` best continuations of each sample, with a cell that scores tokens.

    ``embedding_fn`` turns tokens [N, beams] into inputs of the cell, ``output_fn`` its outputs into
    scores [N, beams, tokens]. Values that the cell reads beside inputs and states need a row for
    each beam: `tile_beam_merge_with_batch`.
    """

    class OutputWrapper(NamedTuple):
        """What a step gives: values [N, beams]."""

        scores: Any
        predicted_ids: Any
        parent_ids: Any

    class StateWrapper(NamedTuple):
        """What a step hands to the next one: values [N, beams, ...]."""

        cell_states: Any
        log_probs: Any
        finished: Any
        lengths: Any

    def __init__(
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Variable], Any] | None = None,
        output_fn: Callable[[Any], Variable] | None = None,
    ) -> None:
        self.cell = cell
        self.embedding_fn, self.output_fn = embedding_fn, output_fn
        self.start_token, self.end_token = start_token, end_token
        self.beam_size = beam_size

    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """Return [N * beams, ...]: each row of ``x`` [N, ...] as often as there are beams."""
        wide = _expanded(x, beam_size)
        rank = len(wide.shape)
        # Extents that are not known when the Program is built are kept by 0, at their own places.
        wide = transpose(wide, [*range(2, rank), 0, 1])
        merged = reshape(wide, [0] * (rank - 2) + [-1])
        return transpose(merged, [rank - 2, *range(rank - 2)])

    def _merged(self, x: Variable) -> Variable:
        return reshape(x, [-1, *x.shape[2:]])

    def _divided(self, x: Variable) -> Variable:
        return reshape(x, [-1, self.beam_size, *x.shape[1:]])

    def _chosen(self, x: Variable, indices: Variable) -> Variable:
        """Return ``x[n, indices[n, k]]`` at place [n, k]."""
        ones = ones_like(indices)
        ones.stop_gradient = True
        places = stack([cumsum(ones, 0, exclusive=True), indices], axis=2)
        places.stop_gradient = True
        return gather_nd(x, places)

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        """Begin with the start token; only the first of the beams, which are all alike, counts."""
        states = map_structure(lambda x: _expanded(x, self.beam_size), initial_cell_states)
        reference = flatten(initial_cell_states)[0]
        shape = [-1, self.beam_size]

        def filled(dtype: str, value: float) -> Variable:
            return fill_constant_batch_size_like(reference, shape, dtype, value)

        first = np.array([0.0] + [_FAR_BELOW] * (self.beam_size - 1), "float32")
        log_probs = elementwise_add(filled("float32", 0.0), assign(first))
        tokens = filled("int64", self.start_token)
        finished, lengths = filled("bool", 0), filled("int64", 0)
        inputs = self.embedding_fn(tokens) if self.embedding_fn else tokens
        return inputs, self.StateWrapper(states, log_probs, finished, lengths), finished

    def _search(self, logits: Variable, cell_states: Any, beams: Any) -> tuple[Any, Any]:
        size = logits.shape[-1]
        only_end = np.full(size, _FAR_BELOW, "float32")
        only_end[self.end_token] = 0
        # A beam that has ended continues with the end token only, which costs nothing.
        ended = cast(beams.finished, "float32")
        after_end = elementwise_mul(expand(unsqueeze(ended, [2]), [1, 1, size]), assign(only_end))
        going_on = elementwise_mul(log(softmax(logits)), scale(ended, bias=-1.0), axis=0)
        step = elementwise_sub(after_end, going_on)
        totals = reshape(
            elementwise_add(step, beams.log_probs, axis=0), [-1, self.beam_size * size]
        )
        scores, indices = topk(totals, k=self.beam_size)
        tokens_of_beam = fill_constant([1], "int64", size)
        parents = elementwise_floordiv(indices, tokens_of_beam)
        tokens = elementwise_mod(indices, tokens_of_beam)
        finished = self._chosen(beams.finished, parents)
        lengths = self._chosen(beams.lengths, parents)
        lengths = elementwise_add(lengths, cast(logical_not(finished), "int64"))
        end = fill_constant([1], "int64", self.end_token)
        state = self.StateWrapper(
            map_structure(lambda x: self._chosen(x, parents), cell_states),
            self._chosen(totals, indices),
            logical_or(finished, equal(tokens, end)),
            lengths,
        )
        return self.OutputWrapper(scores, tokens, parents), state

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Compute the cell for all beams, and keep the best continuations."""
        outputs, cell_states = self.cell(
            map_structure(self._merged, inputs),
            map_structure(self._merged, states.cell_states),
            **kwargs,
        )
        outputs = map_structure(self._divided, outputs)
        cell_states = map_structure(self._divided, cell_states)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        if not isinstance(outputs, Variable):
            raise GraphTypeError(
                f"BeamSearchDecoder: the scores of tokens must be one value, got {outputs!r}; "
                "output_fn can make it of what the cell gives"
            )
        search_output, state = self._search(outputs, cell_states, states)
        search_output.predicted_ids.stop_gradient = True
        tokens = search_output.predicted_ids
        next_inputs = self.embedding_fn(tokens) if self.embedding_fn else tokens
        return search_output, state, next_inputs, state.finished

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> Any:
        """Return whole sentences [steps, N, beams], the best beam first."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states


def _expanded(x: Variable, beam_size: int) -> Variable:
    """Return [N, beams, ...] of [N, ...]."""
    wide = unsqueeze(x, [1])
    return expand(wide, [1, beam_size] + [1] * (len(wide.shape) - 2))


def dynamic_decode(
    decoder: Any,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> Any:
    """Repeat ``decoder.step`` until all sequences have ended; return outputs and last states.

    Outputs are [N, steps, ...], with ``output_time_major`` [steps, N, ...]. As in Fluid there is
    one step more than ``max_step_num``. ``impute_finished``: states of sequences that have ended
    stay what they are. ``is_test``: no gradients are wanted. ``return_length``: also return how
    many steps each sequence has. A decoder whose ``tracks_own_finished`` is True says itself which
    sequences have ended, and how many steps they have: ``lengths`` of its states.
    """
    if not (hasattr(decoder, "initialize") and hasattr(decoder, "step")):
        raise GraphTypeError(f"dynamic_decode: decoder: expected a Decoder, got {decoder!r:.80}")
    inputs, states, ended = decoder.initialize(inits)
    ended.stop_gradient = True
    time = fill_constant([1], "int64", 0)
    most = None if max_step_num is None else fill_constant([1], "int64", max_step_num)
    goes_on = logical_not(reduce_all(ended))
    lengths = cast(zeros_like(ended), "int64")
    lengths.stop_gradient = True
    loop_state: Any = (inputs, states)
    if not is_test:  # a gradient needs the values of all steps
        loop_state = map_structure(lambda x: array_write(x, time), loop_state)
    with While(goes_on, is_test).block():
        current = (
            loop_state
            if is_test
            else map_structure(lambda array: array_read(array, time), loop_state)
        )
        outputs, next_states, next_inputs, now = decoder.step(time, *current, **kwargs)
        if getattr(decoder, "tracks_own_finished", False):  # its sequences change their places
            longer = next_states.lengths
        else:
            now = logical_or(now, ended)
            longer = elementwise_add(lengths, cast(logical_not(ended), "int64"))
            if impute_finished:
                next_states = map_structure(
                    lambda old, new: _unless_ended(old, new, ended), current[1], next_states
                )
        arrays = map_structure(lambda x: _array_outside(x.dtype), outputs)
        map_structure(lambda x, array: array_write(x, time, array), outputs, arrays)
        increment(time, 1.0)
        hand_over = assign if is_test else lambda x, array: array_write(x, time, array)
        map_structure(hand_over, (next_inputs, next_states), loop_state)
        assign(now, ended)
        assign(longer, lengths)
        if most is None:
            logical_not(reduce_all(ended), goes_on)
        else:
            logical_and(logical_not(reduce_all(ended)), less_equal(time, most), goes_on)
    outs = map_structure(lambda a: tensor_array_to_tensor(a, axis=0, use_stack=True)[0], arrays)
    last = loop_state[1] if is_test else map_structure(lambda a: array_read(a, time), loop_state[1])
    with suppress(NotImplementedError):
        outs, last = decoder.finalize(outs, last, lengths)
    if not output_time_major:
        outs = map_structure(other_major, outs)
    return (outs, last, lengths) if return_length else (outs, last)


def _unless_ended(old: Variable, new: Variable, ended: Variable) -> Variable:
    """Return the old rows of sequences that have ended, and the new ones of the others."""
    if old.dtype == "bool":
        merged = either(cast(old, "float32"), cast(new, "float32"), cast(ended, "float32"))
        return cast(merged, "bool")
    return either(old, new, cast(ended, old.dtype))


def _array_outside(dtype: DTypeLike) -> Variable:
    """Create an array in the block around the loop that is being built."""
    helper = LayerHelper("array")
    around = helper.main_program.current_block().parent
    if around is None:
        raise GraphError("dynamic_decode: outputs are written within a loop")
    return around.create_var(f"{helper.name}.out", dtype=dtype, type=ARRAY)
