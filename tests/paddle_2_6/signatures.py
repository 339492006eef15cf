"""Parameters of Paddle 2.6.2's public functions, classes and some methods, as its users pass them.

    python signatures.py > signatures.txt   # with paddlepaddle==2.6.2

One line each: name and parameters, ``=`` behind those that may be left out.
"""

import importlib
import inspect
import sys

MODULES = [
    "paddle",
    "paddle.distributed",
    "paddle.distributed.fleet.utils",
    "paddle.io",
    "paddle.metric",
    "paddle.nn",
    "paddle.nn.functional",
    "paddle.nn.initializer",
    "paddle.optimizer",
    "paddle.optimizer.lr",
    "paddle.regularizer",
    "paddle.static",
    "paddle.static.nn",
]
METHODS = {
    "paddle.distributed.fleet.utils.LocalFS": None,
    "paddle.metric.Accuracy": None,
    "paddle.metric.Auc": None,
    "paddle.metric.Precision": None,
    "paddle.metric.Recall": None,
    "paddle.nn.Layer": None,
    "paddle.nn.LayerList": ["append", "extend", "insert"],
    "paddle.optimizer.Adam": ["backward", "clear_grad", "get_lr", "minimize", "set_lr"],
    "paddle.optimizer.AdamW": ["backward", "minimize"],
    "paddle.optimizer.lr.LRScheduler": None,
    "paddle.static.Executor": None,
}


def parameters(of):
    """Return what a call passes by place or name."""
    for one in inspect.signature(of).parameters.values():
        if one.name != "self" and one.kind is one.POSITIONAL_OR_KEYWORD:
            yield one.name if one.default is one.empty else f"{one.name}="


def lines():
    """Yield a line for each name, sorted by module."""
    for module in MODULES:
        held = importlib.import_module(module)
        for name in sorted(held.__all__):
            value, path = getattr(held, name, None), f"{module}.{name}"
            if inspect.isfunction(value) or inspect.isclass(value):
                try:
                    yield " ".join([path, *parameters(value)])
                except ValueError:  # of a class in C++
                    continue
            chosen = METHODS.get(path, [])
            for method, called in inspect.getmembers(value, inspect.isfunction):
                public = not method.startswith("_")
                if public and (chosen is None or method in chosen):
                    yield " ".join([f"{path}.{method}", *parameters(called)])


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
