"""Operators in files of Paddle 2.6.2 that Fluid does not have, as what functions here append.

A line has the operator and the call that computes it, of a function of ``paddle`` or of
``paddle.nn.functional`` (``F``). Names in the call are slots and attributes of the operator (None
for an empty list); ``axis / asvector`` is the attribute ``axis``, None where ``asvector`` holds; a
keyword is a value that the attribute must have. Results are written to ``Out``, or to the slots
after ``->``. ``same()`` is the operator as it is here, which knows no other value of the keywords;
``axis=dims``: what is ``axis`` there is ``dims`` here. `static.written` writes by these lines, too.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base import text_tables
from hpcdist.base.errors import HpcdistError
from hpcdist.fluid.compat.paddle2 import tensor
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.io.program_data import to_data
from hpcdist.graph.names import guard
from hpcdist.graph.program import Program, program_guard
from hpcdist.graph.registry import defined
from hpcdist.graph.variable import Variable

# Operators that are the same here but for a result of shape [1], by its slot, which has [] there.
RESULTS_OF_ONE = {
    "accuracy": "Accuracy", "auc": "AUC", "dist": "Out", "is_empty": "Out", "kldiv_loss": "Loss",
    "mean": "Out", "size": "Out", "slice": "Out", "strided_slice": "Out", "trace": "Out",
}  # fmt: skip
Data = dict[str, Any]  # of a block, a variable or an operator, as `program_data` says them
_ABSENT = object()  # an attribute that the file does not say
_MODULES = {"paddle": tensor, "F": functional}
# Where an array of constants is, by its element type.
_CONSTANTS = {
    "bool": ("bool_values", int), "int32": ("int32_values", int), "int64": ("int64_values", int),
    "float32": ("fp32_values", float),
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What a line says: the function, what it is given, and the slots of its results."""

    function: Any  # None: the operator as it is
    arguments: Sequence[ast.expr]
    fixed: Mapping[str, Any]  # attribute -> the value that it must have
    renamed: Mapping[str, str]  # attribute there -> what it is here
    outputs: Sequence[str]

    @classmethod
    def of(cls, text: str) -> Call:
        """Parse what follows the operator in a line."""
        call, _, outputs = text.partition("->")
        node = ast.parse(call.strip(), mode="eval").body
        assert isinstance(node, ast.Call)
        function = None
        if isinstance(node.func, ast.Attribute):
            assert isinstance(node.func.value, ast.Name)
            function = getattr(_MODULES[node.func.value.id], node.func.attr)
        named = {str(one.arg): one.value for one in node.keywords}
        renamed = {name: one.id for name, one in named.items() if isinstance(one, ast.Name)}
        fixed = {n: ast.literal_eval(one) for n, one in named.items() if n not in renamed}
        return cls(function, node.args, fixed, renamed, outputs.split() or ["Out"])

    def check(self, op: Data) -> None:
        """Raise ValueError for what the call does not take into account."""
        for name, value in self.fixed.items():
            if op["attrs"].get(name, value) != value:
                raise ValueError(f"operator {op['type']} with {name}={op['attrs'][name]!r}")
        named = {n.id for one in self.arguments for n in ast.walk(one) if isinstance(n, ast.Name)}
        for slot in op["inputs"]:
            if self.function is not None and slot not in named:
                raise ValueError(f"operator {op['type']} with a value for {slot!r}")

    def append(self, inputs: Mapping[str, list[Variable]], attrs: Mapping[str, Any]) -> list[Any]:
        """Append what computes the operator; return the results by slot."""
        values: list[Any] = []
        for node in self.arguments:
            if isinstance(node, ast.Starred):
                assert isinstance(node.value, ast.Name)
                values += inputs[node.value.id]
            else:
                values.append(_argument(node, inputs, attrs))
        while values and values[-1] is _ABSENT:  # the function has the default
            values.pop()
        values = [None if value is _ABSENT else value for value in values]
        found = self.function(*values)
        return list(found) if len(self.outputs) > 1 else [found]


def _argument(node: ast.expr, inputs: Mapping[str, list[Variable]], attrs: Any) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp):  # an attribute / what makes it None
        assert isinstance(node.right, ast.Name)
        node = node.left if not attrs.get(node.right.id) else ast.Constant(None)
        return _argument(node, inputs, attrs)
    assert isinstance(node, ast.Name)
    if node.id[0].isupper() and node.id not in attrs:
        given = inputs.get(node.id, [])
        return given[0] if given else None
    return None if attrs.get(node.id) == [] else attrs.get(node.id, _ABSENT)


@functools.cache
def calls() -> Mapping[str, Call]:
    """Return the calls of the lines, by operator."""
    lines = text_tables.lines(__package__, "operators.txt")
    return {
        operator: Call.of(text) for operator, text in (line.split(maxsplit=1) for line in lines)
    }


