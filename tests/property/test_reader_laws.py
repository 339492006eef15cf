from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist import reader

samples = st.lists(st.integers(), max_size=40)
sizes = st.integers(1, 12)


def of(values):
    return lambda: iter(values)


def parts(values, trainers, uneven):
    return [list(reader.shard(of(values), trainers, t, uneven)()) for t in range(trainers)]


def interleaved(shards):
    longest = max(map(len, shards))
    return [s[step] for step in range(longest) for s in shards if step < len(s)]


@given(samples, sizes)
def test_kept_shards_interleave_to_the_data(values, trainers):
    assert interleaved(parts(values, trainers, "keep")) == values


@given(samples, sizes)
def test_dropped_shards_are_equal_and_lose_less_than_one_step(values, trainers):
    shards = parts(values, trainers, "drop")
    assert {len(s) for s in shards} == {len(values) // trainers}
    assert interleaved(shards) == values[: len(values) // trainers * trainers]


@given(samples, sizes)
def test_padded_shards_are_equal_and_repeat_the_data_from_its_start(values, trainers):
    shards = parts(values, trainers, "pad")
    steps = -(-len(values) // trainers)
    assert {len(s) for s in shards} == {steps}
    assert interleaved(shards) == [values[k % len(values)] for k in range(steps * trainers)]


@given(samples, sizes, st.booleans())
def test_batches_concatenate_to_the_data(values, size, drop_last):
    batches = list(reader.batch(of(values), size, drop_last)())
    joined = [v for b in batches for v in b]
    assert joined == (values[: len(values) // size * size] if drop_last else values)
    assert all(len(b) == size for b in batches[:-1])
    assert not batches or 0 < len(batches[-1]) <= size


@given(samples, sizes, st.integers(0, 2**32))
def test_shuffle_moves_samples_only_within_their_window(values, size, seed):
    random.seed(seed)
    shuffled = list(reader.shuffle(of(values), size)())
    assert len(shuffled) == len(values)
    for begin in range(0, len(values), size):
        window = slice(begin, begin + size)
        assert Counter(shuffled[window]) == Counter(values[window])


@settings(max_examples=30)
@given(samples, sizes, st.integers(1, 4), st.booleans(), st.integers(0, 40))
def test_threads_change_nothing_but_the_order(values, size, threads, order, stop):
    mapped = reader.xmap_readers(lambda v: v + 1, of(values), threads, size, order)
    got = list(reader.buffered(mapped, size)())
    expected = [v + 1 for v in values]
    assert got == expected if order else Counter(got) == Counter(expected)
    assert len(list(reader.firstn(mapped, stop)())) == min(stop, len(values))
