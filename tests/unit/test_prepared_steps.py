"""Steps that are like the one before: the same bits, and nothing that changes is overlooked."""

import pickle
import threading

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.base.fetched import FetchedArray
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.errors import FeedError, GraphError, HpcdistError
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph.program import Program, program_guard
from hpcdist.lod_tensor import LoDTensor

WARM = 3  # steps after which all that follow are taken like them


def regression(rate=0.1):
    """Return (main, startup, loss, prediction) of a linear regression of 3 features."""
    main, startup = Program(), Program()
    with program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [3], "float32")
        y = layers.data("y", [1], "float32")
        prediction = layers.fc(x, 1)
        loss = layers.mean(layers.square_error_cost(prediction, y))
        main.random_seed = startup.random_seed = 7
        fluid.optimizer.SGD(rate).minimize(loss)
    return main, startup, loss, prediction


def batch(rows=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 3), np.float32)
    return {"x": x, "y": x.sum(axis=1, keepdims=True)}


class Trained:
    """A network in a scope of its own, some steps later; ``step`` takes one with ``way``."""

    def __init__(self, way="run", **options):
        self.main, startup, self.loss, self.prediction = regression(**options)
        self.exe, self.scope = fluid.Executor(fluid.CPUPlace()), Scope()
        self.exe.run(startup, scope=self.scope)
        self.prepared = self.exe.prepare(self.main, batch(), [self.loss], scope=self.scope)
        self.way = way
        for seed in range(WARM):
            self.step(batch(seed=seed))

    def step(self, feed, **options):
        if self.way == "prepared":
            return self.prepared.run(feed, **options)
        return self.exe.run(self.main, feed, [self.loss], scope=self.scope, **options)

    def weight(self):
        name = self.main.all_parameters()[0].name
        return self.scope.find_var(name).get_tensor()


@pytest.fixture(params=["run", "prepared"])
def way(request):
    return request.param


@pytest.fixture(autouse=True)
def few_details():
    """Have details recorded in no step of these: each such step is taken from its beginning."""
    saved, recorder.mask = recorder.mask, -1
    yield
    recorder.mask = saved


def alike(change, feed=None, way="run"):
    """Assert that a step after a change is what it is where no step was taken before it."""
    feed = feed or batch(seed=9)
    warm, cold = Trained(way), Trained(way)
    change(warm)
    found = warm.step(feed)
    change(cold)
    other = fluid.Executor(fluid.CPUPlace())
    (expected,) = other.run(cold.main, feed, [cold.loss], scope=cold.scope)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(np.array(warm.weight()), np.array(cold.weight()))


FORMS = {
    "another batch": batch(seed=5),
    "fewer rows": batch(rows=2),
    "lists": {name: value.tolist() for name, value in batch().items()},
    "tensors": {name: LoDTensor(value) for name, value in batch().items()},
    "not contiguous": {"x": np.asfortranarray(batch()["x"]), "y": batch()["y"][::-1]},
    "unpickled": pickle.loads(pickle.dumps(batch())),
    "in another order": dict(reversed(batch().items())),
    "of another byte order": {n: v.astype(">f4").astype("=f4") for n, v in batch().items()},
}


@pytest.mark.parametrize("feed", FORMS.values(), ids=FORMS)
def test_every_form_of_a_feed_gives_the_bits_of_a_first_step(way, feed):
    alike(lambda trained: None, feed, way)


def reset(trained):
    trained.weight().set(np.full((3, 1), 0.5, np.float32), None)


def replace_variable(trained):
    name = trained.main.all_parameters()[0].name
    trained.scope.erase([name])
    trained.scope.var(name).get_tensor().set(np.full((3, 1), 0.25, np.float32), None)


def change_program(trained):
    with program_guard(trained.main, Program()):
        block = trained.main.global_block()
        (mean,) = [op for op in block.ops if op.type == "mean"]
        block.append_op("scale", {"X": trained.loss}, {"Out": trained.loss}, {"scale": 3.0})
    assert mean


@pytest.mark.parametrize("change", [reset, replace_variable, change_program])
def test_a_change_between_two_steps_is_seen(way, change):
    alike(change, way=way)


