"""Scripts that say `import paddle`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import hpcdist
from hpcdist.compat import advice, aspaddle
from hpcdist.errors import HpcdistError, LaunchError
from tests.scripts import read_script


# -- as paddle ---------------------------------------------------------------------------------
@pytest.fixture
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    yield
    aspaddle.uninstall()


@pytest.mark.usefixtures("paddle")
def test_paddle_is_hpcdist():
    names: dict[str, object] = {}
    exec(read_script("paddle_imports"), names)
    assert names["fluid"] is hpcdist
    assert names["core"] is hpcdist.fluid.compat.core
    assert names["layers"] is hpcdist.layers
    assert names["compiler"].CompiledProgram is hpcdist.CompiledProgram
    assert names["average"] is hpcdist.fluid.compat.average
    assert names["fluid"].parallel_executor.ParallelExecutor is hpcdist.ParallelExecutor
    assert names["fluid"].param_attr.ParamAttr is hpcdist.ParamAttr
    assert names["unique_name"] is hpcdist.unique_name
    assert names["HashName"] is hpcdist.transpiler.HashName
    assert names["paddle"].dataset.uci_housing is hpcdist.fluid.compat.datasets.uci_housing
    assert names["paddle"].batch is hpcdist.batch
    assert names["paddle"].reader.shuffle is hpcdist.reader.shuffle
    # The modules are still themselves.
    assert hpcdist.layers.__spec__.name == "hpcdist.fluid.layers"


PADDLE2 = read_script("paddle2_static")


def _adam_of_paddle_2(epsilon: float, decay: Any) -> Any:
    """Return Fluid's Adam with epsilon beside the root of the corrected moment."""
    adam = hpcdist.optimizer.Adam(epsilon=epsilon, regularization=decay)
    adam.attrs["scaled_epsilon"] = True
    return adam


@pytest.mark.usefixtures("paddle")
@pytest.mark.parametrize(
    ("make_optimizer", "same"),
    [
        (
            lambda paddle: paddle.optimizer.Momentum(
                learning_rate=0.1,
                momentum=0.8,
                weight_decay=paddle.regularizer.L2Decay(0.01),
                grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5),
            ),
            lambda: hpcdist.optimizer.Momentum(
                0.1,
                0.8,
                regularization=hpcdist.regularizer.L2Decay(0.01),
                grad_clip=hpcdist.clip.GradientClipByGlobalNorm(0.5),
            ),
        ),
        (
            lambda paddle: paddle.optimizer.SGD(0.1, parameters=["w"], weight_decay=0.01),
            lambda: hpcdist.optimizer.SGD(0.1, ["w"], hpcdist.regularizer.L2Decay(0.01)),
        ),
        (
            lambda paddle: paddle.optimizer.Adam(weight_decay=0.01, epsilon=1e-4),
            lambda: _adam_of_paddle_2(1e-4, hpcdist.regularizer.L2Decay(0.01)),
        ),
    ],
)
def test_a_static_script_of_paddle_2(make_optimizer, same, monkeypatch):
    for name in ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "TRAINING_ROLE"):
        monkeypatch.delenv(name, raising=False)
    rng = np.random.default_rng(1)
    feed = {
        "x": rng.random((6, 3, 8, 8), np.float32),
        "y": rng.integers(0, 5, (6, 1)),
    }
    script: dict[str, Any] = {"feed": feed, "make_optimizer": make_optimizer}
    with hpcdist.scope_guard(hpcdist.Scope()):
        exec(PADDLE2, script)
    assert script["rank"] == (0, 1)

    main, startup = hpcdist.Program(), hpcdist.Program()
    main.random_seed = startup.random_seed = 3
    with hpcdist.program_guard(main, startup), hpcdist.scope_guard(hpcdist.Scope()):
        image = hpcdist.data("x", [None, 3, 8, 8])
        label = hpcdist.data("y", [None, 1], "int64")
        hidden = hpcdist.layers.batch_norm(hpcdist.layers.conv2d(image, 4, 3), act="relu")
        scores = hpcdist.layers.fc(hidden, 5, param_attr=hpcdist.ParamAttr(name="w"), act="tanh")
        loss = hpcdist.layers.mean(hpcdist.layers.softmax_with_cross_entropy(scores, label))
        same().minimize(loss)
        exe = hpcdist.Executor(hpcdist.CPUPlace())
        exe.run(startup)
        losses = [float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]) for _ in range(3)]
    assert losses[0] != losses[2]
    np.testing.assert_allclose(script["losses"], losses, rtol=1e-6)


@pytest.mark.usefixtures("paddle")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import paddle\npaddle.static.InputSpek", "no .InputSpek.*did you mean 'InputSpec'"),
        ("import paddle\npaddle.nn.RNNTLoss", "paddle.nn.RNNTLoss of Paddle 2.6.2 is not"),
        ("import paddle\npaddle.distributed.nothing", "paddle.distributed has no .nothing."),
        ("import paddle.nn.nothing", "paddle.nn has no .nothing."),
        ("from paddle.optimizer import LBFGS", "paddle.optimizer.LBFGS of Paddle 2.6.2 is not in"),
        (
            "import paddle\npaddle.jit.to_static",
            "paddle.jit of Paddle 2.6.2 .* programs are static",
        ),
        ("import paddle\npaddle.disable_static()", "hpcdist runs static programs only"),
        ("import paddle.fluid.nothing", "fluid has no .nothing., neither here nor in Fluid"),
        ("import paddle\npaddle.nothing", "paddle has no .nothing., neither here"),
        ("from paddle.fluid import nothing", "cannot import name 'nothing' from 'hpcdist'"),
    ],
)
def test_what_hpcdist_lacks_is_refused_by_name(source, message):
    with pytest.raises((ImportError, AttributeError, HpcdistError), match=message):
        exec(source, {})


@pytest.fixture
def told():
    advice.tell()
    yield
    aspaddle.uninstall()


@pytest.mark.usefixtures("told")
def test_a_script_that_imports_paddle_without_the_option_is_told(monkeypatch, tmp_path):
    with pytest.raises(ImportError, match="paddle, which is not installed: .*--as-paddle"):
        import paddle.fluid
    (tmp_path / "paddle.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="every rank trains alone: .*--as-paddle"):
        import paddle  # noqa: F401


def test_a_real_paddle_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "paddle", sys)
    with pytest.raises(LaunchError, match="already imported"):
        aspaddle.install()
