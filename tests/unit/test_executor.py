"""The executor: what is compiled away, what is refused, and that sharing memory changes nothing."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, GraphError, HpcdistError
from hpcdist.executor.analysis import find_views, select_live
from hpcdist.executor.backend import CPUPlace, backend_of
from hpcdist.executor.control import NetworkOperators
from hpcdist.executor.executor import Executor
from hpcdist.executor.memory import lay_contiguous
from hpcdist.executor.scope import Scope
from hpcdist.graph import Meta, Program


def linear():
    """Return a Program for y = (x w + b)^2 and its mean, and the startup that fills w and b."""
    main, startup = Program(), Program()
    block = main.global_block()
    block.create_var("x", shape=(-1, 3), is_data=True)
    for target in (main, startup):
        target.global_block().create_parameter("w", shape=(3, 1))
        target.global_block().create_parameter("b", shape=(1,))
    for name, shape, value in (("w", [3, 1], 0.5), ("b", [1], 0.25)):
        attrs = {"shape": shape, "value": value, "dtype": "float32"}
        startup.global_block().append_op("fill_constant", {}, {"Out": name}, attrs)
    block.append_op("mul", {"X": "x", "Y": "w"}, {"Out": "xw"})
    block.append_op("elementwise_add", {"X": "xw", "Y": "b"}, {"Out": "sum"}, {"axis": 1})
    block.append_op("square", {"X": "sum"}, {"Out": "squared"})
    block.append_op("mean", {"X": "squared"}, {"Out": "loss"})
    return main, startup


@pytest.fixture
def ready():
    """Return (executor, main program, scope) after startup."""
    main, startup = linear()
    scope, exe = Scope(), Executor(CPUPlace())
    exe.run(startup, scope=scope)
    return exe, main, scope


def x_of(rows):
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) / 10


def test_values_are_those_of_numpy_for_every_batch_size(ready):
    exe, main, scope = ready
    for rows in (4, 1, 4, 7):
        x = x_of(rows)
        loss, total = exe.run(main, feed={"x": x}, fetch_list=["loss", "sum"], scope=scope)
        expected = x @ np.full((3, 1), 0.5, np.float32) + np.float32(0.25)
        np.testing.assert_allclose(total, expected, rtol=1e-6)
        np.testing.assert_allclose(loss, [np.mean(expected**2)], rtol=1e-6)


def test_fetched_values_survive_the_next_run(ready):
    exe, main, scope = ready
    (first,) = exe.run(main, feed={"x": x_of(4)}, fetch_list=["sum"], scope=scope)
    kept = first.copy()
    exe.run(main, feed={"x": x_of(4) + 1}, fetch_list=["sum"], scope=scope)
    np.testing.assert_array_equal(first, kept)


def test_lists_within_the_fetch_list_are_taken_one_after_another(ready):
    exe, main, scope = ready
    lists = [["loss"], ["sum", main.global_block().var("x")]]
    found = exe.run(main, feed={"x": x_of(4)}, fetch_list=lists, scope=scope)
    assert [value.shape for value in found] == [(1,), (4, 1), (4, 3)]


def test_temporaries_share_memory(ready):
    exe, main, scope = ready
    exe.run(main, feed={"x": x_of(1000)}, fetch_list=["loss"], scope=scope)
    (entry,) = [e for e in exe.forms() if e.fetches]
    alone = 4 * 1000 * (3 + 1 + 1 + 1)  # x, xw, sum and squared side by side
    assert entry.compiled.pool_bytes < 0.8 * alone


def test_operators_nobody_needs_are_dropped():
    main, _ = linear()
    live = select_live(main.global_block().ops, ["sum"], lambda name: False)
    assert [op.type for op in live] == ["mul", "elementwise_add"]


def test_setting_a_tensor_is_seen_by_compiled_programs(ready):
    exe, main, scope = ready
    (before,) = exe.run(main, feed={"x": x_of(2)}, fetch_list=["sum"], scope=scope)
    scope.find_var("b").get_tensor().set(np.array([1.25], np.float32), exe.place)
    (after,) = exe.run(main, feed={"x": x_of(2)}, fetch_list=["sum"], scope=scope)
    np.testing.assert_allclose(after - before, 1.0, rtol=1e-6)
    assert np.array(scope.find_var("b").get_tensor()) == [1.25]


def test_scopes_are_apart(ready):
    exe, main, _ = ready
    with pytest.raises(GraphError, match="'w' is not initialized: run the startup program"):
        exe.run(main, feed={"x": x_of(2)}, fetch_list=["loss"], scope=Scope())


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (
            {"x": np.zeros((2, 4), np.float32)},
            r"'x': expected float32\[-1, 3\], got shape \[2, 4\]",
        ),
        ({"x": np.zeros((2, 3))}, r"got float64\[2, 3\]; convert it with .astype\('float32'\)"),
        ({"x": [[1, 2], [3]]}, "'x': not an array of float32"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(ready, feed, message):
    exe, main, scope = ready
    with pytest.raises(FeedError, match=message):
        exe.run(main, feed=feed, fetch_list=["loss"], scope=scope)


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_layers_data_alone_are_computed_in_the_type_that_is_fed(dtype):
    """As in Fluid, where no other value decides the type; runs of other types may follow."""
    with fluid.program_guard(Program(), Program()):
        x, y = layers.data("x", [2]), layers.data("y", [2])
        turned = layers.roll(layers.concat([x, y], axis=1), shifts=1, dims=1)
        exe = Executor()
        for of in (dtype, "float32"):
            fed = {"x": np.array([[1, 0]], of), "y": np.array([[0, 1]], of)}
            (found,) = exe.run(feed=fed, fetch_list=[turned])
            assert found.dtype == of and found.tolist() == [[1, 1, 0, 0]]


def test_floats_of_another_width_may_be_beside_integers():
    with fluid.program_guard(Program(), Program()):
        x, places = layers.data("x", [2]), layers.data("places", [1], dtype="int64")
        fed = {"x": np.array([[1.5, 2], [3, 4]]), "places": np.array([[1]])}
        (found,) = Executor().run(feed=fed, fetch_list=[layers.gather(x, places)])
        assert found.dtype == np.float64 and found.tolist() == [[3, 4]]


def test_another_type_beside_other_values_is_refused():
    """Also of `fluid.data`, and where the types of what is fed differ from one another."""
    two = np.ones((1, 2))
    with fluid.program_guard(Program(), Program()):
        x, y, z = layers.data("x", [2]), layers.data("y", [2]), fluid.data("z", [None, 2])
        beside = layers.concat([x, layers.fill_constant([1, 2], "float32", 1)])
        # What branches make in between is no variable of the block that is fed.
        yes = layers.fill_constant([1], "bool", True)
        chosen = layers.cond(yes, lambda: (x + y) * 2, lambda: x - y)
        cases = [
            ({"x": two}, beside),
            ({"x": two, "y": two.astype("float32")}, layers.concat([x, y])),
            ({"x": two, "y": two.astype("int64")}, layers.concat([x, y])),
            ({"z": two}, layers.roll(z, shifts=1)),
            ({"x": two, "y": two}, chosen),
        ]
        for fed, fetched in cases:
            program = fluid.default_main_program()._prune([fetched])
            with pytest.raises(FeedError, match="convert it with .astype"):
                Executor().run(program, feed=fed, fetch_list=[fetched])


def test_layers_data_may_be_fed_the_very_shape_that_it_was_given():
    """Without the batch that it puts before it; other numbers of dimensions are mistakes."""
    with fluid.program_guard(Program(), Program()):
        x = layers.data("x", [2, 3])
        sums = layers.reduce_sum(x, dim=1)
        exe = Executor()
        (found,) = exe.run(feed={"x": np.ones((2, 3), "f4")}, fetch_list=[sums])
        np.testing.assert_array_equal(found, [3, 3])
        (found,) = exe.run(feed={"x": np.ones((1, 2, 3), "f4")}, fetch_list=[sums])
        np.testing.assert_array_equal(found, [[2, 2, 2]])
        with pytest.raises(FeedError, match=r"'x': expected float32\[-1, 2, 3\], got shape \[3\]"):
            exe.run(feed={"x": np.ones(3, "f4")}, fetch_list=[sums])


def test_what_fc_flattens_may_be_fed_with_any_number_of_dimensions():
    """As in Fluid, which multiplies rows: vectors for an image, and images for a vector."""
    with fluid.program_guard(Program(), Program()):
        pictures, vector = layers.data("pictures", [1, 2, 2]), layers.data("vector", [4])
        other = layers.data("other", [4])
        weights = fluid.ParamAttr("w")
        products = [layers.fc(x, 1, param_attr=weights) for x in (pictures, vector)]
        layers.mean(layers.fc(other, 1) + layers.reduce_sum(other))
        fluid.optimizer.SGD(0.0).minimize(layers.mean(layers.sums(products)))
        exe = Executor()
        exe.run(fluid.default_startup_program())
        x = np.arange(8, dtype="f4").reshape(2, 4)
        feed = {"pictures": x.reshape(2, 1, 2, 2), "vector": x, "other": x}
        want = exe.run(feed=feed, fetch_list=products)
        fed = {"pictures": x, "vector": x.reshape(2, 1, 4), "other": x}
        np.testing.assert_array_equal(exe.run(feed=fed, fetch_list=products), want)
        np.testing.assert_array_equal(want[0], want[1])
        with pytest.raises(FeedError, match=r"'vector': expected .*, got shape \[2, 1, 5\]"):
            exe.run(feed=feed | {"vector": np.ones((2, 1, 5), "f4")}, fetch_list=products)
        with pytest.raises(FeedError, match=r"'other': expected .*, got shape \[2, 1, 4\]"):
            exe.run(feed=feed | {"other": x.reshape(2, 1, 4)}, fetch_list=products)


def test_layers_data_may_be_fed_other_extents_than_declared():
    """Fluid checks those of `fluid.data` only: images of many sizes go through one Program."""
    with fluid.program_guard(Program(), Program()):
        image = layers.data("image", [1, 4, 4])
        found = layers.pool2d(image, pool_type="avg", global_pooling=True)
        fixed = layers.data("fixed", [2, 3], append_batch_size=False)
        sums = layers.reduce_sum(fixed)
        product = layers.mul(fixed, layers.ones([3, 1], "float32"))
        strict = layers.mean(fluid.data("strict", [2, 3]))
        exe = Executor()
        for size in (4, 6):
            (mean,) = exe.run(feed={"image": np.ones((2, 1, size, 5), "f4")}, fetch_list=[found])
            np.testing.assert_array_equal(mean.ravel(), [1, 1])
        assert exe.run(feed={"fixed": np.ones((3, 3), "f4")}, fetch_list=[sums]) == [9]
        with pytest.raises(FeedError, match=r"'fixed': expected float32\[2, 3\], got .*\[2, 4\]"):
            exe.run(feed={"fixed": np.ones((2, 4), "f4")}, fetch_list=[product])
        with pytest.raises(FeedError, match="'strict': expected"):
            exe.run(feed={"strict": np.ones((3, 3), "f4")}, fetch_list=[strict])
        image.block.var("strict").desc.set_need_check_feed(False)
        assert exe.run(feed={"strict": np.ones((3, 3), "f4")}, fetch_list=[strict]) == [1]


def test_what_a_program_has_no_variable_for_is_left_out_with_a_warning(ready):
    exe, main, scope = ready
    feed = {"x": x_of(2)}
    want = exe.run(main.clone(for_test=True), feed=feed, fetch_list=["loss"], scope=scope)
    with pytest.warns(UserWarning, match=r"feed 'z' is left out.*\['x'\]"):
        got = exe.run(main, feed={**feed, "z": np.zeros(3)}, fetch_list=["loss"], scope=scope)
    np.testing.assert_array_equal(got, want)
    with (
        pytest.warns(UserWarning, match="feed 'xs' is left out.*did you mean 'x'"),
        pytest.raises(FeedError, match="'x' is not fed.*which has 'xs' instead; did you mean 'x'"),
    ):
        exe.run(main, feed={"xs": x_of(2)}, fetch_list=["loss"], scope=scope)


@pytest.mark.filterwarnings("ignore:feed 'rows' is left out")
@pytest.mark.parametrize("use_prune", [False, True])
def test_an_error_of_what_is_not_fed_names_what_is_left_out(ready, use_prune):
    exe, main, scope = ready
    feed = {"rows": x_of(2)}
    with pytest.raises(FeedError, match="'x' is not fed.* in the feed, which has 'rows' instead$"):
        exe.run(main, feed=feed, fetch_list=["loss"], scope=scope, use_prune=use_prune)


def test_a_missing_feed_is_named_with_its_operator(ready):
    exe, main, scope = ready
    with pytest.raises(FeedError, match=r"'x' is not fed, and op #0 mul.* float32\[-1, 3\]"):
        exe.run(main, fetch_list=["loss"], scope=scope)


def test_an_unknown_fetch_is_refused(ready):
    exe, main, scope = ready
    with pytest.raises(GraphError, match="cannot fetch 'los': the program has no such variable"):
        exe.run(main, feed={"x": x_of(2)}, fetch_list=["los"], scope=scope)


def test_a_network_operator_needs_a_job():
    program = Program()
    program.global_block().create_var("g", shape=(1,), persistable=True)
    program.global_block().append_op("send", {"X": "g"}, {}, {"epmap": ["ps0:6174"]})
    with pytest.raises(HpcdistError, match="started alone: use `mpirun -n 4 python -m hpcdist"):
        Executor(CPUPlace()).run(program, scope=Scope())


def test_a_closed_executor_is_refused(ready):
    exe, main, scope = ready
    exe.close()
    with pytest.raises(GraphError, match="closed"):
        exe.run(main, feed={"x": x_of(2)}, scope=scope)


def test_pieces_that_arrive_for_a_concat_are_rows_of_it():
    program = Program()
    block = program.global_block()
    block.create_parameter("w", shape=(5, 2))
    for i, rows in enumerate((3, 2)):
        block.create_var(f"w.block{i}", shape=(rows, 2))
    block.append_op("recv", {}, {"Out": ["w.block0", "w.block1"]}, {"epmap": ["a", "b"]})
    block.append_op("concat", {"X": ["w.block0", "w.block1"]}, {"Out": "w"}, {"axis": 0})
    metas = {
        "w": Meta((5, 2), "float32"),
        "w.block0": Meta((3, 2), "float32"),
        "w.block1": Meta((2, 2), "float32"),
    }
    views = find_views(block.ops, metas)
    assert [(views[f"w.block{i}"].begin, views[f"w.block{i}"].end) for i in (0, 1)] == [
        (0, 3),
        (3, 5),
    ]


def test_small_variables_of_one_message_are_moved_together(ready):
    _, _, scope = ready
    backend = backend_of(CPUPlace())
    metas = {"w": Meta((3, 1), "float32"), "b": Meta((1,), "float32")}
    lay_contiguous([["b", "w"]], metas, scope, backend, NetworkOperators().memory)
    b, w = scope.find_var("b").value, scope.find_var("w").value
    assert w.ctypes.data == b.ctypes.data + b.nbytes
    assert b[0] == np.float32(0.25)
    layout = scope.layout
    lay_contiguous([["b", "w"]], metas, scope, backend, NetworkOperators().memory)
    assert scope.layout == layout, "arrays that lie right are left alone"


def test_an_operator_may_write_what_it_reads():
    program = Program()
    block = program.global_block()
    block.create_var("x", shape=(-1, 2), is_data=True)
    block.append_op("scale", {"X": "x"}, {"Out": "y"}, {"scale": 2.0})
    block.append_op("scale", {"X": "y"}, {"Out": "y"}, {"scale": 3.0})
    (y,) = Executor(CPUPlace()).run(
        program, feed={"x": np.ones((2, 2), np.float32)}, fetch_list=["y"], scope=Scope()
    )
    np.testing.assert_array_equal(y, np.full((2, 2), 6, np.float32))


def test_a_result_that_is_kept_has_memory_of_its_own():
    main, startup = linear()
    block = main.global_block()
    block.create_var("turned", shape=(1, -1), persistable=True)
    block.append_op("reshape2", {"X": "squared"}, {"Out": "turned"}, {"shape": [1, -1]})
    scope, exe = Scope(), Executor(CPUPlace())
    exe.run(startup, scope=scope)
    for rows in (2, 3, 2):
        (squared,) = exe.run(main, {"x": x_of(rows)}, ["squared"], scope=scope)
        kept = np.array(scope.find_var("turned").get_tensor())
        np.testing.assert_array_equal(kept, squared.reshape(1, rows))


def test_what_is_fed_in_other_extents_to_a_loop_of_fixed_steps_is_refused_by_name():
    with fluid.program_guard(Program(), Program()):
        x = layers.data("x", [4, 2], append_batch_size=False)
        x.stop_gradient = False
        steps, rnn = layers.unsqueeze(x, [2]), layers.StaticRNN()
        with rnn.step():
            now = rnn.step_input(steps)
            before = rnn.memory(shape=[-1, 1], batch_ref=steps, ref_batch_dim_idx=1)
            rnn.update_memory(before, now + before)
            rnn.step_output(before)
        fluid.backward.append_backward(layers.mean(rnn()))
        with pytest.raises(FeedError, match=r"'x': expected float32\[4, 2\], got .*\[6, 2\]"):
            Executor().run(feed={"x": np.ones((6, 2), "f4")}, fetch_list=["x@GRAD"])
