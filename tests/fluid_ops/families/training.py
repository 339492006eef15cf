"""Optimizers, what is wrapped around them, and averages of parameters: seven steps of each."""

TRAINING = True
DRAWN = 3
SGD = "fluid.optimizer.SGD(0.1)"
ADAM = "fluid.optimizer.Adam(0.1)"
EXTENDED = "fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.%s)"
CASES = [
    (SGD, {}),
    ("fluid.optimizer.Momentum(0.1, 0.9, use_nesterov={n})", {}, {"n": [True, False]}),
    ("fluid.optimizer.LarsMomentum(0.1, 0.9)", {}),
    ("fluid.optimizer.Adagrad(0.1)", {}),
    ("fluid.optimizer.DecayedAdagrad(0.1)", {}),
    (ADAM, {}),
    ("fluid.optimizer.Adamax(0.1)", {}),
    ("fluid.optimizer.RMSProp(0.1, centered={c}, momentum=0.5)", {}, {"c": [True, False]}),
    # Fluid takes l1 for l2
    ("fluid.optimizer.Ftrl(0.1, l1=0.01, l2=0.01)", {}),
    ("fluid.optimizer.Adadelta(0.1)", {}),
    ("fluid.optimizer.Lamb(0.1)", {}),
    ("fluid.optimizer.Dpsgd(0.1, {c}, 4.0, 0.0)", {}, {"c": [0.9, 0.1]}),  # without noise
    (SGD, {"error_clip": "fluid.clip.ErrorClipByValue(0.05)"}),
    (SGD, {"error_clip": "fluid.clip.ErrorClipByValue(0.05, -0.01)"}),
    (EXTENDED % "Adam" + "(weight_decay={d}, learning_rate=0.1)", {}, {"d": [0.01, 0.1]}),
    (EXTENDED % "Momentum" + "(0.1, learning_rate=0.1, momentum=0.9)", {}),
    (
        EXTENDED % "SGD" + "(0.1, lambda name: '.w_' in name, learning_rate=0.1)",
        {},
    ),
    (
        "fluid.optimizer.LookaheadOptimizer(" + SGD + ", {a}, {k})",
        {},
        {"a": [0.5, 0.8], "k": [2, 3]},
    ),
    ("fluid.optimizer.LookaheadOptimizer(" + ADAM + ")", {}),
    (SGD, {"average": "fluid.optimizer.ExponentialMovingAverage(0.9)"}),
    (ADAM, {"average": "fluid.optimizer.ExponentialMovingAverage(0.5, name='mean')"}),
    (
        SGD,
        {
            "average": "fluid.optimizer.ExponentialMovingAverage(0.99, "
            "fluid.layers.cast(fluid.layers.autoincreased_step_counter(), 'float32'))"
        },
    ),
    (SGD, {"average": "fluid.optimizer.ModelAverage(0.5, 2, 4)"}),
    (ADAM, {"average": "fluid.optimizer.ModelAverage(0.15, 10000, 10000)"}),
    (ADAM, {"average": "fluid.optimizer.ModelAverage(1.0, 1, 3)"}),
]
