"""GEO programs beyond the golden files: slices, tables, any optimizer."""

from __future__ import annotations

import pytest

from hpcdist import layers, optimizer
from hpcdist.clip import GradientClipByNorm
from hpcdist.errors import HpcdistError
from hpcdist.graph.op_role import OpRole
from hpcdist.transpiler import (
    DistributedMode,
    DistributeTranspilerConfig,
    GeoSgdTranspiler,
    RoundRobin,
)
from tests.support.transpiler import built, regression

THREE = ("ps0:6174", "ps1:6174", "ps2:6174")
WIDE = {"width": 100, "hidden": 300}  # fc_0.w_0 is cut in three: 34, 34 and 32 rows


def momentum():
    rate = layers.exponential_decay(0.1, 10, 0.9)
    return optimizer.Momentum(learning_rate=rate, momentum=0.9)


def geo(programs, trainer_id=1, **config):
    transpiler = GeoSgdTranspiler(DistributeTranspilerConfig(**config))
    transpiler.transpile(
        trainer_id,
        program=programs[0],
        startup_program=programs[1],
        pservers=",".join(THREE),
        trainers=3,
    )
    return transpiler


def of_type(program, kind):
    return [op for block in program.blocks for op in block.ops if op.type == kind]


def table_twice():
    """Two look-ups in one table, one with the ids of the other; Adagrad."""
    ids = layers.data(name="ids", shape=[1], dtype="int64")
    others = layers.data(name="others", shape=[1], dtype="int64")
    how = {"size": [5000, 16], "param_attr": "table", "is_sparse": True}
    rows = [layers.embedding(input=i, **how) for i in (ids, others, ids)]
    optimizer.Adagrad(learning_rate=0.1).minimize(layers.mean(layers.fc(input=rows, size=1)))


def test_the_trainer_keeps_its_updates_and_signals_each_step():
    main, startup = built(regression(momentum, **WIDE))
    transpiler = geo((main, startup), geo_sgd_need_push_nums=5)
    program = transpiler.get_trainer_program()
    assert [str(op) for op in program.global_block().ops[:-1]] == [
        str(op) for op in main.global_block().ops
    ]
    signal = program.global_block().ops[-1]
    assert (signal.type, signal.input("X"), signal.attrs["send_varnames"]) == ("send", [], [])
    for name, shape in {
        "fc_0.w_0.delta": (100, 300),
        "fc_0.w_0.block2": (32, 300),
        "fc_0.w_0.block2.delta": (32, 300),
        "fc_1.b_0.delta": (1,),
    }.items():
        var = program.global_block().var(name)
        assert (var.shape, var.persistable) == (shape, False)
    plan = program.distribution
    assert (plan.mode.push_every, plan.trainer_id, plan.trainers) == (5, 1, 3)
    assert transpiler.distributed_mode == plan.mode.distributed_mode == DistributedMode.GEO
    assert program._is_distributed


def test_the_trainers_startup_receives_everything_and_says_so():
    for build in (regression(momentum, **WIDE), table_twice):
        main, startup = built(build)
        new = geo((main, startup)).get_trainer_startup_program()
        kept = len(startup.global_block().ops)
        assert [str(op) for op in new.global_block().ops[:kept]] == [
            str(op) for op in startup.global_block().ops
        ]
        received = {
            n.partition(".block")[0] for op in of_type(new, "recv") for n in op.output("Out")
        }
        assert received == {p.name for p in main.all_parameters()}
        assert of_type(new, "concat")
        last = new.global_block().ops[-1]
        assert (last.type, last.attrs["send_varnames"]) == ("send", ["param_init"])
        assert str(startup.on_trainer) == str(new)


def test_servers_only_add_differences():
    main, startup = built(regression(momentum, **WIDE))
    transpiler = geo((main, startup))
    added = []
    for endpoint in THREE:
        server, first = transpiler.get_pserver_programs(endpoint)
        (serve,) = server.global_block().ops
        assert (serve.input("X"), serve.attrs["distributed_mode"]) == ([], 3)
        assert serve.attrs["lr_decay_block_id"] == -1
        filled = {n for op in first.global_block().ops for n in op.output_arg_names}
        assert filled == {held.name for held in server.distribution.blocks}
        for held in server.distribution.blocks:
            (add,) = server.block(held.block).ops
            assert held.gradient == f"{held.name}.delta"
            assert (add.type, add.input("X")) == ("sum", [held.name, held.gradient])
            assert add.output("Out") == [held.name]
            added.append((held.parameter, held.begin, held.end))
    assert len(added) == 6
    assert sorted(a for a in added if a[0] == "fc_0.w_0") == [
        ("fc_0.w_0", 0, 34),
        ("fc_0.w_0", 34, 68),
        ("fc_0.w_0", 68, 100),
    ]
    assert len({transpiler.get_pserver_program(e).distribution.fingerprint for e in THREE}) == 1
    assert (
        server.distribution.fingerprint == transpiler.get_trainer_program().distribution.fingerprint
    )


