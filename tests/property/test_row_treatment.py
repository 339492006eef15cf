"""What operators declare of the rows of a batch is true: whole batches against their parts."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tests
from hpcdist import layers, unique_name
from hpcdist.backward import gradients
from hpcdist.errors import FeedError, GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph import Program, Variable, lookup, program_guard, registry
from hpcdist.graph.rows import How, by_row, constant, not_on_rows, sized
from hpcdist.lod_tensor import LoDTensor
from hpcdist.runtime.batches.gather_batch import pack, unpack
from hpcdist.runtime.batches.scatter_batch import batched_names, cut_feed
from hpcdist.runtime.batches.shared_program import RowTreatment, loss_weight
from tests.support_ops import CASES, Case, Draw, dense

for _module in pkgutil.iter_modules(tests.__path__):
    if _module.name.startswith("cases_"):
        importlib.import_module(f"tests.{_module.name}")

SEEDS = 12  # at least; more until an operator was found that is not refused
NEAR = 1e-9
TOTALS = {"mean": layers.reduce_mean, "sum": layers.reduce_sum, "max": layers.reduce_max}


class Seeded(Draw):
    """Draws from a seed, without hypothesis: the same cases every time, and many of them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def of(self, *choices: Any) -> Any:
        return choices[self.int(0, len(choices) - 1)]

    def bool(self) -> bool:
        return bool(self.int(0, 1))

    def shape(self, low: int = 1, high: int = 4, extent: int = 4) -> tuple[int, ...]:
        return tuple(self.int(1, extent) for _ in range(self.int(low, high)))


# -- cases of operators without gradients ----------------------------------------------------------
def _two(draw: Seeded) -> Case:
    case = CASES["elementwise_add"](draw)
    return Case({slot: np.round(x) for slot, x in case.inputs.items()}, case.attrs)


def _two_wholes(draw: Seeded) -> Case:
    shape = draw.shape()
    whole = {slot: draw.rng.integers(1, 9, shape) for slot in ("X", "Y")}
    return Case(whole)


def _two_truths(draw: Seeded) -> Case:
    return Case({slot: x > 4 for slot, x in _two_wholes(draw).inputs.items()})


def _one(draw: Seeded) -> Case:
    return Case({"X": draw.apart(draw.shape())})


def _chosen(draw: Seeded) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    return Case({"X": draw.apart(shape)}, {"axis": axis, "keepdims": draw.bool()})


def _ids(draw: Seeded) -> Case:
    return Case({"X": draw.rng.integers(0, 5, (*draw.shape(1, 2), 1))}, {"depth": 5})


class _Saved:
    """Rows that a model was saved with: as many times the id as the column's number."""

    def look_up(self, ids: np.ndarray, out: np.ndarray) -> None:
        out[:] = ids[:, None] * np.arange(out.shape[1])


def _saved_rows(draw: Seeded) -> Case:
    last = draw.bool()
    shape = (*draw.shape(1, 2), 1) if last else draw.shape(1, 3)
    facts = {"width": 3, "padding_idx": draw.of(-1, 2), "rows": _Saved()}
    return Case({"Ids": draw.rng.integers(0, 5, shape)}, {"last_is_one": last, **facts})


def _top_k(draw: Seeded) -> Case:
    return Case({"X": draw.apart((*draw.shape(0, 2), 4))}, {"k": draw.int(1, 3)})


def _accuracy(draw: Seeded) -> Case:
    rows, k = draw.int(1, 5), draw.int(1, 3)
    indices = draw.rng.integers(0, 3, (rows, k))
    labels = draw.rng.integers(0, 3, (rows, 1))
    return Case({"Out": draw.floats((rows, k)), "Indices": indices, "Label": labels})


def _classes(draw: Seeded) -> Case:
    shape = draw.int(1, 5), 1
    found = draw.rng.integers(0, 3, shape), draw.rng.integers(0, 3, shape)
    inputs = {"MaxProbs": draw.floats(shape), "Indices": found[0], "Labels": found[1]}
    return Case(inputs, {"class_number": 3})


