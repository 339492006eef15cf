"""Decoders whose step is a `StateCell`: trained by `TrainingDecoder`, then used by beam search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.values import ARRAY
from hpcdist.graph.variable import Variable

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]


class InitState:
    """What a state is before the first step: ``init``, or a constant of ``shape``.

    The constant has as many rows as ``init_boot``. ``need_reorder``: ``init`` has a row for each
    sequence, in the order in which they are fed; see `DynamicRNN.memory`.
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: DTypeLike = "float32",
    ) -> None:
        if init is None:
            if init_boot is None or shape is None:
                raise GraphError("InitState: give init, or init_boot and shape")
            init = layers.fill_constant_batch_size_like(init_boot, shape, dtype, value)
        self.value = init
        self.need_reorder = need_reorder


class StateCell:
    """A step of a decoder: inputs and states by name, and a function that computes the new ones.

    ``inputs`` {name: None, or a Variable}, ``states`` {name: InitState}, ``out_state`` the state
    that is the step's result. ``@cell.state_updater`` marks the function; it asks for
    ``cell.get_input(name)`` and ``cell.get_state(name)``, and calls ``cell.set_state``.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ) -> None:
        for state in states.values():
            if not isinstance(state, InitState):
                raise GraphError(f"StateCell: states must be InitState objects, got {state!r}")
        if out_state not in states:
            raise GraphError(f"StateCell: out_state {out_state!r} is not one of {sorted(states)}")
        self.helper = LayerHelper("state_cell", name)
        self._first = dict(states)
        self._states: dict[str, Variable] = {}  # of the step that is being built
        self._inputs = dict(inputs)
        self._out_state = out_state
        self._decoder: Any = None
        self._holders: dict[str, Any] = {}
        self._updater: Callable[[StateCell], None] | None = None

    @property
    def state_names(self) -> list[str]:
        """Names of the states."""
        return list(self._first)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return list(self._inputs)

    def enter(self, decoder: Any) -> None:
        """Belong to a decoder from now on."""
        if self._decoder is not None:
            raise GraphError("StateCell: it belongs to another decoder, whose block is not built")
        self._decoder, self._holders, self._states = decoder, {}, {}

    def leave(self) -> None:
        """Belong to no decoder."""
        self._decoder = None

    def get_state(self, state_name: str) -> Variable:
        """Return a state of this step."""
        if self._decoder is not None and not self._holders:
            for name, first in self._first.items():
                self._holders[name] = self._decoder.hold(first)
                self._states[name] = self._holders[name].get()
        if state_name not in self._states:
            raise GraphError(f"StateCell: no state {state_name!r} within a decoder")
        return self._states[state_name]

    def get_input(self, input_name: str) -> Variable:
        """Return an input of this step."""
        if self._inputs.get(input_name) is None:
            raise GraphError(f"StateCell: no input {input_name!r} was given")
        return self._inputs[input_name]

    def set_state(self, state_name: str, state_value: Variable) -> None:
        """Set a state to a new value."""
        self._states[state_name] = state_value

    def state_updater(self, updater: Callable[[StateCell], None]) -> Callable[[StateCell], None]:
        """Mark the function that computes the new states."""
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Compute the new states from inputs by name."""
        if self._decoder is not None:
            self.get_state(self._out_state)
        for name in inputs:
            if name not in self._inputs:
                raise GraphError(f"StateCell: no input {name!r}, only {sorted(self._inputs)}")
        self._inputs.update(inputs)
        if self._updater is None:
            raise GraphError("StateCell: mark a function with @cell.state_updater")
        self._updater(self)

    def update_states(self) -> None:
        """Hand the states over to the next step."""
        self.get_state(self._out_state)
        for name, state in self._holders.items():
            state.update(self._states[name])

    def out_state(self) -> Variable:
        """Return the state that is the step's result."""
        return self._states[self._out_state]


class _DecoderMemory:
    """A state in a DynamicRNN."""

    def __init__(self, rnn: layers.DynamicRNN, first: InitState) -> None:
        self._rnn = rnn
        self._memory = rnn.memory(init=first.value, need_reorder=first.need_reorder)

    def get(self) -> Variable:
        return self._memory

    def update(self, state: Variable) -> None:
        self._rnn.update_memory(self._memory, state)


