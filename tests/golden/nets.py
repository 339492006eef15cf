"""The nets and optimizers of the golden configurations, built with hpcdist's own layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcdist import layers, optimizer
from hpcdist.clip import GradientClipByGlobalNorm, GradientClipByValue, set_gradient_clip
from hpcdist.graph.names import guard
from hpcdist.graph.program import Program, program_guard
from hpcdist.graph.variable import Variable
from hpcdist.regularizer import L2Decay

Build = Callable[[], Variable]
Optimize = Callable[[Variable], Any]


def _cost(prediction: Variable, y: Variable | None = None) -> Variable:
    y = layers.data("y", [1]) if y is None else y
    return layers.mean(layers.square_error_cost(prediction, y))


def linreg() -> Variable:
    """x(13) -> 1."""
    x, y = layers.data("x", [13]), layers.data("y", [1])
    return _cost(layers.fc(x, 1), y)


def mlp() -> Variable:
    """x(13) -> 10 relu -> 1."""
    x, y = layers.data("x", [13]), layers.data("y", [1])
    return _cost(layers.fc(layers.fc(x, 10, act="relu"), 1), y)


def bigfc() -> Variable:
    """x(1000) -> 1000, with names of the user's."""
    x = layers.data("x", [1000])
    return _cost(layers.fc(x, 1000, param_attr="fc_w", bias_attr="fc_b"))


def bigfc2() -> Variable:
    """x(1000) -> 1000 relu -> 300 relu -> 1."""
    hidden = layers.data("x", [1000])
    for width in (1000, 300):
        hidden = layers.fc(hidden, width, act="relu")
    return _cost(layers.fc(hidden, 1))


def emb(vocabulary: int, lookups: int = 1, sparse: bool = True, distributed: bool = False) -> Build:
    """Tables of width 8, shared by ``lookups`` inputs, -> 1."""

    def build() -> Variable:
        y = layers.data("y", [1])
        rows = []
        for k in range(lookups):
            ids = layers.data(f"ids{k}", [1], dtype="int64")
            size = [vocabulary, 8]
            rows.append(layers.embedding(ids, size, sparse, distributed, param_attr="table"))
        return _cost(layers.fc(rows[0] if lookups == 1 else layers.concat(rows, axis=1), 1), y)

    return build


def emb_v2() -> Variable:
    """As emb(10000), by `fluid.embedding` and a reshape."""
    from hpcdist.layers.embedding import embedding_v2

    y, ids = layers.data("y", [1]), layers.data("ids0", [1], dtype="int64")
    rows = embedding_v2(ids, [10000, 8], is_sparse=True, param_attr="table")
    return _cost(layers.fc(layers.reshape(rows, [-1, 8]), 1), y)


def by(make: Callable[..., optimizer.Optimizer], rate: Any = 0.01, **facts: Any) -> Optimize:
    """Minimize with an optimizer; a schedule is given as a function that builds it."""
    return lambda loss: make(rate() if callable(rate) else rate, **facts).minimize(loss)


def clipped(clip: Any) -> Optimize:
    """Minimize by SGD after `set_gradient_clip`."""

    def optimize(loss: Variable) -> Any:
        set_gradient_clip(clip)
        return optimizer.SGD(0.01).minimize(loss)

    return optimize


SGD, L2 = by(optimizer.SGD), L2Decay(0.1)
MOMENTUM = by(optimizer.Momentum, momentum=0.9)


@dataclass(frozen=True)
class Case:
    """A net and how it is optimized."""

    net: Build
    optimize: Optimize = SGD

    def build(self, random_seed: int = 0) -> tuple[Program, Program, Variable]:
        """Return main program, startup program and loss."""
        main, startup = Program(), Program()
        main.random_seed = startup.random_seed = random_seed
        with guard(), program_guard(main, startup):
            loss = self.net()
            self.optimize(loss)
        return main, startup, loss


CASES = {
    "linreg_sgd_sync": Case(linreg),
    "mlp_sgd_sync": Case(mlp),
    "mlp_momentum_sync": Case(mlp, MOMENTUM),
    "mlp_adam_sync": Case(mlp, by(optimizer.Adam)),
    "mlp_adagrad_sync": Case(mlp, by(optimizer.Adagrad)),
    "mlp_adamax_sync": Case(mlp, by(optimizer.Adamax)),
    "mlp_ftrl_sync": Case(mlp, by(optimizer.Ftrl)),
    "mlp_larsmomentum_sync": Case(mlp, by(optimizer.LarsMomentum, momentum=0.9)),
    "mlp_adadelta_unsupported": Case(mlp, by(optimizer.Adadelta)),
    "mlp_lamb_unsupported": Case(mlp, by(optimizer.Lamb)),
    "mlp_sgd_lr_exponential": Case(
        mlp, by(optimizer.SGD, lambda: layers.exponential_decay(0.1, 100, 0.9, staircase=True))
    ),
    "mlp_adam_lr_noam": Case(mlp, by(optimizer.Adam, lambda: layers.noam_decay(512, 4000))),
    "mlp_sgd_l2": Case(mlp, by(optimizer.SGD, regularization=L2)),
    "mlp_sgd_clip_globalnorm_set_gradient_clip": Case(mlp, clipped(GradientClipByGlobalNorm(1.0))),
    "mlp_sgd_clip_value_set_gradient_clip": Case(mlp, clipped(GradientClipByValue(1.0))),
    "mlp_sgd_clip_globalnorm_grad_clip_argument": Case(
        mlp, by(optimizer.SGD, grad_clip=GradientClipByGlobalNorm(1.0))
    ),
    "bigfc_momentum_sliced_2ps": Case(bigfc, MOMENTUM),
    "bigfc_sgd_l2_lrdecay_sliced_2ps": Case(
        bigfc,
        by(optimizer.SGD, lambda: layers.exponential_decay(0.1, 100, 0.9), regularization=L2),
    ),
    "bigfc2_sgd_unsliced_3ps_seed0": Case(bigfc2),
    "bigfc2_sgd_unsliced_3ps_seed1": Case(bigfc2),
    "bigfc_sgd_unsliced_2ps": Case(bigfc),
    "emb_sparse_small_sync": Case(emb(50)),
    "emb_dense_small_sync": Case(emb(50, sparse=False)),
    "emb_sparse_sliced_sync": Case(emb(10000)),
    "emb_sparse_l2_sync": Case(emb(10000), by(optimizer.SGD, regularization=L2)),
    "emb_v2_sparse_sliced_sync": Case(emb_v2),
    "emb_distributed_sync": Case(emb(10000, distributed=True)),
    "emb_distributed_adam_sync": Case(emb(10000, distributed=True), by(optimizer.Adam)),
    "emb_distributed_repaired_sgd_sync": Case(emb(10000, lookups=2, distributed=True)),
}
