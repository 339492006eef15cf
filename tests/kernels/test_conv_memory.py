"""The scratch memory of convolutions."""

import threading

import numpy as np

from hpcdist.graph.registry import lookup
from hpcdist.ops.scratch import scratch

RNG = np.random.default_rng(0)


# -- scratch memory --------------------------------------------------------------------------------


def bound_conv(x, w, y):
    """Return the call of a padded 3x3 conv2d that writes y."""
    attrs = {**lookup("conv2d").attrs, "paddings": [1, 1]}
    return lookup("conv2d").bind(np, x, w, y, **attrs)


def test_scratch_memory_does_not_grow_with_the_batch():
    held = {}
    for images in (2, 64):
        x, w = RNG.normal(size=(images, 8, 24, 24)), RNG.normal(size=(8, 8, 3, 3))
        bound_conv(x, w, np.empty_like(x))()
        held[images] = scratch("columns", [0], np.uint8).base.nbytes
    assert held[64] == held[2]


def test_threads_have_scratch_memory_of_their_own():
    """One bound call may move between threads; calls of two threads may run at once."""
    sizes, results, errors = [(3, 20), (8, 33), (5, 27), (4, 40)], {}, []
    jobs = []
    for i, (channels, extent) in enumerate(sizes):
        x = RNG.normal(size=(4, channels, extent, extent))
        w, y = RNG.normal(size=(channels, channels, 3, 3)), np.empty_like(x)
        call = bound_conv(x, w, y)
        call()
        results[i] = y.copy()
        jobs.append((i, call, y))

    def work(i, call, y):
        for _ in range(30):
            y.fill(0)
            call()
            if not np.array_equal(y, results[i]):
                errors.append(i)

    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
