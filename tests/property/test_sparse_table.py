"""A table of rows against a dict of rows, over what may come in any order; equal in bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.ps import mapped_memory, table_memory
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.support.table_model import Model

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
# Few different ids, so that they repeat and meet again; some of any kind.
IDS = st.one_of(st.sampled_from(ENDS), st.integers(0, 30), st.integers(-(2**63), 2**63 - 1))
START = RowInitializer("uniform", -0.5, 0.25)
OPTIMIZERS = [
    RowOptimizer("sgd"),
    RowOptimizer("momentum", mu=0.7),
    RowOptimizer("momentum", use_nesterov=True),
    RowOptimizer("adagrad", initial_moment=0.1),
    RowOptimizer("adam", epsilon=1e-8),
    RowOptimizer("ftrl", l1=0.1, l2=0.01),
    RowOptimizer("adagrad", row_wise=True, initial_moment=0.1, clip_norm=0.7),
    RowOptimizer("adamax", epsilon=1e-8, weight_bounds=(-0.3, 0.2)),
    RowOptimizer("rmsprop", momentum=0.5, rate_decay=0.1),
    RowOptimizer("rmsprop", centered=True, l1_decay=0.01, l2_decay=0.1, clip_norm=0.7),
    RowOptimizer("lamb", decoupled_decay=0.1),
]


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Draw pulls and pushes: (what, ids, gradients as integers that floats hold)."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        what = draw(st.sampled_from(["pull", "push", "peek"]))
        ids = np.array(draw(st.lists(IDS, max_size=12)), np.int64)
        seed = draw(st.integers(0, 2**16))
        found.append((what, ids, np.random.default_rng(seed).normal(size=(len(ids), 5))))
    return found


def equal(table: SparseTable, model: Model) -> None:
    ids, rows, state = table.export(0, len(table))
    assert sorted(ids.tolist()) == sorted(model.rows)
    shape = len(model.optimizer.state_names), model.dim
    for row_id, row, columns in zip(ids.tolist(), rows, state):
        columns = np.repeat(columns, shape[0] * shape[1] // max(1, len(columns))).reshape(shape)
        np.testing.assert_array_equal(np.vstack([row, columns]), model.rows[row_id])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.formula)
@settings(max_examples=40)
@given(calls=calls(), dim=st.sampled_from([1, 3, 5]))
def test_a_table_is_a_dict_of_rows(optimizer, calls, dim) -> None:
    table, model = SparseTable("t", dim, optimizer, START, 7), Model(dim, optimizer, START, 7)
    for what, ids, values in calls:
        grads = values[:, :dim].astype(np.float32)
        if what == "push":
            table.push(ids, grads, 0.1, 0.5)
            model.push(ids, grads, 0.1, 0.5)
            continue
        out = np.full((len(ids), dim), np.nan, np.float32)
        table.pull(ids, out, create=what == "pull")
        np.testing.assert_array_equal(out, model.pull(ids, create=what == "pull"))
    equal(table, model)


@settings(max_examples=30)
@given(calls=calls(), parts=st.integers(1, 3))
def test_values_do_not_depend_on_how_many_tables_share_the_ids(calls, parts) -> None:
    optimizer = RowOptimizer("adam")
    whole = SparseTable("t", 5, optimizer, START, 3)
    shares = [SparseTable("t", 5, optimizer, START, 3) for _ in range(parts)]
    for what, ids, values in calls:
        if what != "push":
            continue
        grads = values.astype(np.float32)
        whole.push(ids, grads, 0.1)
        for k, share in enumerate(shares):
            mine = ids % parts == k
            share.push(ids[mine], grads[mine], 0.1)
    together = {}
    for share in shares:
        ids, rows, state = share.export(0, len(share))
        together.update(zip(ids.tolist(), np.hstack([rows, state]).tolist()))
    ids, rows, state = whole.export(0, len(whole))
    assert together == dict(zip(ids.tolist(), np.hstack([rows, state]).tolist()))


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 300, 5_000, 30_000]),
    spread=st.sampled_from([1, 7, 2**32, 2**40]),
    lines=st.sampled_from([64, 200]),
    dim=st.sampled_from([2, 12]),
)
def test_growing_and_splitting_lose_nothing(seed, count, spread, lines, dim) -> None:
    """Ids in regular steps, small segments, blocks and chunks: many of them, by every path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_memory, "SEGMENT_LINES", lines)
        patch.setattr(table_memory, "CHUNK_BYTES", 1 << 14)
        patch.setattr(mapped_memory, "HUGE_PAGE_BYTES", 1 << 15)
        table = SparseTable("t", dim, RowOptimizer("adagrad"), START, 1)
        generator = np.random.default_rng(seed)
        first = int(generator.integers(-(2**62), 2**62))
        ids = generator.permutation(np.arange(count) * spread + first)
        out = np.empty((count, dim), np.float32)
        for part in np.array_split(np.arange(count), 7):
            table.pull(ids[part], out[part[0] : part[-1] + 1] if len(part) else out[:0])
        assert len(table) == count
        again = np.empty_like(out)
        table.pull(ids, again)
        np.testing.assert_array_equal(out, again)
        assert len(table) == count
        pieces = [table.export(a, a + 1000) for a in range(0, count, 1000)]
        listed = np.concatenate([p[0] for p in pieces])
        order, wanted = np.argsort(listed), np.argsort(ids)
        np.testing.assert_array_equal(listed[order], ids[wanted])
        np.testing.assert_array_equal(np.concatenate([p[1] for p in pieces])[order], out[wanted])


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(-6, 24), max_size=80), close=st.booleans())
def test_pieces_of_memory_are_zero_lie_apart_and_are_used_again(sizes, close) -> None:
    """A number is a piece of so many pages; one below zero gives an earlier piece back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_memory, "HUGE_PAGE_BYTES", 1 << 16)
        pieces, held = mapped_memory.Pieces(close), {}
        for size in sizes:
            if size <= 0:
                if held:
                    address = sorted(held)[size % len(held)]
                    pieces.give(address, held.pop(address))
                continue
            nbytes = size * mapped_memory.PAGE_BYTES
            address = pieces.take(nbytes)
            assert not any(address < a + n and a < address + nbytes for a, n in held.items())
            held[address] = nbytes
            memory = np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))
            assert not memory.any()
            memory[:] = 255
        assert pieces.nbytes >= sum(held.values())
        for address, nbytes in held.items():
            pieces.give(address, nbytes)
        empty = pieces.nbytes
        for _ in range(50):
            pieces.give(pieces.take(1 << 14), 1 << 14)
        assert pieces.nbytes - empty <= 1 << 16
