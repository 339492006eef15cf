"""Averages of parameters over steps, and the Lookahead optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.optimizer.base import Optimizer, ParamGrads
from hpcdist.fluid.regularizer import WeightDecayRegularizer
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import AFTER_UPDATES, WITHOUT_SERVERS, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
    program_of,
)
from hpcdist.graph.variable import Parameter, Variable

Copied = dict[str, Variable]


def _variable_in(block: Block, var: Variable) -> Variable:
    """Return a persistable variable of another program under the same name."""
    present = block.vars.get(var.name)
    facts: dict[str, Any] = {"shape": var.shape, "dtype": var.dtype, "persistable": True}
    return present or block.create_var(var.name, stop_gradient=True, **facts)


def _averaged(program: Program) -> list[Parameter]:
    """Return the averaged variables, also untrained ones, such as running means, as in Fluid."""
    averaged = [p for p in program.all_parameters() if p.do_model_average is not False]
    chosen = [p for p in averaged if not p.is_distributed]
    if not chosen:
        raise GraphError("there is no parameter to average: build the model first")
    return chosen


@contextmanager
def _marked(mark: str, value: str) -> Iterator[None]:
    """Note on the operators built inside how they follow the parameters: AFTER_UPDATES, or so."""
    block = default_main_program().global_block()
    before = {id(op) for op in block.ops}
    with default_main_program().role_guard(OpRole.OPTIMIZE):
        yield
    for op in block.ops:
        if id(op) not in before:
            op.set_attr(mark, value)


class _Exchanged:
    """Replaces the values of parameters, and restores them, by two programs."""

    def __init__(self) -> None:
        self.apply_program = Program()
        self.restore_program = Program()

    def _exchange(self, parameters: Sequence[Parameter], value_of: Any) -> None:
        """Build both programs; ``value_of(block, parameter)`` appends what makes the value."""
        for program in (self.apply_program, self.restore_program):
            block = program.global_block()
            with program_guard(program, Program()):
                for parameter in parameters:
                    local = _variable_in(block, parameter)
                    facts: dict[str, Any] = {"shape": local.shape, "dtype": local.dtype}
                    aside = block.create_var(f"{local.name}@ASIDE", persistable=True, **facts)
                    if program is self.apply_program:
                        layers.assign(local, aside)
                        layers.assign(value_of(block, local), local)
                    else:
                        layers.assign(aside, local)
                flag = block.create_var(names.AVERAGED, shape=(1,), dtype="int32", persistable=True)
                layers.fill_constant([1], "int32", int(program is self.apply_program), out=flag)

    @contextmanager
    def apply(self, executor: Any, need_restore: bool = True) -> Iterator[None]:
        """Set parameters to their averages inside the ``with``, and longer without restore."""
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        """Restore the values of parameters."""
        executor.run(self.restore_program)


class ExponentialMovingAverage(_Exchanged):
    """ema = decay ema + (1 - decay) parameter, in every step; `apply` divides by 1 - decay^steps.

    Make it after ``minimize`` and call `update` once. thres_steps: a step counter (Variable);
    the decay then is at most (1 + steps) / (10 + steps). Every trainer keeps the same averages, of
    running means those of its own; with servers, synchronous ones, of the parameters received.
    """

    def __init__(
        self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None
    ) -> None:
        super().__init__()
        self._decay = decay
        prefix = name or ""
        main = default_main_program()
        self._parameters = _averaged(main)
        self._rate = layers.create_global_var(
            [1], decay, "float32", persistable=True, name="scheduled_ema_decay_rate"
        )
        if thres_steps is not None:
            self._limit(thres_steps)
        self._means: Copied = {
            p.name: layers.create_global_var(
                p.shape, 0.0, p.dtype, True, name=names.generate(f"{prefix}{p.name}_ema")
            )
            for p in self._parameters
        }
        self._counter = layers.create_global_var([1], 0, "int64", True, name="@EMA_STEP_COUNTER@")
        self._exchange(self._parameters, self._corrected)

    def _limit(self, steps: Variable) -> None:
        with _marked(AFTER_UPDATES, "ExponentialMovingAverage"):
            counted = layers.cast(steps, "float32")
            bound = (counted + 1.0) / (counted + 10.0)
            constant = layers.fill_constant([1], "float32", self._decay)
            layers.assign(layers.elementwise_min(bound, constant), self._rate)

    def update(self) -> None:
        """Append what moves the averages to the main program: call it once, after ``minimize``.

        mean = rate * mean + (1 - rate) * parameter, after each update.
        """
        with _marked(AFTER_UPDATES, "ExponentialMovingAverage"):
            layers.increment(self._counter, 1.0, True)
            for parameter in self._parameters:
                mean = self._means[parameter.name]
                layers.assign(mean * self._rate + parameter * (1 - self._rate), mean)

    def _corrected(self, block: Block, parameter: Variable) -> Variable:
        mean = _variable_in(block, self._means[parameter.name])
        steps = layers.cast(_variable_in(block, self._counter), "float32")
        missing = layers.elementwise_pow(_variable_in(block, self._rate), steps)
        return _or_itself(mean, 1.0 - missing, parameter, steps)


def _or_itself(total: Variable, weight: Variable, parameter: Variable, count: Variable) -> Variable:
    """Return total / weight; the parameter where nothing has been counted (Fluid: 0, or nan)."""
    none = layers.cast(layers.equal(count, layers.zeros([1], count.dtype)), parameter.dtype)
    return (total + parameter * none) / (weight + none)


class ModelAverage(_Exchanged):
    """The mean of parameters over the latest steps, at most ``max_average_window`` of them.

    Make it after ``minimize``. The window is ``average_window_rate`` of all steps so far, and at
    least ``min_average_window``. With servers as `ExponentialMovingAverage`.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._sums: dict[str, Copied] = {}
        attrs = {
            "average_window": float(average_window_rate),
            "min_average_window": min_average_window,
            "max_average_window": max_average_window,
        }
        parameters = _averaged(default_main_program())
        block = default_main_program().global_block()
        with _marked(AFTER_UPDATES, "ModelAverage"):
            for p in parameters:
                sums = self._sums[p.name] = self._accumulators(p, name)
                inputs = {"param": p, **{f"in_{slot}": var for slot, var in sums.items()}}
                outputs = {f"out_{slot}": var for slot, var in sums.items()}
                block.append_op("average_accumulates", inputs, outputs, attrs)
        self._exchange(parameters, self._mean)

    def _accumulators(self, p: Parameter, name: str | None) -> Copied:
        prefix = f"{p.name}_" if name is None else f"{p.name}_{name}_"
        sums = {}
        for slot in ("sum_1", "sum_2", "sum_3"):
            key = names.generate(prefix + slot)
            sums[slot] = layers.create_global_var(p.shape, 0.0, p.dtype, True, name=key)
        for slot in ("num_accumulates", "old_num_accumulates", "num_updates"):
            key = names.generate(prefix + slot)
            sums[slot] = layers.create_global_var([1], 0, "int64", True, name=key)
        return sums

    def _mean(self, block: Block, parameter: Variable) -> Variable:
        sums = {slot: _variable_in(block, var) for slot, var in self._sums[parameter.name].items()}
        total = layers.sum([sums["sum_1"], sums["sum_2"], sums["sum_3"]])
        count = layers.sum([sums["num_accumulates"], sums["old_num_accumulates"]])
        return _or_itself(total, layers.cast(count, parameter.dtype), parameter, count)