class _WrittenPlace:
    """A state in an array, written in the block around a loop."""

    def __init__(self, array: Variable, counter: Variable) -> None:
        self._array, self._counter = array, counter

    def get(self) -> Variable:
        return layers.array_read(self._array, self._counter)

    def update(self, state: Variable) -> None:
        layers.increment(self._counter, 1)
        layers.array_write(state, self._counter, self._array)


class TrainingDecoder:
    """Compute a `StateCell` for each step of sequences, as a `DynamicRNN` does.

    ``with decoder.block(): word = decoder.step_input(words); decoder.state_cell.compute_state(
    {"word": word}); ...; decoder.state_cell.update_states(); decoder.output(score)``.
    """

    def __init__(self, state_cell: StateCell, name: str | None = None) -> None:
        self.helper = LayerHelper("training_decoder", name)
        self.dynamic_rnn = layers.DynamicRNN()
        self._cell, self._inside, self._done = state_cell, False, False
        state_cell.enter(self)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Build a step."""
        if self._inside or self._done:
            raise GraphError("TrainingDecoder.block: can be built once only")
        self._inside = True
        with self.dynamic_rnn.block():
            yield
        self._inside, self._done = False, True
        self._cell.leave()

    def _expect_inside(self, method: str) -> None:
        if not self._inside:
            raise GraphError(f"TrainingDecoder.{method}: must stand within `with decoder.block()`")

    def hold(self, first: InitState) -> _DecoderMemory:
        """Return the holder of a state from step to step."""
        return _DecoderMemory(self.dynamic_rnn, first)

    @property
    def state_cell(self) -> StateCell:
        """The cell."""
        self._expect_inside("state_cell")
        return self._cell

    def step_input(self, x: Variable) -> Variable:
        """Return the rows of ``x`` for this step."""
        self._expect_inside("step_input")
        return self.dynamic_rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """Return the rows, or sequences, of ``x`` whose sequences have not ended."""
        self._expect_inside("static_input")
        return self.dynamic_rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Add outputs, collected over the steps."""
        self._expect_inside("output")
        self.dynamic_rnn.output(*outputs)

    def __call__(self) -> Any:
        """Return the outputs as sequences: one variable, or a list."""
        if not self._done:
            raise GraphError("TrainingDecoder: there are outputs only after its block")
        return self.dynamic_rnn()


