"""Types of the arguments and results of operators' functions.

``xp`` is numpy or cupy, an `ArrayModule`; a `DeviceArray` is one of its arrays, an `Array` may also
be a tensor of torch's. cupy has no types, so these say what is meant and check nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, TypeAlias

from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call, GradOp, Meta

ArrayModule: TypeAlias = Any
DeviceArray: TypeAlias = Any
Array: TypeAlias = Any
Operands = Sequence[Array]  # of an operator, in the order of its slots; None is an absent one
Attrs = Mapping[str, Any]  # attributes of an operator by name
Lods = Sequence[Any]  # of its slots: a Lod or None, of an `X*` a list of these
# See `bind` and `kernel` in `hpcdist.graph.registry.OpDef`. Python 3.10 takes no `...` in there.
Bind: TypeAlias = "Callable[Concatenate[ArrayModule, ...], Call]"
Kernel: TypeAlias = "Callable[Concatenate[ArrayModule, ...], None]"
GradRule = Callable[[Operator, Callable[[str], bool]], list[GradOp]]  # see `grad` there
Metas = tuple[Meta | list[Meta] | None, ...]  # what a shape rule gives, for each output slot