class LookaheadOptimizer:
    """Every k steps of an optimizer, slow copies go ``alpha`` of the way to the parameters.

    The parameters then go on from there (Zhang et al., 2019). With parameter servers it is refused.
    """

    type = "lookahead"
    begins_late = False  # slow copies begin with the first step's parameters, not the startup's

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise GraphTypeError(
                f"LookaheadOptimizer: expected an optimizer, got {inner_optimizer!r}"
            )
        if not 0.0 <= alpha <= 1.0 or not isinstance(k, int) or k < 1:
            raise GraphError(f"LookaheadOptimizer: alpha {alpha} must be in 0..1, k {k} at least 1")
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, alpha, k

    def minimize(
        self, loss: Variable, startup_program: Program | None = None
    ) -> tuple[list[Operator], ParamGrads]:
        """Append a training step of the inner optimizer, and what the slow copies do."""
        result = self.inner_optimizer.minimize(loss, startup_program)
        startup = startup_program or default_startup_program()
        with (
            program_guard(program_of(loss), startup),
            _marked(WITHOUT_SERVERS, "LookaheadOptimizer"),
        ):
            steps = layers.create_global_var([1], 0, "int32", True, name="lookahead_step")
            period = layers.create_global_var([1], self.k, "int32", True, name="lookahead_k")
            layers.increment(steps, 1.0, True)
            turn = layers.elementwise_mod(steps, period)
            now = self._whether(turn, layers.zeros([1], "int32"))
            begins = self.begins_late and self._whether(steps, layers.ones([1], "int32"))
            for fast in _averaged(program_of(loss)):
                slow = self._slow(fast, startup)
                if self.begins_late:
                    self._replace(slow, fast, begins)
                met = fast * self.alpha + slow * (1.0 - self.alpha)
                for copy in (slow, fast):
                    self._replace(copy, met, now)
        return result

    @staticmethod
    def _whether(left: Variable, right: Variable) -> Variable:
        return layers.cast(layers.equal(left, right), "float32")

    @staticmethod
    def _replace(copy: Variable, value: Variable, now: Any) -> None:
        """Assign a value where ``now`` is 1, else the old one: the same bits."""
        weighted = (value, now), (copy, 1.0 - now)
        mixed = [layers.elementwise_mul(v, w) for v, w in weighted]
        layers.assign(layers.elementwise_add(*mixed), copy)

    def _slow(self, fast: Parameter, startup: Program) -> Variable:
        facts: dict[str, Any] = {"shape": fast.shape, "dtype": fast.dtype, "persistable": True}
        block = startup.global_block()
        copy = block.create_var(f"{fast.name}@SLOW", **facts)
        block.append_op("assign", {"X": block.var(fast.name)}, {"Out": copy})
        main = fast.block.program.global_block()
        return main.create_var(f"{fast.name}@SLOW", stop_gradient=True, **facts)
