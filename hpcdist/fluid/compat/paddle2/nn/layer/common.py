"""Linear, Embedding, Dropout, Flatten, Pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import composed
from hpcdist.fluid.compat.paddle2.declare import Ints
from hpcdist.fluid.compat.paddle2.kinds import Probability
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer, choose_layout, number_from
from hpcdist.fluid.compat.public_names import public
from hpcdist.graph.variable import Variable


class Identity(Layer):
    """Return the input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()  # takes anything, as Paddle's does

    def forward(self, input: Any) -> Any:
        """Return ``input``."""
        return input


def activation_of(where: str, name: str) -> Callable[[Variable], Variable]:
    """Return the activation of that name; GraphError if there is none."""
    found = getattr(functional, name, None) if name in functional.__all__ else None
    if found is None:
        raise GraphError(f"{where}: no function of paddle.nn.functional is called {name!r}")
    return found


class Linear(Layer):
    """Return x weight + bias: ``weight`` [in, out], Xavier; ``bias`` [out], zeros."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        rows = number_from("Linear: in_features", in_features)
        columns = number_from("Linear: out_features", out_features)
        self.weight = self.create_parameter([rows, columns], weight_attr)
        self.bias = self.create_parameter([columns], bias_attr, is_bias=True)
        self.name = name

    def forward(self, input: Any) -> Any:
        """Append the product and the sum."""
        return functional.linear(input, self.weight, self.bias, self.name)

    def extra_repr(self) -> str:
        """Return the sizes."""
        rows, columns = self.weight.shape
        return f"in_features={rows}, out_features={columns}, dtype={self._dtype}"


class Embedding(Layer):
    """Look up rows of ``weight`` [num_embeddings, embedding_dim], Xavier.

    sparse: its gradient is a SelectedRows of the looked-up rows. padding_idx: this id gives zeros.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        rows = number_from("Embedding: num_embeddings", num_embeddings)
        width = number_from("Embedding: embedding_dim", embedding_dim)
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise GraphError(
                f"paddle.nn.Embedding: padding_idx {padding_idx} is outside a table of {rows} rows"
            )
        self._num_embeddings, self._embedding_dim = rows, width  # which scripts read
        self._padding_idx, self._sparse, self._name = padding_idx, sparse, name
        self.weight = self.create_parameter([rows, width], weight_attr)

    def forward(self, x: Any) -> Any:
        """Append the look-up."""
        return functional.embedding(x, self.weight, self._padding_idx, self._sparse, self._name)


class Dropout(Layer):
    """Set elements to 0 with probability ``p`` in training."""

    def __init__(
        self,
        p: Probability = 0.5,
        axis: Ints | None = None,
        mode: Literal["upscale_in_train", "downscale_in_infer"] = "upscale_in_train",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.p, self.axis, self.mode, self.name = p, axis, mode, name

    def forward(self, input: Any) -> Any:
        """Append the dropout."""
        return functional.dropout(input, self.p, self.axis, self.training, self.mode, self.name)


class AlphaDropout(Layer):
    """Set elements to the least that SELU gives with probability ``p`` in training."""

    def __init__(self, p: Probability = 0.5, name: str | None = None) -> None:
        super().__init__()
        self.p, self.name = p, name

    def forward(self, input: Any) -> Any:
        """Append the dropout."""
        return functional.alpha_dropout(input, self.p, self.training, self.name)


class Dropout2D(Layer):
    """Set whole channels of images to 0 with probability ``p`` in training."""

    layout, function = "NCHW", "dropout2d"

    def __init__(
        self, p: Probability = 0.5, data_format: str | None = None, name: Any = None
    ) -> None:
        super().__init__()
        choose_layout(type(self).__name__, data_format, self.layout)
        self.p, self.data_format, self.name = p, data_format or self.layout, name

    def forward(self, input: Any) -> Any:
        """Append the dropout."""
        drop = getattr(functional, self.function)
        return drop(input, self.p, self.training, self.data_format, self.name)


class Dropout3D(Dropout2D):
    """Set whole channels of volumes to 0 with probability ``p`` in training."""

    layout, function = "NCDHW", "dropout3d"


class Flatten(Layer):
    """Make one dimension of those from start_axis to stop_axis."""

    def __init__(self, start_axis: int = 1, stop_axis: int = -1) -> None:
        super().__init__()
        self.start_axis, self.stop_axis = start_axis, stop_axis

    def forward(self, input: Any) -> Any:
        """Append the reshape."""
        return composed.flatten(input, self.start_axis, self.stop_axis)


class Unflatten(Layer):
    """Give one dimension several extents."""

    def __init__(self, axis: int, shape: Ints, name: str | None = None) -> None:
        super().__init__()
        self.axis, self.shape = axis, shape

    def forward(self, input: Any) -> Any:
        """Append the reshape."""
        return composed.unflatten(input, self.axis, self.shape)


class Bilinear(Layer):
    """Return x1 weight[i] x2 + bias for each i."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        shape = [out_features, in1_features, in2_features]
        self.weight = self.create_parameter(shape, weight_attr)
        self.bias = self.create_parameter([1, out_features], bias_attr, is_bias=True)

    def forward(self, x1: Any, x2: Any) -> Any:
        """Append the product."""
        return functional.bilinear(x1, x2, self.weight, self.bias)


class Pad2D(Layer):
    """Put values around images: left, right, top, bottom."""

    dimensions, layout = 2, "NCHW"

    def __init__(
        self,
        padding: Ints,
        mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
        value: float = 0.0,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._pad = padding * (2 * self.dimensions) if len(padding) == 1 else padding
        self._facts = (mode, value, data_format or self.layout)

    def forward(self, x: Any) -> Any:
        """Append the padding."""
        return functional.pad(x, self._pad, *self._facts)


class Pad1D(Pad2D):
    """Put values around rows: left, right."""

    dimensions, layout = 1, "NCL"


class Pad3D(Pad2D):
    """Put values around volumes: left, right, top, bottom, front, back."""

    dimensions, layout = 3, "NCDHW"


class ZeroPad2D(Pad2D):
    """Put zeros around images: left, right, top, bottom."""

    def __init__(
        self, padding: Ints, data_format: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(padding, "constant", 0.0, data_format)


class Softmax2D(Layer):
    """Apply softmax over the channels of images."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """Append the softmax."""
        return functional.softmax(x, axis=-3)


class UpsamplingNearest2D(Layer):
    """Resize images to ``size``, or by ``scale_factor``, from the nearest pixels."""

    mode, align_corners = "nearest", False

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._facts = {"size": size, "scale_factor": scale_factor, "data_format": data_format}

    def forward(self, x: Any) -> Any:
        """Append the resizing."""
        how = {"mode": self.mode, "align_corners": self.align_corners}
        return functional.interpolate(x, **self._facts, **how)


class UpsamplingBilinear2D(UpsamplingNearest2D):
    """The same, between pixels; corners stay corners."""

    mode, align_corners = "bilinear", True


__all__ = public(globals())
