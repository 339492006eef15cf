"""Recurrent networks whose step is written by the user: StaticRNN and DynamicRNN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.arrays import array_read, array_to_lod_tensor, array_write, shrink_memory
from hpcdist.fluid.layers.control_flow import increment, less_than
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.loops import While
from hpcdist.fluid.layers.nested import nested
from hpcdist.fluid.layers.tensor import fill_constant
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.values import ARRAY, RANK_TABLE
from hpcdist.graph.variable import Variable

__all__ = ["DynamicRNN", "StaticRNN"]


@dataclass
class _Memory:
    """What a step hands to the next one."""

    init: Variable
    last: Variable
    new: Variable | None = None


class StaticRNN:
    """Run a block for each part of values along their first dimension, the steps.

    ``with rnn.step(): x = rnn.step_input(x_all); h = rnn.memory(init=h0); ...;
    rnn.update_memory(h, new); rnn.step_output(new)``; ``rnn()`` returns the outputs of all steps,
    stacked.
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("static_rnn", name)
        self.seq_len: int | None = None
        self._memories: dict[str, _Memory] = {}
        self._inputs: list[Variable] = []
        self._outputs: list[Variable] = []
        self._inside: Block | None = None
        self._done = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Build a step."""
        with nested(self.helper.main_program) as inside:
            self._inside = inside.block
            try:
                yield
            finally:
                self._inside, self._done = None, True
            states = self._new_states()
        parent, block = inside.parent, inside.block
        stepwise = {var.name for var in self._inputs} | self._memories.keys()
        parameters = [n for n in inside.taken() if n not in stepwise]
        scopes = parent.create_var(names.generate("_generated_var"), type="STEP_SCOPES")
        parent.append_op(
            "recurrent",
            {
                "inputs": [var.name for var in self._inputs],
                "initial_states": [memory.init for memory in self._memories.values()],
                "parameters": parameters,
            },
            {"outputs": self._outputs, "step_scopes": scopes},
            {
                "has_states": bool(self._memories),
                "ex_states": list(self._memories),
                "states": states,
                "sub_block": block.idx,
            },
        )

    def _new_states(self) -> list[str]:
        states = []
        for memory in self._memories.values():
            if memory.new is None:
                raise GraphError(f"StaticRNN: {memory.last.name!r} needs rnn.update_memory")
            states.append(self.helper.apply("assign", {"X": memory.new}, dtype=memory.new.dtype))
        return [state.name for state in states]

    def _block(self, method: str) -> Block:
        if self._inside is None:
            raise GraphError(f"StaticRNN.{method}: must stand within `with rnn.step()`")
        return self._inside

    def _around(self, method: str) -> Block:
        parent = self._block(method).parent
        assert parent is not None, "a step stands within another block"
        return parent

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """Return the last step's value of `update_memory`; at first ``init``, or a constant.

        The constant has ``shape``, with one extent taken from ``batch_ref``.
        """
        around = self._around("memory")
        if init is None:
            if shape is None or batch_ref is None:
                raise GraphError("StaticRNN.memory: give init, or shape and batch_ref")
            name = names.generate(f"{self.helper.name}@memory_boot")
            init = around.create_var(name, shape=shape, dtype=batch_ref.dtype)
            around.append_op(
                "fill_constant_batch_size_like",
                {"Input": _outer(batch_ref, around)},
                {"Out": init},
                {
                    "value": init_value,
                    "shape": list(shape),
                    "dtype": init.dtype,
                    "input_dim_idx": ref_batch_dim_idx,
                    "output_dim_idx": init_batch_dim_idx,
                },
            )
        name = names.generate(f"{self.helper.name}@mem")
        last = self._block("memory").create_var(name, dtype=init.dtype, shape=init.shape)
        self._memories[last.name] = _Memory(init, last)
        return last

    def step_input(self, x: Variable) -> Variable:
        """Return the part of ``x`` for this step."""
        block = self._block("step_input")
        if self.seq_len is None:
            self.seq_len = x.shape[0]
        elif -1 not in (x.shape[0], self.seq_len) and self.seq_len != x.shape[0]:
            raise GraphError(
                f"StaticRNN.step_input: {x.name!r} has {x.shape[0]} steps, others {self.seq_len}"
            )
        part = block.create_var(x.name, dtype=x.dtype, shape=x.shape[1:], type=x.type)
        part.stop_gradient = x.stop_gradient
        self._inputs.append(part)
        return part

    def step_output(self, o: Variable) -> None:
        """Add ``o`` to the outputs, collected over the steps."""
        copy = self.helper.apply("assign", {"X": o}, dtype=o.dtype)
        shape = [-1 if self.seq_len is None else self.seq_len, *copy.shape]
        around = self._around("step_output")
        self._outputs.append(around.create_var(copy.name, shape=shape, dtype=copy.dtype))

    def output(self, *outputs: Variable) -> None:
        """Add several outputs, collected over the steps."""
        for each in outputs:
            self.step_output(each)

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """Set the value of ``mem`` in the next step."""
        self._memories[mem.name].new = var

    def __call__(self) -> Any:
        """Return the outputs of all steps: one variable, or a list."""
        if not self._done or not self._outputs:
            raise GraphError("StaticRNN: there are outputs only after a step that gives some")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs


def _outer(var: Variable, around: Block) -> Variable:
    """Return the whole of what ``var`` is a step of; another variable as it is."""
    variable = around.find_var(var.name)
    return var if variable is None else variable


class DynamicRNN:
    """Run a block for each step of sequences: their first rows, their second rows, and so on.

    ``with drnn.block(): x = drnn.step_input(sequences); h = drnn.memory(shape=[8]); ...;
    drnn.update_memory(h, new); drnn.output(new)``; ``drnn()`` returns sequences again.
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("dynamic_rnn", name)
        self.cond = self.helper.new_var("bool")
        self.cond.shape = (1,)
        self.while_op = While(self.cond)
        self.lod_rank_table: Variable | None = None
        self.max_seq_len: Variable | None = None
        self.step_idx: Variable | None = None
        self._zero: Variable | None = None
        self._first_input: Variable | None = None  # an array
        self._nested = False  # whether a step of it is sequences
        self._arrays: dict[str, Variable] = {}  # of memories, by the name of what is read
        self._links: list[tuple[Variable, Variable]] = []
        self._output_arrays: list[Variable] = []
        self._outputs: list[Variable] = []
        self._inside = self._done = False

    @contextmanager
    def block(self) -> Iterator[None]:
        """Build a step."""
        if self._done or self._inside:
            raise GraphError("DynamicRNN.block: can be built once only")
        self.step_idx = fill_constant([1], "int64", 0, force_cpu=True)
        self._inside = True
        with self.while_op.block():
            yield
            if self.max_seq_len is None:
                raise GraphError("DynamicRNN: there must be a step_input")
            increment(self.step_idx, 1.0)
            for new, array in self._links:
                array_write(new, self.step_idx, array)
            less_than(self.step_idx, self.max_seq_len, force_cpu=True, cond=self.cond)
        self._inside, self._done = False, True
        table = self.lod_rank_table
        assert table is not None, "a step_input has made it"
        self._outputs = [array_to_lod_tensor(array, table) for array in self._output_arrays]

    def _around(self, method: str) -> Block:
        if not self._inside:
            raise GraphError(f"DynamicRNN.{method}: must stand within `with drnn.block()`")
        parent = self.helper.main_program.current_block().parent
        assert parent is not None, "a step stands within another block"
        return parent

    def _step(self) -> Variable:
        assert self.step_idx is not None, "block() has made it"
        return self.step_idx

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """Return the rows of ``x`` for this step; sequences that have ended have none."""
        around = self._around("step_input")
        if not isinstance(x, Variable):
            raise GraphTypeError(f"DynamicRNN.step_input: expected a Variable, got {x!r}")
        if self.lod_rank_table is None:
            table = around.create_var(
                names.generate("lod_rank_table"), type=RANK_TABLE, stop_gradient=True
            )
            self.lod_rank_table = table
            around.append_op("lod_rank_table", {"X": x}, {"Out": table}, {"level": level})
            name = names.generate("dynamic_rnn_max_seq_len")
            self.max_seq_len = around.create_var(name, dtype="int64")
            around.append_op("max_sequence_len", {"RankTable": table}, {"Out": self.max_seq_len})
            self.cond.stop_gradient = True
            around.append_op(
                "less_than",
                {"X": self._step(), "Y": self.max_seq_len},
                {"Out": self.cond},
                {"force_cpu": True},
            )
        name = names.generate("dynamic_rnn_input_array")
        array = around.create_var(name, type=ARRAY, dtype=x.dtype)
        slots = {"X": x, "RankTable": self.lod_rank_table}
        around.append_op("lod_tensor_to_array", slots, {"Out": array})
        if self._first_input is None:
            self._first_input, self._nested = array, x.lod_level > level + 1
        return array_read(array, self._step())

    def static_input(self, x: Variable) -> Variable:
        """Return the rows, or sequences, of ``x`` whose sequences have not ended."""
        reordered = self._reordered(x, "dynamic_rnn_static_input_reordered", "static_input")
        assert self.lod_rank_table is not None, "it is reordered by"
        return shrink_memory(reordered, self._step(), self.lod_rank_table)

    def _reordered(self, x: Variable, name: str, method: str) -> Variable:
        around = self._around(method)
        if self.lod_rank_table is None:
            raise GraphError(f"DynamicRNN.{method}: there must be a step_input before it")
        reordered = around.create_var(names.generate(name), dtype=x.dtype)
        slots = {"X": x, "RankTable": self.lod_rank_table}
        around.append_op("reorder_lod_tensor_by_rank", slots, {"Out": reordered})
        return reordered

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: DTypeLike = "float32",
    ) -> Variable:
        """Return the last step's value of `update_memory`; at first ``init``, or a constant.

        ``shape`` of the constant is without the rows. ``need_reorder``: ``init`` has a row for
        each sequence, in the order in which they are fed.
        """
        around = self._around("memory")
        if self._zero is None:
            self._zero = around.create_var(names.generate("zero_idx"), dtype="int64")
            facts = {"shape": [1], "dtype": "int64", "value": 0.0, "force_cpu": True}
            around.append_op("fill_constant", {}, {"Out": self._zero}, facts)
        if init is None:
            if self._first_input is None or shape is None:
                raise GraphError("DynamicRNN.memory: give init, or shape after a step_input")
            init = around.create_var(names.generate("mem_init"), dtype=dtype)
            first = around.create_var(names.generate("in0"), dtype=self._first_input.dtype)
            slots = {"X": self._first_input, "I": self._zero}
            around.append_op("read_from_array", slots, {"Out": first})
            if self._nested:  # a row of memory is for a sequence, not for one of its rows
                rows, first = first, around.create_var(names.generate("in0"), dtype=first.dtype)
                around.append_op("sequence_pool", {"X": rows}, {"Out": first}, {"pooltype": "SUM"})
            facts = {"shape": [-1, *shape], "value": float(value), "dtype": init.dtype}
            around.append_op(
                "fill_constant_batch_size_like", {"Input": first}, {"Out": init}, facts
            )
        elif need_reorder:
            init = self._reordered(init, "dynamic_rnn_mem_init_reordered", "memory")
        name = names.generate("dynamic_rnn_mem_array")
        array = around.create_var(name, type=ARRAY, dtype=init.dtype)
        around.append_op("write_to_array", {"X": init, "I": self._zero}, {"Out": array})
        state = array_read(array, self._step())
        if self.lod_rank_table is None:
            raise GraphError("DynamicRNN.memory: there must be a step_input before it")
        state = shrink_memory(state, self._step(), self.lod_rank_table)
        self._arrays[state.name] = array
        return state

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """Set the value of ``ex_mem`` in the next step."""
        self._around("update_memory")
        if ex_mem.name not in self._arrays:
            raise GraphError(f"DynamicRNN.update_memory: {ex_mem.name!r} is not from drnn.memory")
        self._links.append((new_mem, self._arrays[ex_mem.name]))

    def output(self, *outputs: Variable) -> None:
        """Add outputs, collected over the steps."""
        around = self._around("output")
        for each in outputs:
            name = names.generate(f"{self.helper.name}_output_array_{each.name}")
            array = around.create_var(name, type=ARRAY, dtype=each.dtype)
            array_write(each, self._step(), array)
            self._output_arrays.append(array)

    def __call__(self) -> Any:
        """Return the outputs as sequences: one variable, or a list."""
        if not self._done:
            raise GraphError("DynamicRNN: there are outputs only after its block")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs
