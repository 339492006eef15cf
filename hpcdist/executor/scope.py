"""Scopes: values that outlive a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpcdist.base.device import assign, on_host
from hpcdist.base.errors import FeedError
from hpcdist.base.fetched import holds_fetched
from hpcdist.executor.scope_rows import SelectedRowsHandle
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import Grouped, LoDTensor
from hpcdist.graph.names import AVERAGED
from hpcdist.ops.embedding.selected_rows import SelectedRows

_note_set: Callable[[ScopeVariable], None] | None = None


def on_set(note: Callable[[ScopeVariable], None] | None) -> None:
    """Call ``note`` with every variable that the script is about to set by hand."""
    global _note_set
    _note_set = note


class ScopeVariable:
    """A named value of a scope: an array, a SelectedRows, or None before it is initialized."""

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.name = name
        self.value: Any = None
        self.number: int | None = None  # beside the value, see `set_int`
        self.sequences: Lod | None = None  # that a script, or a single operator, has given it
        self.laid = False  # beside others, and not to be moved for another Program
        # What reads the value where others have it; here is only a table's memory, or nothing.
        self.elsewhere: Callable[[], np.ndarray] | None = None

    def set_int(self, number: int) -> None:
        """Hold a whole number beside the value: scripts read it, no operator does."""
        self.number = int(number)

    def is_int(self) -> bool:
        """Return whether it holds a whole number, by `set_int`."""
        return self.number is not None

    def get_int(self) -> int:
        """Return the whole number; FeedError if there is none."""
        if self.number is None:
            raise FeedError(f"variable {self.name!r} holds no whole number: call set_int(3) first")
        return self.number

    def get_tensor(self) -> ScopeTensor:
        """Return a handle for reading and setting the array."""
        return ScopeTensor(self)

    def get_selected_rows(self) -> SelectedRowsHandle:
        """Return a handle for reading and setting rows of a table; made if there is no value.

        FeedError if the variable holds an array. The gradients of a step are gone after it.
        """
        if self.value is not None and not isinstance(self.value, SelectedRows):
            raise FeedError(
                f"variable {self.name!r} holds an array of shape {self.value.shape}, not "
                "SelectedRows: read it by get_tensor()"
            )
        return SelectedRowsHandle(holder=self)

    def take(self, array: Any) -> None:
        """Take over the value of a host array; the same shape and dtype are written in place."""
        present = self.value
        if present is not None and present.shape == array.shape and present.dtype == array.dtype:
            assign(present, array)
        else:
            self.hold(array.copy())

    def as_tensor(self) -> LoDTensor:
        """Return a copy of the value with its sequences; FeedError if there is none."""
        return LoDTensor(np.array(self.get_tensor()), self.sequences)

    def take_tensor(self, tensor: LoDTensor) -> None:
        """Take over a tensor's value and sequences."""
        self.elsewhere = None
        self.take(np.asarray(tensor))
        self.sequences = tensor.sequences

    def refuse_reading(self, reason: str) -> None:
        """Raise FeedError for reads of the value here, saying where it is."""

        def refuse() -> np.ndarray:
            raise FeedError(reason)

        self.elsewhere = refuse

    def hold(self, value: object) -> None:
        """Take another array: compiled programs must bind anew."""
        self.value = value
        self.laid = False
        self.scope.changes += 1


