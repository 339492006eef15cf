"""memory_optimize and release_memory: less memory, the same bits."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.executor.analysis import FOREVER, is_control, plan_storage
from hpcdist.executor.ordering import dependences, free_first, update_at_once
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from tests.golden.loss_runs import build, fed

ROWS, WIDTH, DEPTH = 32, 64, 6
PLAIN = {"net": "mlp", "optimizer": "sgd", "clip": False, "vocab": 50}
SETTINGS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "adam": {"optimizer": "adam"},
    "regularized": {"optimizer": "sgd_l2", "net": "wide"},
    "clip by the norm of all": {"clip": True},
    "exponential schedule": {"optimizer": "sgd_exp"},
    "piecewise schedule": {"optimizer": "sgd_piece", "net": "wide"},
    "noam schedule": {"optimizer": "adam_noam"},
    "sparse embedding": {"net": "emb", "optimizer": "adagrad"},
    "dense embedding": {"net": "embdense", "optimizer": "rmsprop"},
}


def deep(clip=None, regularization=None, dropout=False):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [WIDTH]), layers.data("y", [1])
        hidden = x
        for _ in range(DEPTH):
            hidden = layers.fc(hidden, WIDTH, act="relu")
            hidden = layers.dropout(hidden, 0.3) if dropout else hidden
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        sgd = fluid.optimizer.SGD(0.01, regularization=regularization, grad_clip=clip)
        sgd.minimize(loss)
    return main, startup, loss


def batch(step=0, rows=ROWS):
    rng = np.random.default_rng(step)
    return {"x": rng.random((rows, WIDTH), np.float32), "y": rng.random((rows, 1), np.float32)}


def train(built, feed_of, fetch=(), steps=4):
    """Return everything fetched and the last parameters as bytes, and the pool's size."""
    main, startup, loss = built
    scope, exe = fluid.Scope(), fluid.Executor()
    exe.run(startup, scope=scope)
    told = []
    for step in range(steps):
        told += [v.tobytes() for v in exe.run(main, feed_of(step), [loss, *fetch], scope=scope)]
    for parameter in main.all_parameters():
        told.append(np.array(scope.find_var(parameter.name).get_tensor()).tobytes())
    return told, exe.forms()[-1].compiled.pool_bytes


@pytest.mark.parametrize("skip_grads", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_same_bits(name, skip_grads):
    setting = {**PLAIN, **SETTINGS[name]}
    wanted, pool = train(build(setting), lambda step: fed(setting, step), steps=12)
    saving = build(setting)
    fluid.memory_optimize(saving[0], skip_grads=skip_grads)
    got, smaller = train(saving, lambda step: fed(setting, step), steps=12)
    assert got == wanted
    assert smaller <= pool


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"clip": fluid.clip.GradientClipByValue(0.01)},
        {"clip": fluid.clip.GradientClipByNorm(0.01)},
        {"regularization": fluid.regularizer.L2Decay(0.1)},
        {"dropout": True},
    ],
    ids=["plain", "by value", "by norm", "regularized", "dropout"],
)
def test_a_deep_network_needs_less(facts):
    wanted, pool = train(deep(**facts), batch)
    saving = deep(**facts)
    fluid.memory_optimize(saving[0])
    got, smaller = train(saving, batch)
    assert got == wanted
    assert smaller < 0.8 * pool


def test_the_norm_of_all_gradients_needs_them_at_once():
    clip = fluid.clip.GradientClipByGlobalNorm(0.01)
    wanted, pool = train(deep(clip), batch)
    saving = deep(clip)
    fluid.memory_optimize(saving[0])
    got, smaller = train(saving, batch)
    assert got == wanted and 4 * DEPTH * WIDTH * (WIDTH + 1) < smaller <= pool


def test_gradients_do_not_live_at_once():
    saving = deep()
    fluid.memory_optimize(saving[0])
    _, pool = train(saving, batch)
    values = 4 * ROWS * WIDTH * (DEPTH + 3)  # the fed batch, one per layer, two gradients of them
    gradients = 4 * WIDTH * (WIDTH + 1)  # of one layer
    assert pool < values + 2 * gradients < values + DEPTH * gradients