class BeamSearchDecoder:
    """Search for the best sentences with a `StateCell` that was trained by a `TrainingDecoder`.

    ``init_ids`` and ``init_scores`` [sources, 1] are in two levels of sequences. `decode` builds a
    step: words as vectors of ``word_dim``, the cell, and a softmax over ``target_dict_dim`` words,
    of which the ``topk_size`` best are looked at. ``decoder()`` returns sentences and scores.
    """

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ) -> None:
        self.helper = LayerHelper("beam_search_decoder", name)
        self._counter = layers.zeros([1], "int64")
        self._longest = layers.fill_constant([1], "int64", max_len)
        self._goes_on = layers.less_than(self._counter, self._longest)
        self._loop = layers.While(self._goes_on)
        self._zero = layers.fill_constant([1], "int64", 0, force_cpu=True)
        self._cell, self._inside, self._done = state_cell, False, False
        self._arrays: dict[str, Variable] = {}  # by the name of what was read
        self._links: list[tuple[Variable, Variable]] = []
        self._ids: Variable | None = None
        self._scores: Variable | None = None
        self._first = init_ids, init_scores
        self._words, self._width, self._best = target_dict_dim, word_dim, topk_size
        self._sparse, self._beams, self._end = sparse_emb, beam_size, end_id
        self._more = dict(input_var_dict or {})
        state_cell.enter(self)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Build a step."""
        if self._inside or self._done:
            raise GraphError("BeamSearchDecoder.block: can be built once only")
        self._inside = True
        with self._loop.block():
            yield
            with layers.Switch() as switch, switch.case(self._goes_on):
                layers.increment(self._counter, 1)
                for value, array in self._links:
                    layers.array_write(value, self._counter, array)
                layers.less_than(self._counter, self._longest, cond=self._goes_on)
        self._inside, self._done = False, True
        self._cell.leave()

    def _around(self, method: str) -> Block:
        if not self._inside:
            raise GraphError(
                f"BeamSearchDecoder.{method}: must stand within `with decoder.block()`"
            )
        parent = self.helper.main_program.current_block().parent
        assert parent is not None, "a step stands within another block"
        return parent

    def _written(self, first: Variable, place: Variable, method: str) -> Variable:
        """Return an array of the outer block with its first value."""
        around = self._around(method)
        name = names.generate("beam_search_decoder_array")
        array = around.create_var(name, type=ARRAY, dtype=first.dtype)
        around.append_op("write_to_array", {"X": first, "I": place}, {"Out": array})
        return array

    def hold(self, first: InitState) -> _WrittenPlace:
        """Return the holder of a state from step to step."""
        around = self._around("state_cell")
        name = names.generate("array_state_counter")
        counter = around.create_var(name, dtype="int64", stop_gradient=True)
        facts = {"shape": [1], "dtype": "int64", "value": 0.0, "force_cpu": True}
        around.append_op("fill_constant", {}, {"Out": counter}, facts)
        return _WrittenPlace(self._written(first.value, counter, "state_cell"), counter)

    @property
    def state_cell(self) -> StateCell:
        """The cell."""
        self._around("state_cell")
        return self._cell

    def early_stop(self) -> None:
        """End the loop with this step."""
        layers.fill_constant([1], "bool", 0, force_cpu=True, out=self._goes_on)

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """Return the value that the last step gave to `update_array`; at first ``init``."""
        if not isinstance(init, Variable):
            raise GraphTypeError(f"read_array: init must be a Variable, got {init!r}")
        if is_ids and is_scores:
            raise GraphError("read_array: an array has ids or scores, not both")
        array = self._written(init, self._zero, "read_array")
        if is_ids:
            self._ids = array
        elif is_scores:
            self._scores = array
        value = layers.array_read(array, self._counter)
        self._arrays[value.name] = array
        return value

    def update_array(self, array: Variable, value: Variable) -> None:
        """Set the value that `read_array` returns in the next step."""
        self._around("update_array")
        if array.name not in self._arrays:
            raise GraphError(f"update_array: {array.name!r} is not from read_array")
        self._links.append((value, self._arrays[array.name]))

    def decode(self) -> None:
        """Build the step of a search."""
        with self.block():
            ids = self.read_array(self._first[0], is_ids=True)
            scores = self.read_array(self._first[1], is_scores=True)
            words = layers.embedding(ids, [self._words, self._width], is_sparse=self._sparse)
            read = {name: self.read_array(first) for name, first in self._more.items()}
            fed = {name: layers.sequence_expand(state, scores) for name, state in read.items()}
            for name in self._cell.state_names:
                state = self.state_cell.get_state(name)
                self.state_cell.set_state(name, layers.sequence_expand(state, scores))
            inputs = {name: fed.get(name, words) for name in self._cell.input_names}
            self.state_cell.compute_state({**fed, **inputs})
            grouped = layers.lod_reset(self.state_cell.out_state(), y=scores)
            likely = layers.fc(grouped, self._words, act="softmax")
            best, tokens = layers.topk(likely, k=self._best)
            so_far = layers.reshape(scores, [-1])
            total = layers.elementwise_add(layers.log(best), so_far, axis=0)
            chosen, of_chosen = layers.beam_search(
                ids, scores, tokens, total, self._beams, end_id=self._end, level=0
            )
            with layers.Switch() as switch:
                with switch.case(layers.is_empty(chosen)):
                    self.early_stop()
                with switch.default():
                    self.state_cell.update_states()
                    self.update_array(ids, chosen)
                    self.update_array(scores, of_chosen)
                    for name, state in read.items():
                        self.update_array(state, fed[name])

    def __call__(self) -> tuple[Variable, ...]:
        """Return the sentences, and scores of their words."""
        if not self._done or self._ids is None or self._scores is None:
            raise GraphError("BeamSearchDecoder: there are sentences only after decode()")
        return layers.beam_search_decode(self._ids, self._scores, self._beams, self._end)
