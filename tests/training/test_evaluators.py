"""`fluid.evaluator` adds metrics up over batches; layers take numbers that a step computes."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError, GraphTypeError

LENGTHS = [[3, 2], [1, 4]]


@pytest.fixture(autouse=True)
def programs():
    scope, main, startup = fluid.Scope(), fluid.Program(), fluid.Program()
    with (
        fluid.unique_name.guard(),
        fluid.program_guard(main, startup),
        fluid.scope_guard(scope),
    ):
        yield


def sequences(name):
    return layers.data(name, [1], dtype="int64", lod_level=1)


def fed(batch):
    rng = np.random.default_rng(batch)
    rows = (rng.integers(1, 5, (sum(LENGTHS[batch]), 1)) for _ in range(2))
    names = ("guess", "label")
    place = fluid.CPUPlace()
    return {n: fluid.create_lod_tensor(r, [LENGTHS[batch]], place) for n, r in zip(names, rows)}


def test_totals_are_those_of_the_batches_since_the_last_reset():
    guess, label = sequences("guess"), sequences("label")
    chunks = fluid.evaluator.ChunkEvaluator(guess, label, "IOB", 2)
    edits = fluid.evaluator.EditDistance(guess, label, ignored_tokens=[9])
    counts = layers.chunk_eval(guess, label, "IOB", 2)[3:]
    distances = layers.edit_distance(guess, label, ignored_tokens=[9])
    exe = fluid.Executor()
    for _ in range(2):
        chunks.reset(exe)
        edits.reset(exe)
        found = [exe.run(feed=fed(b), fetch_list=[*counts, *distances]) for b in range(2)]
        inferred, labelled, correct = (sum(b[i].item() for b in found) for i in range(3))
        precision, recall, f1 = chunks.eval(exe)
        assert (precision.item(), recall.item()) == pytest.approx(
            (correct / inferred, correct / labelled)
        )
        assert f1.item() == pytest.approx(2 * correct / (inferred + labelled))
        every = np.concatenate([batch[3].ravel() for batch in found])
        distance, wrong = edits.eval(exe)
        assert distance.item() == pytest.approx(every.mean())
        assert wrong.item() == pytest.approx((every > 0).mean())


def test_without_sequences_there_is_no_mean_distance():
    edits = fluid.evaluator.EditDistance(sequences("guess"), sequences("label"))
    exe = fluid.Executor()
    edits.reset(exe)
    with pytest.raises(GraphError, match="no sequences since reset"):
        edits.eval(exe)


def test_scopes_stand_in_a_stack():
    scopes = fluid.default_scope_funcs
    held = []

    def within():
        scopes.var("inner").get_tensor().set(np.ones(1, np.float32), fluid.CPUPlace())
        held.append(scopes.find_var("inner"))

    scopes.scoped_function(within)
    assert held[0] is not None and scopes.find_var("inner") is None
    assert scopes.get_cur_scope() is fluid.global_scope()


def test_fields_of_samples_become_a_tensor():
    converter = fluid.data_feeder.DataToLoDTensorConverter
    ragged = converter(fluid.CPUPlace(), 1, [-1, 1], "int64")
    for field in ([1, 2], [3]):
        ragged.feed(field)
    tensor = ragged.done()
    assert np.array(tensor).tolist() == [[1], [2], [3]]
    assert tensor.recursive_sequence_lengths() == [[2, 1]]
    plain = converter(fluid.CPUPlace(), 0, [-1, 2], "float32")
    plain.feed([1, 2])
    assert np.array(plain.done()).tolist() == [[1.0, 2.0]]


def test_scale_power_and_value_may_be_computed():
    x = layers.data("x", [2])
    x.stop_gradient = False
    two = layers.fill_constant([1], "float32", 2.0)
    two.stop_gradient = False
    results = [
        layers.scale(x, scale=two, bias=1.0),
        layers.scale(x, scale=two, bias=1.0, bias_after_scale=False),
        layers.pow(x, factor=two),
        layers.fill_constant([1, 2], "float32", two),
    ]
    slopes = fluid.gradients(layers.sums([layers.reduce_sum(r) for r in results[:3]]), [x, two])
    assert slopes[1] is None  # as in Fluid
    values = np.array([[1.0, 3.0]], np.float32)
    *found, slope = fluid.Executor().run(feed={"x": values}, fetch_list=[*results, slopes[0]])
    wanted = [2 * values + 1, 2 * (values + 1), values**2, np.full((1, 2), 2.0)]
    for value, expected in zip(found, wanted):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, 4 + 2 * values, rtol=1e-6)


def test_a_variable_where_a_number_is_wanted_is_named():
    x = layers.data("x", [2])
    with pytest.raises(GraphTypeError, match="expected a number, got the Variable 'x'"):
        fluid.optimizer.Adam(0.1, beta1=x)


@pytest.mark.parametrize("name", ["numpy", "gradient", "set_value"])
def test_names_of_the_imperative_mode_say_what_to_use(name):
    with pytest.raises(AttributeError, match="imperative mode: Executor.run fetches"):
        getattr(layers.data("x", [2]), name)
    assert not hasattr(fluid.optimizer.SGD(0.1), "state_dict")


def test_operators_tell_of_attributes_that_all_of_fluids_have():
    layers.fill_constant([1], "float32", 1.0)
    (op,) = fluid.default_main_program().global_block().ops
    assert op.has_attr("op_role_var") and op.attr("op_role_var") == []
    assert op.attr("op_device") == "" and "op_role_var" not in op.attr_names


def test_one_seed_is_given_to_programs_to_come():
    try:
        fluid.Program().global_seed(7)
        assert fluid.Program().random_seed == 7
    finally:
        fluid.Program().global_seed(0)


def test_optimizers_name_what_they_keep():
    x = layers.data("x", [2])
    adam = fluid.optimizer.Adam(0.1)
    adam.minimize(layers.mean(layers.fc(x, 1, bias_attr=False)))
    names = adam.get_opti_var_name_list()
    assert len(names) == 4 and all(name.startswith("fc_0.w_0_") for name in names)


def test_trainers_of_a_script_that_feeds_its_own_take_batches_in_turn(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    reader = fluid.contrib.reader.distributed_batch_reader(lambda: iter("abcde"))
    assert list(reader()) == ["b", "d"]


@pytest.mark.parametrize("seed", [0, 7])
def test_uniform_may_have_a_diagonal(seed):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        diagonal = fluid.initializer.Uniform(-0.5, 0.5, seed, diag_num=3, diag_step=4, diag_val=2.0)
        made = [
            fluid.layers.create_parameter([4, 4], "float32", f"w{i}", default_initializer=of)
            for i, of in enumerate((diagonal, fluid.initializer.Uniform(-0.5, 0.5, seed)))
        ]
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    found, plain = exe.run(main, fetch_list=made)
    np.fill_diagonal(plain[:3, :3], 2.0)
    if seed:
        np.testing.assert_array_equal(found, plain)
    assert found[[0, 1, 2], [0, 1, 2]].tolist() == [2, 2, 2] and (found == 2).sum() == 3


def test_slices_of_a_diagonal_are_its_parts():
    whole, parts = fluid.Program(), fluid.Program()
    facts = {"seed": 5, "dtype": "float32", "diag_num": 4, "diag_step": 3, "diag_val": 2.0}
    names = [("whole", whole, [4, 3], 0), ("a", parts, [1, 3], 0), ("b", parts, [3, 3], 3)]
    for name, program, shape, offset in names:
        block = program.global_block()
        attrs = {**facts, "shape": shape, "offset": offset, "full_size": 12}
        block.append_op("uniform_random", {}, {"Out": block.create_var(name)}, attrs)
    exe = fluid.Executor(fluid.CPUPlace())
    (complete,) = exe.run(whole, fetch_list=["whole"])
    np.testing.assert_array_equal(np.concatenate(exe.run(parts, fetch_list=["a", "b"])), complete)
    assert (complete == 2).sum() == 3