def test_release_memory_does_the_same():
    wanted, pool = train(deep(), batch)
    saving = deep()
    fluid.release_memory(saving[0])
    got, smaller = train(saving, batch)
    assert got == wanted and smaller < 0.8 * pool


@pytest.mark.parametrize(("rows", "gained"), [(ROWS, 0), (8 * ROWS, 8 * ROWS * WIDTH * 4)])
def test_skip_grads_saves_activations_only(rows, gained):
    def feed(step):
        return batch(step, rows)

    wanted, pool = train(deep(), feed)
    saving = deep()
    fluid.memory_optimize(saving[0], skip_grads=True)
    fluid.release_memory(saving[0])  # keeps what was asked for before
    got, smaller = train(saving, feed)
    gradients = 4 * DEPTH * WIDTH * (WIDTH + 1)
    assert got == wanted and gradients < smaller <= pool - gained


def test_gradients_and_what_is_between_can_be_fetched():
    fetch = ["fc_2.w_0@GRAD", "fc_3.b_0@GRAD", "fc_1.tmp_0", "fc_1.tmp_1@GRAD", "fc_4.w_0"]
    wanted, _ = train(deep(), batch, fetch)
    saving = deep()
    fluid.memory_optimize(saving[0])
    assert train(saving, batch, fetch)[0] == wanted


def test_it_holds_from_the_next_step_on_and_for_copies():
    main, startup, loss = deep()
    scope, exe = fluid.Scope(), fluid.Executor()
    exe.run(startup, scope=scope)
    exe.run(main, batch(), [loss], scope=scope)
    before = exe.forms()[-1].compiled.pool_bytes
    fluid.memory_optimize(main)
    exe.run(main, batch(), [loss], scope=scope)
    after = exe.forms()[-1].compiled.pool_bytes
    clone = main.clone()
    exe.run(clone, batch(), [loss], scope=scope)
    copied = exe.forms()[-1].compiled.pool_bytes
    assert after == copied < before


def test_a_variable_may_keep_its_own_buffer():
    main, *_ = deep()
    ops = main.global_block().ops
    names = ["fc_0.tmp_1", "fc_0.tmp_2"]
    size = {n: 4 for op in ops for n in (*op.input_arg_names, *op.output_arg_names)}
    temporary = {n for n in size if "tmp" in n or "GRAD" in n}
    facts = (temporary.__contains__, {}, size.__getitem__, [], [])
    shared = plan_storage(ops, *facts)
    assert any(set(names) <= set(storage.names) for storage in shared)
    for storage in plan_storage(ops, *facts, unshared=names):
        if set(names) & set(storage.names):
            assert len(storage.names) == 1
            assert (storage.first, storage.last) == (-1, FOREVER)


def test_a_result_with_a_place_of_its_own_takes_no_dying_buffer():
    main, *_ = deep()
    ops = main.global_block().ops
    names = {n for op in ops for n in (*op.input_arg_names, *op.output_arg_names)}
    given = "fc_0.tmp_2"  # in the place of fc_0.tmp_1 otherwise, such as a gradient that is sent
    size = {n: 4 for n in names - {given} if "tmp" in n or "GRAD" in n}
    storages = plan_storage(ops, size.__contains__, {}, size.__getitem__, [], [])
    assert all(given not in storage.names for storage in storages)


def test_own_buffers_are_paid_for():
    sizes = []
    for own in (None, {"fc_0.tmp_2@GRAD"}):
        saving = deep()
        fluid.memory_optimize(saving[0], skip_opt_set=own)
        sizes.append(train(saving, batch)[1])
    assert sizes[0] < sizes[1] <= sizes[0] + 4 * ROWS * WIDTH


def test_variables_are_as_good_as_names_and_add_up():
    main, _, loss = deep()
    fluid.memory_optimize(main, skip_opt_set=[loss])
    fluid.release_memory(main, skip_opt_set={"x"})
    assert main.memory_saving.unshared == {loss.name, "x"}


@pytest.mark.parametrize("wrong", ["loss", 3, [3]])
def test_what_is_no_set_of_names_is_refused(wrong):
    with pytest.raises(TypeError, match="skip_opt_set must be a set of names or Variables"):
        fluid.memory_optimize(fluid.Program(), skip_opt_set=wrong)


