"""Loops and branches: While, while_loop, cond, case, switch_case, IfElse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.arrays import merge_lod_tensor, select_input
from hpcdist.fluid.layers.control_flow import equal, logical_not
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.nested import conditional_block, nested
from hpcdist.fluid.layers.tensor import assign, cast, fill_constant
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.variable import Variable

__all__ = ["IfElse", "While", "case", "cond", "switch_case", "while_loop"]

Function = Callable[[], Any]


class While:
    """Run a block as long as a condition (bool, shape (1,)) holds, which the block computes anew.

    ``with While(cond).block(): ...; layers.less_than(i, n, cond=cond)``. What the block writes of
    outer variables, with ``layers.assign(x, outer)`` or ``array_write``, is there afterwards.
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        self.helper = LayerHelper("while", name)
        _expect_condition(cond, "While")
        self.cond_var, self.is_test = cond, is_test

    @contextmanager
    def block(self) -> Iterator[None]:
        """Build what is repeated."""
        with nested(self.helper.main_program) as inside:
            yield
        outer_names = [n for n in inside.taken() if n != self.cond_var.name]
        written = list(dict.fromkeys([*inside.written(), self.cond_var.name]))
        scopes = inside.parent.create_var(names.generate("_generated_var"), type="STEP_SCOPES")
        inside.parent.append_op(
            "while",
            {"X": outer_names, "Condition": self.cond_var},
            {"Out": written, "StepScopes": scopes},
            {"sub_block": inside.block.idx, "is_test": self.is_test},
        )


def _expect_condition(cond: Any, layer: str) -> None:
    if not isinstance(cond, Variable) or cond.dtype != "bool":
        raise GraphTypeError(f"{layer}: the condition must be a bool variable, got {cond!r}")
    if any(extent not in (1, -1) for extent in cond.shape):
        raise GraphTypeError(f"{layer}: the condition must have shape (1,), got {cond.shape}")


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> Any:
    """Repeat ``body(*loop_vars)``, which returns new ones, while ``cond(*loop_vars)`` holds.

    Examples:
        >>> i = fluid.layers.fill_constant([1], "int64", 0)
        >>> ten = fluid.layers.fill_constant([1], "int64", 10)
        >>> def below(i):
        ...     return fluid.layers.less_than(i, ten)
        >>> (i,) = fluid.layers.while_loop(below, lambda i: [i + 3], [i])
        >>> fluid.Executor().run(fetch_list=[i])
        [array([12])]
    """
    if not callable(cond) or not callable(body):
        raise GraphTypeError("while_loop: cond and body must be functions")
    if not isinstance(loop_vars, (list, tuple)):
        raise GraphTypeError(f"while_loop: loop_vars must be a list of variables, got {loop_vars}")
    if not loop_vars:
        raise GraphError("while_loop: loop_vars must have a variable, got none")
    holds = cond(*loop_vars)
    _expect_condition(holds, "while_loop")
    with While(holds, is_test, name).block():
        results = body(*_map(lambda var, _: var, loop_vars, loop_vars, ""))  # body may change lists
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        if len(results) != len(loop_vars):
            raise GraphError(
                f"while_loop: body must return what it takes, {len(loop_vars)} values, "
                f"got {len(results)}"
            )
        holds_again = cond(*results)
        _map(assign, results, list(loop_vars), "while_loop: body must return what it takes")
        assign(holds_again, holds)
    return loop_vars


