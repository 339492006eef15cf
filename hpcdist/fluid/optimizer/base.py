"""The base class of optimizers: minimize appends backward, clip, regularization and update
operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from hpcdist.base.checks import Refused
from hpcdist.base.errors import (
    GraphAssertionError,
    GraphError,
    GraphTypeError,
)
from hpcdist.base.optimizer_kind import Accumulator
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.base.warned import warn
from hpcdist.fluid.clip import GradientClipBase, append_gradient_clip_ops, error_clip_callback
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.regularizer import WeightDecayRegularizer, append_regularization_ops, row_decay
from hpcdist.graph import names
from hpcdist.graph.autodiff.backward import append_backward, check_loss
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
    program_of,
)
from hpcdist.graph.registry import default_attrs
from hpcdist.graph.variable import Parameter, Variable

ParamGrads = list[tuple[Parameter, Variable]]
_IMPERATIVE = (
    "it is for Fluid's imperative mode: fluid.save and fluid.load keep what an optimizer holds, "
    "and its learning rate is a variable that is fetched"
)


class Minimizer:
    """What an optimizer and a wrapper of one have in common: a step is backward, then updates."""

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> tuple[list[Operator], ParamGrads]:
        """Append all that a training step needs; return (update operators, (param, grad) pairs).

        ``loss`` has shape (1,). Every rank builds the same program. Raises GraphAssertionError for
        another loss. A loss that depends on no trainable parameter trains nothing, one that is
        minimized again updates its parameters twice in a step, as in Fluid: warnings say so.
        """
        if not isinstance(loss, Variable):
            raise GraphAssertionError(f"minimize: the loss must be a Variable, got {loss!r}")
        _check_clip(grad_clip)
        before = _minimized(loss)
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        if not pairs:
            warn(
                f"minimize: the loss {loss.name!r} depends on no trainable parameter: nothing is "
                "trained"
            )
            return [], []
        if twice := sorted(before.intersection(parameter.name for parameter, _ in pairs)):
            warn(
                f"minimize: the loss {loss.name!r} is minimized already: each step updates "
                f"{', '.join(twice[:3])}{', ...' if twice[3:] else ''} twice; to build another "
                "network, begin a new program (fluid.program_guard(fluid.Program()))"
            )
        ops = self.apply_optimize(loss, startup_program, pairs, grad_clip)
        program_of(loss).startup = startup_program or default_startup_program()
        return ops, pairs

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> ParamGrads:
        """Append the backward operators; return parameters with what their updates are to read."""
        check_loss(loss)
        with program_guard(program_of(loss), startup_program):
            return self._backward(loss, parameter_list, no_grad_set, callbacks)

    def _backward(
        self,
        loss: Variable,
        parameter_list: Sequence[Parameter | str] | None,
        no_grad_set: Iterable[Variable | str] | None,
        callbacks: Sequence[Any] | None,
    ) -> ParamGrads:
        """Do the same; the default programs are those to append to."""
        raise NotImplementedError

    def apply_gradients(
        self, params_grads: ParamGrads, grad_clip: GradientClipBase | None = None
    ) -> list[Operator]:
        """Append clip, regularization and update operators; return the last kind."""
        raise NotImplementedError

    def apply_optimize(
        self,
        loss: Variable,
        startup_program: Program | None,
        params_grads: ParamGrads,
        grad_clip: GradientClipBase | None = None,
    ) -> list[Operator]:
        """Append clip, regularization and updates to the loss's program; return the updates.

        ``params_grads`` is what `backward` returned. `minimize` calls both.
        """
        with program_guard(program_of(loss), startup_program):
            return self.apply_gradients(params_grads, grad_clip)


class Optimizer(Minimizer):
    """What optimizers share; subclasses say the operator's type, of which the rest is declared.

    ``learning_rate`` is a number or a schedule's Variable, of one element. Accumulators have the
    parameter's dtype and shape; powers of beta are one element. Multipliers in ParamAttr,
    regularizers there and clips there win over those given here, as in Fluid.
    """

    type = ""
    accumulators: tuple[str, ...] = ()  # kinds of the operator's state, slot for slot

    clear_gradients = Refused(_IMPERATIVE)
    current_step_lr = Refused(_IMPERATIVE)
    set_dict = Refused(_IMPERATIVE)
    state_dict = Refused(_IMPERATIVE)

    def __init_subclass__(cls) -> None:
        """Take the declared accumulators, under the names of Fluid's classes too."""
        if "type" in vars(cls) and cls.type in OPTIMIZERS:
            cls.accumulators = tuple(state.name for state in OPTIMIZERS[cls.type].states)
        for kind in cls.accumulators:
            setattr(cls, f"_{kind.strip('_').removesuffix('_acc')}_acc_str", kind)

    def __init__(
        self,
        learning_rate: float | Variable,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        if learning_rate is None:
            raise GraphAssertionError(f"{type(self).__name__} needs a learning_rate, got None")
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, (float, int, Variable)):
            raise GraphTypeError(
                f"{type(self).__name__}: learning_rate must be a number or a Variable, "
                f"got {learning_rate!r}"
            )
        _check_clip(grad_clip)
        self.learning_rate = learning_rate
        self.parameter_list = parameter_list
        self.regularization = regularization
        self.grad_clip = grad_clip
        self.name = name
        self.attrs: dict[str, Any] = {}
        self._rates: dict[Program, Variable] = {}  # the global rate in each Program
        self._persistent: dict[tuple[Program, str, str], Variable] = {}  # by slot and parameter

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        """Take a constructor's arguments, ``locals()``: those of all, and the declared ones."""
        of_all = signature(Optimizer.__init__).parameters.keys() & arguments.keys()
        Optimizer.__init__(**{name: arguments[name] for name in of_all})
        self.attrs = {
            argument.attr or name: type(argument.default)(arguments[name])
            for name, argument in OPTIMIZERS[self.type].arguments.items()
            if argument.of_operator
        }

    def get_opti_var_name_list(self) -> list[str]:
        """Return the names of the variables that `minimize` has made to keep state in."""
        return [variable.name for variable in self._persistent.values()]

    # -- in steps ----------------------------------------------------------------------------
    def _backward(
        self,
        loss: Variable,
        parameter_list: Sequence[Parameter | str] | None,
        no_grad_set: Iterable[Variable | str] | None,
        callbacks: Sequence[Any] | None,
    ) -> ParamGrads:
        chosen = parameter_list or self.parameter_list
        if callbacks is None:
            callbacks = [error_clip_callback]
        return append_backward(loss, chosen, no_grad_set, callbacks)

    def apply_gradients(
        self, params_grads: ParamGrads, grad_clip: GradientClipBase | None = None
    ) -> list[Operator]:
        """Append clip, regularization and update operators; return the last kind."""
        program = default_main_program()
        if program.startup is None:  # `minimize` knows which one it is
            program.startup = default_startup_program()
        pairs = sorted(params_grads, key=lambda pair: pair[0].name)
        rows = [pair for pair in pairs if pair[0].is_distributed]
        pairs = [pair for pair in pairs if not pair[0].is_distributed]
        # As in Fluid, tables come first and are not clipped.
        table_ops = self._append_updates(rows)
        clip = grad_clip or self.grad_clip
        pairs = append_gradient_clip_ops(pairs) if clip is None else clip(pairs)
        pairs = append_regularization_ops(pairs, self.regularization)
        return [*self._append_updates(pairs), *table_ops]

    def _append_updates(self, pairs: ParamGrads) -> list[Operator]:
        if not pairs:
            return []
        block = default_main_program().global_block()
        start = len(block.ops)
        for param, _ in pairs:
            self._add_accumulators(param)
        self._make_rate(pairs)
        for param, grad in pairs:
            with program_of(param).role_guard(OpRole.OPTIMIZE, (param, grad)):
                self._append_update(block, param, grad)
        self._finish(block, pairs)
        return block.ops[start:]

    def _append_update(self, block: Block, param: Parameter, grad: Variable) -> None:
        update = OPTIMIZERS[self.type]
        inputs = {"Param": param, "Grad": grad}
        if update.has_rate:
            inputs["LearningRate"] = self._rate_of(param)
        outputs: dict[str, Variable] = {"ParamOut": param}
        for slot, out in update.state.items():
            inputs[slot] = self._persistent[program_of(param), slot, param.name]
            if out is not None:
                outputs[out] = inputs[slot]
        attrs = self._attrs_for(param)
        if not param.is_distributed:
            block.append_op(self.type, inputs, outputs, attrs)
            return
        # Its rows are moved one by one, so optimizers may that refuse sparse gradients otherwise.
        facts = {ROLE_ATTR: int(OpRole.OPTIMIZE), ROLE_VAR_ATTR: [param.name, grad.name]}
        decay = row_decay(param, self.regularization)
        attrs = {**default_attrs(self.type), **attrs, **decay, **facts}
        block.add_op(Operator(block, self.type, inputs, outputs, attrs))

    def _attrs_for(self, param: Parameter) -> dict[str, Any]:
        return self.attrs

    def _finish(self, block: Block, pairs: ParamGrads) -> None:
        """Append what follows the updates of all parameters."""

    # -- variables ---------------------------------------------------------------------------
    def _make_rate(self, pairs: ParamGrads) -> None:
        """Make the learning rate's variable, if it is not there."""
        # As in Fluid: of the loss's type, so that 0.1 is not 0.1 to eight digits only.
        alone = all(param.dtype == "float64" for param, _ in pairs)
        self._global_rate("float64" if alone else "float32")

    def _global_rate(self, dtype: str = "float32") -> Variable:
        """Return the learning rate's variable in the main program, made at the first call."""
        if isinstance(self.learning_rate, Variable):
            return self.learning_rate
        program = default_main_program()
        if program not in self._rates:
            name = names.generate("learning_rate")
            self._rates[program] = create_persistable(name, (1,), float(self.learning_rate), dtype)
        return self._rates[program]

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """Return the rate's variable in a Program, None before `minimize`; scripts fetch it."""
        if isinstance(self.learning_rate, Variable):
            return self.learning_rate
        return self._rates.get(program or default_main_program())

    @property
    def _learning_rate(self) -> float | Variable:
        """The rate that was given, under the name that scripts of Fluid's look up."""
        return self.learning_rate

    @_learning_rate.setter
    def _learning_rate(self, rate: float | Variable) -> None:
        self.learning_rate = rate

    @property
    def _accumulators(self) -> dict[str, dict[str, Variable]]:
        """What scripts of Fluid's look up: the state by its kind and the parameter's name."""
        by_slot: dict[str, dict[str, Variable]] = {}
        for (_, slot, param), var in self._persistent.items():
            kinds = dict(zip(OPTIMIZERS[self.type].state, self.accumulators))
            by_slot.setdefault(kinds[slot], {})[param] = var
        return by_slot

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """Return the state of a kind that `minimize` has made for a parameter."""
        of_name = self._accumulators.get(name, {})
        if param.name not in of_name:
            raise GraphError(
                f"{type(self).__name__}: there is no {name!r} of {param.name!r}; it keeps "
                f"{', '.join(self.accumulators) or 'nothing'}, from minimize on"
            )
        return of_name[param.name]

    def _rate_of(self, param: Parameter) -> Variable:
        """Return the rate of one parameter: the global one, times its multiplier."""
        multiplier = param.optimize_attr["learning_rate"]
        if isinstance(multiplier, Variable):
            return multiplier
        rate = self._global_rate()
        if multiplier == 1.0:
            return rate
        program = default_main_program()
        with program.role_guard(OpRole.LR_SCHED | OpRole.OPTIMIZE):
            block = program.current_block()
            out = block.create_var(names.generate("tmp"), dtype=rate.dtype)
            attrs = {"scale": float(multiplier), "bias": 0.0, "bias_after_scale": True}
            block.append_op("scale", {"X": rate}, {"Out": out}, attrs)
        return out

    def _add_accumulators(self, param: Parameter) -> None:
        for state, kind in zip(OPTIMIZERS[self.type].states, self.accumulators):
            slot = state.slot
            kind = kind if self.name is None else f"{self.name}_{kind}"
            if (program_of(param), slot, param.name) in self._persistent:
                raise GraphError(
                    f"{type(self).__name__}: {param.name!r} is already optimized by this object; "
                    "make another for a second minimize"
                )
            name = names.generate(f"{param.name}_{kind}")
            shape, value = self._start_of(state, param)
            self._persistent[program_of(param), slot, param.name] = create_persistable(
                name, shape, value, param.dtype
            )

    def _start_of(self, state: Accumulator, param: Parameter) -> tuple[tuple[int, ...], float]:
        """Return shape and first value of an accumulator."""
        if state.power is not None:
            return (1,), self.attrs[state.power]
        return param.shape, 0.0 if state.first is None else getattr(self, state.first)


