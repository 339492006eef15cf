"""Schedules of learning rates on servers."""

from __future__ import annotations

from hpcdist import layers, optimizer
from hpcdist.fluid.layers.param_attr import ParamAttr
from tests.support.transpiler import SERVERS, built, regression, transpile

EP0, EP1 = SERVERS.split(",")


def ops(program, kind):
    return [op for block in program.blocks for op in block.ops if op.type == kind]


# -- schedules ---------------------------------------------------------------------------------
def test_a_schedule_with_branches_moves_to_the_server_with_its_blocks():
    def stepped():
        rate = layers.piecewise_decay(boundaries=[10, 20], values=[1.0, 0.5, 0.1])
        return optimizer.SGD(learning_rate=rate)

    transpiler = transpile(built(regression(stepped)))
    server = transpiler.get_pserver_program(EP0)
    (serve,) = ops(server, "listen_and_serv")
    assert serve.attrs["lr_decay_block_id"] == serve.attrs["optimize_blocks"][0] == 1
    branches = ops(server, "conditional_block")
    assert len(branches) == 3
    for branch in branches:
        inner = server.block(branch.attrs["sub_block"])
        assert inner.parent_idx == 1
        assert inner.ops[-1].output("Out") == ["learning_rate"]
    trainer = transpiler.get_trainer_program().global_block()
    assert not [op for op in trainer.ops if op.type == "conditional_block"]
    assert not trainer.has_var("learning_rate")


def test_warming_up_into_a_decay_moves_to_the_server():
    """Fluid cannot transpile this: branches within have variables of their own."""

    def warm():
        decay = layers.exponential_decay(0.1, 10, 0.9)
        return optimizer.SGD(learning_rate=layers.linear_lr_warmup(decay, 5, 0.0, 0.1))

    server = transpile(built(regression(warm))).get_pserver_program(EP0)
    for block in server.blocks:
        for op in block.ops:
            for name in op.input_arg_names + op.output_arg_names:
                assert block.find_var(name) is not None, f"{name} of {op}"


def test_learning_rate_multipliers_run_on_every_server():
    def build():
        x = layers.data(name="x", shape=[13], dtype="float32")
        h = layers.fc(input=x, size=1, param_attr=ParamAttr(learning_rate=0.5))
        optimizer.SGD(learning_rate=0.1).minimize(layers.mean(h))

    transpiler = transpile(built(build))
    for endpoint in (EP0, EP1):
        server = transpiler.get_pserver_program(endpoint)
        assert [op.type for op in server.block(1).ops] == ["scale"]
        names = [n for op in ops(server, "sgd") for n in op.input("LearningRate")]
        startup = transpiler.get_startup_program(endpoint)
        filled = {n for op in startup.global_block().ops for n in op.output_arg_names}
        assert "learning_rate_0" in filled
        assert len(names) == 1
