"""The optimizers: operator type, attributes and accumulators of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.fluid.clip import GradientClipBase
from hpcdist.fluid.optimizer.base import Optimizer, ParamGrads
from hpcdist.fluid.regularizer import WeightDecayRegularizer
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import program_of
from hpcdist.graph.variable import Parameter, Variable


class SGDOptimizer(Optimizer):
    """p -= lr g.

    Examples:
        >>> loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 1))
        >>> updates, gradients = fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
        >>> [parameter.name for parameter, gradient in gradients]
        ['fc_0.w_0', 'fc_0.b_0']
    """

    type = "sgd"


class MomentumOptimizer(Optimizer):
    """v = mu v + g; p -= lr v, or with Nesterov p -= lr (g + mu v).

    Examples:
        >>> fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9, use_nesterov=True).type
        'momentum'
    """

    type = "momentum"

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        parameter_list: Sequence[Parameter | str] | None = None,
        use_nesterov: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())


class LarsMomentumOptimizer(Optimizer):
    """Momentum with a rate per layer: lr c |p| / (|g| + wd |p|) (You et al., 2017).

    Examples:
        >>> fluid.optimizer.LarsMomentum(learning_rate=0.1, momentum=0.9).type
        'lars_momentum'
    """

    type = "lars_momentum"

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())


class AdagradOptimizer(Optimizer):
    """m += g^2; p -= lr g / (sqrt(m) + epsilon) (Duchi et al., 2011).

    Examples:
        >>> fluid.optimizer.Adagrad(learning_rate=0.1).type
        'adagrad'
    """

    type = "adagrad"

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1.0e-6,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        self._begin(locals())
        self.initial_accumulator_value = float(initial_accumulator_value)


class DecayedAdagradOptimizer(Optimizer):
    """m = d m + (1 - d) g^2; p -= lr g / (sqrt(m) + epsilon).

    Examples:
        >>> fluid.optimizer.DecayedAdagrad(learning_rate=0.1).type
        'decayed_adagrad'
    """

    type = "decayed_adagrad"

    def __init__(
        self,
        learning_rate: float | Variable,
        decay: float = 0.95,
        epsilon: float = 1.0e-6,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())


class AdamOptimizer(Optimizer):
    """Adam (Kingma and Ba, 2015); ``lazy_mode`` moves only the rows of a sparse gradient.

    Examples:
        >>> fluid.optimizer.Adam(learning_rate=0.001, lazy_mode=True).type
        'adam'
    """

    type = "adam"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None:
        self._begin(locals())


class AdamaxOptimizer(Optimizer):
    """Adam with the infinity norm (Kingma and Ba, 2015).

    Examples:
        >>> fluid.optimizer.Adamax(learning_rate=0.001).type
        'adamax'
    """

    type = "adamax"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())

    def _finish(self, block: Block, pairs: ParamGrads) -> None:
        for param, grad in pairs:
            if param.is_distributed:
                continue  # the table counts its own steps
            power = self._persistent[program_of(param), "Beta1Pow", param.name]
            with program_of(param).role_guard(OpRole.OPTIMIZE, (param, grad)):
                attrs = {"scale": self.attrs["beta1"]}
                block.append_op("scale", {"X": power}, {"Out": power}, attrs)


class RMSPropOptimizer(Optimizer):
    """RMSProp (Hinton, 2012); ``centered`` subtracts the squared mean of the gradient.

    Examples:
        >>> fluid.optimizer.RMSProp(learning_rate=0.01).type
        'rmsprop'
    """

    type = "rmsprop"

    def __init__(
        self,
        learning_rate: float | Variable,
        rho: float = 0.95,
        epsilon: float = 1.0e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())


class FtrlOptimizer(Optimizer):
    """FTRL-proximal (McMahan et al., 2013).

    Examples:
        >>> fluid.optimizer.Ftrl(learning_rate=0.1, l1=0.01).type
        'ftrl'
    """

    type = "ftrl"

    def __init__(
        self,
        learning_rate: float | Variable,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())


class AdadeltaOptimizer(Optimizer):
    """Adadelta (Zeiler, 2012). As in Fluid, the learning rate is not used.

    Examples:
        >>> fluid.optimizer.Adadelta(learning_rate=1.0, rho=0.95).type
        'adadelta'
    """

    type = "adadelta"

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1.0e-6,
        rho: float = 0.95,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())


class LambOptimizer(AdamOptimizer):
    """Adam with a rate per layer (You et al., 2020). A server has all of a parameter that it
    moves; rows of a distributed table have a rate each.

    Examples:
        >>> fluid.optimizer.Lamb(learning_rate=0.001).type
        'lamb'
    """

    type = "lamb"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
    ) -> None:
        self._begin(locals())
        self.weight_decay = self.attrs.pop("weight_decay")
        self._excluded = exclude_from_weight_decay_fn or (lambda param: False)

    def _attrs_for(self, param: Parameter) -> dict[str, Any]:
        decay = 0.0 if self._excluded(param) else self.weight_decay
        return {**self.attrs, "weight_decay": decay}


class UnbiasedLamb(LambOptimizer):
    """Lamb with Adam's correction of both moments' bias, as in Paddle 2; what does not decay has
    Adam's rate, unless it always adapts."""

    type = "unbiased_lamb"

    def __init__(self, *args: Any, always_adapt: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attrs["always_adapt"] = bool(always_adapt)
