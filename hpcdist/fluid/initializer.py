"""Initializers: each prepends the operator that fills a parameter to the startup block.

Fluid builds startup programs back to front, so the last parameter made is initialized first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import declared_attrs, lookup
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ops.tensor.constant import VALUE_ATTRS
from hpcdist.runtime.tables.given_rows import GivenRows
from hpcdist.transpiler.table_metadata import GIVEN_ROWS

Vocabulary = Mapping[str, int] | Sequence[str]


class Initializer:
    """A way to fill a variable: ``initializer(var, block)`` prepends the operator to ``block``."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend the operator that fills ``var``."""
        raise NotImplementedError


class ConstantInitializer(Initializer):
    """Fill with one value. ``force_cpu`` is kept as an attribute only.

    Examples:
        >>> two = fluid.initializer.Constant(2.0)
        >>> w = fluid.layers.create_parameter([2], "float32", default_initializer=two)
        >>> results = fluid.Executor().run(fluid.default_startup_program())
        >>> fluid.Executor().run(fetch_list=[w])
        [array([2., 2.], dtype=float32)]
    """

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        self.value = float(np.asarray(value).item())  # also an array of one element
        self.force_cpu = bool(force_cpu)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``fill_constant``."""
        attrs = {"shape": list(var.shape), "dtype": var.dtype, "value": self.value}
        attrs["force_cpu"] = self.force_cpu
        return block.prepend_op("fill_constant", {}, {"Out": var}, attrs)


class _Random(Initializer):
    """Fill from a random stream; ``seed`` 0 takes the startup program's, 0 there the job's."""

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def _prepend(self, type: str, var: Variable, block: Block, **attrs: float) -> Operator:
        if not is_float(var.dtype):
            raise GraphTypeError(
                f"{type}: {var.name!r} is {var.dtype}, but random values are floats"
            )
        seed = self.seed or block.program.random_seed
        facts: dict[str, Any] = {"shape": list(var.shape), "dtype": var.dtype}
        facts |= {"seed": int(seed), "stream": var.name}
        return block.prepend_op(type, {}, {"Out": var}, {**facts, **attrs})

    def _uniform(
        self, var: Variable, block: Block, low: float, high: float, **diagonal: float
    ) -> Operator:
        bounds = {"min": float(low), "max": float(high)}
        return self._prepend("uniform_random", var, block, **bounds, **diagonal)

    def _normal(self, var: Variable, block: Block, mean: float, std: float) -> Operator:
        return self._prepend("gaussian_random", var, block, mean=float(mean), std=float(std))

    def _of_fan(self, var: Variable, block: Block, fan: float, uniform: bool) -> Operator:
        """Draw with variance 2 / fan."""
        if uniform:
            limit = math.sqrt(6.0 / fan)
            return self._uniform(var, block, -limit, limit)
        return self._normal(var, block, 0.0, math.sqrt(2.0 / fan))


class UniformInitializer(_Random):
    """Draw from [low, high].

    Examples:
        >>> attr = fluid.ParamAttr(initializer=fluid.initializer.Uniform(-0.1, 0.1))
        >>> fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr=attr).shape
        (-1, 1)
    """

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        super().__init__(seed)
        if high < low:
            raise GraphError(f"Uniform: low {low} is above high {high}")
        self.low, self.high = low, high
        self._diagonal = (
            {"diag_num": diag_num, "diag_step": diag_step, "diag_val": float(diag_val)}
            if diag_num
            else {}
        )

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random``.

        GraphError if the diagonal has elements that the variable has not.
        """
        return self._uniform(var, block, self.low, self.high, **self._diagonal)


class NormalInitializer(_Random):
    """Draw from the normal distribution with mean ``loc`` and standard deviation ``scale``.

    Examples:
        >>> attr = fluid.ParamAttr(initializer=fluid.initializer.Normal(loc=0.0, scale=0.1))
        >>> fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr=attr).shape
        (-1, 1)
    """

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__(seed)
        self.loc, self.scale = loc, scale

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``gaussian_random``."""
        return self._normal(var, block, self.loc, self.scale)


class TruncatedNormalInitializer(NormalInitializer):
    """Draw from the normal distribution cut off at two standard deviations."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``truncated_gaussian_random``."""
        facts = {"mean": float(self.loc), "std": float(self.scale)}
        return self._prepend("truncated_gaussian_random", var, block, **facts)