def create_persistable(
    name: str, shape: tuple[int, ...], value: float, dtype: str = "float32"
) -> Variable:
    """Create a variable that outlives steps in the main and the startup program, filled.

    It has ``shape`` and ``dtype`` in both; the startup program fills it with ``value``.
    """
    facts: dict[str, Any] = {"shape": shape, "dtype": dtype, "persistable": True}
    startup = default_startup_program().global_block()
    Constant(value)(startup.create_var(name, **facts), startup)
    return default_main_program().global_block().create_var(name, stop_gradient=True, **facts)


def _check_clip(clip: Any) -> None:
    if clip is not None and not isinstance(clip, GradientClipBase):
        raise GraphTypeError(
            f"grad_clip: expected GradientClipByValue, ByNorm or ByGlobalNorm, got {clip!r}"
        )


def _minimized(loss: Variable) -> set[str]:
    """Return the names of the parameters that are updated already, if by this loss's gradients."""
    ops = program_of(loss).global_block().ops
    seeds = (op for op in ops if op.role == OpRole.BACKWARD | OpRole.LOSS)
    if not any(names.grad_name(loss.name) in op.output_arg_names for op in seeds):
        return set()
    return {name for op in ops if op.role & OpRole.OPTIMIZE for name in op.inputs.get("Param", ())}
