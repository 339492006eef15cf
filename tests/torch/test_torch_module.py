"""Modules of PyTorch's as layers of Programs."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist as fluid  # noqa: E402
from hpcdist.errors import CheckpointError, GraphError  # noqa: E402
from hpcdist.ops.torch_module import TYPE  # noqa: E402
from hpcdist.transpiler.plan import trainer_plan  # noqa: E402


class Twice(torch.nn.Module):
    """Two results of two inputs, one of them ids."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(7, 3)
        self.out = torch.nn.Linear(3, 2, bias=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x, ids):
        mixed = torch.tanh(x + self.rows(ids[:, 0]))
        return self.out(mixed), mixed.sum(1, keepdim=True)


class First(torch.nn.Module):
    """The first result of a module, which takes one step of a sequence for a row."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


class Counts(torch.nn.Module):
    """What depends on how often it was called, of a table whose gradients torch keeps as rows."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(7, 2, sparse=True)
        self.calls = 0

    def forward(self, ids):
        self.calls += 1
        return self.calls * self.rows(ids[:, 0])


class Decays(torch.nn.Module):
    """What changes its weight whenever it is called."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.9)
        return x * self.weight


def trained(build, optimizer, feeds):
    """Return losses and last parameters of a Program."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = build()
        optimizer().minimize(loss)
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = [exe.run(main, feed=feed, fetch_list=[loss])[0].item() for feed in feeds]
        found = {v.name: np.array(scope.find_var(v.name).value) for v in main.all_parameters()}
    return losses, found


def feeds(steps, rows=5):
    rng = np.random.RandomState(0)
    return [
        {
            "x": rng.rand(rows, 3).astype("float32"),
            "ids": rng.randint(0, 7, (rows, 1)),
            "y": rng.rand(rows, 2).astype("float32"),
        }
        for _ in range(steps)
    ]


def inputs():
    x = fluid.data("x", [None, 3])
    ids = fluid.data("ids", [None, 1], "int64")
    return x, ids, fluid.data("y", [None, 2])


def test_a_module_trains_as_in_torch():
    torch.manual_seed(1)
    module, data = Twice(), feeds(4)

    def build():
        x, ids, y = inputs()
        scores, sums = fluid.layers.torch_module(module, [fluid.layers.scale(x, 2.0), ids], "net")
        assert scores.shape == (-1, 2) and sums.shape == (-1, 1)
        error = fluid.layers.square_error_cost(scores, y)
        return fluid.layers.mean(error) + 0.5 * fluid.layers.mean(sums)

    losses, found = trained(build, lambda: fluid.optimizer.SGD(0.3), data)
    optimizer = torch.optim.SGD(module.parameters(), 0.3)
    for step, feed in enumerate(data):
        x, ids, y = (torch.from_numpy(feed[name]) for name in ("x", "ids", "y"))
        scores, sums = module(2 * x, ids)
        loss = (scores - y).square().mean() + 0.5 * sums.mean()
        assert losses[step] == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert set(found) == {"net.rows.weight", "net.out.weight", "net.unused"}
    for name, value in module.named_parameters():
        np.testing.assert_allclose(found[f"net.{name}"], value.detach(), rtol=1e-5, atol=1e-6)


def test_calls_are_counted_from_the_first_step_and_sparse_gradients_train():
    torch.manual_seed(1)
    module, data = Counts(), feeds(3)
    like = copy.deepcopy(module)

    def build():
        _, ids, y = inputs()
        scores = fluid.layers.torch_module(module, ids, "net")
        return fluid.layers.mean(fluid.layers.square_error_cost(scores, y))

    losses, found = trained(build, lambda: fluid.optimizer.SGD(0.3), data)
    optimizer = torch.optim.SGD(like.parameters(), 0.3)
    for step, feed in enumerate(data):
        loss = (like(torch.from_numpy(feed["ids"])) - torch.from_numpy(feed["y"])).square().mean()
        assert losses[step] == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(found["net.rows.weight"], like.rows.weight.detach(), rtol=1e-5)