def _map(function: Callable[[Any, Any], Any], a: Any, b: Any, wrong: str) -> Any:
    """Apply a function to the variables of two structures of lists, tuples and dicts."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        mapped = [_map(function, x, y, wrong) for x, y in zip(a, b)]
        return type(a)(*mapped) if hasattr(a, "_fields") else type(a)(mapped)
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return {key: _map(function, a[key], b[key], wrong) for key in a}
    if isinstance(a, (list, tuple, Mapping)) or isinstance(b, (list, tuple, Mapping)):
        raise GraphError(f"{wrong}: one is {a}, the other {b}")
    return function(a, b)


# -- branches --------------------------------------------------------------------------------------
def cond(
    pred: Variable,
    true_fn: Function | None = None,
    false_fn: Function | None = None,
    name: str | None = None,
) -> Any:
    """Return ``true_fn()`` if ``pred`` (bool, shape (1,)) holds, else ``false_fn()``.

    Both return the same structure of variables, or None.

    Examples:
        >>> x = fluid.layers.fill_constant([1], "float32", 3.0)
        >>> big = fluid.layers.less_than(fluid.layers.fill_constant([1], "float32", 1.0), x)
        >>> y = fluid.layers.cond(big, lambda: x * 2, lambda: x)
        >>> fluid.Executor().run(fetch_list=[y])
        [array([6.], dtype=float32)]
    """
    _expect_condition(pred, "cond")
    results: list[Any] = []
    for condition, function in ((lambda: pred, true_fn), (lambda: logical_not(pred), false_fn)):
        if function is None:
            results.append(None)
            continue
        if not callable(function):
            raise GraphTypeError(f"cond: true_fn and false_fn must be functions, got {function!r}")
        with conditional_block([condition()], True) as outside:
            result = function()
            copy = functools.partial(_copied_out, outside)
            results.append(None if result is None else _map(copy, result, result, "cond"))
    if results == [None, None]:
        return None
    if None in results:
        raise GraphError("cond: one of true_fn and false_fn returns something, the other nothing")
    mask = cast(pred, "int32")

    def select(of_false: Variable, of_true: Variable) -> Variable:
        return select_input([of_false, of_true], mask)

    return _map(
        select, results[1], results[0], "cond: both functions must return the same structure"
    )


def _copied_out(outside: Block, var: Variable, _: Variable) -> Variable:
    facts = {"dtype": var.dtype, "type": var.type}
    copy = outside.create_var(names.generate("_generated_var"), **facts)
    assign(var, copy)
    return copy


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Function]],
    default: Function | None = None,
    name: str | None = None,
) -> Any:
    """Return the result of the first function whose condition holds, else ``default``'s.

    Without default, the last function is it.

    Examples:
        >>> x, y = fluid.layers.assign(np.array([1.0])), fluid.layers.assign(np.array([2.0]))
        >>> out = fluid.layers.case([(fluid.layers.less_than(y, x), lambda: x)], default=lambda: y)
        >>> fluid.Executor().run(fetch_list=[out])
        [array([2.], dtype=float32)]
    """
    pairs = list(pred_fn_pairs)
    if not all(isinstance(p, tuple) and len(p) == 2 and callable(p[1]) for p in pairs):
        raise GraphTypeError(f"case: expected pairs (condition, function), got {pred_fn_pairs}")
    if default is None:
        default = pairs.pop()[1]
    chosen: Function = default
    for condition, function in reversed(pairs):
        chosen = functools.partial(cond, condition, function, chosen)
    return chosen()


def switch_case(
    branch_index: Variable,
    branch_fns: Any,
    default: Function | None = None,
    name: str | None = None,
) -> Any:
    """Return the result of the function with number ``branch_index``, else ``default``'s.

    ``branch_fns``: functions, or pairs (number, function), or a dict. Without default, the
    function with the largest number is it.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0]))
        >>> i = fluid.layers.fill_constant([1], "int32", 1)
        >>> out = fluid.layers.switch_case(i, {0: lambda: x, 1: lambda: x * 2})
        >>> fluid.Executor().run(fetch_list=[out])
        [array([2.], dtype=float32)]
    """
    if isinstance(branch_fns, Mapping):
        branch_fns = list(branch_fns.items())
    if not isinstance(branch_fns, (list, tuple)):
        raise GraphTypeError(f"switch_case: expected a list or dict, got {branch_fns!r}")
    if all(callable(function) for function in branch_fns):
        branch_fns = list(enumerate(branch_fns))
    if not all(isinstance(p, tuple) and len(p) == 2 and callable(p[1]) for p in branch_fns):
        raise GraphTypeError(f"switch_case: expected pairs (number, function), got {branch_fns}")
    if not isinstance(branch_index, Variable) or is_float(branch_index.dtype):
        raise GraphTypeError(f"switch_case: branch_index must be an integer, got {branch_index}")
    numbers = [number for number, _ in branch_fns]
    if not all(isinstance(n, int) for n in numbers):
        raise GraphTypeError(f"switch_case: branches must have integers, got {numbers}")
    if len(set(numbers)) < len(numbers):
        raise GraphError(f"switch_case: branches must have different numbers, got {numbers}")
    index = branch_index if branch_index.dtype == "int64" else cast(branch_index, "int64")
    pairs = list(branch_fns)
    if default is None:
        pairs.sort(key=lambda pair: pair[0])
        default = pairs.pop()[1]
    tested = [(equal(index, fill_constant([1], "int64", n)), function) for n, function in pairs]
    chosen: Function = default
    for condition, function in tested:
        chosen = functools.partial(cond, condition, function, chosen)
    return chosen()


class IfElse:
    """Compute rows where a condition (bool [rows, 1]) holds in one way, the others in another.

    ``with ie.true_block(): ie.output(f(ie.input(x)))``, the same with ``false_block``; ``ie()``
    puts the rows together again.
    """

    def __init__(self, cond: Variable, name: str | None = None) -> None:
        self.helper = LayerHelper("ifelse", name)
        self.cond = cond
        self._inside: bool | None = None
        self._parent: Block | None = None
        self._inputs: dict[int, tuple[Variable, Variable]] = {}
        self._outputs: dict[bool, list[Variable]] = {True: [], False: []}

    def true_block(self) -> AbstractContextManager[None]:
        """Build what is computed of the rows where the condition holds."""
        return self._block(True)

    def false_block(self) -> AbstractContextManager[None]:
        """Build what is computed of the other rows."""
        return self._block(False)

    @contextmanager
    def _block(self, branch: bool) -> Iterator[None]:
        with conditional_block([self.cond], False) as outside:
            self._inside, self._parent = branch, outside
            try:
                yield
            finally:
                self._inside = None
        if not self._outputs[branch]:
            raise GraphError("IfElse: there must be an output in a block: ie.output(x)")

    def input(self, x: Variable) -> Variable:
        """Return the rows of ``x`` for this block."""
        if self._inside is None or self._parent is None:
            raise GraphError("IfElse.input: must stand within true_block or false_block")
        if id(x) not in self._inputs:
            halves = [
                self._parent.create_var(
                    names.generate(f"ifelse_input{self.helper.name}"), dtype=x.dtype
                )
                for _ in range(2)
            ]
            outputs = {"OutTrue": halves[0], "OutFalse": halves[1]}
            slots = {"X": x, "Mask": self.cond}
            self._parent.append_op("split_lod_tensor", slots, outputs, {"level": 0})
            self._inputs[id(x)] = (halves[0], halves[1])
        return self._inputs[id(x)][0 if self._inside else 1]

    def output(self, *outs: Variable) -> None:
        """Declare the outputs of this block; as many values as the other's."""
        if self._inside is None or self._parent is None:
            raise GraphError("IfElse.output: must stand within true_block or false_block")
        for out in outs:
            if not isinstance(out, Variable):
                raise GraphTypeError(f"IfElse.output: expected Variables, got {out!r}")
            name = names.generate(f"{self.helper.name}_output")
            outside = self._parent.create_var(name, dtype=out.dtype)
            self._outputs[self._inside].append(outside)
            assign(out, outside)

    def __call__(self) -> list[Variable]:
        """Return the outputs, all rows in their order."""
        of_true, of_false = self._outputs[True], self._outputs[False]
        if not of_true or not of_false:
            return of_true or of_false
        if len(of_true) != len(of_false):
            raise GraphError("IfElse: both blocks must give equally many outputs")
        return [merge_lod_tensor(t, f, self.cond, self.cond) for f, t in zip(of_false, of_true)]
