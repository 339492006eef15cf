"""Losses of a small network and a table moved by optimizers; made losses.json: Paddle 2.6.2.

python optimizers.py > losses.json
"""

import json
import sys

import numpy as np

STEPS = 6
DENSE = (
    "SGD(0.1, weight_decay=0.1)",
    "Momentum(0.1, 0.8)",
    "Momentum(0.1, 0.8, use_nesterov=True, weight_decay=0.05)",
    "Momentum(0.1, 0.8, weight_decay=paddle.regularizer.L1Decay(0.1))",
    "Momentum(rate := lr.StepDecay(0.2, 2, 0.5), 0.8)",
    "Adagrad(0.1, epsilon=1e-3, initial_accumulator_value=0.2)",
    "Adadelta(0.1, 1e-3, 0.9)",
    "Adadelta(1.0, 1e-6, 0.95)",
    "Adam(0.05, 0.8, 0.95, 1e-2, weight_decay=0.2)",
    "AdamW(0.05, weight_decay=0.2)",
    "AdamW(rate := lr.ExponentialDecay(0.1, 0.5), weight_decay=0.3, apply_decay_param_fun=is_bias)",
    "Adamax(0.05, 0.8, 0.9, 1e-4, weight_decay=0.1)",
    "RMSProp(0.05, 0.9, 1e-3, 0.5)",
    "RMSProp(0.05, 0.9, 1e-3, 0.5, centered=True)",
    "Lamb(0.05, 0.1)",
    "Lamb(0.05, 0.1, 0.8, 0.9, exclude_from_weight_decay_fn=lambda p: is_bias(p.name))",
    "Lamb(0.05, 0.0, epsilon=1e-2)",
    "Lamb(0.05, 0.0, always_adapt=True)",
    "SGD(0.5, grad_clip=paddle.nn.ClipGradByNorm(0.1))",
    "SGD(0.5, grad_clip=paddle.nn.ClipGradByValue(0.02))",
    "Adam(0.05, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1))",
    "paddle.incubate.LookAhead(SGD(0.1), 0.5, 2)",
    "paddle.incubate.LookAhead(Adam(0.1), 0.8, 3)",
)
SPARSE = (
    "SGD(0.5)",
    "Adagrad(0.1)",
    "Momentum(0.1, 0.9)",
    "Adam(0.1, lazy_mode=True)",
    "Lamb(0.1)",
)


def is_bias(name):
    """Return whether a parameter of this network is a bias."""
    return "b_0" in name


def losses(paddle, expression, sparse=False):
    """Return the losses of the first steps, all parameters beginning with given values."""
    names = {"paddle": paddle, "lr": paddle.optimizer.lr, "is_bias": is_bias}
    static, optimizer = paddle.static, paddle.optimizer
    names.update({name: getattr(optimizer, name) for name in dir(optimizer)})
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x, ids = static.data("x", [None, 4], "float32"), static.data("ids", [None, 1], "int64")
        add = 0.0
        if sparse:
            add = paddle.squeeze(paddle.nn.Embedding(6, 3, sparse=True)(ids), 1)
        loss = paddle.mean(paddle.square(paddle.nn.Linear(4, 3)(x) + add))
        optimizer = eval(expression, names)
        optimizer.minimize(loss)
    found, rng = [], np.random.RandomState(0)
    with static.scope_guard(scope):
        exe = static.Executor()
        exe.run(startup)
        for parameter in sorted(main.all_parameters(), key=lambda p: p.name):
            values = (rng.randn(*parameter.shape) * 0.3).astype("float32")
            scope.find_var(parameter.name).get_tensor().set(values, paddle.CPUPlace())
        for _ in range(STEPS):
            feed = {"x": rng.randn(8, 4).astype("float32"), "ids": np.array([[1], [4]] * 4)}
            found.append(float(np.ravel(exe.run(main, feed, [loss])[0])[0]))
            if "rate" in names:
                names["rate"].step()
    return found


if __name__ == "__main__":
    import paddle

    paddle.enable_static()
    results = {f"{one} sparse": losses(paddle, one, sparse=True) for one in SPARSE}
    results |= {one: losses(paddle, one) for one in DENSE}
    json.dump(results, sys.stdout, indent=1)
