"""Programs that train in turns with the same servers: a GAN's two, which share parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

NOISE, PIXELS, ROUNDS = 3, 8, 3


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"param_attr": fluid.ParamAttr(f"{name}.w", **more), "bias_attr": f"{name}.b"}


def generator(noise: Any) -> Any:
    hidden = layers.fc(noise, 6, act="relu", **named("g1"))
    return layers.fc(hidden, PIXELS, act="tanh", **named("g2", learning_rate=2.0))


def discriminator(image: Any) -> Any:
    hidden = layers.batch_norm(
        layers.fc(image, 5, **named("d1")),
        act="relu",
        param_attr="d2.scale",
        bias_attr="d2.shift",
        moving_mean_name="d2.mean",
        moving_variance_name="d2.variance",
    )
    return layers.fc(hidden, 1, **named("d3"))


def loss_of(logit: Any, label: Any) -> Any:
    return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))


def adam(loss: Any, moved: Any, startup: Any) -> None:
    fluid.optimizer.Adam(0.02).minimize(loss, startup, parameter_list=moved)


def clipped(loss: Any, moved: Any, startup: Any) -> None:
    clip = fluid.clip.GradientClipByValue(0.01)
    fluid.optimizer.Momentum(0.1, 0.9, grad_clip=clip).minimize(loss, startup, parameter_list=moved)


def decaying(loss: Any, moved: Any, startup: Any) -> None:
    """Both programs count steps together: one process has one counter in its scope."""
    with fluid.program_guard(loss.block.program, startup):
        rate = layers.exponential_decay(0.2, 2, 0.7, staircase=moved is None)
        fluid.optimizer.Momentum(rate, 0.9).minimize(loss, startup, parameter_list=moved)


def train(minimize: Callable[..., None] = adam, *, generator_first: bool = False) -> list[Any]:
    """The script, as Fluid's book has it: one startup, a generator run for its images alone."""
    d_program, dg_program, startup = fluid.Program(), fluid.Program(), fluid.Program()
    startup.random_seed = 7
    with fluid.unique_name.guard():
        with fluid.program_guard(d_program, startup):
            image = layers.data("image", [PIXELS])
            label = layers.data("label", [1])
            d_loss = loss_of(discriminator(image), label)
        with fluid.program_guard(dg_program, startup):
            noise, ones = layers.data("noise", [NOISE]), layers.data("ones", [1])
            made = generator(noise)
            g_program = dg_program.clone(for_test=True)
            dg_loss = loss_of(discriminator(made), ones)
        moved = [p.name for p in g_program.global_block().all_parameters()]
        minimize(d_loss, None, startup)
        minimize(dg_loss, moved, startup)
    exe = fluid.Executor()
    exe.run(startup)
    fetched: list[Any] = []
    for step in range(ROUNDS):
        rng = np.random.default_rng(step)
        rows = 4 + step
        drawn = {"noise": rng.normal(size=(rows, NOISE)).astype("float32")}
        ones = {"ones": np.ones((rows, 1), "float32")}
        if generator_first:
            fetched += exe.run(dg_program, feed={**drawn, **ones}, fetch_list=[dg_loss])
        (fake,) = exe.run(g_program, feed=drawn, fetch_list=[made.name])
        real = rng.uniform(-1, 1, (rows - 1, PIXELS)).astype("float32")
        labels = np.array([[0.0]] * rows + [[1.0]] * (rows - 1), "float32")
        both = {"image": np.concatenate([fake, real]), "label": labels}
        fetched += [fake, *exe.run(d_program, feed=both, fetch_list=[d_loss])]
        for _ in range(2):  # the generator steps twice as often
            fetched += exe.run(dg_program, feed={**drawn, **ones}, fetch_list=[dg_loss])
    return fetched


@pytest.mark.parametrize(
    ("minimize", "trainers", "servers"),
    [
        (adam, 2, 0),
        (adam, 1, 1),
        (adam, 2, 1),
        (clipped, 1, 2),
        (clipped, 3, 1),
        (adam, 2, 2),
        (decaying, 1, 1),
        (decaying, 2, 2),
    ],
)
def test_two_programs_train_as_in_one_process(minimize, trainers, servers):
    with alone():
        wanted = train(minimize)
    for got in values(run_job(trainers, servers, lambda role: train(minimize))):
        assert len(got) == len(wanted)
        for step, (ours, theirs) in enumerate(zip(got, wanted)):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=str(step))


