from __future__ import annotations

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm import loopback
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.split_allgather import split_allgather
from hpcdist.runtime.batches.analysis import SharedProgram
from hpcdist.runtime.batches.distributed_auc import DistributedAuc
from hpcdist.runtime.batches.gather import pack, unpack
from hpcdist.runtime.batches.joined_fetch import NOTE_BYTES, JoinedFetch
from hpcdist.runtime.batches.scatter import Division, share_among
from tests.support.threads import run_threads

COUNTS = [3, 0, 4]  # rows of trainers


def test_values_in_notes_are_those_that_are_packed():
    """Means of numbers and of arrays, sums, maxima: the same bits on both ways."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [2, 3])
        loss = layers.mean(layers.fc(x, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        joined = [loss, layers.reduce_mean(x, 0), layers.reduce_sum(x, 0), layers.reduce_max(x)]
    names = [v.name for v in joined]
    shapes = [(1,), (2, 3), (2, 3), (1,)]
    shared = SharedProgram(main, 3)
    ofs = [shared.of_rows(name) for name in names]
    told = [
        [np.random.default_rng([k, i]).normal(size=s).astype("f") for i, s in enumerate(shapes)]
        for k in range(3)
    ]

    def body(transport):
        rank = transport.rank
        group = RankGroup(transport, (0, 1, 2), 20.0)
        rounds = split_allgather(group, NOTE_BYTES, lambda: "the notes")
        fetch = JoinedFetch(names, 0, shared, DistributedAuc(main), rank)
        division = Division(share_among(COUNTS, rank), {"": COUNTS})
        packed = [
            pack(values, ofs, share_among(COUNTS, k)) if COUNTS[k] else b""
            for k, values in enumerate(told)
        ]
        wanted = unpack(packed, told[rank], ofs, division)
        for _ in range(3):
            rounds.begin()
            fetch.write(rounds, told[rank])
            rounds.start(fetch.key)
            assert rounds.wait() and fetch.written
            found = fetch.read(rounds, list(zip(names, told[rank])), division)
            for got, value in zip(found, wanted, strict=True):
                assert (got.shape, got.dtype) == (value.shape, value.dtype)
                assert got.tobytes() == value.tobytes()

    run_threads([lambda t=t: body(t) for t in loopback.world(3)])


def test_what_was_fetched_stays_when_one_trainer_alone_has_rows():
    """Notes are written again in later steps; what a user keeps of a step is not."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [2])
        cost = layers.fc(x, 1)
        fluid.optimizer.SGD(0.1).minimize(layers.mean(cost))
        names = [v.name for v in (layers.reduce_sum(cost), layers.reduce_mean(x, 0))]
    shared = SharedProgram(main, 2)

    def body(transport):
        rounds = split_allgather(
            RankGroup(transport, (0, 1), 20.0), NOTE_BYTES, lambda: "the notes"
        )
        fetch = JoinedFetch(names, 0, shared, DistributedAuc(main), transport.rank)
        division = Division(share_among([1, 0], transport.rank), {"": [1, 0]})
        kept, steps = [], 5
        for step in range(steps):
            values = [np.full(shape, step, "float32") for shape in ((1,), (2,))]
            rounds.begin()
            fetch.write(rounds, values)
            rounds.start(fetch.key)
            assert rounds.wait()
            kept.append(fetch.read(rounds, list(zip(names, values)), division))
        assert [[*map(float, v)] for _, v in kept] == [[step, step] for step in range(steps)]
        assert [float(v[0]) for v, _ in kept] == [*range(steps)]

    run_threads([lambda t=t: body(t) for t in loopback.world(2)])
