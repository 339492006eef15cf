"""What the functions of operators take and give, by name.

``xp`` is numpy or cupy, an array one of its arrays: cupy has no types, so `Array` checks nothing
and says what is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call, GradOp, Meta

Array: TypeAlias = Any
Operands = Sequence[Array]  # of an operator, in the order of its slots; None is an absent one
Attrs = Mapping[str, Any]  # attributes of an operator by name
Lods = Sequence[Any]  # of its slots: a Lod or None, of an `X*` a list of these
Bind = Callable[..., Call]  # see `bind` in `hpcdist.graph.registry.OpDef`
Kernel = Callable[..., None]  # see `kernel` there
GradRule = Callable[[Operator, Callable[[str], bool]], list[GradOp]]  # see `grad` there
Metas = tuple[Meta | list[Meta] | None, ...]  # what a shape rule gives, for each output slot
