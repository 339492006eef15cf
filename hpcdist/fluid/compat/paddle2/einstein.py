"""Einstein sums: operands in one order of letters, multiplied and summed; matrices by matmul."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, reductions
from hpcdist.graph.variable import Variable


def summed(equation: str, operands: list[Variable]) -> Variable:
    """Evaluate ``equation`` for ``operands``; GraphError if it does not fit them."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow:
        right = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    _check(equation, terms, right, operands)
    term, value = terms[0], operands[0]
    for place, other in enumerate(operands[1:], 1):
        later = set("".join(terms[place + 1 :])) | set(right)
        term, value = _product(term, value, terms[place], other, later)
    return _alone(term, value, right)


def _check(equation: str, terms: list[str], right: str, operands: list[Variable]) -> None:
    ranks = [len(operand.shape) for operand in operands]
    fits = [len(term) for term in terms] == ranks
    repeats = any(len(set(term)) != len(term) for term in [*terms, right])
    known = set(right) <= set("".join(terms))
    if not (fits and known) or repeats or "." in equation:
        raise GraphError(
            f"paddle.einsum: {equation!r} does not fit operands of {ranks} dimensions: expected "
            "one letter for each, none twice in an operand, and no ellipsis"
        )


def _product(
    first: str, x: Variable, second: str, y: Variable, later: set[str]
) -> tuple[str, Variable]:
    """Return two operands as one: letters that both have and nothing later needs are summed."""
    both = [letter for letter in first if letter in second]
    batch = [letter for letter in both if letter in later]
    inner = [letter for letter in both if letter not in later]
    x, rows = _without(first, x, [*batch, *inner], later)
    y, columns = _without(second, y, [*batch, *inner], later)
    if len(inner) == 1 and len(rows) == len(columns) == 1:
        left = _ordered(
            "".join(c for c in first if c in {*both, *rows}), x, [*batch, *rows, *inner]
        )
        right = _ordered(
            "".join(c for c in second if c in {*both, *columns}), y, [*batch, *inner, *columns]
        )
        return "".join([*batch, *rows, *columns]), composed.matmul(left, right)
    letters = [*batch, *rows, *columns, *inner]
    wide = [
        _spread("".join(c for c in term if c in {*both, *own}), value, letters)
        for term, value, own in ((first, x, rows), (second, y, columns))
    ]
    product = layers.elementwise_mul(*wide)
    if inner:
        axes = list(range(len(letters) - len(inner), len(letters)))
        product = reductions.sum(product, axes)  # type: ignore[attr-defined]
    return "".join([*batch, *rows, *columns]), product


def _without(
    term: str, value: Variable, shared: list[str], later: set[str]
) -> tuple[Variable, list[str]]:
    """Sum over letters that nothing else has; return the value and its other letters."""
    alone = [letter for letter in term if letter not in shared and letter not in later]
    if alone:
        axes = [term.index(letter) for letter in alone]
        value = reductions.sum(value, axes)  # type: ignore[attr-defined]
    return value, [c for c in term if c not in shared and c not in alone]


def _ordered(term: str, value: Variable, letters: list[str]) -> Variable:
    order = [term.index(letter) for letter in letters]
    return value if order == sorted(order) else layers.transpose(value, order)


def _spread(term: str, value: Variable, letters: list[str]) -> Variable:
    """Return the value with a dimension for each of ``letters``, of extent 1 where it has none."""
    value = _ordered(term, value, [letter for letter in letters if letter in term])
    missing = [place for place, letter in enumerate(letters) if letter not in term]
    return layers.unsqueeze(value, missing) if missing else value


def _alone(term: str, value: Variable, right: str) -> Variable:
    """Sum over what the result does not have, and order the rest."""
    axes = [place for place, letter in enumerate(term) if letter not in right]
    if axes:
        value = reductions.sum(value, axes)  # type: ignore[attr-defined]
    return _ordered("".join(c for c in term if c in right), value, list(right))