def test_the_signal_names_the_ids_of_sparse_tables():
    transpiler = geo(built(table_twice))
    program = transpiler.get_trainer_program()
    signal = program.global_block().ops[-1]
    assert signal.input("X") == ["ids", "others"]
    assert signal.attrs["send_varnames"] == ["table", "table"]
    lookups = of_type(program, "lookup_table")
    assert [op.attrs["remote_prefetch"] for op in lookups] == [False] * 3
    assert program.global_block().var("table.delta").type == "SELECTED_ROWS"
    assert transpiler.vars_info["table"] == {
        "var_names": ["table.block0", "table.block1", "table.block2"],
        "sections": ["1667", "1667", "1666"],
        "epmap": transpiler.vars_info["table"]["epmap"],
        "is_sparse": ["True"],
    }
    pairs = []
    for endpoint in THREE:
        (serve,) = transpiler.get_pserver_program(endpoint).global_block().ops
        pairs += serve.attrs["sparse_grad_to_param"]
    assert sorted(pairs) == [f"table.block{k}.delta:table.block{k}" for k in range(3)]
    kinds = {record.vtype for record in transpiler.vars_overview.distributed_vars}
    assert kinds == {"Param"}


def test_tables_may_share_ids():
    def build():
        ids = layers.data(name="ids", shape=[1], dtype="int64")
        rows = [
            layers.embedding(input=ids, size=[50, 4], param_attr=name, is_sparse=True)
            for name in ("first", "second")
        ]
        optimizer.SGD(learning_rate=0.1).minimize(layers.mean(layers.fc(input=rows, size=1)))

    signal = geo(built(build)).get_trainer_program().global_block().ops[-1]
    assert signal.input("X") == ["ids", "ids"]
    assert signal.attrs["send_varnames"] == ["first", "second"]


def test_an_optimizer_that_servers_cannot_run_will_do():
    def dpsgd():
        return optimizer.Dpsgd(learning_rate=0.1)

    program = geo(built(regression(dpsgd))).get_trainer_program()
    assert len(of_type(program, "dpsgd")) == 2


def test_parameters_are_not_cut_when_that_is_asked():
    transpiler = geo(built(regression(momentum, **WIDE)), slice_var_up=False)
    names = [v.name for at in transpiler.param_opt_ep_mapping.values() for v in at["params"]]
    assert sorted(names) == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]


class Grandchild(RoundRobin):
    """Not a direct child of PSDispatcher."""


@pytest.mark.parametrize(
    "config, arguments, kind, words",
    [
        ({"min_block_size": 8191}, {}, AssertionError, "8192"),
        ({"split_method": Grandchild}, {}, AssertionError, "directly"),
        ({"mode": "nccl2"}, {}, ValueError, "parameter servers"),
        ({"enable_dc_asgd": True}, {}, ValueError, "enable_dc_asgd has no meaning"),
        ({"completely_not_async": True}, {}, ValueError, "completely_not_async has no meaning"),
        ({"max_staleness": 2}, {}, ValueError, "max_staleness"),
        ({"geo_sgd_need_push_nums": 0}, {}, ValueError, "at least 1"),
        ({}, {"sync_mode": True}, ValueError, "asynchronous"),
        ({}, {"trainers": 0}, ValueError, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(config, arguments, kind, words):
    main, startup = built(regression())
    with pytest.raises(kind, match=words) as caught:
        GeoSgdTranspiler(DistributeTranspilerConfig(**config)).transpile(
            0, program=main, startup_program=startup, **arguments
        )
    assert isinstance(caught.value, HpcdistError)


def test_clipping_belongs_to_the_backward_as_on_other_trainers():
    def clipped():
        return optimizer.SGD(0.1, grad_clip=GradientClipByNorm(1.0))

    trainer = geo(built(regression(clipped))).get_trainer_program()
    roles = {op.type: op.role for op in trainer.global_block().ops}
    assert roles["clip_by_norm"] == OpRole.BACKWARD  # of Fluid 1.8.5's after set_gradient_clip
    assert roles["sgd"] == OpRole.OPTIMIZE