def in_words_of_fluid(blocks: list[Data]) -> list[Data]:
    """Return the blocks of a Program of Paddle 2.6.2 with operators that there are here."""
    known: dict[str, Data] = {var["name"]: var for block in blocks for var in block["vars"]}
    rewritten = []
    for block in blocks:
        ops: list[Data] = []
        more: list[Data] = []
        for op in block["ops"]:
            _with_attributes(op, known)
            call = calls().get(op["type"])
            if call is not None:
                call.check(op)
            if call is not None and call.function is not None:
                made = _composed(call, op, known)
                ops += made["ops"]
                more += made["vars"]
            elif op["type"] in defined():
                made = _of_no_dimensions(_renamed_attributes(op, call), known)
                ops += made["ops"]
                more += made["vars"]
            else:
                raise ValueError(
                    f"operator {op['type']!r} of Paddle 2.6.2 is not in hpcdist: build the network "
                    "in a script, and load its parameters with paddle.static.load"
                )
        rewritten.append({**block, "vars": [*block["vars"], *more], "ops": ops})
    return rewritten


def _renamed_attributes(op: Data, call: Call | None) -> Data:
    names = {} if call is None else call.renamed
    return {**op, "attrs": {names.get(name, name): value for name, value in op["attrs"].items()}}


def _of_no_dimensions(op: Data, known: Mapping[str, Data]) -> Data:
    """Return the operator, and what takes the dimension from results that have none in the file."""
    slot = RESULTS_OF_ONE.get(op["type"], "")
    for name in op["outputs"].get(slot, []):
        if not known[name]["shape"]:
            one = f"{name}/of_one"
            outputs = {**op["outputs"], slot: [one]}
            reshape = {"type": "reshape2", "inputs": {"X": [one]}, "outputs": {"Out": [name]}}
            ops = [{**op, "outputs": outputs}, {**reshape, "attrs": {"shape": []}}]
            return {"ops": ops, "vars": [{**known[name], "name": one, "shape": [1]}]}
    return {"ops": [op], "vars": []}


def _with_attributes(op: Data, known: Mapping[str, Data]) -> None:
    """Give operators the attributes and shapes that Fluid has for them."""
    attrs = op["attrs"]
    if op["type"] == "tensor_array_to_tensor":
        for name in op["outputs"].get("OutIndex", []):
            known[name]["shape"] = [-1]  # of each step; the file does not say it
    if op["type"] == "allclose":
        attrs |= {name: float(attrs[name]) for name in ("rtol", "atol")}
    if op["type"] == "assign_value" and "values" in attrs:
        name, kind = _CONSTANTS.get(attrs["dtype"], ("", float))
        if not name:
            raise ValueError(f"operator assign_value of {attrs['dtype']}")
        attrs[name] = [kind(value) for value in attrs.pop("values")]


def _composed(call: Call, op: Data, known: Mapping[str, Data]) -> Data:
    """Return the variables and operators that compute an operator of the table."""
    program = Program()
    block = program.global_block()
    read = list(dict.fromkeys(name for names in op["inputs"].values() for name in names))
    for name in read:
        facts = known[name]
        block.create_var(name, shape=tuple(facts["shape"]), dtype=facts["dtype"])
    inputs = {slot: [block.var(n) for n in names] for slot, names in op["inputs"].items()}
    prefix = next(name for slot in call.outputs for name in op["outputs"].get(slot, []))
    try:
        with program_guard(program, Program()), guard(f"{prefix}/"):
            results = call.append(inputs, op["attrs"])
            places = dict(_named(call.outputs, results, op))
            for result in list(places):
                if result in read:  # the value as it is
                    places[_copy(block.var(result)).name] = places.pop(result)
    except HpcdistError as error:
        raise ValueError(f"operator {op['type']}: {error}") from error
    if program.num_blocks > 1:
        raise ValueError(f"operator {op['type']} would need a block of its own")
    (data,) = to_data(program)["blocks"]
    renamed = [_renamed(one, places) for one in data["ops"]]
    added = [{**var, "name": places.get(var["name"], var["name"])} for var in data["vars"]]
    return {"ops": renamed, "vars": [var for var in added if var["name"] not in known]}


def _named(slots: Sequence[str], results: Sequence[Any], op: Data) -> Iterable[tuple[str, str]]:
    """Yield (what a result is called, what it is to be called)."""
    for slot, result in zip(slots, results):
        wanted = op["outputs"].get(slot, [])
        given = list(result) if isinstance(result, (list, tuple)) else [result]
        for variable, name in zip(given, wanted):
            yield variable.name, name


def _copy(x: Variable) -> Variable:
    copied: Variable = tensor.assign(x)
    return copied


def _renamed(op: Data, names: Mapping[str, str]) -> Data:
    sides = {
        side: {slot: [names.get(n, n) for n in used] for slot, used in op[side].items()}
        for side in ("inputs", "outputs")
    }
    return {**op, **sides}


__all__ = ["in_words_of_fluid"]
