"""What operators declare of the rows of a batch is true: whole batches against their parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcdist import layers, unique_name
from hpcdist.backward import gradients
from hpcdist.errors import FeedError, GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph import Program, Variable, lookup, program_guard, registry
from hpcdist.graph.rows import How, by_row, constant, not_on_rows
from hpcdist.lod_tensor import LoDTensor
from hpcdist.ops import by_torch
from hpcdist.runtime.batches.analysis import RowTreatment
from hpcdist.runtime.batches.gather import pack, unpack
from hpcdist.runtime.batches.scatter import batched_names, cut_feed
from hpcdist.runtime.batches.trainer_part import loss_weight
from tests.cases.operators.forward import WITHOUT_GRADIENT
from tests.support.ops import Case, Seeded, dense, every_case

CASES = every_case()

SEEDS = 12  # at least; more until an operator was found that is not refused
NEAR = 1e-9
TOTALS = {"mean": layers.reduce_mean, "sum": layers.reduce_sum, "max": layers.reduce_max}


ALL = {**CASES, **WITHOUT_GRADIENT}

# Parts agree where trainers know their rows, and moments of all: tests/mpi/test_random_rows.py and
# tests/mpi/test_batch_moments.py.
NOT_BY_PARTS = {
    "dropout": {"dropout_prob": 0.0},
    "batch_norm": {"use_global_stats": True},
    "sync_batch_norm": {"use_global_stats": True},
}
# The state of `auc` is not fed: tests/mpi/test_metrics.py runs it on trainers.
# What is drawn by rows: tests/mpi/test_random_rows.py.
ELSEWHERE = {"auc", "gaussian_random_batch_size_like", "uniform_random_batch_size_like"}
ELSEWHERE |= {"nce_classes", "random_crop", "sampling_id"}
ELSEWHERE |= {"sequence_slice"}  # tests/mpi/test_cells.py
ELSEWHERE |= {"ctc_align"}  # tests/kernels/test_tagging.py
ELSEWHERE |= {"anchor_generator", "density_prior_box", "prior_box"}  # of shapes alone
# Of the largest of all rows: tests/kernels/test_quantize.py.
ELSEWHERE |= {"fake_quantize_abs_max", "fake_quantize_range_abs_max"}
ELSEWHERE |= {"fake_quantize_moving_average_abs_max", "moving_average_abs_max_scale"}
ELSEWHERE |= {"fake_quantize_dequantize_moving_average_abs_max"}
ELSEWHERE |= {"torch_module"}  # what its module does: tests/torch/test_torch_module.py
# One number of all rows, whatever is divided.
ALWAYS_MIXED = {"data_norm", "dist", "meshgrid", "precision_recall", "spectral_norm"}
ALWAYS_MIXED |= {"psroi_pool", "roi_align", "roi_pool"}  # regions are not divided as images are
ALWAYS_MIXED |= {"graph_send_recv"}  # edges lead from any row to any
ALWAYS_MIXED |= {"slogdeterminant"}  # what it gives of a matrix is not in one row
ALWAYS_MIXED |= {"prroi_pool", "deformable_psroi_pooling", "roi_perspective_transform"}


def _of_rows() -> list[str]:
    """Operators that are meant for rows of a batch."""
    table = {type: registry.lookup(type).rows for type in registry.defined()}
    in_loops = "hpcdist.ops.tensor.tensor_array"  # tests/mpi/test_ragged.py runs loops on trainers
    known = [(t, rows) for t, rows in table.items() if rows not in (None, not_on_rows, constant)]
    return [t for t, rows in known if rows.__module__ != in_loops]


def test_every_operator_declares_how_it_treats_rows() -> None:
    without = [type for type in registry.defined() if registry.lookup(type).rows is None]
    forward = {type.rstrip("2").replace("_grad", "") for type in without}
    # What gradients are of the rows follows from what their operators are, and is tested with them.
    # But for norms of parameters and gradients, which are refused of rows.
    forward -= {"squared_l2_norm"}
    assert all(registry.lookup(type).rows not in (None, not_on_rows) for type in forward)
    constants = [t for t in registry.defined() if registry.lookup(t).rows is constant]
    assert not any(registry.lookup(type).operands for type in constants)
    assert sorted(set(_of_rows()) - set(ALL) - ELSEWHERE) == []


# -- one operator on a batch, and on its parts -----------------------------------------------------
class Batch:
    """A Program of one operator: some of its inputs are divided, or totals of what is divided."""

    def __init__(self, type: str, given: Case, draw: Seeded) -> None:
        self.program, self.feed = Program(), {}
        self._draw = draw
        arrays = [a for v in given.inputs.values() for a in (v if isinstance(v, list) else [v])]
        ragged = [a for a in arrays if isinstance(a, LoDTensor)]
        extents = [len(a) for a in arrays if np.ndim(a)]
        self.samples = ragged[0].samples if ragged else draw.of(*extents)
        self.totals = not ragged and draw.int(0, 2) == 0
        attrs = {**given.attrs, **NOT_BY_PARTS.get(type, {})}
        with program_guard(self.program, Program()), unique_name.guard():
            inputs = {
                slot: [
                    self._input(slot, i, a) for i, a in enumerate(v if isinstance(v, list) else [v])
                ]
                for slot, v in given.inputs.items()
            }
            block = self.program.global_block()
            self.same = [v for held in inputs.values() for v in held if v.shape and not v.is_cut]
            outputs = {
                slot.name: [
                    block.create_var(f"{slot.name}_{i}".lower() + "_out")
                    for i in range(given.outputs.get(slot.name, 1))
                ]
                for slot in lookup(type).outputs
            }
            block.append_op(type, inputs, outputs, attrs)
        written = {name for op in block.ops for name in op.output_arg_names}
        self.outputs = [v for held in outputs.values() for v in held if v.name in written]

    def _input(self, slot: str, index: int, value: Any) -> Variable:
        name, array = f"{slot}_{index}".lower(), np.asarray(value)
        levels = len(value.lod()) if isinstance(value, LoDTensor) else 0
        if self.totals and array.dtype.kind == "f" and self._draw.int(0, 2):
            many = array + self._draw.floats((self.samples, *array.shape), 0, 0.01)
            made = TOTALS[self._draw.of(*TOTALS)](self._data(name, many, True, 0), dim=0)
        else:
            cut = levels or (array.ndim and len(array) == self.samples and self._draw.int(0, 2))
            made = self._data(name, value, bool(cut), levels)
        made.is_cut = made.shape[:1] == (-1,) or not made.is_data
        return made

    def _data(self, name: str, value: Any, cut: bool, levels: int) -> Variable:
        self.feed[name] = value
        array = np.asarray(value)
        shape = (-1, *array.shape[1:]) if cut else array.shape
        made = self.program.global_block().create_var(
            name, shape=shape, dtype=array.dtype, is_data=True, lod_level=levels
        )
        made.stop_gradient = False
        return made


def run(program: Program, feed: dict[str, Any], fetch: list[Any]) -> list[Any]:
    with scope_guard(Scope()):
        return Executor().run(program, feed=feed, fetch_list=fetch, return_numpy=False)


def joined(
    batch: Batch, treatment: RowTreatment, fetch: list[Variable], trainers: int
) -> list[Any]:
    """Return what trainers that share the batch make of these variables."""
    ofs = [treatment.of(var.name) for var in fetch]
    cuts = [
        cut_feed(
            batch.feed,
            batched_names(batch.program),
            k,
            trainers,
            sorted(treatment.counted),
            sorted(treatment.alike),
        )
        for k in range(trainers)
    ]
    own = [run(batch.program, cut, fetch) for cut, _ in cuts]
    packed = [pack(values, ofs, division.share) for values, (_, division) in zip(own, cuts)]
    return unpack(packed, own[0], ofs, cuts[0][1])


def check(type: str, seed: int) -> set[How]:
    """Check one random use of an operator; return what its results are of the rows."""
    draw = Seeded(seed)
    try:
        batch = Batch(type, ALL[type](draw), draw)
    except GraphError:  # an operand must not have a dimension that is left open
        return {How.MIXED}
    treatment = RowTreatment(batch.program, batched_names(batch.program))
    found = {treatment.of(var.name).how for var in batch.outputs}
    fetch = [
        var
        for var in batch.outputs
        if treatment.of(var.name).how not in (How.MIXED, How.PADDED, How.SAME)
        and 0 not in var.shape
    ]
    if not fetch or not batch.samples:
        return found
    whole = run(batch.program, batch.feed, fetch)
    trainers = draw.int(2, 3)
    try:
        parts = joined(batch, treatment, fetch, trainers)
    except FeedError as error:
        assert "cannot share a batch over trainers" in str(error)
        return {How.MIXED}
    for var, got, wanted in zip(fetch, parts, whole):
        where = f"{type}, seed {seed}: {var.name} is {treatment.of(var.name)}"
        got, wanted = np.asarray(got), np.asarray(wanted)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), where
        np.testing.assert_allclose(got, wanted, NEAR, NEAR, err_msg=where)
    if lookup(type).grad is not None:
        check_gradients(type, seed, batch, fetch, trainers)
    return found


def check_gradients(
    type: str, seed: int, batch: Batch, fetch: list[Variable], trainers: int
) -> None:
    """Gradients by what is the same on all trainers add up to those of the whole batch."""
    targets = [v for v in fetch if v.dtype.startswith("float")]
    same = [v for v in batch.same if v.dtype.startswith("float")]
    if not targets or not same:
        return
    target = targets[0]
    with program_guard(batch.program, Program()):
        loss = layers.reduce_sum(target)
        loss = layers.scale(loss, 0.5) if loss.shape == (1,) else loss
    found = [g for g in gradients([loss], same) if g is not None]
    treatment = RowTreatment(batch.program, batched_names(batch.program))
    of = treatment.of(loss.name)
    if of.how not in (How.MEAN, How.SUM):
        return
    sums = [np.zeros(1)] * len(found)
    for k in range(trainers):
        cut, division = cut_feed(
            batch.feed, batched_names(batch.program), k, trainers, sorted(treatment.counted)
        )
        weight = loss_weight(of, division.counts[of.sequences], k) / trainers
        sums = [s + weight * dense(g) for s, g in zip(sums, run(batch.program, cut, found))]
    for gradient, got, wanted in zip(found, sums, run(batch.program, batch.feed, found)):
        where = f"{type}, seed {seed}: {gradient.name} of {of}"
        np.testing.assert_allclose(got, dense(wanted), NEAR, NEAR, err_msg=where)


@pytest.mark.parametrize("type", sorted(set(_of_rows()) & set(ALL) - ALWAYS_MIXED))
def test_what_an_operator_declares_is_true(type: str) -> None:
    if type in by_torch.functions():
        pytest.importorskip("torch")
    found: set[How] = set()
    seed = 0
    while seed < SEEDS or not found - {How.MIXED, How.SAME}:
        found |= check(type, seed)
        seed += 1
        assert seed < 20 * SEEDS, f"{type}: every use of it was refused"


@pytest.mark.parametrize("type", ["reverse", "softmax", "concat"])
def test_a_declaration_that_is_not_true_is_found(type: str, monkeypatch: Any) -> None:
    wrong = replace(lookup(type), rows=by_row())
    monkeypatch.setitem(registry.operators, type, wrong)
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(SEEDS):
            check(type, seed)
