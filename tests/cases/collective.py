"""What every kind of group must do: one class, inherited by the tests of each kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcdist.comm.collective import CollectiveOperations
from hpcdist.comm.host_collective import HostCollective
from hpcdist.errors import CommError

Body = Callable[[CollectiveOperations], None]
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


class CollectiveTests:
    """Cases over groups of 1 to 4 ranks; a subclass says how a body runs on every rank."""

    exact_order = True  # ordered sums run in rank order, not in another fixed order

    def run(self, size: int, body: Body) -> None:
        """Run ``body`` on each of ``size`` ranks; raise if it raised on any of them."""
        raise NotImplementedError

    def to(self, array: np.ndarray) -> Any:
        """Return a host array where the group's arrays live."""
        return array.copy()

    def host(self, array: Any) -> np.ndarray:
        """Return the host copy of a group's array."""
        return array.copy()

    @SIZES
    @pytest.mark.parametrize("ordered", [False, True])
    @pytest.mark.parametrize("length", [1, 7, 300_001])
    def test_sum_in_place_step_after_step(self, size: int, ordered: bool, length: int) -> None:
        rows = np.random.default_rng(3).normal(size=(size, length)).astype(np.float32)

        def body(c: CollectiveOperations) -> None:
            array = self.to(np.zeros(length, np.float32))
            reduction = c.allreduce_init(array, ordered=ordered)
            for step in range(3):
                array[...] = self.to(rows[c.rank] * (step + 1))
                reduction.start()
                if step == 1:
                    while not reduction.test():
                        time.sleep(1e-4)
                reduction.wait()
                expected = (rows * (step + 1)).sum(0, dtype=np.float64)
                np.testing.assert_allclose(self.host(array), expected, rtol=1e-4, atol=1e-4)
            c.barrier()
            c.close()

        self.run(size, body)

    @SIZES
    def test_ordered_sums_run_in_rank_order(self, size: int) -> None:
        rows = np.random.default_rng(5).normal(size=(size, 5, 301)).astype(np.float32)
        expected = rows[0].copy()
        for row in rows[1:]:
            expected += row

        def body(c: CollectiveOperations) -> None:
            array = self.to(rows[c.rank])
            reduction = c.allreduce_init(array, ordered=True)
            reduction.start()
            reduction.wait()
            if self.exact_order:
                assert self.host(array).tobytes() == expected.tobytes()
            np.testing.assert_allclose(self.host(array), expected, rtol=1e-4, atol=1e-4)
            c.close()

        self.run(size, body)

    @pytest.mark.parametrize("ordered", [False, True])
    def test_all_ranks_get_the_same_bits(self, ordered: bool) -> None:
        rows = np.random.default_rng(7).normal(size=(4, 40_003)).astype(np.float32)

        def body(c: CollectiveOperations) -> None:
            array = self.to(rows[c.rank])
            reduction = c.allreduce_init(array, ordered=ordered)
            reduction.start()
            reduction.wait()
            everyones = self.to(np.zeros((4, array.size), np.float32))
            c.allgather(array, everyones)
            found = self.host(everyones)
            assert all(row.tobytes() == found[0].tobytes() for row in found)
            c.close()

        self.run(4, body)

    @pytest.mark.parametrize("ordered", [False, True])
    def test_several_reductions_under_way_at_once(self, ordered: bool) -> None:
        def body(c: CollectiveOperations) -> None:
            arrays = [self.to(np.full(n, c.rank + n, np.float32)) for n in (3, 50_000, 11)]
            reductions = [c.allreduce_init(a, ordered=ordered) for a in arrays]
            for reduction in reductions:
                reduction.start()
            for reduction in reversed(reductions):
                reduction.wait()
            for array in arrays:
                assert (self.host(array) == 3 * array.size + 3).all()
            c.close()

        self.run(3, body)

    @pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
    def test_numbers_of_other_types(self, dtype: str) -> None:
        def body(c: CollectiveOperations) -> None:
            for ordered in (False, True):
                array = self.to(np.arange(6).astype(dtype))
                reduction = c.allreduce_init(array, ordered=ordered)
                reduction.start()
                reduction.wait()
                assert self.host(array).tolist() == (np.arange(6) * 2).tolist()
            c.close()

        self.run(2, body)

    @SIZES
    def test_copies(self, size: int) -> None:
        def body(c: CollectiveOperations) -> None:
            root = size - 1
            array = self.to(np.full((2, 3), c.rank, np.float32))
            c.broadcast(array, root)
            assert (self.host(array) == root).all()
            out = self.to(np.zeros((size, 2), np.int64))
            c.allgather(self.to(np.array([c.rank, -c.rank])), out)
            assert self.host(out).tolist() == [[k, -k] for k in range(size)]
            mine = self.to(np.full(4, c.rank + 0.5, np.float32))
            c.reduce(mine, root)
            expected = sum(k + 0.5 for k in range(size)) if c.rank == root else c.rank + 0.5
            assert (self.host(mine) == expected).all()

        self.run(size, body)

    def test_split_makes_groups_that_do_not_hear_each_other(self) -> None:
        def body(c: CollectiveOperations) -> None:
            part = c.split(c.rank % 2, -c.rank)
            assert (part.rank, part.size) == (1 - c.rank // 2, 2)
            array = self.to(np.array([c.rank], np.float32))
            reduction = part.allreduce_init(array)
            reduction.start()
            reduction.wait()
            assert self.host(array)[0] == (2 if c.rank % 2 == 0 else 4)
            part.close()

        self.run(4, body)

    def test_what_cannot_be_summed_is_refused(self) -> None:
        def body(c: CollectiveOperations) -> None:
            with pytest.raises(CommError, match=r"contiguous"):
                c.allreduce_init(self.to(np.zeros((4, 4), np.float32)).T[:2])
            with pytest.raises(CommError, match=r"cannot add up an array of bool"):
                c.allreduce_init(self.to(np.zeros(2, bool)))
            with pytest.raises(CommError, match=r"no rank 7 in a group of 1"):
                c.broadcast(self.to(np.zeros(2, np.float32)), 7)
            with pytest.raises(CommError, match=r"needs room for 2 of float32"):
                c.allgather(self.to(np.zeros(2, np.float32)), self.to(np.zeros(3, np.float32)))

        self.run(1, body)


class HostCollectiveTests(CollectiveTests):
    """Cases over host memory, some of it shared by the ranks of a host."""

    def run_host(self, size: int, body: Callable[[HostCollective], None]) -> None:
        self.run(size, body)  # type: ignore[arg-type]

    @SIZES
    def test_bucket_allreduce_in_shared_memory_run_in_rank_order(self, size: int) -> None:
        rows = np.random.default_rng(9).normal(size=(size, 10_001)).astype(np.float32)
        expected = rows[0].copy()
        for row in rows[1:]:
            expected += row

        def body(c: HostCollective) -> None:
            memory = c.empty(50_000)
            # Two arrays of one region, and one that is too small for every rank to have a share.
            large, tiny = memory[64:40_068].view(np.float32), memory[40_072:40_088].view(np.int64)
            reductions = [c.allreduce_init(large), c.allreduce_init(tiny, ordered=True)]
            for step in range(3):
                large[:] = rows[c.rank]
                tiny[:] = c.rank, step
                for reduction in reductions:
                    reduction.start()
                while not reductions[1].test():
                    time.sleep(1e-4)
                for reduction in reductions:
                    reduction.wait()
                assert large.tobytes() == expected.tobytes()
                assert tiny.tolist() == [size * (size - 1) // 2, size * step]
            c.close()

        self.run_host(size, body)

    def test_arrays_at_different_places_of_shared_memory(self) -> None:
        def body(c: HostCollective) -> None:
            memory = c.empty(8192)
            array = memory[64 * c.rank :][:4096].view(np.float32)
            array[:] = c.rank + 1
            reduction = c.allreduce_init(array)
            reduction.start()
            reduction.wait()
            assert (array == 3).all()
            c.close()

        self.run_host(2, body)

    def test_ranks_that_sum_different_arrays_are_told(self) -> None:
        def body(c: HostCollective) -> None:
            array = np.zeros(3 + c.rank // 2, np.float32)
            with pytest.raises(CommError, match=r"float32\[3\] on rank 0, float32\[4\] on rank 2"):
                c.allreduce_init(array)
            with pytest.raises(
                CommError, match=r"float32\[2\] in fixed order on rank 0, float32\[2\] on rank 1"
            ):
                c.allreduce_init(np.zeros(2, np.float32), ordered=c.rank != 1)

        self.run_host(3, body)
