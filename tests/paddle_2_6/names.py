"""This made hpcdist/fluid/compat/paddle2_names.txt: run by PaddlePaddle 2.6.2 on Python 3.10.

python names.py > paddle2_names.txt
"""

from __future__ import annotations

import importlib
import types

import paddle

WIDTH = 98
MODULES = """
paddle paddle.nn paddle.nn.functional paddle.nn.initializer paddle.nn.utils paddle.nn.quant
paddle.optimizer paddle.optimizer.lr paddle.io paddle.static paddle.static.nn paddle.static.amp
paddle.static.io paddle.metric paddle.regularizer paddle.framework paddle.utils paddle.base
paddle.linalg paddle.fft paddle.signal paddle.distributed paddle.distributed.fleet
paddle.distributed.fleet.dataset
paddle.distributed.fleet.utils paddle.device paddle.device.cuda paddle.jit paddle.amp
paddle.autograd paddle.incubate paddle.incubate.layers paddle.distribution paddle.sparse
paddle.vision paddle.text paddle.audio paddle.geometric paddle.tensor paddle.nn.layer paddle.hub
paddle.onnx paddle.profiler paddle.callbacks paddle.inference paddle.quantization paddle.sysconfig
paddle.version paddle.reader paddle.dataset
"""

# Modules whose functions are methods of an object, and not in __all__.
OF_AN_OBJECT = ("paddle.distributed.fleet", "paddle.distributed.fleet.dataset")


def names_of(module: types.ModuleType) -> list[str]:
    """Return the public names of a module, and its modules."""
    named = getattr(module, "__all__", None) or dir(module)
    if module.__name__ in OF_AN_OBJECT:
        named = [*named, *(name for name in dir(module) if callable(getattr(module, name)))]
    below = [
        name
        for name in dir(module)
        if getattr(getattr(module, name, None), "__name__", "") == f"{module.__name__}.{name}"
        and isinstance(getattr(module, name), types.ModuleType)
    ]
    return sorted({name for name in [*named, *below] if not name.startswith("_")})


def show(section: str, names: list[str]) -> None:
    """Print a section, in lines of at most `WIDTH` characters."""
    print(f"[{section}]")
    line = ""
    for name in names:
        if len(line) + len(name) > WIDTH:
            print(line.strip())
            line = ""
        line += f" {name}"
    print(line.strip())


WORDS = MODULES.split()
for module in WORDS:
    show(module, names_of(importlib.import_module(module)))
paddle.enable_static()
variable = paddle.static.data("x", [2, 3])
show("paddle.Tensor", [name for name in dir(variable) if not name.startswith("_")])