def test_the_program_that_was_minimized_last_may_train_first():
    with alone():
        wanted = train(generator_first=True)
    for got in values(run_job(2, 1, lambda role: train(generator_first=True))):
        np.testing.assert_allclose(np.array(got[0]), wanted[0], rtol=1e-5)
        np.testing.assert_allclose(np.array(got[-1]), wanted[-1], rtol=2e-4, atol=2e-5)


def with_penalty() -> list[Any]:
    """Train a critic as WGAN-GP does: its loss has the norms of its slope at each image."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        image = layers.data("image", [PIXELS])
        image.stop_gradient = False
        hidden = layers.leaky_relu(layers.fc(image, 6, **named("c1")), 0.2)
        score = layers.fc(layers.tanh(hidden), 1, **named("c2"))
        (slope,) = fluid.gradients(score, image)
        norms = layers.sqrt(layers.reduce_sum(layers.square(slope), dim=1))
        penalty = layers.mean(layers.square(norms - 1.0))
        loss = layers.mean(score) + 10.0 * penalty
        fluid.optimizer.Adam(0.02).minimize(loss)
    exe = fluid.Executor()
    exe.run(startup)
    fetched: list[Any] = []
    for rows in (5, 4, 7):
        images = np.random.default_rng(rows).uniform(-1, 1, (rows, PIXELS)).astype("float32")
        fetched += exe.run(main, feed={"image": images}, fetch_list=[loss, penalty])
    return fetched


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1), (2, 2)])
def test_a_penalty_on_gradients_is_that_of_one_process(trainers, servers):
    with alone():
        wanted = with_penalty()
    for got in values(run_job(trainers, servers, lambda role: with_penalty())):
        np.testing.assert_allclose(np.array(got), np.array(wanted), rtol=2e-4, atol=2e-5)


def two_losses(startups: int, rate: Callable[[], Any], **of_second: Any) -> None:
    """Train two regressions, one after the other, each with a startup of its own or one."""
    programs = [fluid.Program(), fluid.Program()]
    inits = [fluid.Program() for _ in range(startups)]
    losses = []
    with fluid.unique_name.guard():
        for index, program in enumerate(programs):
            with fluid.program_guard(program, inits[index % startups]):
                x = layers.data("x", [PIXELS])
                name = of_second.get("name", str(index))
                guess = layers.fc(x, 1, **named(name))
                losses.append(layers.mean(layers.square_error_cost(guess, layers.data("y", [1]))))
                fluid.optimizer.SGD(rate()).minimize(losses[-1])
    exe = fluid.Executor()
    for init in inits:
        exe.run(init)
    feed = {"x": np.ones((4, PIXELS), "float32"), "y": np.ones((4, 1), "float32")}
    for program, loss in zip(programs, losses):
        exe.run(program, feed=feed, fetch_list=[loss])


@pytest.mark.parametrize(
    ("startups", "rate", "second", "said"),
    [
        (2, lambda: 0.1, {}, "with one startup program, before that is first run"),
        (1, lambda: 0.1, {"name": "0"}, "'0.b' is updated by two of them"),
    ],
)
def test_programs_that_cannot_take_turns_are_refused(startups, rate, second, said):
    def script(role: Any) -> None:
        two_losses(startups, rate, **second)

    errors = [o.error for o in run_job(2, 1, script) if "PlanError" in o.error_types]
    assert errors and all(said in error for error in errors)
    values(run_job(2, 0, script))  # without servers they train


def test_steps_that_some_servers_would_not_count_are_refused():
    """Of three servers the first program has parameters on two, and the second on others."""

    def script(role: Any) -> None:
        two_losses(1, lambda: layers.exponential_decay(0.1, 2, 0.5))

    errors = [o.error for o in run_job(1, 3, script) if "PlanError" in o.error_types]
    assert errors and all("counts steps in '@LR_DECAY_COUNTER@'" in error for error in errors)