def _like_batch(draw: Seeded) -> Case:
    x = draw.floats(draw.shape(1, 3))
    shape = draw.shape(1, 3)
    places = {
        "input_dim_idx": draw.int(0, x.ndim - 1),
        "output_dim_idx": draw.int(0, len(shape) - 1),
    }
    return Case({"Input": x}, {"shape": list(shape), "value": 2.0, **places})


def _norm(draw: Seeded) -> Case:
    return Case({"X": draw.floats(draw.shape())}, {"max_norm": 0.5})


def _path(draw: Seeded) -> Case:
    case = CASES["hierarchical_sigmoid"](draw)
    inputs = {s: case.inputs[s] for s in ("Label", "PathTable") if s in case.inputs}
    return Case(inputs, {"num_classes": case.attrs["num_classes"]})


def _enumerated(draw: Seeded) -> Case:
    lengths = draw.lengths()
    ids = LoDTensor(draw.rng.integers(0, 9, (sum(lengths), 1)))
    ids.set_recursive_sequence_lengths([lengths])
    return Case({"X": ids}, {"win_size": draw.int(1, 3)})


def _decoded(draw: Seeded) -> Case:
    return CASES["linear_chain_crf"](draw)


def _chunks(draw: Seeded) -> Case:
    found, label = (draw.ragged([2, 0, 3], [1]) for _ in range(2))
    for tags in (found, label):
        tags.set(draw.rng.integers(0, 5, (5, 1)))
    return Case({"Inference": found, "Label": label}, {"num_chunk_types": 2})


def _distance(draw: Seeded) -> Case:
    found, label = (draw.ragged([draw.int(1, 3) for _ in range(3)], [1]) for _ in range(2))
    for tokens in (found, label):
        tokens.set(draw.rng.integers(0, 3, (len(tokens), 1)))
    return Case({"Hyps": found, "Refs": label}, {"normalized": draw.bool()})


def _mask(draw: Seeded) -> Case:
    lengths = np.array(draw.lengths())
    return Case({"X": lengths}, {"maxlen": draw.of(-1, 5), "out_dtype": "int64"})


def _truths(draw: Seeded) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    attrs = {"dim": [axis], "keep_dim": draw.bool(), "reduce_all": draw.bool()}
    return Case({"X": draw.apart(shape) > 0}, attrs)


def _shards(draw: Seeded) -> Case:
    ids = draw.rng.integers(0, 20, draw.shape())
    return Case({"X": ids}, {"index_num": 20, "nshards": 3, "shard_id": draw.int(0, 2)})


def _hashed(draw: Seeded) -> Case:
    return Case({"X": draw.rng.integers(0, 9, draw.shape(2, 2))}, {"num_hash": 2, "mod_by": 99})


def _of_classes(draw: Seeded) -> Case:
    rows, classes = draw.int(1, 5), draw.int(2, 4)
    corners = draw.floats((rows, 2), 0, 20)
    inputs = {
        "PriorBox": np.concatenate([corners, corners + draw.floats((rows, 2), 1, 9)], 1),
        "PriorBoxVar": draw.floats((4,), 0.1, 0.2),
        "TargetBox": draw.floats((rows, 4 * classes)),
        "BoxScore": draw.floats((rows, classes)),
    }
    return Case(inputs)


def _planes(draw: Seeded) -> Case:
    attrs = {"axis": draw.int(1, 3), "indexes": [draw.int(0, 1)]}
    return Case({"X": draw.apart((draw.int(1, 3), 2, 3, 2))}, attrs)


def _children(draw: Seeded) -> Case:
    inputs = {
        "X": draw.rng.integers(0, 4, draw.shape(1, 2)),
        "TreeInfo": draw.rng.integers(0, 4, (4, 5)),
    }
    return Case(inputs, {"child_nums": 2, "dtype": "int64"})


