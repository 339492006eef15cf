"""DataLoader, PyReader and the readers of layers.py_reader."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import DataError, EOFException, FeedError, GraphTypeError, PlanError
from tests.support.job import alone


@pytest.fixture(autouse=True)
def fresh():
    with fluid.unique_name.guard(), alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield
    if left_threads():
        gc.collect()  # readers that a test has left started
    assert left_threads() == []


def left_threads():
    return [t for t in threading.enumerate() if t.name.startswith("hpcdist-buffered")]


def data():
    return [fluid.data("x", [None, 2]), fluid.data("y", [None, 1], "int64")]


def samples():
    for i in range(7):
        yield np.full(2, i, "float32"), i


def batches():
    for i in range(3):
        yield np.full((2, 2), i, "float32"), np.full((2, 1), i)


def loader(iterable=True, **options):
    return fluid.io.DataLoader.from_generator(data(), capacity=2, iterable=iterable, **options)


def firsts(passed):
    return [[int(np.array(part["y"])[0, 0]) for part in step] for step in passed]


# loops


def test_an_iterable_loader_gives_what_an_executor_is_fed_with():
    made = loader().set_sample_generator(samples, batch_size=2, places=fluid.CPUPlace())
    steps = list(made())
    assert [len(step) for step in steps] == [1, 1, 1], "seven samples: the short batch is dropped"
    (batch,) = steps[1]
    assert batch["x"].shape() == [2, 2] and batch["y"].shape() == [2, 1]
    assert np.array(batch["x"]).dtype == "float32" and np.array(batch["y"]).tolist() == [[2], [3]]
    total = layers.reduce_sum(fluid.default_main_program().global_block().var("x"))
    assert fluid.Executor().run(feed=steps[1], fetch_list=[total])[0] == 10
    assert firsts(made) == firsts(steps), "a second pass begins from the front"


def test_a_loop_that_was_left_is_reset_as_fluid_does_it():
    made = loader().set_sample_generator(samples, batch_size=2)
    assert firsts([next(made())]) == [[0]]
    made._reset()
    assert firsts(made()) == [[0], [2], [4]]


def test_batches_are_made_of_samples_of_lists_of_samples_or_come_as_they_are():
    assert firsts(loader().set_sample_generator(samples, 2, drop_last=False)()) == [
        [0],
        [2],
        [4],
        [6],
    ]
    assert firsts(loader().set_sample_list_generator(fluid.batch(samples, 5))()) == [[0], [5]]
    assert firsts(loader().set_batch_generator(batches)()) == [[0], [1], [2]]


def test_return_list_gives_values_in_the_order_of_the_variables():
    ((x, y),) = next(loader(return_list=True).set_batch_generator(batches)())
    assert x.shape() == [2, 2] and y.shape() == [2, 1]


@pytest.mark.parametrize(("drop_last", "expected"), [(True, [[0, 1]]), (False, [[0, 1], [2]])])
def test_every_place_gets_a_batch(drop_last, expected):
    made = loader(drop_last=drop_last).set_batch_generator(batches, fluid.cpu_places(2))
    assert firsts(made()) == expected


def test_ragged_samples_become_sequences():
    word = fluid.data("word", [None, 1], "int64", lod_level=1)
    made = fluid.io.DataLoader.from_generator([word], capacity=1)
    made.set_sample_generator(lambda: iter([([1, 2],), ([3],)]), 2)
    assert next(made())[0]["word"].recursive_sequence_lengths() == [[2, 1]]


def test_a_generator_may_fill_the_same_array_again():
    def refilled():
        x, y = np.zeros((1, 2), "float32"), np.zeros((1, 1), "int64")
        for i in range(4):
            x[:], y[:] = i, i
            yield x, y

    assert firsts(loader().set_batch_generator(refilled)()) == [[0], [1], [2], [3]]


def test_no_more_than_the_capacity_is_read_ahead():
    taken = []

    def counting():
        for batch in batches():
            taken.append(1)
            yield batch

    def endless():
        while True:
            yield from counting()

    steps = loader().set_batch_generator(endless)()
    for _ in range(20):
        next(steps)
    assert 20 <= len(taken) <= 20 + 2 + 1, "two wait, one more is in the thread's hand"
    steps.close()


# started readers


def started(reader=batches, **options):
    made = loader(iterable=False, **options).set_batch_generator(reader)
    x = fluid.default_main_program().global_block().var("x")
    return made, layers.reduce_sum(x), fluid.Executor()


def a_pass(exe, total, reader, program=None):
    reader.start()
    got = []
    try:
        while True:
            got.append(float(exe.run(program, fetch_list=[total])[0]))
    except fluid.core.EOFException:
        reader.reset()
    return got


def test_runs_without_a_feed_read_until_the_end_pass_after_pass():
    reader, total, exe = started()
    assert [a_pass(exe, total, reader) for _ in range(2)] == [[0, 4, 8], [0, 4, 8]]


def test_a_pass_may_be_left_in_its_middle():
    reader, total, exe = started()
    reader.start()
    assert exe.run(fetch_list=[total])[0] == 0
    reader.reset()
    assert a_pass(exe, total, reader) == [0, 4, 8]


def test_a_loader_may_be_made_behind_the_first_step():
    x, y = data()
    total, exe = layers.reduce_sum(x), fluid.Executor()
    exe.run(feed={"x": np.zeros((1, 2), "float32")}, fetch_list=[total])
    made = fluid.io.DataLoader.from_generator([x, y], capacity=1, iterable=False)
    assert a_pass(exe, total, made.set_batch_generator(batches)) == [0, 4, 8]


def test_the_end_stays_the_end_until_reset():
    reader, total, exe = started()
    reader.start()
    for _ in range(3):
        exe.run(fetch_list=[total])
    for _ in range(2):
        with pytest.raises(EOFException, match="data_loader_0 has no more batches"):
            exe.run(fetch_list=[total])


def test_a_clone_for_test_reads_from_the_same_reader():
    reader, total, exe = started()
    test = fluid.default_main_program().clone(for_test=True)
    reader.start()
    assert [float(exe.run(p, fetch_list=[total])[0]) for p in (None, test)] == [0, 4]
    reader.reset()


def test_what_the_reader_does_not_give_is_fed():
    reader, total, exe = started()
    z = fluid.data("z", [1])
    both = layers.elementwise_add(total, z)
    reader.start()
    assert exe.run(feed={"z": np.ones(1, "float32")}, fetch_list=[both])[0] == 1
    reader.reset()


@pytest.mark.parametrize(
    "use", [layers.read_file, lambda r: layers.read_file(layers.double_buffer(r))]
)
def test_py_reader_makes_the_variables_that_read_file_returns(use):
    reader = layers.py_reader(4, [(-1, 2), (-1, 1)], ["float32", "int64"], name="train")
    x, y = use(reader)
    assert (x.name, x.shape, y.dtype, y.stop_gradient) == (
        "read_file_0.tmp_0",
        (-1, 2),
        "int64",
        True,
    )
    reader.decorate_paddle_reader(fluid.batch(samples, 4))
    assert a_pass(fluid.Executor(), layers.reduce_sum(x), reader) == [12, 30]
    reader.decorate_tensor_provider(batches)
    assert a_pass(fluid.Executor(), layers.reduce_sum(y), reader) == [0, 2, 4]


def test_a_reader_of_one_variable_gives_the_variable_itself():
    x = fluid.data("x", [None, 2])
    reader = layers.create_py_reader_by_data(capacity=2, feed_list=[x])
    assert layers.read_file(reader) is x


def test_pyreader_is_iterable_too():
    reader = fluid.io.PyReader(feed_list=data(), capacity=2)
    reader.decorate_sample_generator(samples, 3, places=fluid.cpu_places(1))
    assert firsts(reader()) == [[0], [3]]


# several devices


def test_each_device_takes_a_batch():
    reader, total, exe = started()
    compiled = fluid.CompiledProgram(fluid.default_main_program())
    compiled = compiled.with_data_parallel(places=fluid.cpu_places(2))
    reader.start()
    assert exe.run(compiled, fetch_list=[total])[0].tolist() == [0, 4]
    with pytest.raises(EOFException):
        exe.run(compiled, fetch_list=[total])


def test_batches_left_for_some_devices_run_on_these_unless_they_are_dropped():
    reader, total, exe = started(drop_last=False)
    compiled = fluid.CompiledProgram(fluid.default_main_program())
    compiled = compiled.with_data_parallel(places=fluid.cpu_places(2))
    reader.start()
    got = [exe.run(compiled, fetch_list=[total])[0].tolist() for _ in range(2)]
    assert got == [[0, 4], [8]]


def test_training_needs_a_batch_for_each_device():
    reader, _, exe = started(drop_last=False)
    x = fluid.default_main_program().global_block().var("x")
    loss = layers.mean(layers.fc(x, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program())
    compiled = compiled.with_data_parallel(loss.name, places=fluid.cpu_places(2))
    reader.start()
    exe.run(compiled, fetch_list=[loss])
    with pytest.raises(PlanError, match="1 batches are left for 2 devices"):
        exe.run(compiled, fetch_list=[loss])


# what cannot be done


def test_an_error_of_the_generator_is_raised_at_the_step_that_would_have_read():
    def failing():
        yield next(batches())
        raise OSError("disk gone")

    reader, total, exe = started(failing)
    reader.start()
    exe.run(fetch_list=[total])
    with pytest.raises(OSError, match="disk gone"):
        exe.run(fetch_list=[total])
    with pytest.raises(DataError, match="not started"):
        exe.run(fetch_list=[total])
    made = fluid.io.DataLoader.from_generator([fluid.data("z", [None, 2])], capacity=1)
    with pytest.raises(OSError, match="disk gone"):
        list(made.set_sample_generator(lambda: failing_samples(), 1)())


def failing_samples():
    yield (np.zeros(2, "float32"),)
    raise OSError("disk gone")


REFUSED = {
    "data_loader_0, which is not started": lambda r, t, e: e.run(fetch_list=[t]),
    "was started already": lambda r, t, e: (r.start(), r.start()),
    "made with iterable=False": lambda r, t, e: list(r()),
    "is started: call reset": lambda r, t, e: (r.start(), r.set_batch_generator(batches)),
    "is read from data_loader_0 already": lambda r, t, e: loader(iterable=False),
    "put resumable": lambda r, t, e: r.set_batch_generator(fluid.checkpoint.resumable(batches)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_started_reader_refuses(message):
    with pytest.raises(DataError, match=message):
        REFUSED[message](*started())


def test_what_an_iterable_loader_refuses():
    made = loader()
    for call, message in [
        (made.start, "loop over it"),
        (made.reset, "leave the loop"),
        (lambda: list(made()), "nothing to read"),
        (lambda: fluid.io.DataLoader.from_generator(data()), "capacity must be"),
        (lambda: fluid.io.DataLoader.from_generator(capacity=1), "feed_list must"),
        (lambda: fluid.io.DataLoader.from_generator(data()[0], capacity=1), "feed_list must"),
        (lambda: fluid.io.DataLoader.from_generator(["x"], 1), r"feed_list must .* got \['x'\]"),
        (lambda: made.set_batch_generator(batches()), "give the function, and do not call it"),
        (lambda: made.set_sample_generator([1], 1), "give the function, and do not call it"),
        (lambda: fluid.io.DataLoader([1, 2]), "imperative mode"),
    ]:
        with pytest.raises(DataError, match=message):
            call()
    with pytest.raises(FeedError, match=r"batch 0 must be a list of 2 arrays \(x, y\), got 1"):
        list(made.set_batch_generator(lambda: iter([[1]]))())
    with pytest.raises(GraphTypeError, match="read_file: reader must be"):
        layers.read_file(made)


def test_what_is_read_is_not_fed_as_well():
    reader, total, exe = started()
    reader.start()
    with pytest.raises(FeedError, match="feed 'x': the program reads it from data_loader_0"):
        exe.run(feed={"x": np.zeros((1, 2), "float32")}, fetch_list=[total])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 2)), "expected float32.*got float64"),
        (np.zeros((2, 3), "float32"), "got shape \\[2, 3\\]"),
    ],
)
def test_a_batch_that_does_not_fit_its_variable_is_refused(x, message):
    reader, total, exe = started(lambda: iter([[x, np.zeros((2, 1), "int64")]]))
    reader.start()
    with pytest.raises(FeedError, match=message):
        exe.run(fetch_list=[total])


# positions


def test_a_resumable_loader_reads_on_where_it_was():
    def shuffled():
        return fluid.io.DataLoader.from_generator(
            [fluid.data("n", [None, 1], "int64")], capacity=3
        ).set_sample_generator(fluid.reader.shuffle(lambda: iter([(i,) for i in range(20)]), 20), 2)

    def numbers(steps):
        return [np.array(step[0]["n"]).ravel().tolist() for step in steps]

    random.seed(5)
    whole = fluid.checkpoint.resumable(shuffled())
    expected = [numbers(whole()), numbers(whole())]
    random.seed(5)
    first = fluid.checkpoint.resumable(shuffled())
    reading = first()
    begun = numbers(next(reading) for _ in range(4))
    state, current = first.state(), fluid.checkpoint.resume_state.random_state()
    random.seed(77)
    second = fluid.checkpoint.resumable(shuffled())
    second.resume(state, current)
    assert begun + numbers(second()) == expected[0] and numbers(second()) == expected[1]


def test_a_started_loader_that_is_forgotten_ends_its_thread():
    reader, total, exe = started()
    reader.start()
    exe.run(fetch_list=[total])
    assert [t for t in threading.enumerate() if t.name.startswith("hpcdist-buffered")]
    # the fixture looks whether it has gone


def test_a_loader_tells_how_many_batches_wait():
    reader = layers.py_reader(4, [[-1, 2], [-1, 1]], ["float32", "int64"])
    reader.decorate_tensor_provider(batches)
    assert reader.queue.size() == 0
    reader.start()
    reader.read()
    reader.read()
    assert reader.queue.size() <= 1
    reader.read()
    assert reader.queue.size() == 0
    reader.reset()
