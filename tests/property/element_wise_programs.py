"""Programs of random operators, drawn by hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hpcdist.graph import Program

WIDTH = 4

STATE = {"w": (WIDTH, WIDTH), "b": (WIDTH,)}

UNARY = ("relu", "tanh", "square", "sigmoid", "softsign", "softmax", "assign", "scale", "clip")

BINARY = ("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_max")


class Builder:
    """Appends random operators to a Program; its values are batches, and two persistables."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.program = Program()
        self.block = self.program.global_block()
        for name in ("x", "y"):
            self.block.create_var(name, shape=(-1, WIDTH), is_data=True)
        for name, shape in STATE.items():
            self.block.create_parameter(name, shape=shape)

    @property
    def values(self) -> list[str]:
        """Names to read from: everything that holds numbers."""
        return [v.name for v in self.block.vars.values() if 0 not in v.shape]

    def one_of(self, choices):
        return self.draw(st.sampled_from(list(choices)))

    def shape(self, name):
        return self.block.vars[name].shape

    def like(self, name):
        """Return names of the same shape."""
        return [n for n in self.values if self.shape(n) == self.shape(name)]

    def ranked(self, rank):
        return [n for n in self.values if len(self.shape(n)) == rank]

    def target(self, like=None):
        """Return a fresh name, or one written before: of the shape of ``like``."""
        fresh = f"t{len(self.block.ops)}"
        return self.one_of(self.like(like)) if like and self.draw(st.booleans()) else fresh

    def append(self) -> None:
        """Append one operator of a random kind."""
        kinds = (self.unary, self.binary, self.sum, self.row, self.concat, self.split)
        kinds += (self.reshape, self.transpose, self.mul, self.matmul, self.mean, self.shift)
        kinds += (self.unary, self.reshape)
        self.one_of(kinds)()

    def unary(self):
        x = self.one_of(self.values)
        attrs = {"scale": {"scale": 0.5, "bias": 0.1}, "clip": {"min": -0.5, "max": 0.5}}
        type = self.one_of(UNARY)
        self.block.append_op(type, {"X": x}, {"Out": self.target(x)}, attrs.get(type))

    def binary(self):
        x = self.one_of(self.values)
        y = self.one_of(self.like(x))
        self.block.append_op(self.one_of(BINARY), {"X": x, "Y": y}, {"Out": self.target(x)})

    def row(self):
        """Broadcast the bias over rows."""
        x = self.one_of(n for n in self.values if self.shape(n)[-1] == WIDTH)
        self.block.append_op(self.one_of(BINARY), {"X": x, "Y": "b"}, {"Out": self.target(x)})

    def sum(self):
        x = self.one_of(self.values)
        rest = self.draw(st.lists(st.sampled_from(self.like(x)), max_size=3))
        self.block.append_op("sum", {"X": [x, *rest]}, {"Out": self.target(x)})

    def concat(self):
        batches = [n for n in self.ranked(2) if self.shape(n)[0] == -1 and self.shape(n)[1] < 9]
        xs = self.draw(st.lists(st.sampled_from(batches), min_size=1, max_size=3))
        self.block.append_op("concat", {"X": xs}, {"Out": self.target()}, {"axis": 1})

    def split(self):
        x = self.one_of(n for n in self.ranked(2) if self.shape(n)[1] % 2 == 0)
        outs = [f"{self.target()}.{i}" for i in range(2)]
        self.block.append_op("split", {"X": x}, {"Out": outs}, {"num": 2, "axis": 1})

    def reshape(self):
        even = [n for n in self.values if self.shape(n)[-1] % 2 == 0 and len(self.shape(n)) < 4]
        x = self.one_of(even)
        *front, last = self.shape(x)
        shapes = [[*(0 for _ in front), 2, last // 2]]
        if len(front) == 2:
            shapes = [[0, front[1] * last]]
        attrs = {"shape": self.one_of(shapes)}
        name = self.target()
        self.block.append_op("reshape2", {"X": x}, {"Out": name, "XShape": f"{name}.was"}, attrs)

    def transpose(self):
        x = self.one_of(n for n in self.ranked(2) + self.ranked(3) if self.shape(n)[-1] > 1)
        rank = len(self.shape(x))
        axis = [*range(rank - 2), rank - 1, rank - 2]
        if rank == 2 and self.shape(x)[0] == -1:
            return  # a batch stays in front
        name = self.target()
        outs = {"Out": name, "XShape": f"{name}.was"}
        self.block.append_op("transpose2", {"X": x}, outs, {"axis": axis})

    def mul(self):
        x = self.one_of(n for n in self.ranked(2) if self.shape(n)[1] == WIDTH)
        self.block.append_op("mul", {"X": x, "Y": "w"}, {"Out": self.target()})

    def matmul(self):
        x = self.one_of(n for n in self.ranked(2) if self.shape(n)[1] == WIDTH)
        attrs = {"transpose_Y": self.draw(st.booleans()), "alpha": 0.5}
        self.block.append_op("matmul", {"X": x, "Y": "w"}, {"Out": self.target()}, attrs)

    def mean(self):
        x = self.one_of(self.ranked(2))
        attrs = {"dim": [1], "keep_dim": True}
        self.block.append_op("reduce_mean", {"X": x}, {"Out": self.target()}, attrs)

    def shift(self):
        """Change a persistable in place."""
        self.block.append_op("scale", {"X": "w"}, {"Out": "w"}, {"scale": 0.75})


def numbers(shape, seed):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def assert_bits(got, wanted, name):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
    assert got.tobytes() == wanted.tobytes(), f"{name}: {got} is not {wanted}"
