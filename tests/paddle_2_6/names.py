"""This made hpcdist/fluid/compat/paddle2_names.txt: run by PaddlePaddle 2.6.2 on Python 3.10.

python names.py > paddle2_names.txt
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
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


def names_of(module: types.ModuleType) -> list[str]:
    """Return the names of a module, private ones too, and its modules."""
    return sorted(
        name for name in {*dir(module), *getattr(module, "__all__", ())} if name[:2] != "__"
    )


def modules_of_paddle() -> list[str]:
    """Return the names of all modules of the wheel, in order."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        walk = pkgutil.walk_packages(paddle.__path__, "paddle.", onerror=lambda name: None)
        return sorted(module.name for module in walk if "__main__" not in module.name)


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
show("modules", modules_of_paddle())
