"""Layers that call one function: activations, losses, pools, ... by their functions' signatures.

``name: inputs`` declares a class whose constructor takes the function's other parameters, with
their defaults, and whose ``forward`` takes the inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer

# Class: its function, if that is not the class's name in lower case; how many inputs it has.
_LAYERS: dict[str, tuple[Any, ...]] = {
    "CELU": ("celu", 1),
    "ELU": ("elu", 1),
    "GELU": ("gelu", 1),
    "GLU": ("glu", 1),
    "Hardshrink": ("hardshrink", 1),
    "Hardsigmoid": ("hardsigmoid", 1),
    "Hardswish": ("hardswish", 1),
    "Hardtanh": ("hardtanh", 1),
    "LeakyReLU": ("leaky_relu", 1),
    "LogSigmoid": ("log_sigmoid", 1),
    "LogSoftmax": ("log_softmax", 1),
    "Maxout": ("maxout", 1),
    "Mish": ("mish", 1),
    "RReLU": ("rrelu", 1),
    "ReLU": ("relu", 1),
    "ReLU6": ("relu6", 1),
    "SELU": ("selu", 1),
    "Sigmoid": ("sigmoid", 1),
    "Silu": ("silu", 1),
    "Softmax": ("softmax", 1),
    "Softplus": ("softplus", 1),
    "Softshrink": ("softshrink", 1),
    "Softsign": ("softsign", 1),
    "Swish": ("swish", 1),
    "Tanh": ("tanh", 1),
    "Tanhshrink": ("tanhshrink", 1),
    "ThresholdedReLU": ("thresholded_relu", 1),
    "AdaptiveAvgPool1D": ("adaptive_avg_pool1d", 1),
    "AdaptiveAvgPool2D": ("adaptive_avg_pool2d", 1),
    "AdaptiveAvgPool3D": ("adaptive_avg_pool3d", 1),
    "AdaptiveMaxPool3D": ("adaptive_max_pool3d", 1),
    "AdaptiveMaxPool1D": ("adaptive_max_pool1d", 1),
    "AdaptiveMaxPool2D": ("adaptive_max_pool2d", 1),
    "AvgPool1D": ("avg_pool1d", 1),
    "AvgPool2D": ("avg_pool2d", 1),
    "AvgPool3D": ("avg_pool3d", 1),
    "MaxPool1D": ("max_pool1d", 1),
    "MaxPool2D": ("max_pool2d", 1),
    "MaxPool3D": ("max_pool3d", 1),
    "MaxUnPool1D": ("max_unpool1d", 2),
    "MaxUnPool2D": ("max_unpool2d", 2),
    "MaxUnPool3D": ("max_unpool3d", 2),
    "LocalResponseNorm": ("local_response_norm", 1),
    "PixelShuffle": ("pixel_shuffle", 1),
    "PixelUnshuffle": ("pixel_unshuffle", 1),
    "Upsample": ("upsample", 1),
    "ChannelShuffle": ("channel_shuffle", 1),
    "Unfold": ("unfold", 1, ("kernel_sizes", "dilations", "paddings", "strides", "name")),
    "Fold": (
        "fold",
        1,
        ("output_sizes", "kernel_sizes", "dilations", "paddings", "strides", "name"),
    ),
    "BCELoss": ("binary_cross_entropy", 2),
    "BCEWithLogitsLoss": ("binary_cross_entropy_with_logits", 2),
    "CTCLoss": ("ctc_loss", 4),
    "CosineEmbeddingLoss": ("cosine_embedding_loss", 3),
    "CosineSimilarity": ("cosine_similarity", 2),
    "CrossEntropyLoss": ("cross_entropy", 2),
    "GaussianNLLLoss": ("gaussian_nll_loss", 3),
    "HingeEmbeddingLoss": ("hinge_embedding_loss", 2),
    "KLDivLoss": ("kl_div", 2),
    "L1Loss": ("l1_loss", 2),
    "MSELoss": ("mse_loss", 2),
    "MarginRankingLoss": ("margin_ranking_loss", 3),
    "MultiLabelSoftMarginLoss": ("multi_label_soft_margin_loss", 2),
    "MultiMarginLoss": ("multi_margin_loss", 2),
    "NLLLoss": ("nll_loss", 2),
    "PairwiseDistance": ("pairwise_distance", 2),
    "PoissonNLLLoss": ("poisson_nll_loss", 2),
    "SmoothL1Loss": ("smooth_l1_loss", 2),
    "SoftMarginLoss": ("soft_margin_loss", 2),
    "TripletMarginLoss": ("triplet_margin_loss", 3),
    "TripletMarginWithDistanceLoss": ("triplet_margin_with_distance_loss", 3),
}
_WITHOUT = (
    "dtype",
    "training",
    "weight_grad",
    "slope",
    "offset",
)  # what a function takes, but not the class


class FunctionLayer(Layer):
    """Base of layers that call one function."""

    function: Any = None
    inputs = 1
    trains = False  # the function is told whether this is training
    signature = inspect.Signature()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        where = f"paddle.nn.{type(self).__name__}"
        options = declare.bound(where, type(self).signature, args, kwargs)
        checks = type(self).function.__checks__
        declare.check(where, {k: v for k, v in checks.items() if k in options}, options)
        self.__dict__["_options"] = options
        super().__init__()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the function with the inputs and the options."""
        mode = {"training": self.training} if self.trains else {}
        return type(self).function(*inputs, **named, **mode, **self._options)

    def extra_repr(self) -> str:
        """Return the options that were given."""
        shown = {k: v for k, v in self._options.items() if v is not None}
        return ", ".join(f"{key}={value}" for key, value in shown.items())


