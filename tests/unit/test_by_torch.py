"""Operators that torch computes: the table of them in docs, and what is said without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import FeedError, GraphError, HpcdistError
from hpcdist.ops.by_torch import functions
from hpcdist.transpiler.plan import fingerprint, trainer_plan

DOCS = Path(__file__).parents[2] / "docs" / "images.md"


def test_docs_name_every_operator_that_needs_torch() -> None:
    names = ", ".join(f"`{type}`" for type in sorted(functions()))
    assert f"Layers that need torch: {names}." in " ".join(DOCS.read_text().split())


def test_without_torch_one_error_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 2, 4, 4, 4])
        with pytest.raises(HpcdistError, match="operator 'pool3d' needs torch.*pip install"):
            fluid.layers.pool3d(x, 2)


def test_shapes_with_an_open_batch_follow_from_the_function() -> None:
    pytest.importorskip("torch")
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 2, 4, 4, 6])
        assert fluid.layers.pool3d(x, 2, pool_stride=2).shape == (-1, 2, 2, 2, 3)
        assert fluid.layers.conv3d(x, 5, 3).shape == (-1, 5, 2, 2, 4)
        wrong = fluid.data("y", [None, 2, 1, 1, 1])
        with pytest.raises(GraphError, match="do not fit"):
            fluid.layers.conv3d(wrong, 5, 3)


@pytest.mark.parametrize("told", [[0, 3], [0, 1, 2], [0, 1, 2, 3]])
def test_regions_are_of_all_images(told: list[int]) -> None:
    pytest.importorskip("torch")
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.assign(np.ones((2, 1, 4, 4), "float32"))
        regions = fluid.layers.assign(np.ones((3, 4), "float32"))
        out = fluid.layers.roi_pool(x, regions, rois_lod=fluid.layers.assign(np.array(told)))
        with pytest.raises(FeedError, match=f"3 regions of 2 images: got .* of {len(told) - 1}"):
            fluid.Executor().run(fetch_list=[out])


@pytest.mark.parametrize("type", ["conv2d", "depthwise_conv2d", "conv2d_transpose", "gelu"])
def test_torch_computes_what_own_kernels_compute(
    type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    found = []
    for kernels in ("own", "torch"):
        monkeypatch.setenv("HPCDIST_KERNELS", kernels)
        rng = np.random.default_rng(0)
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x = fluid.data("x", [None, 8, 7, 6])
            x.stop_gradient = False
            weights = fluid.ParamAttr(initializer=fluid.initializer.Uniform(-1, 1, seed=3))
            if type == "gelu":
                out = fluid.layers.gelu(x)
            elif type == "conv2d_transpose":
                out = fluid.layers.conv2d_transpose(
                    x, 6, filter_size=3, stride=2, padding=1, param_attr=weights
                )
            else:
                groups, own = (8, False) if type == "depthwise_conv2d" else (1, True)
                out = fluid.layers.conv2d(
                    x, 8, 3, 2, [0, 1, 2, 1], 1, groups, weights, use_cudnn=own
                )
            loss = fluid.layers.reduce_sum(fluid.layers.square(out))
            gradients = fluid.gradients([loss], [x, *main.all_parameters()[:1]])
        scope, exe = fluid.Scope(), fluid.Executor()
        exe.run(startup, scope=scope)
        feed = {"x": rng.normal(size=(3, 8, 7, 6)).astype("float32")}
        found.append(exe.run(main, feed=feed, fetch_list=[out, *gradients], scope=scope))
    for own, by_torch in zip(*found, strict=True):
        np.testing.assert_allclose(by_torch, own, rtol=2e-4, atol=2e-4)


def test_kernels_are_part_of_what_ranks_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 4]), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
    digests = set()
    for kernels in ("own", "torch"):
        monkeypatch.setenv("HPCDIST_KERNELS", kernels)
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, main, "a:1,b:2", 2, startup_program=startup)
        program = transpiler.get_trainer_program()
        plan = trainer_plan(program)
        assert plan is not None
        digests.add(fingerprint(program, plan))
    assert len(digests) == 2
