"""A table of rows: errors that change nothing, initial values, what optimizers share, memory."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from hpcdist.errors import TableError
from hpcdist.ps import row_values, table_memory
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.support.table_model import mixed, uniform_row

START = RowInitializer("uniform", -1.0, 1.0)


def table_of(kind: str = "adagrad", dim: int = 4, **more) -> SparseTable:
    return SparseTable("clicks", dim, RowOptimizer(kind), START, 11, **more)


def rows_of(table: SparseTable, ids: np.ndarray, create: bool = True) -> np.ndarray:
    out = np.full((len(ids), table.dim), np.nan, np.float32)
    table.pull(ids, out, create=create)
    return out


def contents(table: SparseTable) -> list[list]:
    return [part.tolist() for part in table.export(0, len(table))] + [table.shared.tolist()]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class TestErrors:
    """Each is one message that names the table, and the table stays as it was."""

    @pytest.fixture
    def table(self) -> SparseTable:
        table = table_of("adam", dict_size=4)
        table.push(ints(1, 2), np.ones((2, 4), np.float32), 0.1)
        return table

    @pytest.fixture(autouse=True)
    def unchanged(self, table):
        before = contents(table)
        yield
        assert contents(table) == before

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("ids", [ints(2, 1, 2), ints(2, 9, 2)], ids=["known", "new"])
    def test_a_gradient_that_is_not_finite(self, table, bad, ids) -> None:
        grads = np.ones((3, 4), np.float32)
        grads[1, 2] = bad
        with pytest.raises(TableError, match=rf"'clicks': the gradient of id {ids[1]} has {bad}"):
            table.push(ids, grads, 0.1)

    def test_far_behind_in_a_large_gradient(self, table) -> None:
        grads = np.ones((5000, 4), np.float32)
        grads[4321, 3] = np.nan
        with pytest.raises(TableError, match="id 4321 has nan at column 3; none of the 5000 rows"):
            table.push(np.arange(5000), grads, 0.1)

    @pytest.mark.parametrize("rate", [np.nan, np.inf])
    def test_a_learning_rate_that_is_not_finite(self, table, rate) -> None:
        with pytest.raises(TableError, match="expected a finite learning rate and scale"):
            table.push(ints(1), np.ones((1, 4), np.float32), rate)

    @pytest.mark.parametrize("create", ["pull", "push", "load"])
    def test_a_full_table(self, table, create) -> None:
        ids, values = ints(1, 7, 8, 7, 9), np.ones((5, 4), np.float32)
        call = {
            "pull": lambda: table.pull(ids, values),
            "push": lambda: table.push(ids, values, 0.1),
            "load": lambda: table.load(ids, values, np.ones((5, 8), np.float32)),
        }[create]
        with pytest.raises(
            TableError, match="2 of at most 4 ids.*this request adds 3, the first of them 7"
        ):
            call()

    @pytest.mark.parametrize(
        "ids",
        [
            np.array([1.0, 2.0]),
            np.array([1, 2], np.int32),
            np.array([1, 2], np.uint64),
            np.array([[1], [2]]),
            np.array(1),
            [1, 2],
            None,
        ],
        ids=repr,
    )
    def test_malformed_ids(self, table, ids) -> None:
        for call in (
            lambda: table.pull(ids, np.empty((2, 4), np.float32)),
            lambda: table.push(ids, np.ones((2, 4), np.float32), 0.1),
        ):
            with pytest.raises(TableError, match="'clicks'.*expected ids int64 \\[n\\], got"):
                call()

    @pytest.mark.parametrize(
        "values",
        [
            np.ones((2, 4)),
            np.ones((2, 3), np.float32),
            np.ones((1, 4), np.float32),
            np.ones(8, np.float32),
            [[1.0] * 4] * 2,
        ],
        ids=["float64", "narrow", "few", "flat", "list"],
    )
    def test_malformed_values(self, table, values) -> None:
        with pytest.raises(TableError, match="'clicks': expected grads float32 \\[2, 4\\], got"):
            table.push(ints(1, 2), values, 0.1)
        with pytest.raises(TableError, match="'clicks': expected out float32 \\[2, 4\\], got"):
            table.pull(ints(1, 2), values)

    def test_rows_into_an_array_of_holes(self, table) -> None:
        with pytest.raises(TableError, match="C-contiguous"):
            table.pull(ints(1, 2), np.empty((2, 8), np.float32)[:, ::2])

    def test_what_a_table_cannot_be(self, table) -> None:
        with pytest.raises(TableError, match="dim 0"):
            table_of(dim=0)
        with pytest.raises(TableError, match="'lion'.*sgd, momentum, adagrad, adam, .*lamb"):
            RowOptimizer("lion")
        with pytest.raises(TableError, match="'adam': row_wise is for adagrad"):
            RowOptimizer("adam", row_wise=True)
        with pytest.raises(TableError, match="'xavier'.*constant, uniform"):
            RowInitializer("xavier")


def test_a_table_is_full_when_it_has_so_many_ids_and_serves_them() -> None:
    table = table_of(dict_size=3)
    first = rows_of(table, ints(5, 6, 7, 5))
    with pytest.raises(TableError, match="3 of at most 3"):
        rows_of(table, ints(5, 8))
    np.testing.assert_array_equal(rows_of(table, ints(5, 6, 7, 5)), first)
    assert rows_of(table, ints(8), create=False).any()
    assert len(table) == 3


def test_rows_that_are_only_looked_at_are_not_made() -> None:
    table = table_of()
    seen = rows_of(table, ints(3, 4, 3), create=False)
    assert len(table) == 0
    np.testing.assert_array_equal(rows_of(table, ints(3, 4, 3)), seen)
    table.push(ints(3), np.ones((1, 4), np.float32), 0.1)
    assert not np.array_equal(rows_of(table, ints(3), create=False), seen[:1])


def test_ids_are_mixed_one_to_one() -> None:
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)
    for row_id in [0, 1, -1, 2**63 - 1, -(2**63), *ids.tolist()]:
        h = row_values.mixed(np.int64(row_id))
        assert h == mixed(row_id % 2**64)
        assert row_values.unmixed(np.uint64(h)) == row_id


def test_ids_made_to_have_one_tag_are_told_apart() -> None:
    """Their index entries differ in the row only, and no split parts them."""
    ids = np.array([row_values.unmixed(np.uint64((0xABCD << 32) | k)) for k in range(3000)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_memory, "SEGMENT_LINES", 64)
        table = table_of("sgd")
        rows = rows_of(table, ids)
        assert len(table) == 3000
        assert len(table._memory.directory) == 1  # private: whether the worst case has been met
    np.testing.assert_array_equal(rows_of(table, ids), rows)
    assert len(np.unique(rows[:, 0])) > 2990
    assert sorted(table.export(0, 3000)[0]) == sorted(ids)


class TestInitialValues:
    def test_uniform_values_by_closed_form(self) -> None:
        ids = ints(0, 1, -1, 2**63 - 1, -(2**63), 12345)
        for seed in (0, 1, -5, 2**40):
            table = SparseTable("t", 9, RowOptimizer(), RowInitializer("uniform", -0.3, 0.1), seed)
            expected = [uniform_row(seed, i, 9, -0.3, 0.1) for i in ids.tolist()]
            np.testing.assert_array_equal(rows_of(table, ids), expected)

    def test_they_are_spread_evenly_and_differ_between_seeds(self) -> None:
        rows = rows_of(table_of(dim=8), np.arange(20_000)).reshape(-1)
        counts, _ = np.histogram(rows, 20, (-1, 1))
        assert abs(counts - 8000).max() < 5 * math.sqrt(8000)
        assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.01
        other = SparseTable("t", 8, RowOptimizer(), START, 12)
        assert (rows_of(other, np.arange(20_000)).reshape(-1) == rows).mean() < 1e-4

    def test_constant(self) -> None:
        table = SparseTable("t", 3, RowOptimizer(), RowInitializer("constant", 0.25), 0)
        assert (rows_of(table, ints(1, 2)) == 0.25).all()

    @pytest.mark.parametrize("kind", ["normal", "truncated_normal"])
    def test_normal(self, kind) -> None:
        table = SparseTable("t", 50, RowOptimizer(), RowInitializer(kind, 2.0, 3.0), 5)
        values = (rows_of(table, np.arange(2000)).reshape(-1) - 2.0) / 3.0
        cut = kind == "truncated_normal"
        assert abs(values.mean()) < 0.02
        assert abs(values.std() - (0.8796 if cut else 1.0)) < 0.01
        assert (abs(values).max() < 2.0001) == cut

    def test_the_quantile_against_the_standard_library(self) -> None:
        exact = statistics.NormalDist()
        for p in [2**-33, 1e-9, 1e-4, 0.02, 0.074, 0.0751, 0.3, 0.5, 0.8, 0.93, 0.999, 1 - 2**-33]:
            assert row_values.normal_quantile(p) == pytest.approx(exact.inv_cdf(p), abs=2e-6)


class TestOptimizers:
    def test_repeats_are_added_in_their_order_before_the_update(self) -> None:
        grads = np.array([[1e8], [1.0], [-1e8]], np.float32)
        table = SparseTable("t", 1, RowOptimizer("sgd"), RowInitializer("constant"), 0)
        start = rows_of(table, ints(1))
        table.push(ints(1, 1, 1), grads, 1.0)
        expected = start - ((grads[0] + grads[1]) + grads[2])
        np.testing.assert_array_equal(rows_of(table, ints(1)), expected)

    @pytest.mark.parametrize("different", [3, 3000], ids=["few", "more_than_a_piece"])
    def test_repeats_decay_once(self, different) -> None:
        table = SparseTable("t", 16, RowOptimizer("sgd", l1_decay=0.2, l2_decay=0.1), START, 3)
        ids = np.tile(np.arange(different), 20)
        expected = rows_of(table, ids[:different])
        for seed in range(3):
            grads = np.random.default_rng(seed).normal(size=(len(ids), 16)).astype(np.float32)
            table.push(ids, grads, 0.1, 0.5)
            moved = 0.5 * grads.reshape(20, different, 16).sum(0) + 0.1 * expected
            expected = expected - 0.1 * (moved + 0.2 * np.sign(expected))
        np.testing.assert_allclose(rows_of(table, ids[:different]), expected, rtol=1e-4, atol=1e-5)

    def test_adam_counts_pushes_for_all_rows_also_those_without_ids(self) -> None:
        table = table_of("adam")
        assert table.optimizer.shared_names == ("beta1_power", "beta2_power")
        for step in range(1, 4):
            table.push(ints(), np.empty((0, 4), np.float32), 0.1)
            np.testing.assert_allclose(table.shared, [0.9 ** (step + 1), 0.999 ** (step + 1)], 1e-6)

    def test_a_general_power_of_ftrl(self) -> None:
        rows = []
        for power in (-0.5, -0.5000001):
            optimizer = RowOptimizer("ftrl", l1=0.01, l2=0.02, lr_power=power)
            table = SparseTable("t", 4, optimizer, START, 1)
            for step in range(3):
                table.push(ints(1, 2), np.full((2, 4), 0.1 * step + 0.3, np.float32), 0.1)
            rows.append(rows_of(table, ints(1, 2)))
        np.testing.assert_allclose(rows[0], rows[1], rtol=1e-4)

    @pytest.mark.parametrize("kind", ["sgd", "momentum", "adagrad", "adam", "ftrl"])
    def test_a_loaded_table_goes_on_as_the_saved_one(self, kind) -> None:
        generator = np.random.default_rng(3)
        steps = [
            (generator.integers(0, 50, 30), generator.normal(size=(30, 4)).astype(np.float32))
            for _ in range(4)
        ]
        saved, loaded = table_of(kind), table_of(kind)
        for ids, grads in steps[:2]:
            saved.push(ids, grads, 0.1)
        for begin in range(0, len(saved), 7):
            loaded.load(*saved.export(begin, begin + 7))
        loaded.shared[:] = saved.shared
        for ids, grads in steps[2:]:
            saved.push(ids, grads, 0.1)
            loaded.push(ids, grads, 0.1)
        ids = np.arange(50)
        np.testing.assert_array_equal(rows_of(saved, ids), rows_of(loaded, ids))

    def test_arrays_that_cannot_be_written_or_have_holes_are_read(self) -> None:
        ids, grads = np.arange(6)[::2], np.ones((6, 8), np.float32)[::2, ::2]
        ids.flags.writeable = grads.flags.writeable = False
        table = table_of("sgd")
        table.push(ids, grads, 1.0)
        np.testing.assert_array_equal(rows_of(table, ids), rows_of(table_of(), ids) - 1)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adagrad", "adam", "ftrl"])
def test_ids_that_are_promised_to_differ_are_moved_alike(kind: str) -> None:
    ids = np.random.default_rng(3).permutation(5000).astype(np.int64) - 2500
    grads = np.random.default_rng(4).normal(size=(len(ids), 5)).astype("float32")
    looked_for, promised = table_of(kind, 5), table_of(kind, 5)
    for table in (looked_for, promised):
        for part in (slice(0, 3000), slice(1000, 5000)):
            repeats = table is looked_for
            table.push(ids[part], grads[part], 0.1, 0.5, repeats=repeats)
    order = np.sort(ids)
    np.testing.assert_array_equal(rows_of(promised, order), rows_of(looked_for, order))


def test_an_export_beyond_the_end_is_what_there_is() -> None:
    table = table_of()
    assert [len(part) for part in table.export(0, 10)] == [0, 0, 0]
    rows_of(table, np.arange(5))
    assert len(table.export(3, 10)[0]) == 2
    assert len(table.export(7, 10)[0]) == 0


def test_statistics_and_memory() -> None:
    table = SparseTable("t", 16, RowOptimizer("adagrad"), START, 0)
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200_000)
    for part in np.array_split(ids, 20):
        rows_of(table, part)
    table.push(ids[:100], np.ones((100, 16), np.float32), 0.1)
    found = table.statistics()
    assert (found.name, found.rows, found.rows_pulled) == ("t", 200_000, 200_000)
    assert found.rows_pushed == 100
    assert found.payload_bytes == 200_000 * (8 + 64 + 64)
    assert found.payload_bytes * 0.9 < found.nbytes < found.payload_bytes * 1.3
