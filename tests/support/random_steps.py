"""Steps of random Programs: each appends one or a few random operators to the default Program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from hpcdist.graph import Variable

WORDS, CLASSES, MAXLEN = 11, 4, 6
SMOOTH = ("tanh", "sigmoid", "softsign", "softplus", "relu", "leaky_relu", "elu", "swish", "gelu")
SMOOTH += ("abs", "square", "sin", "cos", "hard_sigmoid", "relu6", "logsigmoid")
JUMPS = ("floor", "ceil", "round", "sign")  # of data only: else the last bit of a sum decides


@dataclass(frozen=True)
class Value:
    """A Variable that a Program may go on from, and what it is."""

    var: Variable
    learned: bool  # whether it depends on a parameter
    kind: str = "rows"  # or "sequences", "regrouped" ones, a "total" over the batch, or "other"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.var.shape


class Builder:
    """Appends random operators to the default Program; values to go on from are in ``pool``."""

    def __init__(self, rng: np.random.Generator, wild: bool) -> None:
        self.rng, self.wild = rng, wild
        self.pool: list[Value] = []

    def int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[self.int(0, len(choices) - 1)]

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """Return a value that fits, rather a late one; IndexError if there is none."""
        found = [value for value in self.pool if fits(value)]
        return found[max(self.int(0, len(found) - 1), self.int(0, len(found) - 1))]

    def floats(self, kinds: Sequence[str] = ("rows",), **facts: Any) -> Value:
        """Pick a value of floats; of these kinds in plain Programs, any in wild ones."""
        rank = facts.get("rank")
        return self.pick(
            lambda v: (
                v.var.dtype == "float32"
                and (v.kind in kinds or self.wild)
                and rank in (None, len(v.shape))
                and -1 not in v.shape[1:]
                and (not facts.get("data") or not v.learned)
            )
        )

    def axis(self, rank: int) -> int:
        """Return a dimension; that of the rows in wild Programs only."""
        axis = self.int(0 if self.wild else 1, rank - 1)
        return axis - rank if self.int(0, 2) == 0 else axis

    def add(
        self, var: Variable, *made_of: Value, learned: bool = False, kind: str | None = None
    ) -> None:
        """Put a result into the pool. Of what kind it is guides the choices only."""
        kinds = [value.kind for value in made_of]
        grouped = "regrouped" if "regrouped" in kinds else "sequences"
        kind = kind or (grouped if var.lod_level else "rows")
        if var.shape[:1] != (-1,):
            kind = "total" if set(kinds) - {"other"} else "other"
        self.pool.append(Value(var, learned or any(v.learned for v in made_of), kind))


# -- steps: each appends one or a few operators ----------------------------------------------------
def activation(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    b.add(getattr(layers, b.of(SMOOTH))(x.var), x)


def jump(b: Builder) -> None:
    x = b.floats(("rows", "sequences"), data=True)
    b.add(getattr(layers, b.of(JUMPS))(x.var), x)


def positive(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    safe = layers.scale(layers.sigmoid(x.var), 1.0, 0.2)
    function = b.of([layers.log, layers.sqrt, layers.rsqrt, layers.reciprocal])
    b.add(function(safe) if b.int(0, 1) else layers.pow(safe, b.of([0.5, 1.5])), x)


def scale(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    after = bool(b.int(0, 1))
    b.add(layers.scale(x.var, b.of([-0.5, 0.7]), b.of([0.0, 0.3]), bias_after_scale=after), x)


def fc(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    flat = b.int(1, max(len(x.shape) - 1, 1))
    act = b.of([None, "tanh", "sigmoid", "softmax"])
    b.add(layers.fc(x.var, b.int(1, 4), num_flatten_dims=flat, act=act), x, learned=True)


def matmul(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    turned = b.int(0, 1)
    width = x.shape[-1]
    w = layers.create_parameter([3, width] if turned else [width, 3], "float32")
    b.add(
        layers.matmul(x.var, w, transpose_y=bool(turned), alpha=b.of([1.0, 0.5])), x, learned=True
    )


def batches_of_matrices(b: Builder) -> None:
    x = b.floats(rank=3)
    y = b.pick(lambda v: v.var.dtype == "float32" and v.shape == x.shape)
    b.add(layers.matmul(x.var, y.var, transpose_y=True), x, y)


def embedding(b: Builder) -> None:
    ids = b.pick(lambda v: v.var.dtype == "int64" and v.shape[1:] == (1,))
    sparse = bool(b.int(0, 1))
    b.add(layers.embedding(ids.var, [WORDS, b.int(1, 4)], is_sparse=sparse), ids, learned=True)


def binary(b: Builder) -> None:
    name = b.of(["add", "sub", "mul", "max", "min"])
    function = getattr(layers, f"elementwise_{name}")
    x = b.floats(("rows", "sequences"))
    if b.wild:
        y = b.floats()
    elif b.int(0, 3) == 0:
        w = layers.create_parameter(list(x.shape[1:]) or [1], "float32")
        b.add(function(x.var, w), x, learned=True)
        return
    else:
        near = [v for v in b.pool if v.kind == x.kind and v.var.dtype == "float32"]
        alike = [v for v in near if v.shape == x.shape and (v.kind == "rows" or v is x)]
        column = [v for v in near if v.shape == (-1,) and v.kind == "rows"]
        y = b.of(alike + column)
        if y.shape != x.shape:
            b.add(function(x.var, y.var, axis=0), x, y)
            return
    b.add(function(x.var, y.var), x, y)


def quotient(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    b.add(layers.elementwise_div(x.var, layers.scale(layers.sigmoid(x.var), 1.0, 0.5)), x)


def compare(b: Builder) -> None:
    x = b.floats(("rows", "sequences"), data=True)
    found = b.of([layers.less_than, layers.greater_equal])(x.var, layers.scale(x.var, -1.0))
    if b.int(0, 1):
        found = layers.logical_not(found)
    b.add(layers.cast(found, "float32"), x)


def softmax(b: Builder) -> None:
    x = b.floats()
    b.add(layers.softmax(x.var, axis=b.axis(len(x.shape))), x)


def norms(b: Builder) -> None:
    x = b.floats()
    if b.int(0, 1):
        b.add(layers.l2_normalize(layers.scale(x.var, 1.0, 3.0), axis=b.axis(len(x.shape))), x)
    else:
        begin = b.int(1, len(x.shape) - 1)
        b.add(layers.layer_norm(x.var, begin_norm_axis=begin, epsilon=0.1), x, learned=True)


def reduce(b: Builder) -> None:
    x = b.floats()
    function = b.of([layers.reduce_mean, layers.reduce_sum, layers.reduce_max, layers.reduce_min])
    if b.wild and b.int(0, 3) == 0:
        function = layers.reduce_prod
    b.add(function(x.var, dim=[b.axis(len(x.shape))], keep_dim=bool(b.int(0, 1))), x)


def reshape(b: Builder) -> None:
    x = b.floats()
    size = int(np.prod(x.shape[1:]))
    cut = b.of([d for d in range(1, size + 1) if size % d == 0])
    if b.wild:
        b.add(layers.reshape(x.var, b.of([[-1, cut], [-1, cut * 2], [cut, -1], [1, -1]])), x)
    else:
        b.add(layers.reshape(x.var, b.of([[0, cut, size // cut], [0, -1], [-1, size]])), x)


def there_and_back(b: Builder) -> None:
    x = b.floats(rank=3)
    rows = layers.reshape(x.var, [-1, x.shape[-1]])
    rows = layers.fc(rows, 3, act="tanh")
    b.add(layers.reshape(rows, [-1, x.shape[1], 3]), x, learned=True)


def order(b: Builder) -> None:
    x = b.floats(("rows", "sequences") if b.wild else ("rows",))
    rank = len(x.shape)
    kept = [0, *(1 + b.rng.permutation(rank - 1))]
    moved = list(b.rng.permutation(rank)) if b.wild else kept
    choice = b.int(0, 6)
    if choice == 0:
        out = layers.transpose(x.var, [int(i) for i in moved])
    elif choice == 1:
        out = layers.reverse(x.var, [b.axis(rank)])
    elif choice == 2:
        out = layers.unsqueeze(x.var, [b.int(0 if b.wild else 1, rank)])
    elif choice == 3:
        out = layers.flatten(x.var, axis=b.int(0, rank) if b.wild else 1)
    elif choice == 4:
        times = [b.int(1, 2) if b.wild else 1, *(b.int(1, 2) for _ in range(rank - 1))]
        out = layers.expand(x.var, times)
    elif choice == 5:
        axis = b.axis(rank)
        out = layers.slice(x.var, [axis % rank], [0], [1])
    else:
        out = layers.split(x.var, 1, dim=b.axis(rank))[0]
    b.add(out, x)


def join(b: Builder) -> None:
    x = b.floats()
    y = b.pick(lambda v: v.shape == x.shape and v.var.dtype == x.var.dtype and v.kind == x.kind)
    if b.int(0, 1):
        b.add(layers.concat([x.var, y.var], axis=b.axis(len(x.shape))), x, y)
    else:
        b.add(layers.stack([x.var, y.var], axis=b.int(0 if b.wild else 1, len(x.shape))), x, y)


def choose(b: Builder) -> None:
    x = b.floats(data=True)
    if b.int(0, 1):
        best = layers.argmax(x.var, axis=b.axis(len(x.shape)))
        b.add(layers.cast(best, "float32"), x)
    else:
        b.add(layers.topk(x.var, 1)[0], x)


def picked(b: Builder) -> None:
    ids = b.pick(lambda v: v.var.dtype == "int64" and v.kind == "rows")
    table = layers.create_parameter([WORDS, 3], "float32")
    if b.wild and b.int(0, 1):
        x = b.floats()
        b.add(layers.gather(x.var, layers.zeros([2], "int64")), x)
    else:
        b.add(layers.gather(table, ids.var), ids, learned=True)


def one_hot(b: Builder) -> None:
    ids = b.pick(lambda v: v.var.dtype == "int64" and v.shape == (-1, 1))
    hot = layers.one_hot(ids.var, WORDS)
    b.add(layers.label_smooth(hot, epsilon=0.1) if b.int(0, 1) else hot, ids)


def constants(b: Builder) -> None:
    x = b.floats()
    wide = layers.fill_constant_batch_size_like(x.var, [-1, 3], "float32", 0.5)
    b.add(
        b.of([lambda: wide, lambda: layers.zeros_like(x.var), lambda: layers.ones_like(x.var)])(), x
    )


def image(b: Builder) -> None:
    x = b.floats(rank=4)
    choice = b.int(0, 4)
    if choice == 0:
        out = layers.conv2d(x.var, 2, 2, padding=1, act="tanh")
    elif choice == 1:
        out = layers.conv2d_transpose(x.var, 2, filter_size=2)
    elif choice == 2:
        kind = b.of(["max", "avg"])
        out = layers.pool2d(x.var, 2, kind, pool_padding=1)
    elif choice == 3:
        out = layers.lrn(x.var)
    else:
        out = layers.batch_norm(x.var, use_global_stats=True)
    b.add(out, x, learned=choice in (0, 1, 4))


def noise(b: Builder) -> None:
    seeded = fluid.default_main_program().random_seed  # then masks of sequences are refused
    x = b.floats(("rows",) if seeded else ("rows", "sequences"))
    if b.int(0, 2):
        how = b.of(["upscale_in_train", "downgrade_in_infer"])
        b.add(layers.dropout(x.var, b.of([0.2, 0.6]), dropout_implementation=how), x)
    else:
        like = layers.gaussian_random_batch_size_like(x.var, [-1, *x.shape[1:]], std=0.3)
        b.add(like, x, kind="rows")


def normed(b: Builder) -> None:
    x = b.pick(lambda v: v.var.dtype == "float32" and len(v.shape) in (2, 4) and v.kind == "rows")
    b.add(layers.batch_norm(x.var, epsilon=0.3), x, learned=True)


def cost(b: Builder) -> None:
    x = b.floats(rank=2)
    label = b.pick(lambda v: v.var.name == "label").var
    target = layers.scale(x.var, 0.5, 0.1)
    target.stop_gradient = True
    choice = b.int(0, 6)
    if choice == 0:
        out = layers.cross_entropy(layers.fc(x.var, CLASSES, act="softmax"), label)
    elif choice == 1:
        out = layers.softmax_with_cross_entropy(layers.fc(x.var, CLASSES), label)
    elif choice == 2:
        out = layers.square_error_cost(x.var, target)
    elif choice == 3:
        out = layers.huber_loss(x.var, target, 0.5)
    elif choice == 4:
        out = layers.smooth_l1(x.var, target)
    elif choice == 5:
        normalize = b.wild and bool(b.int(0, 1))
        half = layers.sigmoid(target)
        out = layers.sigmoid_cross_entropy_with_logits(x.var, half, normalize=normalize)
    else:
        out = layers.cos_sim(layers.scale(x.var, 1.0, 3.0), layers.scale(x.var, 0.5, 2.0))
    b.add(out, x, learned=choice in (0, 1))


def sequence(b: Builder) -> None:
    kinds = ("sequences", "regrouped")
    x = b.pick(lambda v: v.kind in kinds and v.var.dtype == "float32")
    choice = b.int(0, 8)
    learned = False
    if choice == 0:
        out, learned = layers.sequence_conv(x.var, 2, 3, act="tanh"), True
    elif choice == 1:
        out = layers.elementwise_mul(x.var, layers.sequence_softmax(layers.fc(x.var, 1)), axis=0)
        learned = True
    elif choice == 2:
        out = layers.sequence_reverse(x.var)
    elif choice == 3:
        out = layers.sequence_concat([x.var, x.var])
    elif choice == 4:
        rows = layers.sequence_pool(x.var, "sum")
        out = layers.sequence_expand_as(rows, x.var)
    elif choice == 5:
        pad = layers.fill_constant([1], "float32", 0.25)
        out = layers.sequence_pad(x.var, pad, maxlen=2 * MAXLEN)[0]
    elif choice == 6:
        pad = layers.fill_constant([1], "float32", 0.25)
        padded, length = layers.sequence_pad(x.var, pad, maxlen=b.of([None, 2 * MAXLEN]))
        out = layers.sequence_unpad(layers.tanh(padded), length)
    else:
        kind = b.of(["sum", "average", "sqrt", "max", "first", "last"])
        out = layers.sequence_pool(x.var, kind)
    # How many rows these have is not known from what is fed, so there is no mean over them.
    b.add(out, x, learned=learned, kind="regrouped" if choice in (3, 6) else None)


def total(b: Builder) -> None:
    x = b.floats(("rows", "sequences"))
    function = b.of([layers.reduce_mean, layers.reduce_sum, layers.reduce_max, layers.reduce_min])
    b.add(function(x.var, dim=b.of([None, [0]])), x)


STEPS = [activation, jump, positive, scale, fc, matmul, batches_of_matrices, embedding, binary]
STEPS += [quotient, compare, softmax, norms, reduce, reshape, there_and_back, order, join, choose]
STEPS += [noise, normed, picked, one_hot, constants, image, cost, sequence, sequence, fc, embedding]
