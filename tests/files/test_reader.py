from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from hpcdist import reader
from hpcdist.errors import DataError, SettingError


def of(*samples):
    return lambda: iter(samples)


def numbers(n):
    return lambda: iter(range(n))


def counting(n, read):
    """A reader of 0..n-1 that notes in ``read`` what was taken from it."""

    def read_numbers():
        for i in range(n):
            read.append(i)
            yield i

    return read_numbers


def failing(n):
    def read():
        yield from range(n)
        raise OSError("disk gone")

    return read


def our_threads():
    return [
        t for t in threading.enumerate() if t.name.startswith(("hpcdist-buffered", "hpcdist-xmap"))
    ]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    assert our_threads() == []


# shuffle


def test_shuffle_permutes_each_window():
    random.seed(3)
    got = list(reader.shuffle(numbers(10), 4)())
    assert [sorted(got[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert got != list(range(10))


def test_shuffle_draws_from_the_global_random_as_paddle_does():
    window = list(range(10))
    random.seed(7)
    random.shuffle(window)
    random.seed(7)
    assert list(reader.shuffle(numbers(10), 500)()) == window


# batch


@pytest.mark.parametrize(
    ("drop_last", "expected"),
    [(False, [[0, 1, 2], [3, 4, 5], [6]]), (True, [[0, 1, 2], [3, 4, 5]])],
)
def test_batch_groups_and_the_last_may_be_dropped(drop_last, expected):
    batches = reader.batch(numbers(7), 3, drop_last)
    assert list(batches()) == expected
    assert list(batches()) == expected  # a reader can be read again


def test_batch_of_a_multiple_has_no_empty_tail():
    assert list(reader.batch(numbers(6), 3)()) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("size", [0, -1])
def test_batch_refuses_a_size_that_is_not_positive(size):
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
        reader.batch(numbers(3), size)


@pytest.mark.parametrize("decorator", [reader.shuffle, reader.buffered])
def test_buffers_refuse_size_zero(decorator):
    with pytest.raises(DataError, match="must be at least 1, got 0"):
        decorator(numbers(3), 0)


# plain decorators


def test_map_readers_calls_with_one_sample_of_each():
    assert list(reader.map_readers(lambda a, b: a * b, numbers(4), of(5, 6, 7))()) == [0, 6, 14]


def test_chain_gives_one_reader_after_the_other():
    assert list(reader.chain(numbers(2), of("a"), numbers(1))()) == [0, 1, "a", 0]


def test_chain_opens_a_reader_only_when_its_turn_comes():
    read = []
    samples = iter(reader.chain(numbers(1), counting(3, read))())
    next(samples)
    assert read == []


def test_compose_flattens_tuples():
    rows = reader.compose(of((1, 2), (3, 4)), of("a", "b"), of((5,), (6,)))
    assert list(rows()) == [(1, 2, "a", 5), (3, 4, "b", 6)]


def test_compose_keeps_samples_that_are_none():
    assert list(reader.compose(of(None, 1), of(2, None))()) == [(None, 2), (1, None)]


def test_compose_says_which_reader_ended_first():
    rows = reader.compose(numbers(5), numbers(3))()
    assert [next(rows) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(reader.ComposeNotAligned, match=r"readers \[1\] of 2 ended after 3"):
        next(rows)
    assert issubclass(reader.ComposeNotAligned, ValueError)


def test_compose_without_check_ends_with_the_shortest():
    rows = reader.compose(numbers(5), numbers(2), check_alignment=False)
    assert list(rows()) == [(0, 0), (1, 1)]


def test_firstn_reads_no_further():
    read = []
    assert list(reader.firstn(counting(10, read), 3)()) == [0, 1, 2]
    assert read == [0, 1, 2]


def test_cache_reads_once():
    read = []
    cached = reader.cache(counting(3, read))
    assert list(cached()) == list(cached()) == [0, 1, 2]
    assert read == [0, 1, 2]


# buffered


def test_buffered_keeps_order_and_can_be_read_again():
    ahead = reader.buffered(numbers(100), 7)
    assert list(ahead()) == list(range(100))
    assert list(ahead()) == list(range(100))


def test_buffered_reads_ahead_but_not_further_than_its_size():
    read = []
    samples = reader.buffered(counting(100, read), 5)()
    next(samples)
    until = time.monotonic() + 60
    while len(read) < 7 and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)  # time enough to read on, were the buffer not full
    assert len(read) == 7  # one taken, five in the buffer, one in the producer's hand
    samples.close()


def test_buffered_raises_the_readers_error_after_the_samples_before_it():
    samples = reader.buffered(failing(3), 10)()
    assert [next(samples) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="disk gone"):
        next(samples)


def test_buffered_passes_on_an_exit_instead_of_waiting_for_ever():
    def leaving():
        yield 1
        sys.exit(3)

    with pytest.raises(SystemExit):
        list(reader.buffered(leaving, 2)())


@pytest.mark.parametrize("taken", [1, 2, 20])
def test_buffered_leaves_no_thread_when_the_consumer_stops_early(taken):
    closed = []

    def endless():
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    samples = reader.buffered(endless, 3)()
    for _ in range(taken):
        next(samples)
    assert len(our_threads()) == 1
    samples.close()
    assert our_threads() == []
    assert closed == [True]


def test_nested_buffers_and_firstn_leave_no_thread():
    endless = reader.buffered(reader.buffered(numbers(10**9), 3), 4)
    assert list(reader.firstn(endless, 5)()) == [0, 1, 2, 3, 4]
    for sample in endless():
        if sample == 2:
            break
    assert our_threads() == []


# xmap_readers


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("buffer_size", [1, 3, 100])
def test_xmap_ordered_equals_map(threads, buffer_size):
    squares = reader.xmap_readers(lambda x: x * x, numbers(50), threads, buffer_size, order=True)
    assert list(squares()) == [x * x for x in range(50)]


def test_xmap_unordered_gives_the_same_samples():
    squares = reader.xmap_readers(lambda x: x * x, numbers(50), 4, 8)
    assert sorted(squares()) == [x * x for x in range(50)]


@pytest.mark.parametrize("order", [False, True])
def test_xmap_maps_at_the_same_time(order):
    meeting = threading.Barrier(4, timeout=60)  # passes only if four mappers are inside at once

    def meet(x):
        meeting.wait()
        return x

    assert sorted(reader.xmap_readers(meet, numbers(8), 4, 4, order)()) == list(range(8))


def test_xmap_unordered_lets_the_fast_overtake():
    go = threading.Event()

    def slow_first(x):
        if x == 0:
            assert go.wait(60)
        return x

    samples = reader.xmap_readers(slow_first, numbers(3), 2, 2)()
    assert next(samples) in (1, 2)
    go.set()
    assert len(list(samples)) == 2


@pytest.mark.parametrize("order", [False, True])
def test_xmap_raises_the_mappers_and_the_readers_error(order):
    with pytest.raises(ZeroDivisionError):
        list(reader.xmap_readers(lambda x: 1 // (x - 5), numbers(10), 3, 4, order)())
    with pytest.raises(OSError, match="disk gone"):
        list(reader.xmap_readers(lambda x: x, failing(5), 3, 4, order)())


@pytest.mark.parametrize("order", [False, True])
def test_xmap_leaves_no_thread_when_the_consumer_stops_early(order):
    samples = reader.xmap_readers(lambda x: x, numbers(10**9), 3, 4, order)()
    next(samples)
    assert our_threads()
    samples.close()
    assert our_threads() == []


# shard


@pytest.fixture
def environment(monkeypatch):
    for name in ("PADDLE_TRAINERS_NUM", "PADDLE_TRAINERS", "PADDLE_TRAINER_ID"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("uneven", "expected"),
    [
        ("keep", [[0, 3, 6], [1, 4, 7], [2, 5]]),
        ("drop", [[0, 3], [1, 4], [2, 5]]),
        ("pad", [[0, 3, 6], [1, 4, 7], [2, 5, 0]]),
    ],
)
def test_shard_of_eight_samples_on_three_trainers(uneven, expected):
    assert [list(reader.shard(numbers(8), 3, t, uneven)()) for t in range(3)] == expected


def test_shard_pads_round_and_round_when_samples_are_fewer_than_trainers():
    assert [list(reader.shard(numbers(2), 5, t)()) for t in range(5)] == [[0], [1], [0], [1], [0]]


def test_shard_alone_is_the_whole(environment):
    assert list(reader.shard(numbers(5))()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("variable", ["PADDLE_TRAINERS_NUM", "PADDLE_TRAINERS"])
def test_shard_takes_the_job_from_the_environment(environment, variable):
    environment.setenv(variable, "3")
    environment.setenv("PADDLE_TRAINER_ID", "1")
    assert list(reader.shard(numbers(9))()) == [1, 4, 7]


def test_shard_arguments_win_over_the_environment(environment):
    environment.setenv("PADDLE_TRAINERS", "3")
    environment.setenv("PADDLE_TRAINER_ID", "1")
    assert list(reader.shard(numbers(4), 2, 0)()) == [0, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "num_trainers must be at least 1, got 0"),
        ((2, 2), r"trainer_id must be 0\.\.1, got 2"),
        ((2, -1), r"trainer_id must be 0\.\.1, got -1"),
        ((2, 0, "even"), "got 'even'"),
    ],
)
def test_shard_refuses_bad_arguments(arguments, message):
    with pytest.raises(DataError, match=message):
        reader.shard(numbers(3), *arguments)


def test_shard_names_the_variable_that_is_no_number(environment):
    environment.setenv("PADDLE_TRAINERS", "two")
    with pytest.raises(SettingError, match="PADDLE_TRAINERS: expected an integer >= 1, got 'two'"):
        reader.shard(numbers(3))


def test_importing_the_data_modules_loads_neither_scikit_learn_nor_pooch():
    code = (
        "import sys, hpcdist.reader, hpcdist.dataset, hpcdist.data_feeder;"
        "print(sorted({'sklearn', 'pooch', 'requests'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"


# multiprocess_reader


def test_readers_in_processes_take_turns():
    readers = [of(1, 2, 3), of(10), of(), of(100, 200)]
    assert list(reader.multiprocess_reader(readers)()) == [1, 10, 100, 2, 200, 3]


def test_every_pass_of_a_reader_in_a_process_draws_other_random_numbers():
    def passes(seed):
        random.seed(seed)
        shuffled = reader.shuffle(numbers(50), 50)
        read = reader.multiprocess_reader([shuffled, shuffled])
        return [list(read()) for _ in range(2)]

    first, second = passes(3)
    assert first != second and sorted(first) == sorted([*range(50), *range(50)])
    assert first[::2] != first[1::2]
    assert passes(3) == [first, second]


def test_a_reader_that_fails_in_a_process_is_named():
    with pytest.raises(DataError, match="reader 1 has failed:(.|\n)*disk gone"):
        list(reader.multiprocess_reader([numbers(3), failing(2)])())
    with pytest.raises(DataError, match="at least one"):
        reader.multiprocess_reader([])


def test_a_process_that_is_killed_is_named():
    def killed():
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(DataError, match="process of reader 0 has died, with exit code -9"):
        list(reader.multiprocess_reader([killed])())


def test_a_consumer_that_stops_ends_the_processes():
    for sample in reader.multiprocess_reader([numbers(10**9)])():
        if sample == 3:
            break
    del sample
    assert multiprocessing.active_children() == []
