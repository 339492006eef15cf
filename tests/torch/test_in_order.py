"""Operators that torch computes: slopes at places on pixels, and the order in which a GPU adds."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist as fluid  # noqa: E402
from hpcdist.errors import GraphError  # noqa: E402
from hpcdist.ops.convolution.volumes import grid_sampler, sampled  # noqa: E402
from tests.support import device as support_device  # noqa: E402
from tests.support import graphs as support_graphs  # noqa: E402


def test_slopes_at_places_that_lie_on_pixels_are_those_to_the_right_and_below():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((1, 2, 4, 5)))
    y, across = torch.tensor([[0.0, 2.0, 3.0]]), torch.tensor([[1.0, 4.0, 0.0]])
    places = [place.double().requires_grad_() for place in (y, across)]
    slopes = torch.autograd.grad(sampled(torch, x, *places).sum(), places)
    step = 2.0**-10
    before = sampled(torch, x, *places).sum(1)
    for axis, slope in enumerate(slopes):
        moved = [p.detach() + step * (k == axis) for k, p in enumerate(places)]
        wanted = (sampled(torch, x, *moved).sum(1) - before) / step
        torch.testing.assert_close(slope, wanted.detach(), rtol=1e-6, atol=1e-9)


def test_a_place_that_is_no_number_gives_none_and_reads_nothing_else():
    places = torch.tensor([[float("nan"), 1.0, 9.0]])
    read = sampled(torch, torch.ones(1, 2, 4, 5), places, torch.ones(1, 3))
    assert read.isnan().tolist() == [[[True, False, False]] * 2]
    assert read[0, :, 1:].tolist() == [[1, 0]] * 2


def test_a_move_that_is_no_number_gives_none():
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        x, moves = fluid.data("x", [1, 2, 4, 4]), fluid.data("moves", [2, 2, 1, 1])
        regions = fluid.layers.assign(np.array([[0, 0, 3, 3], [1, 1, 3, 3]], np.float32))
        regions = fluid.layers.lod_reset(regions, target_lod=[0, 2])
        out = fluid.layers.deformable_roi_pooling(x, regions, moves, part_size=[1, 1])
        feed = {"x": np.ones((1, 2, 4, 4), np.float32), "moves": np.zeros((2, 2, 1, 1), np.float32)}
        feed["moves"][0, 1] = np.nan
        (values,) = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[out])
    assert np.isnan(values).all((1, 2, 3)).tolist() == [True, False]
    assert (values[1] == 1).all()


def test_what_adds_in_no_certain_order_is_refused_where_order_counts():
    torch.set_deterministic_debug_mode("warn")
    try:
        with pytest.raises(GraphError, match="mode 'bilinear' and padding_mode 'border' add in no"):
            grid_sampler(
                torch, torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 2), True, "bilinear", "border"
            )
    finally:
        torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize("align_corners", [True, False])
def test_grids_are_read_in_order_as_torch_reads_them(align_corners):
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((2, 3, 4, 5)), requires_grad=True)
    around = rng.uniform(-1.3, 1.3, (2, 6, 7, 2))
    around[0, 0] = [-1, 1]  # on corners
    grid = torch.tensor(around, requires_grad=True)
    found = []
    for mode in ("default", "warn"):
        torch.set_deterministic_debug_mode(mode)
        try:
            out = grid_sampler(torch, x, grid, align_corners, "bilinear", "zeros")
        finally:
            torch.set_deterministic_debug_mode("default")
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, grid])])
    for ordered, plain in zip(*found):
        torch.testing.assert_close(ordered, plain)
    assert [type(f[0].grad_fn).__name__ for f in found] == [
        "GridSampler2DBackward0",
        "ViewBackward0",
    ]


def pooled(pooling_type):
    """Return the modes in which torch computes a gradient on a GPU."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 2, 4, 4, 4], "float32")
        x.stop_gradient = False
        out = fluid.layers.mean(fluid.layers.pool3d(x, 2, pooling_type, 2))
        (slope,) = fluid.gradients([out], [x])
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    return lambda: exe.run(main, {"x": np.ones((2, 2, 4, 4, 4), np.float32)}, [slope], scope=scope)


@pytest.fixture
def modes(monkeypatch):
    """Return the modes in which torch computes gradients on a GPU."""
    support_graphs.install(monkeypatch)
    support_device.install(monkeypatch)
    seen, grad = [], torch.autograd.grad

    def noted(*args, **facts):
        seen.append(torch.get_deterministic_debug_mode())
        return grad(*args, **facts)

    monkeypatch.setattr(torch.autograd, "grad", noted)
    return seen


def test_own_kernels_have_torch_add_in_order(modes, monkeypatch, recwarn):
    monkeypatch.setenv("HPCDIST_KERNELS", "own")
    pooled("max")()
    assert modes == [1] and torch.get_deterministic_debug_mode() == 0
    assert not [w for w in recwarn if "as threads come" in str(w.message)]
    monkeypatch.setenv("HPCDIST_KERNELS", "torch")
    pooled("max")()
    assert modes == [1, 0]


def test_what_torch_cannot_add_in_order_is_told_of_before_it_runs(modes, monkeypatch):
    monkeypatch.setenv("HPCDIST_KERNELS", "own")
    with pytest.warns(UserWarning, match="operator 'pool3d': PyTorch adds up its gradient as thr"):
        pooled("avg")()