@holds_fetched
class ScopeTensor(Grouped):
    """Fluid's way to a variable's array: ``np.array(tensor)``, ``tensor.set(array, place)``."""

    def __init__(self, variable: ScopeVariable) -> None:
        self._variable = variable

    def set(self, array: object, place: object = None) -> None:
        """Set the value; the same shape and dtype are written in place.

        A job looks at it before its next step: other ranks must have it, too.
        """
        if _note_set is not None:
            _note_set(self._variable)
        self._variable.elsewhere = None
        self._variable.take(np.asarray(array))

    @property
    def sequences(self) -> Lod | None:
        """How the rows group into sequences, where somebody has said so."""
        return self._variable.sequences

    @sequences.setter
    def sequences(self, sequences: Lod | None) -> None:
        self._variable.sequences = sequences

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array().shape)

    def _set_dims(self, dims: Sequence[int]) -> None:
        """Announce the shape of what is set next; a value of another shape is dropped."""
        super()._set_dims(dims)
        present = self._variable.value
        if present is not None and present.shape != tuple(dims):
            self._variable.hold(None)

    def _is_initialized(self) -> bool:
        """Return whether there is a value; Fluid's scripts ask it under this name."""
        return self._variable.value is not None or self._variable.elsewhere is not None

    def _get_dims(self) -> list[int]:
        """Return the shape, [0] before there is a value, as Fluid's scripts ask it."""
        return self.shape() if self._is_initialized() else [0]

    def _dtype(self) -> str:
        """Return the element type; Fluid's scripts ask it under this name."""
        return canonical(self._array().dtype)

    def _array(self) -> Any:
        if self._variable.elsewhere is not None:
            return self._variable.elsewhere()
        if self._variable.value is None:
            raise FeedError(
                f"variable {self._variable.name!r} is not initialized: "
                "run the startup program first"
            )
        if isinstance(self._variable.value, SelectedRows):
            raise FeedError(
                f"variable {self._variable.name!r} holds SelectedRows: read them by "
                "get_selected_rows(), or let layers.get_tensor_from_selected_rows give an array"
            )
        return self._variable.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(on_host(self._array()), dtype=dtype)

    def __len__(self) -> int:
        return len(self._array())


class Scope:
    """Named values, with child scopes that see their parent's.

    ``layout`` grows when a variable that is seen here gets another array: compiled programs check
    it. ``changes`` counts those of this scope's own variables.
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.changes = 0
        self._variables: dict[str, ScopeVariable] = {}

    @property
    def layout(self) -> int:
        """How often variables of this scope or its parents have got other arrays."""
        return self.changes if self.parent is None else self.changes + self.parent.layout

    def var(self, name: str) -> ScopeVariable:
        """Return a variable of this scope, made if it is not there."""
        if name not in self._variables:
            self._variables[name] = ScopeVariable(self, name)
        return self._variables[name]

    def find_var(self, name: str) -> ScopeVariable | None:
        """Look a variable up here and in the parents."""
        variable = self._variables.get(name)
        if variable is None and self.parent is not None:
            return self.parent.find_var(name)
        return variable

    def array_of(self, name: str) -> Any:
        """Return the array of a variable, on whichever device; None if it has none."""
        variable = self.find_var(name)
        value = None if variable is None else variable.value
        return value if hasattr(value, "dtype") and hasattr(value, "shape") else None

    def take(self, name: str, array: Any) -> None:
        """Hold an array in a variable of this scope, made if it is not there."""
        self.var(name).take(array)

    def var_or_new(self, name: str) -> ScopeVariable:
        """Look a variable up here and in the parents; make one here if there is none."""
        return self.find_var(name) or self.var(name)

    def local_var_names(self) -> list[str]:
        """Names of this scope's own variables."""
        return list(self._variables)

    def new_scope(self) -> Scope:
        """Return a child."""
        return Scope(self)

    def drop_kids(self) -> None:
        """Forget the children: a child lives as long as somebody holds it, so there are none."""

    def erase(self, names: list[str]) -> None:
        """Drop variables."""
        for name in names:
            self._variables.pop(name, None)
        self.changes += 1


def holds_averages(scope: Scope) -> bool:
    """Return whether parameters have their averages in a scope, in place of their own values."""
    variable = scope.find_var(AVERAGED)
    return variable is not None and variable.value is not None and bool(on_host(variable.value)[0])


_global = Scope()


def global_scope() -> Scope:
    """Return the scope that Executor.run uses when none is given.

    Examples:
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr="w")
        >>> results = fluid.Executor().run(fluid.default_startup_program())
        >>> np.array(fluid.global_scope().find_var("w").get_tensor()).shape
        (3, 1)
    """
    return _global


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Use another global scope inside the ``with``.

    Examples:
        >>> with fluid.scope_guard(fluid.Scope()):
        ...     fluid.global_scope().find_var("w") is None
        True
    """
    global _global
    saved, _global = _global, scope
    try:
        yield
    finally:
        _global = saved
