"""Layers that hold layers or parameters: by place, by name, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer
from hpcdist.graph.variable import Parameter

__all__ = ["LayerDict", "LayerList", "ParameterList", "Sequential"]


class _Listed(Layer):
    """Parts by place, kept under "0", "1", ...; ``kind`` says where."""

    kind = ""
    parts: type = Layer

    @property
    def _parts(self) -> dict[str, Any]:
        return self.__dict__[self.kind]

    def _key(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise GraphError(f"{type(self).__name__}: index {index} of {len(self)} parts")
        return str(index % len(self))

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts.values())

    def __getitem__(self, index: Any) -> Any:
        """Return a part, or with a slice several of them."""
        if isinstance(index, slice):
            return type(self)(list(self)[index])  # type: ignore[arg-type]
        return self._parts[self._key(index)]

    def __setitem__(self, index: int, part: Any) -> None:
        """Replace a part."""
        setattr(self, self._key(index), part)

    def append(self, sublayer: Any) -> Any:
        """Put a part at the end; return the list."""
        if not isinstance(sublayer, self.parts):
            raise GraphTypeError(
                f"paddle.nn.{type(self).__name__}: expected a {self.parts.__name__}, got "
                f"{sublayer!r:.80}"
            )
        setattr(self, str(len(self)), sublayer)
        return self

    def extend(self, sublayers: Iterable[Any]) -> Any:
        """Put parts at the end; return the list."""
        if not isinstance(sublayers, Iterable):
            raise GraphTypeError(
                f"paddle.nn.{type(self).__name__}: expected a list of {self.parts.__name__}, got "
                f"{sublayers!r:.80}"
            )
        for part in sublayers:
            self.append(part)
        return self

    def _replace(self, parts: list[Any]) -> None:
        self._parts.clear()
        self.extend(parts)


class LayerList(_Listed):
    """Layers by place."""

    kind = "_sub_layers"

    def __init__(self, sublayers: Iterable[Layer] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    def __delitem__(self, index: Any) -> None:
        """Take parts out; those behind move up."""
        rest = list(self)
        del rest[index]
        self._replace(rest)

    def insert(self, index: int, sublayer: Layer) -> None:
        """Put a layer before the one at ``index``."""
        parts = list(self)
        parts.insert(index, sublayer)
        self._replace(parts)


class ParameterList(_Listed):
    """Parameters by place."""

    kind = "_parameters"
    parts = Parameter

    def __init__(self, parameters: Iterable[Parameter] | None = None) -> None:
        super().__init__()
        self.extend(parameters or ())


class Sequential(Layer):
    """Layers that are called one after the other; given alone, or as (name, layer)."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        named = layers and isinstance(layers[0], (list, tuple))
        for place, layer in enumerate(layers):
            name, one = layer if named else (str(place), layer)
            self.add_sublayer(name, one)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._sub_layers.values())

    def __getitem__(self, name: Any) -> Any:
        """Return a layer by place or name; with a slice a Sequential of several."""
        if isinstance(name, slice):
            return type(self)(*list(self)[name])
        return self._sub_layers[name] if isinstance(name, str) else list(self)[name]

    def __setitem__(self, name: Any, layer: Layer) -> None:
        """Replace a layer, or add one."""
        self.add_sublayer(str(name), layer)

    def __delitem__(self, name: Any) -> None:
        """Take a layer out."""
        del self._sub_layers[str(name)]

    def forward(self, input: Any) -> Any:
        """Apply the layers to ``input`` one after another."""
        for layer in self:
            input = layer(input)
        return input


class LayerDict(Layer):
    """Layers by name."""

    def __init__(self, sublayers: Any = None) -> None:
        super().__init__()
        self.update(sublayers or {})

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sub_layers)

    def __contains__(self, key: str) -> bool:
        return key in self._sub_layers

    def __getitem__(self, key: str) -> Any:
        return self._sub_layers[key]

    def __setitem__(self, key: str, sublayer: Layer) -> None:
        self.add_sublayer(key, sublayer)

    def __delitem__(self, key: str) -> None:
        del self._sub_layers[key]

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._sub_layers.keys()

    def values(self) -> Iterable[Layer]:
        """Return the layers."""
        return self._sub_layers.values()

    def items(self) -> Iterable[tuple[str, Layer]]:
        """Return names and layers."""
        return self._sub_layers.items()

    def pop(self, key: str) -> Layer:
        """Take a layer out and return it."""
        return self._sub_layers.pop(key)

    def clear(self) -> None:
        """Take all layers out."""
        self._sub_layers.clear()

    def update(self, sublayers: Any) -> None:
        """Add layers: a mapping, or pairs."""
        pairs = sublayers.items() if isinstance(sublayers, (Mapping, LayerDict)) else sublayers
        for key, layer in pairs:
            self.add_sublayer(key, layer)