def test_the_gain_is_printed(capsys):
    saving = deep()
    fluid.memory_optimize(saving[0], print_log=True)
    _, pool = train(saving, batch)
    _, before = train(deep(), batch)
    told = capsys.readouterr().out
    gain = f"take {pool / 2**20:.2f} MiB instead of {before / 2**20:.2f} MiB"
    assert told.count(f"memory_optimize: temporaries {gain}") == 1


def test_an_update_runs_as_soon_as_its_gradient_is_final():
    main, _, _ = deep(regularization=fluid.regularizer.L2Decay(0.1))
    ops = main.global_block().ops
    order = [ops[i] for i in update_at_once(ops, dependences(ops, str))]
    for index, op in enumerate(order):
        if op.type == "mul_grad":
            grad = op.output("Y@GRAD")[0]
            behind = [o.type for o in order[index + 1 : index + 4]]
            assert behind == ["scale", "sum", "sgd"], behind
            assert grad in order[index + 2].input_arg_names


def test_nothing_moves_across_a_fence():
    main, _, _ = deep()
    block = main.global_block()
    updates = [i for i, op in enumerate(block.ops) if op.type == "sgd"]
    attrs = {ROLE_ATTR: int(OpRole.RPC)}
    block.insert_op(updates[0], "send_barrier", {"X": []}, {"Out": []}, attrs)
    for order in orders(block.ops):
        fence = next(k for k, i in enumerate(order) if is_control(block.ops[i]))
        assert sorted(order[:fence]) == list(range(updates[0]))


def test_without_moving_updates_they_are_fences():
    ops = deep()[0].global_block().ops
    for order in orders(ops, move_updates=False):
        first = next(i for i, op in enumerate(ops) if op.type == "sgd")
        assert order[first:] == list(range(first, len(ops)))


def orders(ops, move_updates=True):
    needs = dependences(ops, str, move_updates)
    early = update_at_once(ops, needs)
    sizes = {n: 4 for op in ops for n in op.output_arg_names}
    return early, free_first(ops, needs, early, str, sizes, ["x", "y"], [])


def test_branches_run_one_after_the_other():
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [WIDTH])
        wide = [layers.concat([x, x, x], axis=1) for _ in range(8)]
        narrow = [layers.reduce_sum(w, dim=1, keep_dim=True) for w in wide]
        total = layers.sum(narrow)
    exe, feed = fluid.Executor(), {"x": batch()["x"]}
    (wanted,) = exe.run(main, feed, [total])
    (before,) = [form.compiled.pool_bytes for form in exe.forms()]
    fluid.memory_optimize(main)
    (got,) = exe.run(main, feed, [total])
    (after,) = [form.compiled.pool_bytes for form in exe.forms()]
    assert got.tobytes() == wanted.tobytes()
    assert after < 5 * 4 * ROWS * WIDTH < 24 * 4 * ROWS * WIDTH < before


def test_a_dense_result_never_lies_in_a_sparse_operand_of_as_many_bytes():
    """24 rows of 8 numbers with their places take as much as 30 dense rows of 8."""

    def trained(rows: int) -> np.ndarray:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            ids = fluid.data("ids", [None, 1], "int64")
            table = fluid.ParamAttr("table", initializer=fluid.initializer.Constant(0.5))
            looked_up = fluid.layers.embedding(ids, [30, 8], is_sparse=True, param_attr=table)
            loss = fluid.layers.reduce_sum(looked_up)
            decay = fluid.regularizer.L2Decay(0.1)
            fluid.optimizer.SGD(1.0, regularization=decay).minimize(loss)
        scope, exe = fluid.Scope(), fluid.Executor()
        exe.run(startup, scope=scope)
        exe.run(main, {"ids": np.arange(rows).reshape(-1, 1)}, [loss], scope=scope)
        return np.array(scope.find_var("table").get_tensor())

    for rows in (23, 24, 25):
        expected = np.full((30, 8), 0.5 - 0.05)
        expected[:rows] -= 1
        np.testing.assert_allclose(trained(rows), expected, rtol=1e-6)
