"""How functions of Paddle 2 are declared: a line of ``functions.txt`` each, with what it appends.

    squeeze(x, axis: ints = None)    squeeze2  X=x axes=axis

makes ``squeeze(x, axis=None, name=None)``, which appends the operator ``squeeze2`` with ``x`` in
slot ``X`` and attribute ``axes`` from ``axis``. What goes into a slot is a Variable (a list of them
for ``X*``), which may be ``floats`` only, or integers taken ``as_floats``; a parameter that is an
attribute has a kind (`KINDS`) and is left to the operator's default where it is None.
``attr='literal'`` sets an attribute, ``-> Out Indices`` names the outputs that are returned (by
default the first one; ``Out[]``: with shape [], of an operator that gives [1]), ``as key`` the name
that results are derived from where that is not the operator's type. Every function takes ``name``,
too.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base import text_tables
from hpcdist.base.errors import GraphAssertionError, GraphError, GraphTypeError
from hpcdist.fluid.compat import paddle2_names
from hpcdist.fluid.compat.paddle2.kinds import (  # noqa: F401 - annotations of what is declared
    KINDS,
    Count,
    Counts,
    Extents,
    Fraction,
    Function,
    Ints,
    Kind,
    Natural,
    Positive,
    Probability,
    Reduction,
    Sizes,
    Unsigned,
    kind_of,
    refusal,
)
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.layers import cast
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Variable
from hpcdist.ops.shape_patterns import Patterns

Check = tuple[Kind, bool]

_SHAPE_OF_X = "XShape"  # an output that gradients read, wherever an operator has it
_LINE = re.compile(r"(\w+)\((.*)\)\s+(\w+)\s*(.*?)(?:\s*->\s*([\w \[\]]+?))?(?:\s+as (\w+))?$")


def axis_of(where: str, axis: int, rank: int) -> int:
    """Return a dimension counted from the front; GraphError if there is none."""
    if not -rank <= axis < rank:
        raise GraphError(f"{where}: axis {axis} is outside a value of {rank} dimensions")
    return axis % rank


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
                    if parameter in self.kinds:
                        inputs[target] = _ELEMENTS[self.kinds[parameter]](label, inputs[target])
            elif value is not None:
                kind = self.kinds.get(parameter)
                attrs[target] = KINDS[kind](label, value) if kind else value
        if self.type.startswith("elementwise_"):
            of_one_type(where, {self.given[slot]: inputs[slot] for slot in ("X", "Y")})
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
    raise refusal(label, "a Variable (paddle.full or paddle.assign make one of numbers)", value)


def floats(label: str, value: Variable) -> Variable:
    """Refuse what is not of floats: GraphTypeError."""
    if not is_float(value.dtype):
        raise GraphTypeError(
            f"{label}: expected floats, got {value.name!r} of {value.dtype}: use paddle.cast"
        )
    return value


def as_floats(label: str, value: Variable) -> Variable:
    """Return integers as float32; truth values are refused."""
    whole = value.dtype.startswith(("int", "uint"))
    return cast(value, "float32") if whole else floats(label, value)


_ELEMENTS = {"floats": floats, "as_floats": as_floats}


def operands(label: str, value: Any) -> list[Variable]:
    """Return the operands for a slot of several Variables."""
    many = list(value) if isinstance(value, (list, tuple)) else [value]
    if many and all(isinstance(one, Variable) for one in many):
        of_one_type(label, {one.name: one for one in many})
        return many
    raise refusal(label, "a Variable or a list of them", value)


def of_one_type(where: str, given: Mapping[str, Variable]) -> None:
    """Refuse operands of several element types: GraphTypeError."""
    if len({value.dtype for value in given.values()}) > 1:
        shown = ", ".join(f"{name} of {value.dtype}" for name, value in given.items())
        raise GraphTypeError(
            f"{where}: expected one element type, got {shown}: convert with paddle.cast"
        )


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
        if kind in KINDS
    }
    return call


def functions(module: str, section: str | None = None) -> dict[str, Function]:
    """Return the functions that a section of ``functions.txt`` declares, that of the module."""
    lines = text_tables.sections(__package__, "functions.txt")[section or module]
    return {one.name: function(module, one) for one in map(Declaration.of, lines)}


# -- functions that are composed -------------------------------------------------------------------
def composed(
    module: str, alike: Sequence[str] = (), shapes: str = ""
) -> Callable[[Function], Function]:
    """Give a function that appends several operators the checks of those that are declared.

    Annotations say what is checked: ``Variable``, ``Variables``, and the kinds of `KINDS`, each
    with ``| None`` where None may be given. Operands that are ``alike`` have one element type;
    ``shapes`` are `Patterns` of operands.
    """

    def decorate(body: Function) -> Function:
        signature, where = inspect.signature(body), f"{module}.{body.__name__}"
        checks = checks_of(signature)
        patterns = Patterns(shapes) if shapes else None

        @functools.wraps(body)
        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = bound(where, signature, args, kwargs)
            check(where, checks, arguments)
            of_one_type(where, {name: arguments[name] for name in alike})
            with named(where):
                if patterns is not None:
                    patterns.check([arguments[name] for name in patterns.names])
                return body(**arguments)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__checks__ = checks  # type: ignore[attr-defined]
        return call

    return decorate


Variables = list[Variable]
_OPERANDS: Mapping[str, Callable[[str, Any], Any]] = {"Variable": operand, "Variables": operands}


def check(where: str, checks: Mapping[str, Check], arguments: dict[str, Any]) -> None:
    """Check arguments, and put what the checks return in their places."""
    for name, (checked, optional) in checks.items():
        if not (optional and arguments[name] is None):
            arguments[name] = checked(f"{where}: {name}", arguments[name])


def checks_of(signature: inspect.Signature) -> dict[str, Check]:
    """Return by parameter how an argument is checked, and whether None may be given."""
    found = {}
    for name, parameter in signature.parameters.items():
        annotation, _, rest = str(parameter.annotation).partition(" | ")
        kind = _OPERANDS.get(annotation) or kind_of(annotation)
        if kind is not None and rest in ("", "None"):
            found[name] = kind, rest == "None" or parameter.default is None
    return found


def checked(init: Function, module: str) -> Function:
    """Return a constructor that checks its arguments; errors name the class that is made."""
    signature = inspect.signature(init)
    checks = checks_of(signature)
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return init

    @functools.wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        where = f"{module}.{type(self).__name__}"
        arguments = bound(where, signature, (self, *args), kwargs)
        check(where, checks, arguments)
        init(**arguments)

    return checked_init


def check_constructors(module: str, namespace: Mapping[str, Any]) -> None:
    """Check what the public classes of a module are made with, by annotations."""
    for name in public(namespace):
        made = namespace[name]
        if inspect.isclass(made) and inspect.isfunction(vars(made).get("__init__")):
            made.__init__ = checked(made.__init__, module)  # type: ignore[method-assign]


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
    alike: Mapping[str, Sequence[str]] | None = None,
    shapes: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a module's public names for its ``__all__``; its functions become `composed`.

    declared: names from elsewhere; unchecked: functions that look at their arguments themselves;
    alike: by function, operands of one element type; shapes: likewise, `Patterns` of operands.
    """
    names = public(namespace)
    for name in set(names) - {*unchecked}:
        body = namespace[name]
        if inspect.isfunction(body) and not hasattr(body, "__checks__"):
            facts = (alike or {}).get(name, ()), (shapes or {}).get(name, "")
            namespace[name] = composed(module, *facts)(body)
    return sorted({*names, *declared})
