"""Learning rates of schedulers, by their first steps; made rates.json: Paddle 2.6.2.

python schedulers.py > rates.json
"""

import json
import sys

STEPS = 12
EXPRESSIONS = (
    "NoamDecay(64, 4, learning_rate=0.5)",
    "PiecewiseDecay([3, 6], [0.1, 0.05, 0.01])",
    "NaturalExpDecay(0.5, 0.1)",
    "InverseTimeDecay(0.5, 0.1)",
    "PolynomialDecay(0.5, 5)",
    "PolynomialDecay(0.5, 5, end_lr=0.01, power=2.0, cycle=True)",
    "LinearWarmup(0.5, 4, 0.0, 0.5)",
    "LinearWarmup(StepDecay(0.5, 3), 4, 0.0, 0.5)",
    "ExponentialDecay(0.5, 0.9)",
    "MultiStepDecay(0.5, [2, 5, 7], gamma=0.3)",
    "StepDecay(0.5, 3)",
    "LambdaDecay(0.5, lambda n: 0.95**n)",
    "MultiplicativeDecay(0.5, lambda n: 0.95)",
    "CosineAnnealingDecay(0.5, 20)",
    "LinearLR(0.5, 5)",
    "LinearLR(0.5, 5, start_factor=0.5, end_factor=0.9)",
)


def rates(lr, expression):
    """Return the rates before the first step and after each."""
    scheduler = eval(expression, {name: getattr(lr, name) for name in dir(lr)})
    found = [scheduler()]
    for _ in range(STEPS):
        scheduler.step()
        found.append(scheduler())
    return found


if __name__ == "__main__":
    import paddle

    results = {one: rates(paddle.optimizer.lr, one) for one in EXPRESSIONS}
    json.dump(results, sys.stdout, indent=1)
