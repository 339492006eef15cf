"""Variables and parameters: the static description of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hpcdist.base.checks import Refused, extents
from hpcdist.base.errors import GraphTypeError
from hpcdist.graph import names
from hpcdist.graph.dtypes import DTypeLike, VarType, canonical
from hpcdist.graph.lod import Lod
from hpcdist.graph.owner import OwningBlock
from hpcdist.graph.registry import Meta

_IMPERATIVE = (
    "it is for Fluid's imperative mode: Executor.run fetches values, fluid.global_scope() holds "
    "those that stay, and append_backward makes gradients"
)


class BatchSource(Protocol):
    """What gives data variables their values, step by step, where none are fed."""

    name: str
    drop_last: bool  # whether batches are left out that are too few for all devices

    def read(self) -> dict[str, Any]:
        """Return the next batch by names of variables; EOFException after the last one."""

    def peek(self) -> dict[str, Any] | None:
        """Return the batch that `read` gives next, if it is there already."""


class Variable:
    """A named value of a block; ``shape`` has -1 where the batch size goes.

    ``lod_level`` 1 marks ragged values: their rows group into sequences of different lengths.
    """

    backward = Refused(_IMPERATIVE)
    clear_gradient = Refused(_IMPERATIVE)
    detach = Refused(_IMPERATIVE)
    gradient = Refused(_IMPERATIVE)
    numpy = Refused(_IMPERATIVE)
    set_value = Refused(_IMPERATIVE)

    sources_set = 0  # how often any variable was given a source

    def __init__(
        self,
        block: OwningBlock,
        name: str,
        *,
        shape: Sequence[int] = (),
        dtype: DTypeLike = "float32",
        type: str = VarType.LOD_TENSOR,
        persistable: bool = False,
        stop_gradient: bool = False,
        lod_level: int = 0,
        is_data: bool = False,
        checks_feed: bool = False,
    ) -> None:
        self.block = block
        self.name = name
        self.shape = extents(shape)
        self.dtype = canonical(dtype)
        self.type = type
        self.persistable = persistable
        self.stop_gradient = stop_gradient
        self.lod_level = lod_level
        self.is_data = is_data
        self.checks_feed = checks_feed  # whether what is fed must have these very extents
        self.is_comparison = False  # whether it is what `x < y` gives: it has no truth here
        self._source: BatchSource | None = None

    @property
    def source(self) -> BatchSource | None:
        """The started reader that gives this data, if one does; copies read from it too."""
        return self._source

    @source.setter
    def source(self, source: BatchSource | None) -> None:
        """Note it: what was decided for a Program that reads from nothing is to be decided anew."""
        self._source = source
        Variable.sources_set += 1

    @property
    def meta(self) -> Meta:
        """The facts that shape rules see."""
        lod = Lod(self.lod_level) if self.lod_level else None
        return Meta(self.shape, self.dtype, self.type, lod=lod)

    @property
    def op(self) -> Any:
        """The last operator of the block that writes this variable, or None."""
        for op in reversed(self.block.ops):
            if self.name in op.output_arg_names:
                return op
        return None

    @property
    def grad_name(self) -> str:
        """What the gradient of this variable is called once a backward pass has one."""
        return names.grad_name(self.name)

    def _set_error_clip(self, error_clip: object) -> None:
        """Clip the gradient of this value before it flows on, see `hpcdist.clip`."""
        self.error_clip = error_clip

    def __float__(self) -> float:
        raise GraphTypeError(
            f"expected a number, got the Variable {self.name!r}, whose value only a step "
            "knows: give a number, or compute with layers"
        )

    if TYPE_CHECKING:  # signs append operators: hpcdist.fluid.layers.math_op makes them

        def __add__(self, other: Variable | float) -> Variable: ...
        def __radd__(self, other: Variable | float) -> Variable: ...
        def __sub__(self, other: Variable | float) -> Variable: ...
        def __rsub__(self, other: Variable | float) -> Variable: ...
        def __mul__(self, other: Variable | float) -> Variable: ...
        def __rmul__(self, other: Variable | float) -> Variable: ...
        def __truediv__(self, other: Variable | float) -> Variable: ...
        def __rtruediv__(self, other: Variable | float) -> Variable: ...
        def __pow__(self, other: Variable | float) -> Variable: ...
        def __rpow__(self, other: Variable | float) -> Variable: ...
        def __floordiv__(self, other: Variable | float) -> Variable: ...
        def __mod__(self, other: Variable | float) -> Variable: ...
        def __lt__(self, other: Variable | float) -> Variable: ...
        def __le__(self, other: Variable | float) -> Variable: ...
        def __gt__(self, other: Variable | float) -> Variable: ...
        def __ge__(self, other: Variable | float) -> Variable: ...
        def __neg__(self) -> Variable: ...
        def astype(self, dtype: object) -> Variable: ...

    def copied_to(self, block: OwningBlock) -> Variable:
        """Return the same variable as a member of ``block`` (not added to it)."""
        new = object.__new__(self.__class__)
        new.__dict__.update(self.__dict__)
        new.block = block
        return new

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Return the variable as text."""
        return str(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        marks = "".join(
            f" {mark}"
            for mark in ("persistable", "stop_gradient", "is_data")
            if getattr(self, mark)
        )
        kind = "" if self.type == VarType.LOD_TENSOR else f" {self.type}"
        return f"{self.name}: {self.dtype}{list(self.shape)}{kind}{marks}"


class Parameter(Variable):
    """A persistable variable that an optimizer may move."""

    def __init__(
        self,
        block: OwningBlock,
        name: str,
        *,
        trainable: bool = True,
        optimize_attr: dict[str, Any] | None = None,
        regularizer: Any = None,
        gradient_clip_attr: Any = None,
        do_model_average: bool | None = None,
        need_clip: bool = True,
        is_distributed: bool = False,
        row_policy: object = None,
        **rest: Any,
    ) -> None:
        super().__init__(block, name, persistable=True, **rest)
        facts = trainable, optimize_attr, regularizer, gradient_clip_attr, do_model_average
        self.train_as(*facts, need_clip)
        self.is_distributed = is_distributed
        self.row_policy = row_policy  # a `ps.row_policy.RowPolicy` of a distributed table's rows

    def train_as(
        self,
        trainable: bool,
        optimize_attr: dict[str, Any] | None,
        regularizer: Any,
        gradient_clip_attr: Any,
        do_model_average: bool | None,
        need_clip: bool = True,
    ) -> None:
        """Set how optimizers treat it."""
        self.trainable, self.stop_gradient = trainable, not trainable
        self.optimize_attr = optimize_attr or {"learning_rate": 1.0}
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip_attr
        self.do_model_average = do_model_average
        self.need_clip = need_clip  # False: a clip of all gradients leaves this one out
