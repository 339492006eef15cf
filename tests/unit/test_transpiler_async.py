"""Asynchronous programs beyond the golden files: counters, slices, DC-ASGD, the communicator."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist import layers, optimizer
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph.registry import lookup
from hpcdist.regularizer import L2Decay
from hpcdist.transpiler import DistributedMode
from tests.support.transpiler import built, regression, transpile

THREE = "ps0:6174,ps1:6174,ps2:6174"
WIDE = {"width": 100, "hidden": 300}  # fc_0.w_0 is cut in three: 34, 34 and 32 rows
SPLIT = {"sync_mode": False, "runtime_split_send_recv": True}
HALF = {**SPLIT, "half_async": True}
FLEET_SYNC = {**HALF, "completely_not_async": True}
DC = {"sync_mode": False, "enable_dc_asgd": True}


def momentum():
    return optimizer.Momentum(learning_rate=0.1, momentum=0.9)


def adam():
    return optimizer.Adam(learning_rate=0.1, regularization=L2Decay(0.01))


def decaying(begin_at_one=False):
    rate = layers.noam_decay(16, 100) if begin_at_one else layers.exponential_decay(0.1, 10, 0.9)
    return optimizer.Momentum(learning_rate=rate, momentum=0.9)


def asynchronous(make=momentum, trainer_id=1, trainers=3, config=None, **net):
    return transpile(
        built(regression(make, **(net or WIDE))),
        trainer_id,
        THREE,
        trainers,
        config,
        sync_mode=False,
    )


def of_type(program, kind):
    return [op for block in program.blocks for op in block.ops if op.type == kind]


def servers(transpiler):
    return [transpiler.get_pserver_program(ep) for ep in transpiler.pserver_endpoints]


# -- modes -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, DistributedMode.HALF_ASYNC),
        ({"sync_mode": False}, DistributedMode.HALF_ASYNC),
        (SPLIT, DistributedMode.ASYNC),
        (HALF, DistributedMode.ASYNC),
        (FLEET_SYNC, DistributedMode.SYNC),
    ],
    ids=["argument only", "half-async", "split", "split with barrier", "averaged"],
)
def test_trainers_and_servers_agree_on_the_mode(config, expected):
    transpiler = asynchronous(config=config)
    assert transpiler.distributed_mode == expected
    trainer = transpiler.get_trainer_program()
    startups = transpiler.get_trainer_startup_program(), transpiler.get_startup_program("ps0:6174")
    plans = [trainer.distribution, startups[0].distribution, startups[1].distribution]
    for server in servers(transpiler):
        (serve,) = of_type(server, "listen_and_serv")
        assert serve.attrs["distributed_mode"] == expected
        plans.append(server.distribution)
        assert server.distribution.fingerprint == trainer.distribution.fingerprint
    assert {plan.mode.distributed_mode for plan in plans} == {expected}
    assert not any(plan.mode.lockstep for plan in plans)


def test_without_averaging_a_gradient_has_one_name_for_all_trainers():
    names = set()
    for trainer_id in range(3):
        transpiler = asynchronous(trainer_id=trainer_id)
        sends = of_type(transpiler.get_trainer_program(), "send")
        names.add(tuple(n for op in sends for n in op.input("X")))
    (sent,) = names
    assert "fc_0.w_0@GRAD.block2" in sent
    read = []
    for server in servers(transpiler):
        assert not of_type(server, "sum") and not of_type(server, "scale")
        for held in server.distribution.blocks:
            assert held.received == (held.gradient,)
            read.append(held.gradient)
    assert sorted(read) == sorted(sent)


def test_each_parameter_is_received_behind_its_own_gradient():
    program = asynchronous().get_trainer_program()
    assert not of_type(program, "send_barrier") and not of_type(program, "fetch_barrier")
    sends = {op.attrs["op_role_var"][0]: op for op in of_type(program, "send")}
    for recv in of_type(program, "recv"):
        send = sends[recv.attrs["op_role_var"][0]]
        assert recv.input("X") == send.output("Out")
        assert recv.attrs["epmap"] == send.attrs["epmap"]
        assert recv.attrs["trainer_id"] == 1
    (joined,) = of_type(program, "concat")
    assert joined.output("Out") == ["fc_0.w_0"]


# -- the runtime cuts and joins ----------------------------------------------------------------
@pytest.mark.parametrize("config", [SPLIT, HALF, FLEET_SYNC], ids=["async", "half", "averaged"])
def test_the_communicator_is_told_how_to_cut(config):
    transpiler = asynchronous(config=config)
    program = transpiler.get_trainer_program()
    for kind in ("split_byref", "concat", "fetch_barrier"):
        assert not of_type(program, kind)
    (send,) = [op for op in of_type(program, "send") if op.attrs["op_role_var"][0] == "fc_0.w_0"]
    (recv,) = [op for op in of_type(program, "recv") if op.attrs["op_role_var"][0] == "fc_0.w_0"]
    assert (send.input("X"), recv.output("Out")) == (["fc_0.w_0@GRAD"], ["fc_0.w_0"])
    assert send.attrs["sections"] == [34, 34, 32]
    suffix = ".trainer_1" if config is FLEET_SYNC else ""
    assert send.attrs["send_varnames"] == [f"fc_0.w_0@GRAD.block{k}{suffix}" for k in range(3)]
    assert recv.attrs["recv_varnames"] == [f"fc_0.w_0.block{k}" for k in range(3)]
    assert recv.attrs["epmap"] == send.attrs["epmap"] == ["ps1:6174", "ps2:6174", "ps0:6174"]
    barriers = of_type(program, "send_barrier")
    assert [op.attrs["half_async"] for op in barriers] == ([] if config is SPLIT else [True])
    read = {n for s in servers(transpiler) for b in s.distribution.blocks for n in b.received}
    assert set(send.attrs["send_varnames"]) <= read


def test_averaging_servers_sum_over_trainers():
    for server in servers(asynchronous(config=FLEET_SYNC)):
        for held in server.distribution.blocks:
            total, mean, _ = server.block(held.block).ops
            assert tuple(total.input("X")) == held.received
            assert held.received == tuple(f"{held.gradient}.trainer_{k}" for k in range(3))
            assert mean.attrs["scale"] == 1 / 3


def test_one_trainer_is_not_averaged():
    transpiler = asynchronous(trainer_id=0, trainers=1, config=FLEET_SYNC)
    for send in of_type(transpiler.get_trainer_program(), "send"):
        assert not any(".trainer_" in name for name in send.attrs["send_varnames"])
    assert not any(of_type(server, "sum") for server in servers(transpiler))


# -- schedules ---------------------------------------------------------------------------------
@pytest.mark.parametrize("config", [{}, SPLIT], ids=["direct", "split"])
def test_trainers_count_steps_for_the_servers_schedules(config):
    transpiler = asynchronous(decaying, config=config)
    counters = tuple(f"@LR_DECAY_COUNTER@.trainer_{k}" for k in range(3))
    program = transpiler.get_trainer_program()
    count = of_type(program, "send")[-1]
    assert count.input("X") == [counters[1]]
    assert count.attrs["epmap"] == transpiler.pserver_endpoints
    assert (count.attrs["merge_add"], count.attrs["use_send_handler"]) == (True, False)
    assert count.attrs["send_varnames"] == ([counters[1]] if config else [])
    assert count.attrs["op_role_var"] == [counters[1], counters[1]]
    for server in servers(transpiler):
        plan = server.distribution
        assert plan.plan.counters == counters
        total = server.block(plan.schedule).ops[0]
        assert (total.type, tuple(total.input("X"))) == ("sum", counters)
        assert total.output("Out") == ["@LR_DECAY_COUNTER@"]
        assert not of_type(server, "increment")
    for startup in (
        transpiler.get_trainer_startup_program(),
        transpiler.get_startup_program("ps2:6174"),
    ):
        fills = {op.output("Out")[0]: op.attrs for op in of_type(startup, "fill_constant")}
        assert [fills[n]["value"] for n in counters] == [1.0] * 3
        assert {startup.global_block().var(n).dtype for n in counters} == {"int64"}
        assert all(startup.global_block().var(n).persistable for n in counters)


@pytest.mark.parametrize("begin_at_one", [False, True])
def test_a_lone_trainers_schedule_begins_as_local_training_does(begin_at_one):
    """A step: the schedule, with what is counted so far, then the update, then the count."""
    transpiler = asynchronous(lambda: decaying(begin_at_one), trainer_id=0, trainers=1)
    startup = transpiler.get_startup_program("ps0:6174")
    fills = {op.output("Out")[0]: op.attrs["value"] for op in of_type(startup, "fill_constant")}
    assert fills["@LR_DECAY_COUNTER@.trainer_0"] == int(begin_at_one)


def test_averaging_servers_count_rounds_themselves():
    transpiler = asynchronous(decaying, config=FLEET_SYNC)
    assert all(
        op.attrs["use_send_handler"] for op in of_type(transpiler.get_trainer_program(), "send")
    )
    for server in servers(transpiler):
        assert server.distribution.plan.counters == ()
        assert server.block(server.distribution.schedule).ops[0].type == "increment"


def test_a_rate_multiplier_is_not_counted():
    def build():
        x = layers.data(name="x", shape=[13], dtype="float32")
        half = ParamAttr(learning_rate=0.5)
        loss = layers.mean(layers.fc(input=x, size=1, param_attr=half))
        optimizer.SGD(learning_rate=0.1).minimize(loss)

    transpiler = transpile(built(build), sync_mode=False)
    assert len(of_type(transpiler.get_trainer_program(), "send")) == 2
    assert transpiler.get_pserver_program("ps0:6174").distribution.plan.counters == ()


# -- DC-ASGD -----------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [momentum, adam])
def test_every_gradient_is_compensated_with_what_its_sender_read(make):
    transpiler = asynchronous(make, config=DC)
    seen = []
    for server in servers(transpiler):
        (serve,) = of_type(server, "listen_and_serv")
        assert serve.attrs["dc_asgd"] is True
        for held in server.distribution.blocks:
            block = server.block(held.block)
            kinds = [op.type for op in block.ops]
            assert kinds[-6:-1] == [
                "ref_by_trainer_id",
                *("elementwise_sub", "elementwise_mul", "elementwise_mul", "elementwise_add"),
            ]
            assert kinds[:-6] == ([] if make is momentum else ["scale", "sum"])  # L2 comes first
            refer, update = block.ops[-6], block.ops[-1]
            assert held.backups == tuple(f"{held.name}.trainer_{k}_bak" for k in range(3))
            assert tuple(refer.input("X")) == held.backups
            assert block.var(refer.input("TrainerId")[0]).dtype == "int64"
            assert update.input("Grad") == block.ops[-2].output("Out")
            seen.append(update.input("Grad")[0])
    assert len(seen) == 6


def test_the_compensated_gradient_by_numbers():
    transpiler = asynchronous(config=DC)
    server = transpiler.get_pserver_program("ps0:6174")
    held = server.distribution.blocks[-1]
    random = np.random.default_rng(0)
    shape = server.global_block().var(held.name).shape
    w, g, *read = (random.normal(size=shape) for _ in range(5))
    values = {held.name: w, held.gradient: g, "@TRAINER_ID@": np.array([2])}
    values.update(zip(held.backups, read))
    for op in server.block(held.block).ops[:-1]:
        definition = lookup(op.type)
        inputs = [
            [values[n] for n in op.input(s.name)] if s.many else values[op.input(s.name)[0]]
            for s in definition.inputs
        ]
        out = np.empty(shape)
        attrs = {k: op.attrs.get(k, v) for k, v in definition.attrs.items()}
        if definition.bind:
            definition.bind(np, *inputs, out, **attrs)()
        else:
            definition.kernel(np, *inputs, out, **attrs)
        values[op.output("Out")[0]] = out
    np.testing.assert_allclose(out, g + g * g * (w - read[2]), rtol=1e-12)


def test_backups_begin_as_the_parameters_and_outlive_the_startup_program():
    transpiler = asynchronous(config=DC)
    for endpoint in transpiler.pserver_endpoints:
        startup = transpiler.get_startup_program(endpoint)
        copies = {op.output("Out")[0]: op.input("X")[0] for op in of_type(startup, "assign")}
        blocks = transpiler.get_pserver_program(endpoint).distribution.blocks
        assert copies == {name: held.name for held in blocks for name in held.backups}
        assert all(startup.global_block().var(name).persistable for name in copies)


def test_a_sparse_gradient_cannot_be_compensated():
    def build():
        ids = layers.data(name="ids", shape=[1], dtype="int64")
        rows = layers.embedding(input=ids, size=[50, 4], param_attr="table", is_sparse=True)
        optimizer.SGD(learning_rate=0.1).minimize(layers.mean(rows))

    with pytest.raises(ValueError, match=r"'table' is sparse.*is_sparse=False"):
        transpile(built(build), config=DC, sync_mode=False)


# -- sparse tables -----------------------------------------------------------------------------
@pytest.mark.parametrize("config", [{}, SPLIT], ids=["direct", "split"])
def test_a_sparse_table_is_cut_by_rows(config):
    def build():
        rows = [
            layers.embedding(
                input=layers.data(name=name, shape=[1], dtype="int64"),
                size=[5000, 16],
                param_attr="table",
                is_sparse=True,
            )
            for name in ("ids0", "ids1")
        ]
        optimizer.Adagrad(learning_rate=0.1).minimize(layers.mean(layers.fc(input=rows, size=1)))

    transpiler = transpile(built(build), 1, THREE, 3, config, sync_mode=False)
    program = transpiler.get_trainer_program()
    (ask,) = of_type(program, "distributed_lookup_table")
    assert ask.attrs["height_sections"] == [1667, 1667, 1666]
    (send,) = [op for op in of_type(program, "send") if op.attrs["op_role_var"][0] == "table"]
    blocks = [f"table@GRAD.block{k}" for k in range(3)]
    if config:
        assert (send.input("X"), send.attrs["send_varnames"]) == (["table@GRAD"], blocks)
        assert send.attrs["sections"] == [1667, 1667, 1666]
    else:
        (cut,) = of_type(program, "split_selected_rows")
        assert cut.output("Out") == send.input("X") == blocks
    assert "table" not in [op.attrs["op_role_var"][0] for op in of_type(program, "recv")]
    pairs = [
        pair
        for server in servers(transpiler)
        for op in of_type(server, "listen_and_serv")
        for pair in op.attrs["sparse_grad_to_param"]
    ]
    assert sorted(pairs) == [f"table@GRAD.block{k}:table.block{k}" for k in range(3)]


def test_a_synchronous_transpile_averages_anyway():
    with_it = transpile(built(regression()), config={"completely_not_async": True})
    without = transpile(built(regression()))
    for getter in ("get_trainer_program", "get_trainer_startup_program"):
        assert str(getattr(with_it, getter)()) == str(getattr(without, getter)())
    for endpoint in without.pserver_endpoints:
        got, want = (t.get_pserver_program(endpoint) for t in (with_it, without))
        assert str(got) == str(want)


def lars():
    return optimizer.LarsMomentum(learning_rate=0.1, momentum=0.9)


def test_norms_of_parts_of_a_parameter_are_warned_of():
    with pytest.warns(UserWarning, match="over its own part of 'fc_0.w_0'"):
        asynchronous(lars)


def test_norms_of_whole_parameters_are_as_in_one_process(recwarn):
    asynchronous(lars, config={"slice_var_up": False})
    assert not [w for w in recwarn if "its own part" in str(w.message)]
