"""How far gradients are put together, and what the flags say about it."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm.bucket import MIB, Fusing, Gradient, buckets
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.loopback import world
from hpcdist.comm.reducer import BucketReducer
from hpcdist.errors import CommError, PlanError
from tests.support.threads import run_threads

MLP = [
    Gradient("fc_1.b_0", "float32", 40),
    Gradient("fc_1.w_0", "float32", MIB),
    Gradient("fc_0.b_0", "float32", 40),
    Gradient("fc_0.w_0", "float32", MIB),
]


@pytest.mark.parametrize(
    ("fusing", "expected"),
    [
        (Fusing(), ((0, 1), (2, 3))),
        (Fusing(0), ((0, 1, 2, 3),)),
        (Fusing(2), ((0, 1, 2, 3),)),
        (Fusing(1), ((0, 1), (2, 3))),
        (Fusing(100, 2), ((0, 1, 2, 3),)),
        (Fusing(100, 3), ((0, 1, 2, 3),)),
        (Fusing(100, 1), ((0, 1, 2, 3),)),
    ],
)
def test_layers_join_until_a_bucket_is_full(fusing, expected):
    assert buckets(MLP, fusing) == expected


def test_another_type_goes_into_a_bucket_of_its_own():
    mixed = [MLP[0], Gradient("fc_1.w_0", "float64", 80), MLP[2]]
    assert buckets(mixed, Fusing(0)) == ((1,), (0, 2))


def test_no_gradients_no_buckets():
    assert buckets([], Fusing(32, 50)) == ()


def test_flags(monkeypatch):
    memory, groups = "FLAGS_fuse_parameter_memory_size", "FLAGS_fuse_parameter_groups_size"
    for name in (memory, groups):
        monkeypatch.delenv(name, raising=False)
    assert Fusing.from_flags(Fusing()) == Fusing(-1, 1)
    assert Fusing.from_flags(Fusing(32, 50)) == Fusing(32, 50)
    monkeypatch.setenv(memory, "16")
    assert Fusing.from_flags(Fusing(32, 50)) == Fusing(16, 50)
    monkeypatch.setenv(groups, "3")
    assert Fusing.from_flags(Fusing(32, 50)) == Fusing(16, 3)
    with pytest.raises(PlanError, match=r"groups_size: .*1 or more, got 0"):
        Fusing(32, 0)
    with pytest.raises(PlanError, match="got nan"):
        Fusing(float("nan"))


def test_ranks_that_fill_buckets_in_different_orders_sum_the_same_buckets():
    def body(transport):
        first = HostCollective(transport)
        second = first.split(0, first.rank)
        arrays = [np.zeros(n, np.float32) for n in (3, 1000, 5)]
        reducer = BucketReducer([first, second], arrays)
        for step in range(3):
            for bucket in (2, 0, 1) if first.rank else (0, 1, 2):
                arrays[bucket][:] = 10 * bucket + first.rank + step
                reducer.start(bucket)
            reducer.wait(1)
            assert (arrays[1] == 21 + 2 * step).all()
            reducer.wait_all()
            assert [a[0] for a in arrays] == [1 + 2 * step, 21 + 2 * step, 41 + 2 * step]

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_a_wait_for_a_bucket_that_was_not_begun_is_an_error():
    def body(transport):
        reducer = BucketReducer(
            [HostCollective(transport)], [np.zeros(2, np.float32)] * 2, describe=lambda k: f"b{k}"
        )
        reducer.start(1)
        with pytest.raises(CommError, match=r"b1: waited for before b0 is full"):
            reducer.wait(1)

    run_threads([lambda t=t: body(t) for t in world(2)])
