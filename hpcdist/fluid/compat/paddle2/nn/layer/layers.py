"""``paddle.nn.Layer``: parameters and sublayers by attribute; calling one appends operators."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.executor.scope import global_scope
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.creation import get_default_dtype
from hpcdist.fluid.compat.paddle2.kinds import one_of
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph import names
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Parameter, Variable

__all__ = ["Layer"]

Hook = Callable[..., Any]


def snake_case(name: str) -> str:
    """Return Paddle's snake-case form of a class name: DNNLayer is dnn_layer."""
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()


_PACKAGE = __name__.rpartition(".")[0] + "."


class HookHandle:
    """Removes a hook again."""

    def __init__(self, hooks: list[Hook], hook: Hook) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Take the hook away."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


class Layer:
    """Base of layers: a Parameter, a Layer or a persistable Variable set as attribute is kept.

    Its parameters are made in the default Programs when the layer is; ``linear_0.w_0`` and the
    like, by the class and the count of layers so far; of ``dtype``, by default what
    `paddle.set_default_dtype` says. Calling it runs ``forward``, which appends
    operators to the default main Program; a layer that is called twice shares its parameters.
    """

    def __init_subclass__(cls) -> None:
        """Make layers of this package check their arguments by their annotations."""
        if cls.__module__.startswith(_PACKAGE) and "__init__" in vars(cls):
            cls.__init__ = declare.checked(cls.__init__, "paddle.nn")  # type: ignore[method-assign]

    def __init__(self, name_scope: str | None = None, dtype: Any = None) -> None:
        kept = self.__dict__
        kept["_parameters"] = OrderedDict()
        kept["_buffers"] = OrderedDict()
        kept["_sub_layers"] = OrderedDict()
        self.training = True
        key = snake_case(type(self).__name__) if name_scope is None else name_scope
        self._full_name = names.generate(key)
        self._dtype = get_default_dtype() if dtype is None else canonical(dtype)
        self._not_persistable: set[str] = set()
        self._before: list[Hook] = []
        self._after: list[Hook] = []

    # -- calls ---------------------------------------------------------------------------------
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Append what the layer computes; to be written by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the hooks and ``forward``."""
        if "_parameters" not in self.__dict__:
            raise GraphError(
                f"{type(self).__name__} is called before its super().__init__() was called"
            )
        for hook in list(self._before):
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **kwargs)
        for hook in list(self._after):
            changed = hook(self, inputs, outputs)
            outputs = outputs if changed is None else changed
        return outputs

    def register_forward_pre_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(layer, inputs)`` before each forward; what it returns replaces the inputs."""
        self._before.append(hook)
        return HookHandle(self._before, hook)

    def register_forward_post_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(layer, inputs, outputs)`` after each forward; as above for the outputs."""
        self._after.append(hook)
        return HookHandle(self._after, hook)

    def train(self) -> None:
        """Set dropout and normalization to training mode, here and in sublayers."""
        for layer in self.sublayers(include_self=True):
            layer.training = True

    def eval(self) -> None:
        """Set dropout and normalization to inference mode, here and in sublayers."""
        for layer in self.sublayers(include_self=True):
            layer.training = False

    def apply(self, fn: Callable[[Layer], Any]) -> Layer:
        """Call ``fn`` with every sublayer, then with this layer; return this."""
        for layer in self.children():
            layer.apply(fn)
        fn(self)
        return self

    # -- parts ---------------------------------------------------------------------------------
    def full_name(self) -> str:
        """Return the name that parameters are named after, such as ``linear_0``."""
        return self._full_name

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """Make a Parameter ``<full name>.w_<n>`` (``b_<n>``: is_bias); None if attr is False."""
        helper = LayerHelper(self._full_name, self._full_name)
        kind = self._dtype if dtype is None else dtype
        return helper.create_parameter(attr, shape, kind, is_bias, default_initializer)

    def create_variable(
        self, name: str | None = None, persistable: bool | None = None, dtype: Any = None
    ) -> Variable:
        """Make a Variable of the global block."""
        key = name or names.generate(f"{self._full_name}._generated_var")
        block = default_main_program().global_block()
        return block.create_var(key, dtype=dtype or self._dtype, persistable=bool(persistable))

    create_tensor = create_variable

    def add_parameter(self, name: str, parameter: Parameter | None) -> Parameter | None:
        """Keep a Parameter as the attribute ``name``."""
        if parameter is not None and not isinstance(parameter, Variable):
            raise GraphTypeError(f"add_parameter {name!r}: expected a Parameter, got {parameter!r}")
        self._keep(name, "_parameters", parameter)
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer | None) -> Layer | None:
        """Keep a Layer as the attribute ``name``."""
        if sublayer is not None and not isinstance(sublayer, Layer):
            raise GraphTypeError(f"add_sublayer {name!r}: expected a Layer, got {sublayer!r}")
        self._keep(str(name), "_sub_layers", sublayer)
        return sublayer

    def register_buffer(self, name: str, tensor: Any, persistable: bool = True) -> None:
        """Keep a Variable as the attribute ``name``; ``state_dict`` has it if persistable."""
        self._keep(name, "_buffers", tensor)
        (self._not_persistable.discard if persistable else self._not_persistable.add)(name)

    def _keep(self, name: str, kind: str, value: Any) -> None:
        for other in ("_parameters", "_buffers", "_sub_layers"):
            self.__dict__[other].pop(name, None)
        self.__dict__.pop(name, None)
        self.__dict__[kind][name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep Parameters and Layers by name; anything else is an attribute."""
        kept_as = ((Parameter, "_parameters"), (Layer, "_sub_layers"))
        kind = next((place for of, place in kept_as if isinstance(value, of)), None)
        if kind is not None:
            if kind not in self.__dict__:
                raise GraphError(
                    f"{type(self).__name__}.{name} is set before super().__init__() was called"
                )
            self._keep(name, kind, value)
            return
        for known in ("_parameters", "_sub_layers", "_buffers"):
            if name in self.__dict__.get(known, ()):
                self.__dict__[known][name] = value if known == "_buffers" else None
                if value is not None and known != "_buffers":
                    raise GraphTypeError(
                        f"{type(self).__name__}.{name} is a {known.strip('_')[:-1]}: expected "
                        f"another one or None, got {value!r}"
                    )
                return
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Find what is kept by name."""
        for known in ("_parameters", "_sub_layers", "_buffers"):
            kept = self.__dict__.get(known, {})
            if name in kept:
                return kept[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        """Forget what is kept by name."""
        for known in ("_parameters", "_sub_layers", "_buffers"):
            if name in self.__dict__.get(known, ()):
                del self.__dict__[known][name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._parameters, *self._sub_layers, *self._buffers]

    # -- all of them ---------------------------------------------------------------------------
    def named_children(self) -> Iterator[tuple[str, Layer]]:
        """Yield the layers of this one with their names, each once."""
        seen: set[int] = set()
        for name, layer in self._sub_layers.items():
            if layer is not None and id(layer) not in seen:
                seen.add(id(layer))
                yield name, layer

    def children(self) -> Iterator[Layer]:
        """Yield the layers of this one, each once."""
        return (layer for _, layer in self.named_children())

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, layers_set: set[int] | None = None
    ) -> Iterator[tuple[str, Layer]]:
        """Yield all layers below this one by their dotted names, each once."""
        seen = set() if layers_set is None else layers_set
        if include_self and id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
        for name, layer in self._sub_layers.items():
            if layer is not None:
                below = f"{prefix}.{name}" if prefix else name
                yield from layer.named_sublayers(below, True, seen)

    def sublayers(self, include_self: bool = False) -> list[Layer]:
        """Return all layers below this one."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def _named(self, kind: str, prefix: str, include_sublayers: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        layers = (
            self.named_sublayers(prefix, include_self=True)
            if include_sublayers
            else iter([(prefix, self)])
        )
        for above, layer in layers:
            for name, value in layer.__dict__[kind].items():
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{above}.{name}" if above else name, value

    def named_parameters(
        self, prefix: str = "", include_sublayers: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield parameters by their dotted names, each once."""
        return self._named("_parameters", prefix, include_sublayers)

    def parameters(self, include_sublayers: bool = True) -> list[Parameter]:
        """Return parameters, those of sublayers after this one's."""
        return [value for _, value in self.named_parameters("", include_sublayers)]

    def named_buffers(
        self, prefix: str = "", include_sublayers: bool = True
    ) -> Iterator[tuple[str, Variable]]:
        """Yield registered Variables by their dotted names, each once."""
        return self._named("_buffers", prefix, include_sublayers)

    def buffers(self, include_sublayers: bool = True) -> list[Variable]:
        """Return registered Variables."""
        return [value for _, value in self.named_buffers("", include_sublayers)]

    # -- state ---------------------------------------------------------------------------------
    def state_dict(
        self,
        destination: dict[str, Variable] | None = None,
        include_sublayers: bool = True,
        structured_name_prefix: str = "",
        use_hook: bool = True,
    ) -> dict[str, Variable]:
        """Return parameters and persistable buffers by their dotted names.

        They are Variables; their values are in the scope: ``paddle.static.global_scope()``.
        """
        state: dict[str, Variable] = OrderedDict() if destination is None else destination
        for name, value in self._parameters.items():
            if value is not None:
                state[structured_name_prefix + name] = value
        for name, value in self._buffers.items():
            if value is not None and name not in self._not_persistable:
                state[structured_name_prefix + name] = value
        if include_sublayers:
            for name, layer in self._sub_layers.items():
                if layer is not None:
                    layer.state_dict(state, True, f"{structured_name_prefix}{name}.")
        return state

    to_static_state_dict = state_dict

    def set_state_dict(
        self, state_dict: Mapping[str, Any], use_structured_name: bool = True
    ) -> tuple[list[str], list[str]]:
        """Set values in the global scope, after the startup Program has run.

        Returns the names that are missing in ``state_dict``, and those that are there in vain.
        GraphError for an array of another shape.
        """
        own = {
            (name if use_structured_name else value.name): value
            for name, value in self.state_dict().items()
        }
        for name, variable in own.items():
            if name in state_dict:
                array = np.asarray(state_dict[name])
                if array.shape != variable.shape:
                    raise GraphError(
                        f"set_state_dict: {name!r} has shape {array.shape}, expected "
                        f"{variable.shape}"
                    )
                global_scope().var(variable.name).get_tensor().set(array, None)
        missing = [name for name in own if name not in state_dict]
        return missing, [name for name in state_dict if name not in own]

    set_dict = load_dict = set_state_dict

    def clear_gradients(self, set_to_zero: bool = True) -> None:
        """Do nothing: gradients live in a step."""

    def to(self, device: Any = None, dtype: Any = None, blocking: Any = None) -> Layer:
        """Return the layer: the Executor's place decides; another ``dtype`` is refused."""
        if dtype is not None and canonical(dtype) != canonical(self._dtype):
            raise GraphError(
                f"{type(self).__name__}.to: parameters are {self._dtype} from when the layer is "
                "made: give create_parameter a dtype, or use paddle.static.amp"
            )
        return self

    # -- shown ---------------------------------------------------------------------------------
    def extra_repr(self) -> str:
        """Return the text shown between brackets; for subclasses."""
        return ""

    def __repr__(self) -> str:
        parts = [f"({name}): {layer!r}" for name, layer in self._sub_layers.items()]
        if not parts:
            return f"{type(self).__name__}({self.extra_repr()})"
        inside = "\n".join(parts).replace("\n", "\n  ")
        return f"{type(self).__name__}({self.extra_repr()}\n  {inside}\n)"


def choose_layout(name: str, given: str | None, first: str) -> str:
    """Return where channels are: ``first``, or the same with channels last; GraphError else."""
    last = first[0] + first[2:] + "C"
    return (
        first if given is None else one_of((first, last))(f"paddle.nn.{name}: data_format", given)
    )


def number_from(where: str, value: Any, least: int = 1) -> int:
    """Return an integer argument of a class of ``paddle.nn``; GraphError if it is less."""
    number = declare.KINDS["int"](f"paddle.nn.{where}", value)
    if number < least:
        raise GraphError(f"paddle.nn.{where}: expected at least {least}, got {value}")
    return number
