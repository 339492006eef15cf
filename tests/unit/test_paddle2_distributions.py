"""What distributions of Paddle 2 draw: its mean and spread; densities are in paddle_2_6."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import GraphError, GraphTypeError

pytest.importorskip("torch")  # which draws shares and counts
MANY = 2000


@pytest.fixture(scope="module")
def paddle() -> Iterator[Any]:
    assert "paddle" not in sys.modules
    aspaddle.install()
    import paddle

    paddle.enable_static()
    yield paddle
    aspaddle.uninstall()


def computed(paddle: Any, make: Any, feed: Any = None) -> list[np.ndarray]:
    """Return the values of what ``make`` returns for a batch ``x`` [2, 1]."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = 3
    with paddle.static.program_guard(main, startup):
        made = make(paddle.static.data("x", [None, 1]))
        x = np.array([[0.5], [2.0]], "float32") if feed is None else feed
        return [np.asarray(v) for v in paddle.static.Executor().run(main, {"x": x}, list(made))]


@pytest.mark.parametrize(
    "name",
    [
        "D.Normal(x, x)",
        "D.LogNormal(x, x * 0 + 0.3)",
        "D.Uniform(x, x * 3)",
        "D.Laplace(x, x)",
        "D.Gumbel(x, x)",
        "D.Beta(x, x + 1)",
        "D.Dirichlet(paddle.concat([x, x + 1, x * 0 + 0.3], 1))",
        "D.Bernoulli(x / 3)",
        "D.Geometric(x / 3)",
        "D.Multinomial(3, paddle.concat([x, x + 1], 1))",
    ],
)
def test_samples_have_the_mean_and_the_variance(paddle: Any, name: str) -> None:
    def make(x: Any) -> Any:
        one = eval(name, {"D": paddle.distribution, "paddle": paddle, "x": x})
        return one.sample([MANY]), one.mean, one.variance, one.stddev

    drawn, mean, variance, deviation = computed(paddle, make)
    np.testing.assert_allclose(deviation**2, variance, rtol=1e-5)
    assert drawn.shape == (MANY, *mean.shape)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * np.sqrt(variance.max() / MANY))
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.25, atol=1e-4)


def test_classes_and_counts_are_drawn_by_their_chances(paddle: Any) -> None:
    def make(x: Any) -> Any:
        weights = paddle.log(paddle.concat([x, x * 0 + 1.0], 1))
        classes = paddle.distribution.Categorical(weights).sample([MANY])
        ones = paddle.tile(x, [1, MANY])
        rare = paddle.distribution.Dirichlet(paddle.full([2], 1e-3)).sample([50])
        return classes, paddle.poisson(ones), paddle.poisson(ones * 500.0), rare

    classes, counts, great, rare = computed(paddle, make)
    np.testing.assert_allclose(rare.sum(1), 1.0, rtol=1e-6)  # logarithms are what is drawn
    np.testing.assert_allclose(classes.mean(0), [2 / 3, 1 / 3], atol=0.05)
    for drawn, mean in ((counts, [0.5, 2.0]), (great, [250.0, 1000.0])):
        np.testing.assert_allclose(drawn.mean(1), mean, rtol=0.1)
        np.testing.assert_allclose(drawn.var(1), mean, rtol=0.2)


def test_what_is_dropped_and_leaks_keeps_the_mean(paddle: Any) -> None:
    f = paddle.nn.functional

    def make(x: Any) -> Any:
        ones = paddle.tile(x, [1, MANY]) * 0 - 1.0
        hard = f.gumbel_softmax(paddle.tile(x, [1, MANY]), hard=True, axis=0)
        return f.rrelu(ones, 0.2, 0.4), f.alpha_dropout(ones * 0, 0.4), hard

    leaked, dropped, hard = computed(paddle, make)
    assert leaked.min() >= -0.4 and leaked.max() <= -0.2 and abs(leaked.mean() + 0.3) < 0.01
    assert abs(dropped.mean()) < 0.05
    np.testing.assert_array_equal(hard.sum(0), np.ones(MANY))
    np.testing.assert_allclose(hard[1].mean(), 1 / (1 + np.exp(-1.5)), atol=0.05)


def test_a_program_for_tests_leaks_by_the_mean(paddle: Any) -> None:
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        out = paddle.nn.RReLU(0.2, 0.4)(paddle.static.data("x", [None, 3]))
    feed = {"x": np.full((2, 3), -1.0, "float32")}
    exe, test = paddle.static.Executor(), main.clone(for_test=True)
    assert np.ptp(exe.run(main, feed, [out])[0]) > 0
    np.testing.assert_allclose(exe.run(test, feed, [out])[0], -0.3, rtol=1e-6)


def test_values_of_open_extents_are_broadcast(paddle: Any) -> None:
    def make(x: Any) -> Any:
        wide = paddle.broadcast_tensors([x, paddle.to_tensor([1.0, 2.0, 3.0])])
        return *wide, paddle.distribution.Laplace(x, paddle.to_tensor([1.0, 2.0])).entropy()

    left, right, entropy = computed(paddle, make)
    np.testing.assert_array_equal(left, [[0.5] * 3, [2.0] * 3])
    np.testing.assert_array_equal(right, [[1.0, 2.0, 3.0]] * 2)
    np.testing.assert_allclose(entropy, [1 + np.log([2.0, 4.0])] * 2, rtol=1e-6)


def test_distributions_of_two_kinds_have_a_divergence_that_is_registered(paddle: Any) -> None:
    d = paddle.distribution
    with pytest.raises(GraphError, match="no divergence of a Normal from a Laplace: .*register_kl"):
        d.kl_divergence(d.Normal(0.0, 1.0), d.Laplace(0.0, 1.0))

    @d.register_kl(d.Normal, d.Laplace)
    def apart(p: Any, q: Any) -> Any:
        return p.loc - q.loc

    (found,) = computed(
        paddle, lambda x: [d.kl_divergence(d.Normal(3.0, 1.0), d.Laplace(1.0, 1.0))]
    )
    assert float(found) == 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.Normal("a", 1.0), "Normal: loc: expected a number, an array or a Variable"),
        (lambda d: d.Normal(None, 1.0), "Normal: loc: expected a number, an array or a Variable"),
        (lambda d: d.Categorical(0.5), "Categorical: logits: expected at least one dimension"),
        (lambda d: d.Multinomial(0, [0.5, 0.5]), "Multinomial: expected a total_count from 1 on"),
        (lambda d: d.Normal(0.0, 1.0).sample("4"), "Normal.sample: shape: expected an integer"),
        (lambda d: d.Normal(0.0, 1.0).log_prob(0.5), "Normal: value: expected a Variable, got 0.5"),
        (lambda d: d.Normal(0.0, 1.0).kl_divergence(3), "kl_divergence: expected a Normal, got 3"),
        (lambda d: d.Uniform([1.0, 2.0], [1.0, 2.0, 3.0]), "Uniform: shapes .* do not broadcast"),
        (lambda d: d.Categorical([0.5, 0.5]).probs(None), "probs: value: expected a Variable"),
        (lambda d: d.register_kl(int, d.Normal), "register_kl: cls_p: expected a class of dist"),
    ],
)
def test_wrong_parameters_are_refused(paddle: Any, make: Any, message: str) -> None:
    with pytest.raises((GraphError, GraphTypeError), match=message):
        make(paddle.distribution)
