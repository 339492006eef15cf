"""Comparisons, counters and Switch: building blocks of learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.initializer import ConstantInitializer
from hpcdist.fluid.layers.helper import LayerHelper, named
from hpcdist.fluid.layers.nested import conditional_block
from hpcdist.graph.variable import Variable

__all__ = [
    "Switch",
    "autoincreased_step_counter",
    "equal",
    "greater_equal",
    "greater_than",
    "increment",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


# -- comparisons -----------------------------------------------------------------------------------
def _comparison(type: str, gives: str) -> Callable[..., Variable]:
    def layer(
        x: Variable, y: Variable, force_cpu: bool | None = None, cond: Variable | None = None
    ) -> Variable:
        if cond is not None:
            cond.stop_gradient = True
        slots, attrs = {"X": x, "Y": y}, {"force_cpu": bool(force_cpu)}
        facts: dict[str, Any] = {"dtype": "bool", "stop_gradient": True}
        return LayerHelper(type).apply(type, slots, attrs, out=cond, **facts)

    return named(type, layer, _COMPARISON.format(type=type, gives=gives))


def _equality(type: str, gives: str) -> Callable[..., Variable]:
    compare = _comparison(type, gives)

    def layer(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
        return compare(x, y, None, cond)

    return named(type, layer, compare.__doc__)


_COMPARISON = """Append ``{type}`` of x and y, element by element; gives bool.

x, y: one element type; shapes as of `elementwise_add`. ``cond`` takes the result, if it is given.

Examples:
    >>> x = fluid.layers.assign(np.array([1, 2, 3]))
    >>> two = fluid.layers.fill_constant([1], "int64", 2)
    >>> fluid.Executor().run(fetch_list=[fluid.layers.{type}(x, two)])
    [array([{gives}])]
"""

less_than = _comparison("less_than", " True, False, False")
less_equal = _equality("less_equal", " True,  True, False")
greater_than = _equality("greater_than", "False, False,  True")
greater_equal = _equality("greater_equal", "False,  True,  True")
equal = _equality("equal", "False,  True, False")
not_equal = _equality("not_equal", " True, False,  True")


def _logical(type: str, gives: str) -> Callable[..., Variable]:
    def layer(
        x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
    ) -> Variable:
        return LayerHelper(type, name).apply(type, {"X": x, "Y": y}, out=out, dtype="bool")

    return named(type, layer, _LOGICAL.format(type=type, gives=gives))


_LOGICAL = """Append ``{type}`` of two bools, element by element.

x, y: bool of one shape, which is that of the result; ``out`` takes it, if it is given.

Examples:
    >>> x = fluid.layers.assign(np.array([True, True, False]))
    >>> y = fluid.layers.assign(np.array([True, False, False]))
    >>> fluid.Executor().run(fetch_list=[fluid.layers.{type}(x, y)])
    [array([{gives}])]
"""

logical_and = _logical("logical_and", " True, False, False")
logical_or = _logical("logical_or", " True,  True, False")
logical_xor = _logical("logical_xor", "False,  True, False")


def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Append ``logical_not`` of a bool, element by element.

    x: bool of any shape; the result has its shape.

    Examples:
        >>> x = fluid.layers.assign(np.array([True, False]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.logical_not(x)])
        [array([False,  True])]
    """
    return LayerHelper("logical_not", name).apply("logical_not", {"X": x}, out=out, dtype="bool")


# -- counters --------------------------------------------------------------------------------------
def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """Add a number to every element, by default in x itself.

    Examples:
        >>> x = fluid.layers.fill_constant([1], "float32", 1.0)
        >>> fluid.Executor().run(fetch_list=[fluid.layers.increment(x, value=2.0)])
        [array([3.], dtype=float32)]
    """
    how, out = {"step": float(value)}, x if in_place else None
    return LayerHelper("increment").apply("increment", {"X": x}, how, out=out, dtype=x.dtype)


def autoincreased_step_counter(
    counter_name: str | None = None, begin: int = 1, step: int = 1
) -> Variable:
    """Return a counter (int64, shape (1,)) that is ``begin`` in the first run and then grows.

    The ``increment`` stands at the head of the program; a counter of that name is shared.

    Examples:
        >>> counter = fluid.layers.autoincreased_step_counter()
        >>> exe = fluid.Executor()
        >>> _ = exe.run(fluid.default_startup_program())
        >>> exe.run(fetch_list=[counter]), exe.run(fetch_list=[counter])
        ([array([1])], [array([2])])
    """
    helper = LayerHelper("global_step_counter")
    name = counter_name or "@STEP_COUNTER@"
    block = helper.main_program.global_block()
    if block.has_var(name):
        return block.var(name)
    counter = block.create_var(name, shape=[1], dtype="int64", persistable=True, stop_gradient=True)
    helper.initialize(counter, ConstantInitializer(begin - 1, force_cpu=True))
    block.prepend_op("increment", {"X": counter}, {"Out": counter}, {"step": float(step)})
    return counter


# -- branches --------------------------------------------------------------------------------------
class ConditionalBlock:
    """Run what ``with conditional.block():`` builds if its inputs hold.

    ``is_scalar_condition``: the first element of the one input; else whether all inputs have
    elements. Found as ``layers.control_flow.ConditionalBlock``, as in Fluid.
    """

    def __init__(
        self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None
    ) -> None:
        if not inputs or not all(isinstance(each, Variable) for each in inputs):
            raise GraphTypeError(f"ConditionalBlock: inputs must be Variables, got {inputs!r}")
        self.inputs = list(inputs)
        self.is_scalar_condition = is_scalar_condition

    @contextmanager
    def block(self) -> Iterator[None]:
        """Build the block."""
        with conditional_block(self.inputs, self.is_scalar_condition):
            yield


# -- Switch ----------------------------------------------------------------------------------------
class Switch:
    """Run the first case whose condition (bool, shape (1,)) holds, else the default.

    ``with Switch() as switch: with switch.case(c): ...; with switch.default(): ...``
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("switch", name)
        self._inside = False
        self._no_case_before: Variable | None = None  # so far, no condition held

    def __enter__(self) -> Switch:
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self._inside = False

    @contextmanager
    def case(self, condition: Variable) -> Iterator[None]:
        """Build a block that runs if no earlier condition holds and this one does."""
        if not self._inside:
            raise GraphError("switch.case: must stand inside `with Switch() as switch`")
        if not isinstance(condition, Variable) or condition.dtype != "bool":
            raise GraphTypeError(
                f"switch.case: expected a bool variable such as less_than gives, got {condition}; "
                "compare two variables with layers.equal(x, y), not with =="
            )
        before, refused = self._no_case_before, logical_not(condition)
        if before is not None:
            self._no_case_before = logical_and(before, refused)
            condition = logical_and(before, condition)
        else:
            self._no_case_before = refused
        with conditional_block([condition], True):
            yield

    @contextmanager
    def default(self) -> Iterator[None]:
        """Build a block that runs if no condition holds."""
        if self._no_case_before is None:
            raise GraphError("switch.default: there must be a case before it")
        with conditional_block([self._no_case_before], True):
            yield
