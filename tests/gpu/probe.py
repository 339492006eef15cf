"""What this machine has for a GPU: versions, and what may be captured as a CUDA graph.

    python -m tests.gpu.probe

Prints one line for each; a line that says why is printed for what is not there.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from typing import Any

from tests.gpu.gpus import missing


def main() -> None:
    """Print all lines; without a GPU those that need none, and why the others are left out."""
    say("python", platform.python_version)
    for name in ("numpy", "cupy", "torch"):
        say(name, lambda name=name: importlib.import_module(name).__version__)
    why = missing()
    if why:
        print(f"left out: GPU, CUDA, NCCL, cupy.fuse, CUDA graphs ({why})")
        return
    import cupy

    runtime = cupy.cuda.runtime
    for k in range(runtime.getDeviceCount()):
        say(f"GPU {k}", lambda k=k: runtime.getDeviceProperties(k)["name"].decode())
    say("CUDA runtime", runtime.runtimeGetVersion)
    say("CUDA driver", runtime.driverGetVersion)
    say("NCCL", lambda: importlib.import_module("cupy.cuda.nccl").get_version())
    x = cupy.ones((64, 64), cupy.float32)
    out = cupy.empty_like(x)
    say("cupy.fuse", lambda: bool((cupy.fuse(doubled)(x) == 2).all()))
    say("graph of an element-wise kernel", lambda: captured(cupy, lambda: cupy.add(x, x, out)))
    say("graph of a product", lambda: captured(cupy, lambda: cupy.dot(x, x, out)))


def doubled(a: Any) -> Any:
    """Return twice an array: what is made one kernel; its name becomes the kernel's."""
    return a + a


def captured(cupy: Any, launch: Callable[[], Any]) -> str:
    """Capture a launch on a stream of its own, and replay it."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        launch()
        stream.synchronize()
        stream.begin_capture()
        try:
            launch()
        finally:
            graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    return "replayed"


def say(what: str, find: Callable[[], Any]) -> None:
    """Print a finding, or what went wrong with it."""
    try:
        found = find()
    except Exception as error:  # whatever it is: that is what the probe is for
        found = f"{type(error).__name__}: {error}"
    print(f"{what}: {found}", flush=True)


if __name__ == "__main__":
    main()
