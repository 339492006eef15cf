"""Who owns the optimizer state of which parameter; what is sent together."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError, PlanError
from hpcdist.runtime.collective.broadcasts import TOGETHER, sent_together
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.transpiler.adaptive_local_sgd import steps_of
from hpcdist.transpiler.collective import rewritten
from hpcdist.transpiler.group import Group
from hpcdist.transpiler.sharded_updates import shards_of
from hpcdist.transpiler.substitute import in_group
from tests.support.threads import run_in_world


def network(minimize):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        found = layers.embedding(ids, [50, 8], is_sparse=True)
        loss = layers.mean(layers.fc(layers.fc(found, 16), 4))
        minimize(loss)
    return main


def test_owners_have_about_as_many_bytes():
    shards = shards_of(network(fluid.optimizer.Adam(0.1).minimize), 2)
    # [8, 16], [16, 4], [16], [4]: the largest first, to whom has least
    assert shards.parameters == {"fc_0.w_0": 0, "fc_1.w_0": 1, "fc_0.b_0": 1, "fc_1.b_0": 1}
    of_first = {name for name, owner in shards.state.items() if not owner}
    assert of_first == {
        f"fc_0.w_0_{kind}_0" for kind in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    }


def test_tables_of_sparse_gradients_and_what_keeps_nothing_have_no_owner():
    assert "embedding_0.w_0" not in shards_of(network(fluid.optimizer.Adam(0.1).minimize), 2).state
    assert not shards_of(network(fluid.optimizer.SGD(0.1).minimize), 2).parameters


@pytest.mark.parametrize("sharded", [False, True])
def test_a_distributed_table_is_made_with_the_optimizer_that_moves_it(sharded):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        found = layers.embedding(ids, [50, 8], is_sparse=True, is_distributed=True)
        fluid.optimizer.Adam(0.1, lazy_mode=True).minimize(layers.mean(layers.fc(found, 4)))
    group = Group("grad_allreduce", ("a:1", "b:1"), 0, "a:1", sharded=sharded)
    first, _ = rewritten(startup, main, group)
    ops = in_group(first).global_block().ops
    assert [op.attrs["table"].optimizer for op in ops if op.type == "make_table"] == ["adam"]
    assert not any("embedding_0.w_0_moment" in name for op in ops for name in op.output_arg_names)


def test_a_distributed_table_with_dense_gradients_is_refused():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        found = layers.embedding(ids, [50, 8], is_distributed=True)
        fluid.optimizer.SGD(0.1).minimize(layers.mean(found))
    for mode in ("grad_allreduce", "nccl2"):
        _, trained = rewritten(startup, main, Group(mode, ("a:1", "b:1"), 0, "a:1"))
        with pytest.raises(PlanError, match="must be trained, with is_sparse=True"):
            in_group(trained)


def test_programs_of_one_startup_broadcast_no_table():
    startup = fluid.Program()
    with fluid.unique_name.guard():
        for _ in range(2):
            main = fluid.Program()
            with fluid.program_guard(main, startup):
                ids = layers.data("ids", [1], dtype="int64")
                found = layers.embedding(ids, [50, 8], is_sparse=True, is_distributed=True)
                loss = layers.mean(layers.fc(found, 4))
                fluid.optimizer.Adam(0.1, lazy_mode=True).minimize(loss)
    first, _ = rewritten(startup, main, Group("grad_allreduce", ("a:1", "b:1"), 0, "a:1"))
    ops = in_group(first).global_block().ops
    assert [op.attrs["table"].optimizer for op in ops if op.type == "make_table"] == ["adam"] * 2
    sent = [op.input("X")[0] for op in ops if op.type == "c_broadcast"]
    assert sent == ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"]


def test_small_values_of_a_type_are_sent_as_one():
    sizes = {"a": 4, "b": TOGETHER, "c": TOGETHER + 4, "d": 8}
    arrays = {name: np.empty(size // 4, np.float32) for name, size in sizes.items()}
    arrays["d"] = np.empty(1, np.int64)
    assert sent_together([*arrays], arrays) == [["a", "b"], ["c"], ["d"]]


def test_what_another_trainer_holds_is_not_fetched_here():
    main = network(fluid.optimizer.Adam(0.1).minimize)
    main.distribution = Group("grad_allreduce", ("a:1", "b:1"), 0, "a:1", sharded=True)
    with fluid.scope_guard(fluid.Scope()):
        scope = fluid.global_scope()
        for var in main.list_vars():
            if var.persistable and not var.name.startswith("fc_1.b_0_"):
                scope.var(var.name).get_tensor().set(np.zeros(var.shape, var.dtype))
        feed = {"ids": np.zeros((2, 1), np.int64)}
        with pytest.raises(GraphError, match="'fc_1.b_0_moment1_0' is held by trainer 1 alone"):
            fluid.Executor().run(main, feed=feed, fetch_list=["fc_1.b_0_moment1_0"])


def test_programs_of_adaptive_local_sgd_count_by_themselves():
    startup, groups = fluid.Program(), []
    with fluid.unique_name.guard():
        for k_steps in (2, 5):
            main = fluid.Program()
            with fluid.program_guard(main, startup):
                loss = layers.mean(layers.fc(layers.data("x", [2]), 1))
                fluid.optimizer.SGD(0.1).minimize(loss)
            facts = {"k_steps": k_steps, "adapts_to": loss.name}
            groups.append(Group("local_sgd", ("a:1", "b:1"), 0, "a:1", **facts))
            main.distribution = startup.distribution = groups[-1]
    filled = {
        op.output("Out")[0]: op.attrs.get("value") for op in in_group(startup).global_block().ops
    }
    assert [filled[steps_of(group)] for group in groups] == [2.0, 5.0]
    written = {n for op in in_group(main).global_block().ops for n in op.output_arg_names}
    assert steps_of(groups[1]) in written and steps_of(groups[0]) not in written


def test_values_from_a_checkpoint_stay_in_the_scope_that_it_was_loaded_into():
    main = fluid.Program()
    main.global_block().create_var("mean", shape=(1,), dtype="float32", persistable=True)
    found = [None, None]

    def trainer(transport):
        link = CollectiveLink(transport, ("a:1", "b:1"), 60)
        loaded, other = fluid.Scope(), fluid.Scope()
        for scope in (loaded, other):
            scope.var("mean").hold(np.full(1, transport.rank, np.float32))
        link.resume(main, {}, loaded)
        for scope in (loaded.new_scope(), other):
            link.begin_alike(main, scope)
        found[transport.rank] = [float(s.var("mean").value[0]) for s in (loaded, other)]

    run_in_world(2, trainer)
    assert found == [[0.0, 0.0], [1.0, 0.0]]
