"""Datasets in memory: their order, shuffles over trainers."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.errors import DataError
from hpcdist.fluid.multi_slot.global_shuffle import shuffled_among
from hpcdist.fluid.multi_slot.samples import (
    Samples,
    SampleSlot,
    batches,
    concatenated,
    shuffled,
    with_as_many_batches,
)
from hpcdist.fluid.multi_slot.text import samples_of
from hpcdist.multi_slot import global_shuffle
from tests.support.multi_slot_files import dataset, write
from tests.support.threads import run_in_world

SLOTS = [
    SampleSlot("words", "int64", None),
    SampleSlot("z", "float32", (2,)),
    SampleSlot("label", "int64", (1,)),
]


pytestmark = pytest.mark.usefixtures("fresh")


def parsed(*chunks):
    return list(samples_of([chunk.encode() for chunk in chunks], SLOTS, "part-0"))


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / "a", range(3)), write(tmp_path / "b", range(10, 14))]


def test_memory_leaves_out_zeros_of_ragged_slots_as_fluid_does(tmp_path):
    (tmp_path / "a").write_text("3 0 6 0 2 0 .25 1 1\n2 0 0 2 0 0 1 0\n")
    queue, memory = (dataset(k, [tmp_path / "a"]) for k in ("QueueDataset", "InMemoryDataset"))
    memory.load_into_memory()
    for made, words in [(queue, [0, 6, 0, 0, 0]), (memory, [6, 0])]:
        (batch,) = made.batches()
        assert np.asarray(batch["words"]).ravel().tolist() == words
        assert np.asarray(batch["z"]).tolist() == [[0, 0.25], [0, 0]]


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_a_worker_may_have_no_file(kind, caplog):
    made = dataset(kind, [])
    if kind == "InMemoryDataset":
        made.load_into_memory()
        made.global_shuffle()
    assert list(made.batches()) == [] and "set_filelist gave this process no files" in caplog.text


def test_preloading_sizes_and_release(files):
    made = dataset("InMemoryDataset", files)
    assert made.get_memory_data_size() == 0
    made.preload_into_memory(thread_num=1)
    made.wait_preload_done()
    assert made.get_memory_data_size() == made.get_shuffle_data_size() == 7
    made.release_memory()
    assert made.get_memory_data_size() == 0
    with pytest.raises(DataError, match="nothing is loaded"):
        made.local_shuffle()


@pytest.mark.parametrize("shuffle", ["local_shuffle", "global_shuffle"])
def test_shuffles_keep_samples_whole_and_follow_from_the_seed(tmp_path, shuffle, monkeypatch):
    path = write(tmp_path / "a", range(50))

    def shuffled():
        made = dataset("InMemoryDataset", [path], size=50)
        made.load_into_memory()
        passes = []
        for _ in range(2):
            getattr(made, shuffle)()
            (batch,) = made.batches()
            label, z = np.asarray(batch["label"]), np.asarray(batch["z"])
            assert label.ravel().tolist() == z[:, 1].tolist()
            passes.append(label.ravel().tolist())
        return passes

    first = shuffled()
    assert first[0] != first[1] and sorted(first[0]) == sorted(first[1]) == list(range(50))
    assert shuffled() == first
    monkeypatch.setenv("HPCDIST_SEED", "7")
    assert shuffled() != first


@pytest.mark.parametrize(
    ("count", "least", "size", "sizes"),
    [
        (9, 9, 4, [4, 4, 1]),
        (9, 8, 4, [4, 5]),
        (8, 8, 4, [4, 4]),
        (8, 7, 4, [4, 4]),
        (3, 2, 1, [1, 2]),
        (1, 0, 1, [1]),
    ],
)
def test_workers_have_as_many_batches_as_the_one_with_least_samples(count, least, size, sizes):
    (samples,) = [concatenated(parsed("".join(f"1 1 2 0.5 {k} 1 {k}\n" for k in range(count))))]
    parts = with_as_many_batches(samples, size, least)
    fed = [np.ravel(b["label"]).tolist() for part, n in parts for b in batches(iter([part]), n)]
    assert [len(labels) for labels in fed] == sizes
    assert [label for labels in fed for label in labels] == list(range(count))


def test_a_slot_is_shuffled_alone_to_see_what_it_tells(tmp_path):
    made = dataset("InMemoryDataset", [write(tmp_path / "a", range(50))], size=50)
    made.load_into_memory()
    with pytest.raises(DataError, match="call set_fea_eval"):
        made.slots_shuffle(["z"])
    made.set_fea_eval(1000, True)
    with pytest.raises(DataError, match=r"expected a list of slots, of \['label', 'words', 'z'\]"):
        made.slots_shuffle(["y"])
    made.slots_shuffle(["z"])
    (batch,) = made.batches()
    assert np.ravel(batch["label"]).tolist() == list(range(50))
    others = np.asarray(batch["z"])[:, 1].tolist()
    assert others != list(range(50)) and sorted(others) == list(range(50))


@pytest.mark.parametrize("round_bytes", [1, 200, global_shuffle.ROUND_BYTES])
@pytest.mark.parametrize("sizes", [[7, 0, 12], [40], [1, 1, 1, 1], [0, 0], [3, 50]])
def test_a_global_shuffle_is_one_permutation_on_any_number_of_trainers(
    sizes, round_bytes, monkeypatch
):
    monkeypatch.setattr(global_shuffle, "ROUND_BYTES", round_bytes)
    rng = np.random.default_rng(5)
    total = sum(sizes)
    lines = []
    for k in range(total):
        words = rng.integers(1, 9, rng.integers(1, 5))
        lines.append(f"{len(words)} {' '.join(map(str, words))} 2 {k} 0.5 1 {k}\n")
    begins = np.cumsum([0, *sizes])
    parts = [None] * len(sizes)

    def shuffle(transport):
        rank = transport.rank
        (own,) = parsed("".join(lines[begins[rank] : begins[rank + 1]]))
        parts[rank] = shuffled_among(transport, own, np.random.default_rng(11), 60)

    run_in_world(len(sizes), shuffle)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    (whole,) = parsed("".join(lines))
    labels = whole.columns[2].values
    order = np.random.default_rng(11).permutation(total)
    expected = shuffled(whole, np.random.default_rng(11))
    assert expected.columns[2].values.tolist() == labels[order].tolist()
    for got, wanted in zip(concatenated(parts).columns, expected.columns):
        np.testing.assert_array_equal(got.values, wanted.values)
        np.testing.assert_array_equal(got.offsets, wanted.offsets)


def test_trainers_with_different_slots_are_told_so():
    def shuffle(transport):
        (own,) = parsed("1 5 2 1 0.5 1 3\n")
        slots = own.slots[:2] + own.slots[2:] * (1 + transport.rank)
        columns = own.columns[:2] + own.columns[2:] * (1 + transport.rank)
        with pytest.raises(DataError, match="have different slots"):
            shuffled_among(transport, Samples(slots, columns), np.random.default_rng(1), 60)

    run_in_world(2, shuffle)