def _layer(name: str, function: str, inputs: int, order: Sequence[str] = ()) -> type[FunctionLayer]:
    """Return the class of a declaration; ``order``: of its parameters, if not the function's."""
    called = getattr(functional, function)
    parameters = list(inspect.signature(called).parameters.values())
    options = [p for p in parameters[inputs:] if p.name not in _WITHOUT]
    if order:
        options.sort(key=lambda p: order.index(p.name))
    return type(
        name,
        (FunctionLayer,),
        {
            "__module__": "paddle.nn",
            "__doc__": called.__doc__,
            "function": staticmethod(called),
            "inputs": inputs,
            "trains": any(p.name == "training" for p in parameters),
            "signature": inspect.Signature(options),
            "__signature__": inspect.Signature(options),
        },
    )


globals().update({name: _layer(name, *facts) for name, facts in _LAYERS.items()})


class PReLU(Layer):
    """Return x where it is above 0, else weight x, with a learned weight."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._data_format = data_format
        from hpcdist.fluid.initializer import Constant

        self._weight = self.create_parameter(
            [num_parameters], weight_attr, default_initializer=Constant(init)
        )

    def forward(self, x: Any) -> Any:
        """Append the activation."""
        return functional.prelu(x, self._weight, self._data_format)


class HSigmoidLoss(Layer):
    """Return the cost of the way down a tree of classes to the label."""

    def __init__(
        self,
        feature_size: int,
        num_classes: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        is_custom: bool = False,
        is_sparse: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 2 and not is_custom:
            raise GraphError(
                f"paddle.nn.HSigmoidLoss: a tree needs 2 classes or more, got {num_classes}"
            )
        self._classes = num_classes
        rows = num_classes if is_custom else num_classes - 1
        self.weight = self.create_parameter([rows, feature_size], weight_attr)
        self.bias = self.create_parameter([rows, 1], bias_attr, is_bias=True)

    def forward(self, input: Any, label: Any, path_table: Any = None, path_code: Any = None) -> Any:
        """Append the loss."""
        own = self._classes, self.weight, self.bias
        return functional.hsigmoid_loss(input, label, *own, path_table, path_code)


__all__ = [*_LAYERS, "HSigmoidLoss", "PReLU"]
