"""Buckets of gradients: where they lie, and when their sums start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcdist.executor.backend import NumpyBackend
from hpcdist.runtime.collective.bucket_allreduce import Bucket, Sums

BACKEND = NumpyBackend()


class Group:
    """A group that notes when sums start and are waited for; its other half adds 100."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self._made = 0

    def allreduce_init(self, array: Any, *, ordered: bool, describe: Any) -> Any:
        number, self._made = self._made, self._made + 1
        assert "the sum of " in describe()

        def start() -> None:
            self.events.append(("start", number))
            array[...] += 100

        def wait() -> None:
            self.events.append(("wait", number))

        return SimpleNamespace(start=start, test=lambda: True, wait=wait)


def adjacent_arrays(*sizes: int) -> dict[str, np.ndarray]:
    memory = np.arange(sum(sizes), dtype=np.float32)
    ends = np.cumsum(sizes)
    return {f"g{i}": memory[e - n : e] for i, (n, e) in enumerate(zip(sizes, ends))}


def test_adjacent_values_are_one_array_without_a_copy():
    arrays = adjacent_arrays(2, 3)
    bucket = Bucket(["g0", "g1"], arrays, BACKEND)
    bucket.flat += 10
    np.testing.assert_array_equal(arrays["g1"], [12, 13, 14])
    assert bucket.pack is None
    assert bucket.holds(["g0", "g1"], arrays)
    assert not bucket.holds(["g0", "g1"], {**arrays, "g1": arrays["g1"].copy()})


@pytest.mark.parametrize("names", [["g1", "g0"], ["g0", "other"]])
def test_other_values_are_copied_there_and_back(names):
    arrays = adjacent_arrays(2, 3) | {"other": np.zeros((2, 2), np.float32)}
    bucket = Bucket(names, arrays, BACKEND)
    assert bucket.pack is not None and bucket.unpack is not None
    before = [arrays[name].copy() for name in names]
    bucket.pack()
    bucket.flat += 1
    bucket.unpack()
    for name, value in zip(names, before):
        np.testing.assert_array_equal(arrays[name], value + 1)


def test_a_sum_starts_with_the_last_value_of_its_bucket():
    arrays, group = adjacent_arrays(1, 1, 1), Group()
    binding = SimpleNamespace(arrays=arrays, backend=BACKEND)
    sums = Sums([group], [["g0", "g2"], ["g1"]], binding, ordered=False)  # type: ignore[list-item, arg-type]
    sums.begin()
    calls = [sums.add(name) for name in ("g0", "g2", "g1")]
    finish = sums.wait_for_added()
    assert finish is not None
    for _ in range(2):  # steps
        group.events.clear()
        arrays["g0"][...], arrays["g2"][...] = 1, 2
        calls[0]()
        assert group.events == []  # half a bucket
        calls[1]()
        assert group.events == [("start", 0)]  # before the backward makes g1
        calls[2]()
        assert group.events == [("start", 0), ("start", 1)]
        finish()
        assert {("wait", 0), ("wait", 1)} <= set(group.events)
        assert (arrays["g0"][0], arrays["g2"][0]) == (101, 102)
    assert sums.wait_for_added() is None
    assert sums.holds([["g0", "g2"], ["g1"]], arrays)
    assert not sums.holds([["g0"], ["g2"], ["g1"]], arrays)
