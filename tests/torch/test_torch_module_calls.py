"""Calls of PyTorch's modules by operators: graphs, memory, modes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist as fluid  # noqa: E402
from hpcdist.errors import GraphError  # noqa: E402

X = np.random.RandomState(0).rand(6, 3).astype("float32")


def square_of_a_module():
    """Return a Program that trains a module, its startup Program, and its loss."""
    torch.manual_seed(1)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out = fluid.layers.torch_module(torch.nn.Linear(3, 3), fluid.data("x", [None, 3]))
        loss = fluid.layers.mean(fluid.layers.square(out))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


def losses(program, startup, loss):
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [np.mean(exe.run(program, feed={"x": X}, fetch_list=[loss])[0]) for _ in range(3)]


def test_each_device_has_its_own_graph():
    main, startup, loss = square_of_a_module()
    devices = fluid.CompiledProgram(main).with_data_parallel(
        loss_name=loss.name, places=[fluid.CPUPlace()] * 2
    )
    expected = losses(main, startup, loss)
    np.testing.assert_allclose(losses(devices, startup, loss), expected, rtol=1e-5)
    assert expected[2] < expected[0]


def test_training_without_autograd_is_refused():
    main, startup, loss = square_of_a_module()
    with torch.no_grad():
        expected = losses(main, startup, loss)
    assert expected[2] < expected[0]
    with torch.inference_mode(), pytest.raises(GraphError, match="torch.inference_mode"):
        losses(main, startup, loss)


def test_a_module_does_not_write_into_values_of_the_program():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        kept = fluid.layers.scale(fluid.data("x", [None, 3]), 1.0)
        out = fluid.layers.torch_module(torch.nn.ReLU(inplace=True), kept)
        test = main.clone(for_test=True)
    below = -np.ones((2, 3), "float32")
    exe = fluid.Executor(fluid.CPUPlace())
    for program in (main, test):
        found = exe.run(program, feed={"x": below}, fetch_list=[kept.name, out.name])
        assert (found[0] == below).all() and not found[1].any()


def test_a_recomputed_segment_draws_once():
    module, main, startup = torch.nn.Linear(3, 50, bias=False), fluid.Program(), fluid.Program()
    net = torch.nn.Sequential(module, torch.nn.Dropout(0.5))
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        drawn = fluid.layers.torch_module(net, fluid.data("x", [None, 3]), "net")
        last = fluid.layers.scale(drawn, 2.0)
        optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(1.0))
        optimizer._set_checkpoints([last])
        optimizer.minimize(fluid.layers.mean(fluid.layers.square(last)))
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (found,) = exe.run(main, feed={"x": X}, fetch_list=[drawn])
        after = np.array(fluid.global_scope().find_var("net.0.weight").value)
    gradient = (8 * found * 2 * (found != 0) / found.size).T @ X
    np.testing.assert_allclose(
        after, module.weight.detach().numpy() - gradient, rtol=1e-4, atol=1e-6
    )


def test_what_a_module_has_read_stays_in_memory_when_other_values_are_computed_again():
    """Torch's graph has the memory, not the name, of its inputs."""
    module = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Tanh())

    def losses(recomputed):
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            hidden = fluid.layers.fc(fluid.data("x", [None, 3]), 30, act="tanh")
            made = fluid.layers.torch_module(module, fluid.layers.scale(hidden, 2.0), "net")
            last = fluid.layers.fc(fluid.layers.fc(made, 30, act="tanh"), 30, act="tanh")
            optimizer = fluid.optimizer.SGD(0.1)
            if recomputed:
                optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
                optimizer._set_checkpoints([made, last])
            loss = fluid.layers.mean(fluid.layers.square(last))
            optimizer.minimize(loss)
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            return [exe.run(main, feed={"x": X}, fetch_list=[loss])[0].item() for _ in range(4)]

    assert losses(True) == losses(False)


def grown_in_place(hidden, made):
    """The module's input, and of another operator's, is overwritten after they have read it."""
    fluid.layers.increment(hidden, 5.0)
    fluid.optimizer.SGD(0.5).minimize(
        loss := fluid.layers.mean(fluid.layers.elementwise_mul(made, hidden))
    )
    return [loss]


def two_backward_passes(hidden, made):
    losses = [fluid.layers.mean(fluid.layers.square(fluid.layers.fc(made, n))) for n in (1, 2)]
    for loss in losses:
        fluid.optimizer.SGD(0.5).minimize(loss)
    return losses


@pytest.mark.parametrize("end", [grown_in_place, two_backward_passes])
def test_a_module_is_as_other_operators_where_values_change_and_are_needed_twice(end):
    def found(squared):
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            hidden = fluid.layers.fc(fluid.data("x", [None, 3]), 4, act="tanh")
            losses = end(hidden, squared(hidden))
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            return [exe.run(main, feed={"x": X}, fetch_list=losses) for _ in range(4)]

    def by_torch(hidden):
        return fluid.layers.torch_module(lambda x: x * x, hidden)

    np.testing.assert_allclose(found(by_torch), found(fluid.layers.square), rtol=1e-5)