class XavierInitializer(_Random):
    """Draw with variance 2 / (fan_in + fan_out), uniform or normal (Glorot and Bengio, 2010).

    Examples:
        >>> attr = fluid.ParamAttr(initializer=fluid.initializer.Xavier(uniform=False))
        >>> fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr=attr).shape
        (-1, 1)
    """

    def __init__(
        self,
        uniform: bool = True,
        fan_in: float | None = None,
        fan_out: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.uniform, self.fan_in, self.fan_out = uniform, fan_in, fan_out

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random`` or ``gaussian_random``."""
        fan_in, fan_out = fans(var.shape)
        both = (self.fan_in or fan_in) + (self.fan_out or fan_out)
        return self._of_fan(var, block, both, self.uniform)


class MSRAInitializer(_Random):
    """Draw with variance 2 / fan_in, uniform or normal (He et al., 2015)."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.uniform, self.fan_in = uniform, fan_in

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random`` or ``gaussian_random``."""
        return self._of_fan(var, block, self.fan_in or fans(var.shape)[0], self.uniform)


class NumpyArrayInitializer(Initializer):
    """Fill with the values of an array of the parameter's shape."""

    def __init__(self, value: np.ndarray) -> None:
        if not isinstance(value, np.ndarray):
            raise GraphTypeError(f"NumpyArrayInitializer: expected an array, got {value!r}")
        self.value = value

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``."""
        if self.value.shape != var.shape:
            raise GraphError(
                f"NumpyArrayInitializer: the array has shape {self.value.shape}, "
                f"but {var.name!r} has {var.shape}"
            )
        if var.dtype not in VALUE_ATTRS:
            raise GraphTypeError(
                f"NumpyArrayInitializer: {var.name!r} is {var.dtype}, "
                f"expected one of {', '.join(VALUE_ATTRS)}"
            )
        values = self.value.astype(var.dtype)
        attrs = {"shape": list(var.shape), "dtype": var.dtype, VALUE_ATTRS[var.dtype]: values}
        return block.prepend_op("assign_value", {}, {"Out": var}, attrs)


class BilinearInitializer(Initializer):
    """Fill square filters with the weights by which a transposed convolution enlarges images."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``."""
        if len(var.shape) != 4 or var.shape[2] != var.shape[3]:
            raise GraphError(
                f"BilinearInitializer: {var.name!r} has shape {var.shape}, expected square filters "
                "[filters, channels, size, size]"
            )
        size = var.shape[3]
        half = math.ceil(size / 2)
        center = (2 * half - 1 - half % 2) / (2 * half)
        place = np.arange(math.prod(var.shape))
        # As Fluid: the row is a fraction, which grows within it.
        column, row = place % size, place / size % size
        weights = (1 - abs(column / half - center)) * (1 - abs(row / half - center))
        return NumpyArrayInitializer(weights.reshape(var.shape).astype("float32"))(var, block)


class VectorsInitializer(Initializer):
    """Begin the rows of some ids with given vectors, all others as ``otherwise`` says.

    ``vectors``: an array [n, width] of the rows of ``ids`` (int64 [n], default 0, 1, ..., n - 1),
    or the path of a text file with a line for each row: an id and ``width`` numbers. In word2vec's
    and GloVe's files words stand in place of ids: ``vocabulary`` is a dict from words to ids, or a
    list of words; words that it does not have are left out. Files may be .gz, .bz2 or .zst.

    Works for tables of every kind, also ``is_distributed=True``; every rank must be able to read
    the file. An id that is given twice, or that a table with ``size`` cannot have, is refused::

        vectors = fluid.initializer.Vectors("vectors.txt", vocabulary=words)
        rows = fluid.layers.embedding(
            ids, size=[-1, 300], is_sparse=True, is_distributed=True,
            param_attr=fluid.ParamAttr("words", initializer=vectors))
    """

    def __init__(
        self,
        vectors: np.ndarray | str | os.PathLike[str],
        ids: Any = None,
        vocabulary: Vocabulary | None = None,
        otherwise: Initializer | None = None,
    ) -> None:
        self.otherwise = otherwise or XavierInitializer()
        if isinstance(vectors, np.ndarray):
            if vocabulary is not None:
                raise GraphTypeError("Vectors: vocabulary is for files of words; pass ids=")
            self.given = GivenRows(ids=_ids_of(vectors, ids), rows=vectors)
            return
        if not isinstance(vectors, (str, os.PathLike)):
            raise GraphTypeError(f"Vectors: expected an array or a path, got {vectors!r:.80}")
        if ids is not None:
            raise GraphTypeError("Vectors: a file has its own ids: pass no ids=")
        if not os.path.isfile(vectors):
            raise GraphError(f"Vectors: there is no file {os.fspath(vectors)!r}")
        if vocabulary is not None and not isinstance(vocabulary, Mapping):
            vocabulary = {word: i for i, word in enumerate(vocabulary)}
        self.given = GivenRows(os.fspath(vectors), vocabulary=vocabulary)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend what fills the other rows, or all of a table that is an array."""
        if len(var.shape) != 2:
            raise GraphError(f"Vectors: {var.name!r} has shape {var.shape}, expected a table")
        rows = self.given.rows
        if rows is not None and rows.shape[1] != var.shape[1]:
            raise GraphError(
                f"Vectors: the vectors have {rows.shape[1]} numbers, but the rows of {var.name!r} "
                f"{var.shape[1]}"
            )
        op = self.otherwise(var, block)
        if isinstance(var, Parameter) and var.is_distributed:
            op.set_attr(GIVEN_ROWS, self.given)
            return op
        values = _first_values(op, var)
        block.remove_op(op.idx)
        self._put(values, var.name)
        return NumpyArrayInitializer(values)(var, block)

    def _put(self, values: np.ndarray, name: str) -> None:
        """Write the given rows into those of an array."""
        given = np.zeros(len(values), bool)
        for ids, rows in self.given.pieces(values.shape[1]):
            for i, row in zip(ids.tolist(), rows):
                if not 0 <= i < len(values) or given[i]:
                    what = "is given twice" if 0 <= i < len(values) else "is no row of it"
                    raise GraphError(f"Vectors: {name!r} has {len(values)} rows: id {i} {what}")
                values[i], given[i] = row, True


def _ids_of(vectors: np.ndarray, ids: Any) -> np.ndarray:
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise GraphTypeError(
            f"Vectors: expected numbers [n, width], got {vectors.dtype} {list(vectors.shape)}"
        )
    array = np.arange(len(vectors)) if ids is None else np.asarray(ids)
    if array.shape != (len(vectors),) or array.dtype.kind not in "iu":
        raise GraphTypeError(
            f"Vectors: expected {len(vectors)} integers as ids, got {array.dtype} "
            f"{list(array.shape)}"
        )
    return array.astype(np.int64)


def _first_values(op: Operator, var: Variable) -> np.ndarray:
    """Return the values that an initializer's operator writes."""
    definition, values = lookup(op.type), np.empty(var.shape, var.dtype)
    attrs = declared_attrs(definition, op.attrs)
    if definition.state is not None:
        attrs["state"] = None  # it is of those that draw in steps
    assert definition.bind is not None
    definition.bind(np, values, **attrs)()
    return values


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight: rows and columns, or channels times the kernel."""
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    if len(shape) == 2:
        # A table of any number of rows counts as many as a row is wide.
        return shape[0] if shape[0] > 0 else shape[1], shape[1]
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
MSRA = MSRAInitializer
Bilinear = BilinearInitializer
Vectors = VectorsInitializer

name_arguments_in(__name__)