WITHOUT_GRADIENT = {
    **dict.fromkeys(["elementwise_mod", "elementwise_floordiv"], _two_wholes),
    **dict.fromkeys(["less_than", "less_equal", "greater_than", "greater_equal"], _two),
    **dict.fromkeys(["equal", "not_equal"], _two),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], _two_truths),
    **dict.fromkeys(["isfinite", "isnan", "isinf", "increment", "shape"], _one),
    **dict.fromkeys(["fill_zeros_like", "fill_any_like"], _one),
    **dict.fromkeys(["arg_max", "arg_min"], _chosen),
    **dict.fromkeys(["one_hot", "one_hot_v2"], _ids),
    "lookup_saved_rows": _saved_rows,
    **dict.fromkeys(["reduce_all", "reduce_any"], _truths),
    "shard_index": _shards,
    "hash": _hashed,
    "logical_not": lambda draw: Case({"X": _two_truths(draw).inputs["X"]}),
    "round_to_float16": lambda draw: Case({"X": draw.floats(draw.shape())}),
    "top_k": _top_k,
    "accuracy": _accuracy,
    "precision_recall": _classes,
    "fill_constant_batch_size_like": _like_batch,
    "hierarchical_sigmoid_path": _path,
    "sequence_enumerate": _enumerated,
    "sequence_mask": _mask,
    "crf_decoding": _decoded,
    "chunk_eval": _chunks,
    "edit_distance": _distance,
    "box_decoder_and_assign": _of_classes,
    "tdm_child": _children,
    "similarity_focus": _planes,
}
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
ELSEWHERE |= {"ctc_align"}  # tests/unit/test_tagging.py
ELSEWHERE |= {"anchor_generator", "density_prior_box", "prior_box"}  # of shapes alone
ELSEWHERE |= {"torch_module"}  # what its module does: tests/torch/test_torch_module.py
# One number of all rows, whatever is divided.
ALWAYS_MIXED = {"data_norm", "dist", "meshgrid", "precision_recall", "spectral_norm"}
ALWAYS_MIXED |= {"psroi_pool", "roi_align", "roi_pool"}  # regions are not divided as images are
ALWAYS_MIXED |= {"prroi_pool", "deformable_psroi_pooling", "roi_perspective_transform"}


def _of_rows() -> list[str]:
    """Operators that are meant for rows of a batch."""
    table = {type: registry.lookup(type).rows for type in registry.defined()}
    in_loops = "hpcdist.ops.arrays"  # tests/mpi/test_ragged.py runs loops on trainers
    known = [
        (t, rows) for t, rows in table.items() if rows not in (None, not_on_rows, constant, sized)
    ]
    return [t for t, rows in known if rows.__module__ != in_loops]


def test_every_operator_declares_how_it_treats_rows() -> None:
    without = [type for type in registry.defined() if registry.lookup(type).rows is None]
    forward = {type.rstrip("2").removesuffix("_grad") for type in without}
    # What gradients are of the rows follows from what their operators are, and is tested with them.
    assert all(registry.lookup(type).rows not in (None, not_on_rows) for type in forward)
    constants = [t for t in registry.defined() if registry.lookup(t).rows is constant]
    assert not any(registry.lookup(type).inputs for type in constants)
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
    found: set[How] = set()
    seed = 0
    while seed < SEEDS or not found - {How.MIXED, How.SAME}:
        found |= check(type, seed)
        seed += 1
        assert seed < 20 * SEEDS, f"{type}: every use of it was refused"


@pytest.mark.parametrize("type", ["reverse", "softmax", "concat"])
def test_a_declaration_that_is_not_true_is_found(type: str, monkeypatch: Any) -> None:
    wrong = replace(lookup(type), rows=by_row())
    monkeypatch.setitem(registry._table, type, wrong)
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(SEEDS):
            check(type, seed)
