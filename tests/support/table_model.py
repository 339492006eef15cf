"""A table of rows as a dict, one row at a time, in numpy: `SparseTable` must equal it in bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcdist.ps.table import RowInitializer, RowOptimizer

F = np.float32
MASK = 2**64 - 1


def mixed(h: int) -> int:
    """MurmurHash3's finalizer after a step of 2^64 / golden ratio, by Python's integers."""
    h = (h + 0x9E3779B97F4A7C15) & MASK
    h = ((h ^ (h >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    h = ((h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53) & MASK
    return h ^ (h >> 33)


def scrambled(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def random_bits(seed: int, row_id: int, dim: int) -> np.ndarray:
    """Return uint32 [dim]: a function of its arguments."""
    return bits_of_key(mixed(mixed(row_id & MASK) ^ mixed(seed & MASK)), dim)


def bits_of_key(key: int, dim: int) -> np.ndarray:
    steps = np.arange(dim, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(key & 0xFFFFFFFF)
    return scrambled(scrambled(steps) ^ np.uint32(key >> 32))


def uniform_row(seed: int, row_id: int, dim: int, low: float, high: float) -> np.ndarray:
    part = (random_bits(seed, row_id, dim) >> np.uint32(8)).astype(F) * F(2**-24)
    return F(low) + part * F(high - low)


def in_order(values: np.ndarray) -> np.float32:
    """Return the sum of values, one after the other."""
    total = F(0)
    for value in values:
        total += value
    return total


class Model:
    """The same interface as far as it is tested; uniform initial values only."""

    def __init__(
        self,
        dim: int,
        optimizer: RowOptimizer,
        start: RowInitializer,
        seed: int,
        stored: Callable[[np.ndarray, int, int], np.ndarray] = lambda row, row_id, step: row,
    ) -> None:
        """``stored``: what is kept of a row [1 + number of states, dim] of an id in a step."""
        assert start.kind == "uniform"
        self.stored, self.step = stored, 0
        self.dim, self.optimizer, self.start, self.seed = dim, optimizer, start, seed
        self.rows: dict[int, np.ndarray] = {}  # id -> [1 + number of states, dim]
        self.powers = [F(optimizer.beta1), F(optimizer.beta2)]
        # Of rows that are narrow in a step whether they widen at its end; None: none are ever.
        self.turns: dict[int, bool] | None = None

    def initial(self, row_id: int) -> np.ndarray:
        found = self._first(row_id)
        if self.turns is not None:
            found[0, 1:] = 0
        return self.stored(found, row_id, 0)

    def _first(self, row_id: int) -> np.ndarray:
        # One number for a row stands in a column of its width here.
        found = np.zeros((1 + len(self.optimizer.state_names), self.dim), F)
        found[0] = uniform_row(self.seed, row_id, self.dim, self.start.a, self.start.b)
        if self.optimizer.kind == "adagrad":
            found[1] = self.optimizer.initial_moment
        return found

    def pull(self, ids: np.ndarray, create: bool = True) -> np.ndarray:
        out = np.empty((len(ids), self.dim), F)
        for i, row_id in enumerate(ids.tolist()):
            row = self.rows.get(row_id)
            if row is None:
                row = self.initial(row_id)
                if create:
                    self.rows[row_id] = row
            out[i] = row[0]
        return out

    def push(self, ids: np.ndarray, grads: np.ndarray, rate: float, scale: float = 1.0) -> None:
        merged: dict[int, np.ndarray] = {}
        for row_id, g in zip(ids.tolist(), grads):
            merged[row_id] = merged[row_id] + g if row_id in merged else g
        self.pull(ids)
        self.step += 1
        self.before = self.powers
        self.powers = [
            self.powers[0] * F(self.optimizer.beta1),
            self.powers[1] * F(self.optimizer.beta2),
        ]
        for row_id, g in merged.items():
            row = self.rows[row_id]
            if row_id in (self.turns or {}):
                self._move_as_asked(
                    row, np.r_[g[:1] * F(scale), np.zeros(self.dim - 1, F)], F(rate)
                )
                first = self._first(row_id)
                first[0] *= self.turns[row_id]
                columns = slice(1 if self.optimizer.row_wise else None)  # one number stays
                row[columns, 1:] = first[columns, 1:]
            else:
                self._move_as_asked(row, g * F(scale), F(rate))
            self.rows[row_id] = self.stored(self.rows[row_id], row_id, self.step)

    def _move_as_asked(self, row: np.ndarray, g: np.ndarray, lr: np.float32) -> None:
        o = self.optimizer
        row[0] = row[0] - row[0] * (F(o.decoupled_decay) + lr * F(o.rate_decay))
        norm = np.sqrt(in_order(g * g))
        if o.clip_norm and norm > F(o.clip_norm):
            g = g * F(o.clip_norm) / norm
        if o.l1_decay or o.l2_decay:
            g = g + F(o.l2_decay) * row[0] + F(o.l1_decay) * np.sign(row[0])
        self._move(row, g, lr)
        if o.weight_bounds:
            row[0] = np.clip(row[0], *map(F, o.weight_bounds))

    def _move(self, row: np.ndarray, g: np.ndarray, lr: np.float32) -> None:
        o, p = self.optimizer, row[0]
        if o.kind == "sgd":
            row[0] = p - lr * g
        elif o.kind == "momentum":
            row[1] = row[1] * F(o.mu) + g
            row[0] = p - (g + row[1] * F(o.mu)) * lr if o.use_nesterov else p - lr * row[1]
        elif o.row_wise:
            row[1] += in_order(g * g) / F(self.dim)
            row[0] = p - lr * g / (np.sqrt(row[1]) + F(o.epsilon))
        elif o.kind == "adagrad":
            row[1] += g * g
            row[0] = p - lr * g / (np.sqrt(row[1]) + F(o.epsilon))
        elif o.kind == "adam":
            rate = lr * (np.sqrt(F(1) - self.powers[1]) / (F(1) - self.powers[0]))
            row[1] = F(o.beta1) * row[1] + (F(1) - F(o.beta1)) * g
            row[2] = F(o.beta2) * row[2] + (F(1) - F(o.beta2)) * g * g
            row[0] = p - rate * (row[1] / (np.sqrt(row[2]) + F(o.epsilon)))
        elif o.kind == "adamax":
            row[1] = F(o.beta1) * row[1] + (F(1) - F(o.beta1)) * g
            row[2] = np.maximum(np.abs(g), F(o.beta2) * row[2] + F(o.epsilon))
            row[0] = p - lr / (F(1) - self.before[0]) * (row[1] / row[2])
        elif o.kind == "rmsprop":
            row[2] = F(o.decay) * row[2] + (F(1) - F(o.decay)) * g * g
            below = row[2]
            if o.centered:
                row[3] = F(o.decay) * row[3] + (F(1) - F(o.decay)) * g
                below = row[2] - row[3] * row[3]
            row[1] = F(o.momentum) * row[1] + lr * g / np.sqrt(below + F(o.epsilon))
            row[0] = p - row[1]
        elif o.kind == "lamb":
            row[1] = F(o.beta1) * row[1] + (F(1) - F(o.beta1)) * g
            row[2] = F(o.beta2) * row[2] + (F(1) - F(o.beta2)) * g * g
            step = row[1] / (np.sqrt(row[2]) + F(o.epsilon)) + F(o.weight_decay) * p
            norms = np.sqrt(in_order(p * p)), np.sqrt(in_order(step * step))
            if min(norms) > 0:
                lr = lr * norms[0] / norms[1]
            row[0] = p - lr * step
        else:
            m = row[1] + g * g
            if o.lr_power == -0.5:
                old_root, root = np.sqrt(row[1]), np.sqrt(m)
            else:
                old_root, root = row[1] ** F(-o.lr_power), m ** F(-o.lr_power)
            z = row[2] + (g - (root - old_root) / lr * p)
            shrunk = (F(o.l1) * np.sign(z) - z) / (root / lr + F(2) * F(o.l2))
            row[0], row[1], row[2] = np.where(np.abs(z) > F(o.l1), shrunk, F(0)), m, z
