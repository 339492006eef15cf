"""What tests of forged files share: a small net, its checkpoint, and a bound of their memory."""

from __future__ import annotations

import resource

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint
from hpcdist.checkpoint.fluid_files import encoded

MiB = 1 << 20


@pytest.fixture
def in_little_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 300 * MiB, f"{grown >> 10} MiB"


class Net:
    """A small net with state of a reader and of streams, in a scope of its own."""

    def __init__(self):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            x = fluid.data("x", [None, 3])
            hidden = fluid.layers.dropout(fluid.layers.fc(x, 4), 0.5)
            self.loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
            fluid.optimizer.Adam(0.1).minimize(self.loss)
        self.exe = fluid.Executor()
        self.exe.run(startup, scope=self.scope)
        self.reader = checkpoint.resumable(lambda: iter(range(9)))

    def step(self):
        feed = {"x": np.ones((2, 3), np.float32)}
        self.exe.run(self.main, feed, [self.loss], scope=self.scope)

    def save(self, root, step=1, **how):
        how = {"scope": self.scope, "reader": self.reader, **how}
        return checkpoint.save(self.exe, root, step, self.main, **how)

    def restore(self, path):
        return checkpoint.restore(self.exe, path, self.main, scope=self.scope, reader=self.reader)


@pytest.fixture(scope="module")
def net():
    made = Net()
    made.step()
    next(iter(made.reader()))
    return made


@pytest.fixture
def saved(net, tmp_path):
    return net.save(tmp_path / "saved")


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"".join(bytes(p) for p in encoded(np.full((3, 4), 7, np.float32))))
    return path