def test_another_array_in_a_parent_scope_is_seen(way):
    main, startup, _, prediction = regression()
    test = main.clone(for_test=True)
    parent = Scope()
    child, exe = parent.new_scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=parent)
    feed = {"x": batch()["x"]}
    step = exe.prepare(test, feed, [prediction], scope=child)

    def predicted():
        if way == "prepared":
            return step.run(feed)[0]
        return exe.run(test, feed, [prediction], scope=child)[0]

    before = [predicted() for _ in range(WARM)][-1]
    name = main.all_parameters()[0].name
    parent.find_var(name).hold(np.zeros((3, 1), np.float32))
    after = predicted()
    assert np.any(before != after)
    assert np.all(after == after[0])  # the bias alone


def test_the_scope_of_a_prepared_step_is_the_global_one_when_it_was_prepared():
    main, startup, loss, _ = regression()
    exe, first, second = fluid.Executor(), Scope(), Scope()
    for scope in (first, second):
        exe.run(startup, scope=scope)
    with scope_guard(first):
        step = exe.prepare(main, batch(), [loss])
    with scope_guard(second):
        for _ in range(WARM):
            step.run(batch())
        (other,) = exe.run(main, batch(), [loss])
    (trained,) = step.run(batch())
    assert trained < other


def test_scopes_that_take_turns_are_apart():
    main, startup, loss, _ = regression()
    exe, scopes = fluid.Executor(), [Scope(), Scope()]
    for scope in scopes:
        exe.run(startup, scope=scope)
    losses = [[], []]
    for seed in range(2 * WARM):
        for scope, found in zip(scopes, losses):
            found.append(exe.run(main, batch(seed=seed), [loss], scope=scope)[0].item())
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 2 * WARM


def test_a_closed_executor_takes_no_more_steps(way):
    trained = Trained(way)
    trained.exe.close()
    with pytest.raises(GraphError, match="was closed with close"):
        trained.step(batch())
    with pytest.raises(GraphError, match="was closed with close"):
        trained.exe.prepare(trained.main)


WRONG = {
    "dtype": {**batch(), "x": batch()["x"].astype(np.float64)},
    "extents": {**batch(), "x": np.zeros((4, 5), np.float32)},
    "dimensions": {**batch(), "y": np.zeros(4, np.float32)},
    "a list": {**batch(), "y": [["one"]] * 4},
}


@pytest.mark.parametrize("feed", WRONG.values(), ids=WRONG)
def test_a_feed_that_does_not_fit_is_refused_with_the_same_words(way, feed):
    trained = Trained(way)
    with pytest.raises(FeedError) as first:
        other = fluid.Executor()
        other.run(trained.main, feed, [trained.loss], scope=trained.scope)
    with pytest.raises(FeedError) as later:
        trained.step(feed)
    assert str(first.value) == str(later.value)
    weight = np.array(trained.weight())
    trained.step(batch())
    assert np.any(weight != np.array(trained.weight()))


def test_a_variable_that_is_not_fed_is_missed_and_one_too_many_left_out(way):
    trained = Trained(way)
    with pytest.raises(HpcdistError, match="'y'"):
        trained.step({"x": batch()["x"]})
    with pytest.warns(UserWarning, match="feed 'z' is left out"):
        trained.step({**batch(), "z": batch()["x"]})


def test_prepare_looks_at_what_is_to_be_fed():
    main, _, loss, _ = regression()
    exe = fluid.Executor()
    with pytest.raises(FeedError, match="expected float32"):
        exe.prepare(main, WRONG["dtype"], [loss])
    with pytest.warns(UserWarning, match="feed 'z' is left out"):
        exe.prepare(main, {"z": batch()["x"]}, [loss])


def test_values_are_handed_out_as_at_first(way):
    trained = Trained(way)
    (value,) = trained.step(batch())
    assert isinstance(value, FetchedArray)
    assert float(value) == value.item()
    (tensor,) = trained.step(batch(), return_numpy=False)
    assert isinstance(tensor, LoDTensor)
    assert not isinstance(tensor.value, FetchedArray)


def test_fetched_values_are_the_callers_own(way):
    trained = Trained(way)
    (first,) = trained.step(batch())
    kept = first.copy()
    first[...] = 7
    (second,) = trained.step(batch())
    trained.step(batch(seed=4))
    assert second < kept


def test_steps_are_counted_and_recorded(way):
    trained = Trained(way)
    recorder.begin(2**16)
    recorder.mask = -1
    before = here.step
    for _ in range(5):
        trained.step(batch())
    recorded = recorder.taken().events
    assert list(recorded["step"]) == list(range(before + 1, before + 6))
    recorder.mask = 0
    trained.step(batch())
    assert "sgd" in {recorder.names[event["name"]] for event in recorder.taken().events}


