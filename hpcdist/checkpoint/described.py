"""What a Program is that was saved, so that a restore can say where another one differs. Pure.

Described is what moves parameters: the variables that are kept, the operators that lead to updates,
and the script's numbers. Names of what is computed on the way do not count, nor do ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SHOWN = 40  # differences in one error
LONG = 160  # characters of one


@dataclass(frozen=True)
class DescribedOp:
    """An operator: what it does with what, and its numbers, as text, by attribute."""

    text: str
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Described:
    """A Program that trains: what it keeps, by name, its operators, and its learning rates.

    ``wiring`` is a digest of how the operators are connected.
    """

    variables: Mapping[str, str]
    ops: tuple[DescribedOp, ...]
    rates: Mapping[str, str]
    wiring: str


@dataclass(frozen=True)
class Differences:
    """Where a Program differs: in what it computes, in its numbers, in the rates it begins with.

    ``numbers``: (what, then, now); ``rates``: the same, by variable.
    """

    network: tuple[str, ...] = ()
    numbers: tuple[tuple[str, str, str], ...] = ()
    rates: tuple[tuple[str, str, str], ...] = ()


def differences(saved: Described, now: Described) -> Differences:
    """Return where a Program differs from the one that was saved."""
    network = []
    for name in sorted(saved.variables.keys() | now.variables.keys()):
        then, here = saved.variables.get(name), now.variables.get(name)
        if then == here:
            continue
        if here is None:
            network.append(f"{name!r}: {then} in the checkpoint, not in the program")
        elif then is None:
            network.append(f"{name!r}: {here} in the program, not in the checkpoint")
        else:
            network.append(f"{name!r}: {then} in the checkpoint, {here} in the program")
    network = [_short(text) for text in network]
    before, after = Counter(o.text for o in saved.ops), Counter(o.text for o in now.ops)
    network += [f"only in the checkpoint: {_short(text)}" for text in before - after]
    network += [f"only in the program: {_short(text)}" for text in after - before]
    if not network and saved.wiring != now.wiring:
        network.append("the same operators are connected in another way")
    rates = tuple(
        (name, _short(saved.rates[name]), rate)
        for name, rate in now.rates.items()
        if saved.rates.get(name, rate) != rate
    )
    return Differences(tuple(network), tuple(_numbers(saved.ops, now.ops)), rates)


def listed(differences: Sequence[str]) -> str:
    """Return differences as the end of an error, not too many of them."""
    more = len(differences) - SHOWN
    lines = [f"\n  {line}" for line in differences[:SHOWN]]
    return "".join(lines) + (f"\n  ... and {more} more" if more > 0 else "")


def _numbers(
    before: Sequence[DescribedOp], after: Sequence[DescribedOp]
) -> Iterator[tuple[str, str, str]]:
    """Yield the numbers that differ of operators that are alike, each once."""
    by_text: dict[str, list[DescribedOp]] = {}
    for op in reversed(before):
        by_text.setdefault(op.text, []).append(op)
    told = set()
    for op in after:
        alike = by_text.get(op.text)
        if not alike:
            continue
        then = alike.pop().numbers
        for name, number in op.numbers.items():
            what = f"{op.text.partition('(')[0]}: {name}", _short(then.get(name, number)), number
            if what[1] != number and what not in told:
                told.add(what)
                yield what


def _short(text: str) -> str:
    """Return a text, which may be anybody's, as it may be shown."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:LONG])
    return shown if len(text) <= LONG else f"{shown}..."
