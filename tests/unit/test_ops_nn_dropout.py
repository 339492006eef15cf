"""Dropout: how much it clears, and what its masks depend on."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import GraphError
from hpcdist.ops.random.dropout import DOWNGRADE, UPSCALE
from tests.support.ops import Case, Graph

ONES = np.ones((200, 50), np.float32)


def dropped(runs=1, **attrs):
    """Return (out, mask) of the last of ``runs`` steps with dropout of ones."""
    graph = Graph("dropout", Case({"X": ONES}, {"dropout_prob": 0.25, **attrs}))
    for _ in range(runs):
        values = graph.run(["out_0_out", "mask_0_out"])
    return values


@pytest.mark.parametrize("how, kept", [(DOWNGRADE, 1.0), (UPSCALE, 1 / 0.75)])
def test_the_share_cleared_is_as_told(how, kept):
    out, mask = dropped(seed=3, dropout_implementation=how)
    assert mask.dtype == "uint8"
    assert abs(mask.mean() - 0.75) < 0.02
    np.testing.assert_allclose(out, mask * np.float32(kept))


@pytest.mark.parametrize("how, kept", [(DOWNGRADE, 1.0), (UPSCALE, 1 / 0.75)])
def test_the_gradient_passes_where_the_mask_of_the_same_step_let_pass(how, kept):
    attrs = {"dropout_prob": 0.25, "dropout_implementation": how, "seed": 3}
    graph = Graph("dropout", Case({"X": ONES}, attrs))
    slope = np.random.default_rng(0).standard_normal(ONES.shape).astype("float32")
    dout = graph.add_feed("slope", slope)
    inputs = {"Mask": graph.outputs["Mask"], "Out@GRAD": dout}
    graph.block.append_op("dropout_grad", inputs, {"X@GRAD": "dx"}, attrs)
    masks = []
    for _ in range(2):
        mask, dx = graph.run(["mask_0_out", "dx"])
        np.testing.assert_allclose(dx, slope * mask * np.float32(kept), rtol=1e-6)
        masks.append(mask)
    assert (masks[0] != masks[1]).any()


def test_masks_depend_on_seed_stream_and_call_only(monkeypatch):
    first = dropped(seed=3)[1]
    np.testing.assert_array_equal(first, dropped(seed=3)[1])
    others = [dropped(seed=4)[1], dropped(seed=3, stream=1)[1], dropped(seed=3, runs=2)[1]]
    for other in others:
        assert 0.3 < (first != other).mean() < 0.45  # independent masks differ in 3/8 of the places
    np.testing.assert_array_equal(others[2], dropped(seed=3, runs=2)[1])
    monkeypatch.setenv("HPCDIST_SEED", "3")
    np.testing.assert_array_equal(first, dropped(seed=0)[1])


@pytest.mark.parametrize("how, factor", [(DOWNGRADE, 0.75), (UPSCALE, 1.0)])
def test_testing_scales_only_if_training_did_not(how, factor):
    out, _ = dropped(is_test=True, dropout_implementation=how)
    np.testing.assert_array_equal(out, ONES * np.float32(factor))


def test_dropping_everything_leaves_zeros():
    out, mask = dropped(dropout_prob=1.0, dropout_implementation=UPSCALE)
    assert not out.any()
    assert not mask.any()


@pytest.mark.parametrize("attrs", [{"dropout_prob": 1.5}, {"dropout_implementation": "x"}])
def test_unknown_attributes_are_refused(attrs):
    with pytest.raises(GraphError, match="dropout_"):
        dropped(**attrs)


@pytest.mark.parametrize("implementation", ["upscale_in_train", "downgrade_in_infer"])
def test_nothing_is_dropped_of_gradients_in_a_test(implementation):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [4, 3])
        x.stop_gradient = False
        noise = fluid.layers.uniform_random([4, 3], seed=3)  # memory that a mask could be taken for
        out = fluid.layers.dropout(x, 0.25, is_test=True, dropout_implementation=implementation)
        (grad,) = fluid.gradients(fluid.layers.reduce_sum(out * 2.0), [x])
        total = grad + noise * 0.0
    with fluid.scope_guard(fluid.Scope()):
        fed = {"x": np.ones((4, 3), np.float32)}
        (found,) = fluid.Executor().run(main, feed=fed, fetch_list=[total])
    factor = 1.0 if implementation == "upscale_in_train" else 0.75
    np.testing.assert_array_equal(found, np.full((4, 3), 2 * factor, np.float32))
