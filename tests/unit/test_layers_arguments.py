"""Arguments of the wrong kind end with the exception that Fluid 1.8.5 raises, and say what is."""

import pytest

import hpcdist as fluid
from hpcdist import layers

pytestmark = pytest.mark.usefixtures("programs")


def x():
    return layers.data("x", [4])


def loss():
    return layers.mean(layers.fc(x(), 1))


# The types were recorded from Fluid 1.8.5 (core.EnforceNotMet, which is none of these, left out).
@pytest.mark.parametrize(
    "build, kind, words",
    [
        (lambda: layers.relu("x"), TypeError, "layers.relu: x must be a Variable, got 'x'"),
        (lambda: layers.elementwise_add(x(), y=3), TypeError, "elementwise_add: y must be"),
        (lambda: layers.concat(["x"]), TypeError, "layers.concat: input must be Variables"),
        (lambda: layers.sums("x"), TypeError, "layers.sums: input must be Variables"),
        (lambda: layers.fc("x", 3), TypeError, "layers.fc: input must be"),
        (lambda: layers.fc(x(), 3, act=3), TypeError, "act must be the name"),
        (lambda: layers.fc(x(), 3, param_attr=3), TypeError, "expected a ParamAttr"),
        (lambda: fluid.ParamAttr(name=3), TypeError, "name must be a string"),
        (lambda: layers.data("x", "4"), TypeError, "must be a list or a tuple"),
        (lambda: fluid.program_guard(3).__enter__(), TypeError, "expected a Program"),
        (lambda: fluid.Executor().run("main"), TypeError, "expected a Program"),
        (lambda: fluid.optimizer.SGD(None), AssertionError, "needs a learning_rate"),
        (lambda: fluid.optimizer.SGD("fast"), TypeError, "must be a number"),
        (lambda: fluid.optimizer.SGD(0.1).minimize("loss"), AssertionError, "the loss must be"),
        (lambda: fluid.optimizer.SGD(0.1, grad_clip=3).minimize(loss()), TypeError, "grad_clip"),
    ],
)
def test_the_exception_is_fluids(build, kind, words):
    with pytest.raises(kind, match=words) as caught:
        build()
    assert isinstance(caught.value, fluid.HpcdistError)


def test_what_may_be_left_out_may_be_none():
    assert layers.sums([x(), x()], out=None).shape == (-1, 4)
    assert layers.assign(x(), None).shape == (-1, 4)
    image = layers.data("image", [3, 32, 32])
    boxes = [layers.prior_box(image, image, [4.0], sizes)[0] for sizes in (None, [], [0.0], [8.0])]
    assert [box.shape[2] for box in boxes] == [1, 1, 1, 2]


@pytest.mark.parametrize("value", ["wide", [0.5]])
def test_a_number_that_an_operator_declares_is_one(value):
    rois = layers.data("rois", [4], lod_level=1)
    with pytest.raises(TypeError, match="roi_align: spatial_scale: expected a number, got .*") as e:
        layers.roi_align(layers.data("image", [3, 8, 8]), rois, spatial_scale=value)
    assert isinstance(e.value, fluid.HpcdistError) and repr(value) in str(e.value)
