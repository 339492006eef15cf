"""How functions of Paddle 2 are declared: a line of ``functions.txt`` each, with what it appends.

    squeeze(x, axis: ints = None)    squeeze2  X=x axes=axis

makes ``squeeze(x, axis=None, name=None)``, which appends the operator ``squeeze2`` with ``x`` in
slot ``X`` and attribute ``axes`` from ``axis``. What goes into a slot is a Variable (a list of them
for ``X*``); a parameter that is an attribute has a kind (`KINDS`) and is left to the operator's
default where it is None. ``attr='literal'`` sets an attribute, ``-> Out Indices`` names the outputs
that are returned (by default the first one; ``Out[]``: with shape [], of an operator that gives
[1]), ``as key`` the name that results are derived from
where that is not the operator's type. Every function takes ``name``, too.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from hpcdist.base import text_tables
from hpcdist.base.errors import GraphAssertionError, GraphError, GraphTypeError
from hpcdist.fluid.compat import paddle2_names
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Variable

Function = Callable[..., Any]
Check = tuple[Callable[[str, Any], Any], bool]

_SHAPE_OF_X = "XShape"  # an output that gradients read, wherever an operator has it
_LINE = re.compile(r"(\w+)\((.*)\)\s+(\w+)\s*(.*?)(?:\s*->\s*([\w \[\]]+?))?(?:\s+as (\w+))?$")


# -- kinds of parameters that are attributes -----------------------------------------------------
def _refuse(where: str, expected: str, value: Any) -> GraphTypeError:
    return GraphTypeError(f"{where}: expected {expected}, got {value!r:.120}")


def _int(where: str, value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise _refuse(where, "an integer", value)


def _float(where: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise _refuse(where, "a number", value)


def _bool(where: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise _refuse(where, "True or False", value)


def _str(where: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _refuse(where, "a string", value)


def _sizes(where: str, value: Any) -> int | list[int]:
    """Return one size for all axes as it is: how many axes there are, the layer knows."""
    found = _ints(where, value)
    return found[0] if len(found) == 1 else found


def _ints(where: str, value: Any) -> list[int]:
    many = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(one, Integral) and not isinstance(one, bool) for one in many):
        return [int(one) for one in many]
    raise _refuse(where, "an integer or a list of integers", value)


def _extents(where: str, value: Any) -> Any:
    """Take integers that may be given as Variables: one, a list, or a Variable of them all."""
    if isinstance(value, Variable):
        return value
    many = value if isinstance(value, (list, tuple)) else [value]
    for one in many:
        if not isinstance(one, (Integral, Variable)) or isinstance(one, bool):
            raise _refuse(where, "integers or Variables of them", value)
    return [one if isinstance(one, Variable) else int(one) for one in many]


def _extent(where: str, value: Any) -> Any:
    return value if isinstance(value, Variable) else _int(where, value)


def _dtype(where: str, value: Any) -> str:
    try:
        return canonical(value)
    except (GraphError, TypeError, ValueError) as error:
        raise _refuse(where, "an element type such as 'float32'", value) from error


def axis_of(where: str, axis: int, rank: int) -> int:
    """Return a dimension counted from the front; GraphError if there is none."""
    if not -rank <= axis < rank:
        raise GraphError(f"{where}: axis {axis} is outside a value of {rank} dimensions")
    return axis % rank


KINDS: Mapping[str, Callable[[str, Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "ints": _ints,
    "extent": _extent,
    "extents": _extents,
    "dtype": _dtype,
}


# -- declarations --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Declaration:
    """What a line says: see the module."""

    name: str
    signature: inspect.Signature
    kinds: Mapping[str, str]  # parameter -> kind
    type: str  # of the operator
    given: Mapping[str, str]  # slot or attribute -> parameter
    fixed: Mapping[str, Any]  # attribute -> value
    outputs: Sequence[str]  # those that are returned; empty: the first one
    key: str

    @classmethod
    def of(cls, line: str) -> Declaration:
        """Parse a line."""
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise GraphError(f"no declaration of a function: {line!r}")
        name, parameters, type, bindings, outputs, key = match.groups()
        signature, kinds = parsed_parameters(parameters)
        given, fixed = {}, {}
        for binding in bindings.split():
            target, _, source = binding.partition("=")
            if source in signature.parameters:
                given[target] = source
            else:
                fixed[target] = ast.literal_eval(source)
        returned = (outputs or "").split()
        return cls(name, signature, kinds, type, given, fixed, returned, key or type)

    def append(self, where: str, arguments: Mapping[str, Any]) -> Any:
        """Append the operator with these arguments and return its results."""
        definition = lookup(self.type)
        many = {slot.name: slot.many for slot in definition.inputs}
        inputs: dict[str, Any] = {}
        attrs = dict(self.fixed)
        for target, parameter in self.given.items():
            value = arguments[parameter]
            label = f"{where}: {parameter}"
            if target in many:
                if value is not None or self.signature.parameters[parameter].default is not None:
                    inputs[target] = (operands if many[target] else operand)(label, value)
            elif value is not None:
                kind = self.kinds.get(parameter)
                attrs[target] = KINDS[kind](label, value) if kind else value
        helper = LayerHelper(self.key, arguments.get("name"))
        outputs = {
            slot.name: self._new(helper)
            for slot in definition.outputs
            if not slot.optional or slot.name == _SHAPE_OF_X
        }
        helper.append_op(self.type, inputs, outputs, attrs)
        wanted = self.outputs or list(outputs)[:1]
        results = tuple(
            scalar(outputs[slot[:-2]]) if slot.endswith("[]") else outputs[slot] for slot in wanted
        )
        return results if len(results) > 1 else results[0]

    def _new(self, helper: LayerHelper) -> Variable:
        """Return a new result; Paddle 2 calls those of two operands as the call is called."""
        if not self.type.startswith("elementwise_"):
            return helper.new_var()
        return helper.main_program.current_block().create_var(helper.name)


def parsed_parameters(text: str, named: bool = True) -> tuple[inspect.Signature, dict[str, str]]:
    """Return the signature that ``text`` has between brackets, and the kinds of its parameters.

    ``named``: with a parameter ``name`` at its end.
    """
    node = ast.parse(f"def f({text}): 0").body[0]
    assert isinstance(node, ast.FunctionDef)
    words = node.args.args
    defaults = [inspect.Parameter.empty] * (len(words) - len(node.args.defaults))
    defaults += [ast.literal_eval(value) for value in node.args.defaults]
    kinds = {w.arg: w.annotation.id for w in words if isinstance(w.annotation, ast.Name)}
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(w.arg, place, default=default) for w, default in zip(words, defaults)
    ]
    if named and all(w.arg != "name" for w in words):
        parameters.append(inspect.Parameter("name", place, default=None))
    return inspect.Signature(parameters), kinds


def operand(label: str, value: Any) -> Variable:
    """Return the operand for a slot of one Variable."""
    if isinstance(value, Variable):
        return value
    raise _refuse(label, "a Variable (paddle.full or paddle.assign make one of numbers)", value)


def operands(label: str, value: Any) -> list[Variable]:
    """Return the operands for a slot of several Variables."""
    many = list(value) if isinstance(value, (list, tuple)) else [value]
    if many and all(isinstance(one, Variable) for one in many):
        return many
    raise _refuse(label, "a Variable or a list of them", value)


def bound(where: str, signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return arguments by parameter, defaults included; TypeError, with ``where``, if they fail."""
    try:
        arguments = signature.bind(*args, **kwargs)
    except TypeError as error:
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        shown = inspect.Signature([p for p in plain if p.name != "self"])
        raise GraphTypeError(f"{where}{shown}: {error}") from None
    arguments.apply_defaults()
    return arguments.arguments


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Put the name of a function before errors of what it appends."""
    try:
        yield
    except (GraphError, GraphTypeError, GraphAssertionError) as error:
        if not str(error).startswith("paddle."):
            error.args = (f"{where}: {error}", *error.args[1:])
        raise


def function(module: str, declaration: Declaration) -> Function:
    """Return the function that a declaration says."""
    where = f"{module}.{declaration.name}"

    def call(*args: Any, **kwargs: Any) -> Any:
        with named(where):
            return declaration.append(where, bound(where, declaration.signature, args, kwargs))

    call.__name__ = call.__qualname__ = declaration.name
    call.__module__ = module
    call.__doc__ = f"Append ``{declaration.type}``; see docs/paddle2.md."
    call.__signature__ = declaration.signature  # type: ignore[attr-defined]
    call.__checks__ = {  # type: ignore[attr-defined]
        name: (KINDS[kind], declaration.signature.parameters[name].default is None)
        for name, kind in declaration.kinds.items()
    }
    return call


def functions(module: str, section: str | None = None) -> dict[str, Function]:
    """Return the functions that a section of ``functions.txt`` declares, that of the module."""
    lines = text_tables.sections(__package__, "functions.txt")[section or module]
    return {one.name: function(module, one) for one in map(Declaration.of, lines)}


# -- functions that are composed -------------------------------------------------------------------
def composed(module: str) -> Callable[[Function], Function]:
    """Give a function that appends several operators the checks of those that are declared.

    Annotations say what is checked: ``Variable``, ``Variables``, and the kinds of `KINDS`, each
    with ``| None`` where None may be given.
    """

    def decorate(body: Function) -> Function:
        signature, where = inspect.signature(body), f"{module}.{body.__name__}"
        checks = checks_of(signature)

        @functools.wraps(body)
        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = bound(where, signature, args, kwargs)
            check(where, checks, arguments)
            with named(where):
                return body(**arguments)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__checks__ = checks  # type: ignore[attr-defined]
        return call

    return decorate


Variables = list[Variable]
Ints = Any  # an integer or several; a function that is checked gets a list
Sizes = Any  # likewise, of windows
Extents = Any  # likewise, also Variables of integers
_OPERANDS: Mapping[str, Callable[[str, Any], Any]] = {"Variable": operand, "Variables": operands}


def check(where: str, checks: Mapping[str, Check], arguments: dict[str, Any]) -> None:
    """Check arguments, and put what the checks return in their places."""
    for name, (checked, optional) in checks.items():
        if not (optional and arguments[name] is None):
            arguments[name] = checked(f"{where}: {name}", arguments[name])


def checks_of(signature: inspect.Signature) -> dict[str, Check]:
    """Return by parameter how an argument is checked, and whether None may be given."""
    known = {**KINDS, **_OPERANDS, "Extents": _extents, "Ints": _ints, "Sizes": _sizes}
    found = {}
    for name, parameter in signature.parameters.items():
        kind, _, rest = str(parameter.annotation).partition(" | ")
        if kind in known and rest in ("", "None"):
            found[name] = known[kind], rest == "None" or parameter.default is None
    return found


def in_place(module: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return functions by their names with ``_``, which are new values in static programs, too."""
    known = {name for name in paddle2_names.table()[module] if name.endswith("_")}
    refused = {"normal_", "uniform_"}  # there, too
    plain = {name: namespace.get(name[:-1]) for name in known - refused}
    return {n: f for n, f in plain.items() if f and "out" not in inspect.signature(f).parameters}


def offered(
    module: str,
    namespace: dict[str, Any],
    declared: Collection[str] = (),
    unchecked: Collection[str] = (),
) -> list[str]:
    """Return a module's public names for its ``__all__``; its functions become `composed`.

    declared: names from elsewhere; unchecked: functions that look at their arguments themselves.
    """
    names, decorate = public(namespace), composed(module)
    for name in set(names) - {*unchecked}:
        body = namespace[name]
        if inspect.isfunction(body) and not hasattr(body, "__checks__"):
            namespace[name] = decorate(body)
    return sorted({*names, *declared})
