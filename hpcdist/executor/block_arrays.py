"""The arrays of a compiled block, by name: kept ones, temporaries in the pool, and views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.executor.analysis import View
from hpcdist.executor.backend import Backend
from hpcdist.executor.fitting import PoolPlace
from hpcdist.executor.memory import adopted, carve, meta_of, new_value
from hpcdist.executor.saving import Layout
from hpcdist.executor.scope import Scope
from hpcdist.graph.registry import Meta
from hpcdist.ops.embedding.selected_rows import SelectedRows


class BlockArrays:
    """Makes the arrays of a block; ``given`` ones are used as they are."""

    def __init__(self, scope: Scope, backend: Backend, given: Mapping[str, Any]) -> None:
        self.scope = scope
        self.backend = backend
        self.arrays = dict(given)
        self._places: dict[object, Any] = {}
        for array in given.values():
            self.one(array)

    def one(self, value: Any) -> Any:
        """Return the one object for a place, shape and type: by that cupy knows an operand again.

        An operand that overlaps a result, and is another object, it copies at every step.
        """
        if isinstance(value, SelectedRows):
            return value
        key = (self.backend.address(value), value.shape, value.strides, value.dtype)
        return self._places.setdefault(key, value)

    def fix(self, name: str, meta: Meta) -> None:
        """Use the scope's array of a kept value: made if it is new, moved if it is elsewhere."""
        if name in self.arrays:
            return
        variable = self.scope.var_or_new(name)
        if variable.value is None or meta_of(variable.value) != meta:
            variable.hold(new_value(meta, self.backend))
        array = adopted(variable.value, self.backend)
        if array is not variable.value:
            variable.hold(array)
        self.arrays[name] = self.one(array)

    def allocate(
        self, memory: object, layout: Layout, metas: Mapping[str, Meta]
    ) -> dict[str, PoolPlace]:
        """Make the arrays of temporaries, and return where each lies in the memory."""
        places = {}
        for storage, offset in zip(layout.storages, layout.offsets):
            place = PoolPlace(offset, storage.nbytes)
            for name in storage.names:
                places[name] = place
                self.arrays[name] = self.one(carve(memory, offset, metas[name]))
        return places

    def view(self, name: str, views: Mapping[str, View], metas: Mapping[str, Meta]) -> Any:
        """Return the array of a view, made of the array that it is a part or a form of."""
        if name in self.arrays:
            return self.arrays[name]
        view = views[name]
        root = self.view(view.root, views, metas) if view.root in views else self.arrays[view.root]
        reshaped = view.begin is None
        seen = root.reshape(metas[name].shape) if reshaped else root[view.begin : view.end]
        self.arrays[name] = self.one(seen)
        return self.arrays[name]
