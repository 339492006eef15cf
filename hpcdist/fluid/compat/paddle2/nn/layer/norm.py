"""Normalizations: of the batch, of rows, of groups of channels."""

from __future__ import annotations

import math
from typing import Any, Literal

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.creation import get_default_dtype
from hpcdist.fluid.compat.paddle2.declare import Ints
from hpcdist.fluid.compat.paddle2.kinds import Count, Natural, Probability, Unsigned
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.common import activation_of
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer, number_from
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.initializer import Constant, Normal
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.param_attr import ParamAttr

_INSTANCES = ("InstanceNorm1D", "InstanceNorm2D", "InstanceNorm3D")


class LayerNorm(Layer):
    """Normalize over the last dimensions; ``weight`` of ones and ``bias`` of zeros follow."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: Unsigned = 1e-5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._shape = declare.KINDS["ints"](
            "paddle.nn.LayerNorm: normalized_shape", normalized_shape
        )
        self._epsilon = epsilon
        size = [math.prod(self._shape)]
        self.weight = self.create_parameter(size, weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """Append the normalization."""
        return functional.layer_norm(input, self._shape, self.weight, self.bias, self._epsilon)


class GroupNorm(Layer):
    """Normalize groups of channels."""

    def __init__(
        self,
        num_groups: Count,
        num_channels: Count,
        epsilon: Unsigned = 1e-5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise GraphError(
                f"paddle.nn.GroupNorm: num_channels: expected a multiple of {num_groups} groups, "
                f"got {num_channels}"
            )
        self._facts = {"groups": num_groups, "epsilon": epsilon, "data_layout": data_format}
        size = [num_channels]
        self.weight = self.create_parameter(size, weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """Append the normalization."""
        inputs = {"X": input, "Scale": self.weight, "Bias": self.bias}
        outputs = dict.fromkeys(("Y", "Mean", "Variance"), input.dtype)
        return LayerHelper("group_norm").apply_all("group_norm", inputs, outputs, self._facts)[0]


class BatchNorm1D(Layer):
    """Normalize each channel by the batch in training, by running means in inference."""

    def __init__(
        self,
        num_features: int,
        momentum: Probability = 0.9,
        epsilon: Unsigned = 1e-5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: Literal["NC", "NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC"] = "NCHW",
        use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=self._element_type())
        size = [number_from(f"{type(self).__name__}: num_features", num_features)]
        self._momentum, self._epsilon = momentum, epsilon
        self._data_format, self._use_global_stats = data_format, use_global_stats
        ones = Constant(1.0)
        self.weight = self.create_parameter(size, weight_attr, default_initializer=ones)
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)
        self._moving(size)

    def _element_type(self) -> str:
        """Return that of all parameters: moments of half floats are kept in floats."""
        default = get_default_dtype()
        return "float32" if default == "float16" else default

    def _moving(self, size: list[int], mean: Any = None, variance: Any = None) -> None:
        for attribute, name, value in (("_mean", mean, 0.0), ("_variance", variance, 1.0)):
            attr = ParamAttr(name=name, initializer=Constant(value), trainable=False)
            running = self.create_parameter(size, attr)
            running.stop_gradient = True
            setattr(self, attribute, running)

    def forward(self, input: Any) -> Any:
        """Append the normalization."""
        return functional.batch_norm(
            input,
            self._mean,
            self._variance,
            self.weight,
            self.bias,
            self.training,
            self._momentum,
            self._epsilon,
            self._data_format,
            self._use_global_stats,
        )


class BatchNorm2D(BatchNorm1D):
    """The same, of images."""


class BatchNorm3D(BatchNorm1D):
    """The same, of volumes."""


class BatchNorm(BatchNorm1D):
    """The same, with an activation, and names for the running means."""

    def __init__(
        self,
        num_channels: Count,
        act: str | None = None,
        is_test: bool = False,
        momentum: Probability = 0.9,
        epsilon: Unsigned = 1e-5,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: str = "float32",
        data_layout: Literal["NC", "NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC"] = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        self.__dict__["_names"] = (moving_mean_name, moving_variance_name)
        self.__dict__["_kind"] = "float32" if dtype == "float16" else dtype
        super().__init__(
            num_channels,
            momentum,
            epsilon,
            param_attr,
            bias_attr,
            data_layout,
            use_global_stats or None,
        )
        self._act = None if act is None else activation_of("paddle.nn.BatchNorm: act", act)
        self.training = not is_test

    def _element_type(self) -> str:
        return str(self.__dict__["_kind"])

    def _moving(self, size: list[int], mean: Any = None, variance: Any = None) -> None:
        super()._moving(size, *self.__dict__["_names"])

    def forward(self, input: Any) -> Any:
        """Append the normalization and the activation."""
        out = super().forward(input)
        return self._act(out) if self._act else out


class InstanceNorm1D(Layer):
    """Normalize each channel of each sample by itself, then scale and shift it."""

    def __init__(
        self,
        num_features: int,
        epsilon: Unsigned = 1e-5,
        momentum: Probability = 0.9,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        if weight_attr is False or bias_attr is False or not data_format.startswith("NC"):
            raise GraphError(
                f"paddle.nn.{type(self).__name__}: only with scale and bias, and channels first"
            )
        size = [number_from(f"{type(self).__name__}: num_features", num_features)]
        self._epsilon = epsilon
        self.scale = self.create_parameter(size, weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter(size, bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        """Append the normalization."""
        own = {"weight": self.scale, "bias": self.bias, "eps": self._epsilon}
        return functional.instance_norm(input, **own)


class InstanceNorm2D(InstanceNorm1D):
    """The same, of images."""


class InstanceNorm3D(InstanceNorm1D):
    """The same, of volumes."""


class SpectralNorm(Layer):
    """Divide a weight by its greatest singular value, which is found by iteration."""

    def __init__(
        self,
        weight_shape: Ints,
        dim: int = 0,
        power_iters: Natural = 1,
        eps: Unsigned = 1e-12,
        dtype: str = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        if not 0 <= dim < len(weight_shape) or min(weight_shape) < 1:
            raise GraphError(
                f"paddle.nn.SpectralNorm: no dimension {dim} of a weight of shape {weight_shape}"
            )
        self._attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
        sizes = weight_shape[dim], math.prod(weight_shape) // weight_shape[dim]
        self.weight_u, self.weight_v = (
            self.create_parameter([size], default_initializer=Normal(0.0, 1.0)) for size in sizes
        )
        self.weight_u.stop_gradient = self.weight_v.stop_gradient = True

    def forward(self, x: Any) -> Any:
        """Append the division."""
        inputs = {"Weight": x, "U": self.weight_u, "V": self.weight_v}
        return LayerHelper("spectral_norm").apply(
            "spectral_norm", inputs, self._attrs, dtype=x.dtype
        )


__all__ = public(globals())