def test_gradients_flow_to_layers_before_it():
    data = feeds(3)

    def by_layers():
        x, _, y = inputs()
        hidden = fluid.layers.fc(x, 4, param_attr=constant(), bias_attr=False)
        return fluid.layers.mean(fluid.layers.square_error_cost(2.0 * pick(hidden), y))

    def by_torch():
        x, _, y = inputs()
        hidden = fluid.layers.fc(x, 4, param_attr=constant(), bias_attr=False)
        made = fluid.layers.torch_module(lambda h: 2 * h[:, :2], hidden)
        return fluid.layers.mean(fluid.layers.square_error_cost(made, y))

    def constant():
        return fluid.ParamAttr("w", fluid.initializer.Constant(0.1))

    def pick(hidden):
        return fluid.layers.slice(hidden, axes=[1], starts=[0], ends=[2])

    expected = trained(by_layers, lambda: fluid.optimizer.Adam(0.1), data)
    found = trained(by_torch, lambda: fluid.optimizer.Adam(0.1), data)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1]["w"], expected[1]["w"], rtol=1e-5)


def torch_losses(loss_of, module, batches):
    """Return the losses of torch alone, by SGD at rate 0.1."""
    like = copy.deepcopy(module)
    optimizer, losses = torch.optim.SGD(like.parameters(), 0.1), []
    for batch in batches:
        loss = loss_of(like, torch.from_numpy(batch))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def in_a_loop(module, x):
    i, turns = (fluid.layers.fill_constant([1], "int64", n) for n in (0, 3))
    return fluid.layers.while_loop(
        lambda i, h: fluid.layers.less_than(i, turns),
        lambda i, h: [i + 1, fluid.layers.torch_module(module, h)],
        [i, fluid.layers.scale(x, 1.0)],
    )[1]


def in_layers(module, x):
    shared = fluid.layers.torch_module(module, fluid.layers.torch_module(module, x))
    return fluid.layers.torch_module(module, shared, "torch_module_0")


@pytest.mark.parametrize("thrice", [in_a_loop, in_layers])
def test_calls_of_one_module_share_its_parameters(thrice):
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True))
    data = [{"x": feed["x"]} for feed in feeds(3)]

    def build():
        x = fluid.data("x", [5, 3])
        x.stop_gradient = False
        return fluid.layers.mean(fluid.layers.square(thrice(module, x)))

    losses, found = trained(build, lambda: fluid.optimizer.SGD(0.1), data)
    expected = torch_losses(
        lambda m, x: m(m(m(x))).square().mean(), module, [feed["x"] for feed in data]
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert set(found) == {"torch_module_0.0.weight", "torch_module_0.0.bias"}


def test_a_test_program_runs_the_module_in_eval_mode():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        out = fluid.layers.torch_module(torch.nn.Dropout(0.5), x, by_row=True)
        test = main.clone(for_test=True)
    exe = fluid.Executor(fluid.CPUPlace())
    ones = np.ones((400, 3), "float32")
    (kept,) = exe.run(test, feed={"x": ones}, fetch_list=[out.name])
    assert (kept == 1).all()
    (drawn,) = exe.run(main, feed={"x": ones}, fetch_list=[out])
    assert set(np.unique(drawn)) == {0.0, 2.0}


def test_parameters_are_planned_like_others():
    main, startup = fluid.Program(), fluid.Program()
    torch.manual_seed(0)
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 200])
        out = fluid.layers.torch_module(torch.nn.Linear(200, 100), x, "net")
        fluid.optimizer.Adam(0.1).minimize(fluid.layers.mean(out))
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, program=main, pservers="a:1,b:1", trainers=2, startup_program=startup)
    plan = trainer_plan(transpiler.get_trainer_program())
    routes = {route.parameter: route for route in plan.routes}
    assert set(routes) == {"net.weight", "net.bias"}
    assert routes["net.weight"].cut


@pytest.mark.parametrize(
    "module, alone",
    [
        (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), True),
        (lambda x: x - x.mean(0), False),
        (lambda x: x.mean(), False),
        (torch.nn.Dropout(0.01), False),
        (lambda x: x.cumsum(0), False),
        (lambda x: x - x[:1], False),
        (lambda x: x - x[-1:], False),
        (First(torch.nn.RNN(3, 2)), False),
        (lambda x: x - x.view(-1, 2, 3).mean(1).repeat_interleave(2, 0), False),  # pairs of rows
        (lambda x: x * (1 + len(x) % 2), False),
        (lambda x: x + torch.where(x.abs().max() < 10, 1, 2), False),
        (lambda x: x + torch.where((x < 0).any(), 1, 2), False),
        (lambda x: x / (torch.cdist(x, x) < 1e-6).sum(1, keepdim=True), False),  # rows alike
        (lambda x: torch.where((x.argmax(1) == 0).cumsum(0) < 4, x.T, 0).T, False),  # a capacity
        (torch.nn.BatchNorm1d(3, track_running_stats=False), False),
        (lambda x: x.sort(0).values, False),
        (lambda x: x.log(), True),  # NaN for numbers below 0, in every part
        (torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.LayerNorm(64)), True),
        (lambda x: x * torch.arange(3), True),
        (lambda x: x.add_(1), True),
        (lambda x: x > 0, True),
        (torch.nn.Embedding(2, 3), True),
        (lambda x, ids: x + ids, True),
        (lambda x, ids: x[ids[:, 0] % 2], False),
        (lambda x, ids: x[ids[:, 0]], False),
        (lambda x, ids: torch.nn.functional.one_hot(ids[:, 0], 5) + ids.cumsum(0), False),
    ],
)
def test_whether_results_mix_rows_is_tried(module, alone):
    assert layer_of(module).attrs["by_row"] is alone