@pytest.mark.parametrize("rows", [4, 2])
def test_nan_is_told_in_the_step_in_which_it_comes(way, rows, monkeypatch):
    monkeypatch.setenv("HPCDIST_ON_NAN", "end")
    trained = Trained(way)
    with pytest.raises(HpcdistError, match="holds NaN"):
        trained.step({**batch(rows), "y": np.full((rows, 1), np.nan, np.float32)})


def test_an_error_names_the_step_and_the_operator(way):
    trained = Trained(way)
    (form,) = trained.exe.forms(trained.main)
    (place,) = [i for i, op in enumerate(form.compiled.ops) if op.type == "mean"]

    def broken():
        raise ZeroDivisionError("broken")

    form.compiled.steps[place] = broken
    with pytest.raises(HpcdistError, match=rf"step {here.step + 1}, .*mean.*broken"):
        trained.step(batch())


def test_a_loader_that_is_made_later_is_read(way):
    trained = Trained(way)
    variables = [trained.main.global_block().var(name) for name in ("x", "y")]
    loader = fluid.io.DataLoader.from_generator(
        feed_list=variables, capacity=2, iterable=False, use_double_buffer=False
    )
    loader.set_batch_generator(lambda: iter([tuple(batch(seed=5).values())]))
    loader.start()
    with pytest.raises(FeedError, match="the program reads it from"):
        trained.step(batch())


def test_threads_take_one_step_after_the_other(way):
    trained = Trained(way, rate=1e-6)
    count = here.step

    def steps():
        for seed in range(50):
            trained.step(batch(seed=seed))

    threads = [threading.Thread(target=steps) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert here.step == count + 200


def test_updates_in_the_fetch_list_are_alone_made():
    main, startup = Program(), Program()
    with program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [3], "float32")
        loss = layers.mean(layers.fc(x, 1))
        updates = fluid.optimizer.SGD(0.1).minimize(loss)
    exe, scope = fluid.Executor(), Scope()
    exe.run(startup, scope=scope)
    step = exe.prepare(main, {"x": batch()["x"]}, [loss, updates], scope=scope)
    losses = [step.run({"x": batch()["x"]})[0].item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3


def test_a_step_in_the_place_of_a_program_that_was_dropped_is_of_the_new_one():
    exe, found = fluid.Executor(), []
    for rate in (0.1, 0.5):
        main, startup, loss, _ = regression(rate)
        scope = Scope()
        exe.run(startup, scope=scope)
        found.append([exe.run(main, batch(), [loss], scope=scope)[0].item() for _ in range(4)])
        del main, startup, loss
    assert found[0][0] == found[1][0]
    assert found[0][1:] != found[1][1:]


def test_what_is_fetched_is_what_a_variable_is_called_now():
    main, startup, loss, prediction = regression()
    exe, scope = fluid.Executor(), Scope()
    exe.run(startup, scope=scope)
    for _ in range(WARM + 2):
        (value,) = exe.run(main, feed=batch(), fetch_list=[loss], scope=scope)
        assert value.shape == (1,)
    loss.name = prediction.name
    (value,) = exe.run(main, feed=batch(), fetch_list=[loss], scope=scope)
    assert value.shape == (4, 1)


def test_other_variables_and_scopes_in_turn_are_told_apart():
    main, startup, loss, prediction = regression()
    exe, scopes = fluid.Executor(), (Scope(), Scope())
    for scope in scopes:
        exe.run(startup, scope=scope)
    shapes = {loss: (1,), prediction: (4, 1)}
    for _ in range(WARM + 2):
        values = []
        for scope in scopes:
            for asked in (loss, prediction):
                (value,) = exe.run(main, feed=batch(), fetch_list=[asked], scope=scope)
                assert value.shape == shapes[asked]
                values.append(value.tobytes())
        assert values[:2] == values[2:]


def test_a_list_within_the_list_of_what_is_fetched_may_change():
    main, startup, loss, prediction = regression()
    exe, scope, inner = fluid.Executor(), Scope(), [loss]
    exe.run(startup, scope=scope)
    for shape, asked in (((1,), loss), ((4, 1), prediction)):
        inner[0] = asked
        for _ in range(WARM + 2):
            (value,) = exe.run(main, feed=batch(), fetch_list=[inner], scope=scope)
            assert value.shape == shape
