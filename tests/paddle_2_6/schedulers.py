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
    "CosineAnnealingWarmRestarts(0.5, 2, T_mult=2, eta_min=0.1)",
    "CosineAnnealingWarmRestarts(0.5, 3)",
    "CyclicLR(0.1, 0.5, 3, 2)",
    "CyclicLR(0.1, 0.5, 2, mode='triangular2')",
    "CyclicLR(0.1, 0.5, 2, mode='exp_range', exp_gamma=0.9)",
    "CyclicLR(0.1, 0.5, 2, scale_fn=lambda n: 1 / (n + 1), scale_mode='iterations')",
    "OneCycleLR(0.5, 12)",
    "OneCycleLR(0.5, 20, divide_factor=5, phase_pct=0.4, anneal_strategy='linear')",
    "OneCycleLR(0.5, 14, three_phase=True)",
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