def layer_of(module):
    """Return the operator that calls a module of x, or of ids, or of both."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, ids = fluid.data("x", [None, 3]), fluid.data("ids", [None, 1], "int64")
        alone = [ids] if isinstance(module, torch.nn.Embedding) else [x]
        both = getattr(getattr(module, "__code__", None), "co_argcount", 1) == 2
        fluid.layers.torch_module(module, [x, ids] if both else alone)
    (op,) = (op for op in main.global_block().ops if op.type == "torch_module")
    return op


class Doubles:
    def __call__(self, x):
        return 2 * x


@pytest.mark.parametrize(
    "module, said",
    [
        (functools.partial(torch.mul, other=2), "mul"),
        (functools.partial(Doubles()), "Doubles"),
        (Doubles(), "Doubles"),
        (torch.nn.ReLU(), "ReLU()"),
    ],
)
def test_ranks_call_a_module_the_same(module, said):
    found = layer_of(module).attrs["module"]
    assert found.endswith(said) and "0x" not in found


def test_what_cannot_be_is_refused():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        with pytest.raises(GraphError, match=r"state beside its parameters \('running_mean'\)"):
            fluid.layers.torch_module(torch.nn.BatchNorm1d(3), x)
        with pytest.raises(GraphError, match="returns a tensor.*got a tuple"):
            fluid.layers.torch_module(torch.nn.LSTM(3, 3), x)
        with pytest.raises(GraphError, match="returns a tensor.*got a dict"):
            fluid.layers.torch_module(lambda x: {"x": x}, x, by_row=True)
        with pytest.raises(GraphError, match="expected a torch.nn.Module or a function"):
            fluid.layers.torch_module("relu", x)
        with pytest.raises(GraphError, match="is torch.float64"):
            fluid.layers.torch_module(torch.nn.Linear(3, 3).double(), x)
        with pytest.raises(GraphError, match="does not take inputs of shapes.*-1, 3"):
            fluid.layers.torch_module(torch.nn.Linear(4, 3), x)
        with pytest.raises(GraphError, match="returns torch.bfloat16"):
            fluid.layers.torch_module(lambda x: x.bfloat16(), x)
        with pytest.raises(GraphError, match="writes into its parameter 'weight'"):
            fluid.layers.torch_module(Decays(), x)
        fluid.layers.torch_module(torch.nn.Linear(3, 3), x, "net")
        with pytest.raises(GraphError, match="net: another module of this Program has this name"):
            fluid.layers.torch_module(torch.nn.Linear(3, 3), x, "net")
        (op,) = (op for op in main.global_block().ops if "net.weight" in op.input_arg_names)
        with pytest.raises(GraphError, match="is of the process that built the Program"):
            main.global_block().append_op(
                TYPE, op.inputs, op.outputs, {**op.attrs, "module": "another process's"}
            )
        with pytest.raises(GraphError, match="'weight' has no values yet: call the module once"):
            fluid.layers.torch_module(torch.nn.LazyLinear(3), x)
        with pytest.raises(GraphError, match="of torch.jit cannot be called with a Program's"):
            fluid.layers.torch_module(torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(1, 3)), x)
        own = torch.arange(3.0)
        with pytest.raises(GraphError, match="neither parameters nor made when it is called"):
            fluid.layers.torch_module(lambda x: x * own, x)


def test_a_stored_program_calls_no_module_of_a_process(tmp_path):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        y = fluid.layers.torch_module(lambda a: a * 2, fluid.data("x", [None, 2]), by_row=True)
        fluid.io.save_inference_model(str(tmp_path), ["x"], [y], exe)
        with pytest.raises(CheckpointError, match="torch_module calls a function, or a module, of"):
            fluid.io.load_inference_model(str(tmp_path), exe)
