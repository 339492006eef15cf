"""Draws Programs as graphs in an HTML page: operators in layers, below their inputs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from hpcdist.base.trace import programs
from hpcdist.base.trace.programs import OperatorFacts, ProgramFacts

NODE_WIDTH, NODE_HEIGHT = 150, 24
ACROSS, DOWN = 166, 48  # from one node to the next
LANE = 9  # from one to the next, beside the nodes
TALLEST = 640  # pixels of the page
WIDEST = 8  # nodes of a row; a wider layer takes several
MOST_DRAWN = 1500
MOST_LETTERS = 21
COLOURS = {
    programs.FORWARD: "#4078b4",
    programs.BACKWARD: "#b35806",
    programs.UPDATE: "#3a7d34",
    programs.EXCHANGE: "#7b4f9d",
}


def edges(operators: Sequence[OperatorFacts]) -> list[tuple[int, int]]:
    """Return (writer, reader) pairs of places of operators; a reader sees the latest writer."""
    writer: dict[str, int] = {}
    pairs: set[tuple[int, int]] = set()
    for place, operator in enumerate(operators):
        pairs |= {(writer[name], place) for name in operator.reads if name in writer}
        writer |= dict.fromkeys(operator.writes, place)
    return sorted(pairs)


def layers(count: int, between: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the operators in rows, each below all that it reads from, near to these."""
    above: dict[int, list[int]] = defaultdict(list)
    for writer, reader in between:
        above[reader].append(writer)
    depth = [0] * count
    for place in range(count):
        depth[place] = max((depth[writer] + 1 for writer in above[place]), default=0)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for place in range(count):
        rows[depth[place]].append(place)
    across: dict[int, float] = {}
    for row in rows:
        middle = {p: _mean([across[w] for w in above[p]]) for p in row}
        row.sort(key=lambda p: (middle[p], p))
        across |= {p: k - (len(row) - 1) / 2 for k, p in enumerate(row)}
    return [row[k : k + WIDEST] for row in rows for k in range(0, len(row), WIDEST)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def graph(program: ProgramFacts) -> str:
    """Return a Program as SVG; each operator says under the mouse what it reads and writes."""
    operators = program.operators[:MOST_DRAWN]
    between = edges(operators)
    rows = layers(len(operators), between)
    widest = max(map(len, rows), default=1)
    place_of: dict[int, tuple[float, float]] = {}
    for down, row in enumerate(rows):
        indent = (widest - len(row)) * ACROSS / 2
        place_of |= {p: (indent + k * ACROSS + 8, down * DOWN + 8) for k, p in enumerate(row)}
    row_of = {p: down for down, row in enumerate(rows) for p in row}
    right = [max(place_of[p][0] for p in row) + ACROSS for row in rows]
    lane_of = {
        writer: (lane, max(right[row_of[writer] : end]) + lane * LANE)
        for writer, (lane, end) in lanes(row_of, between).items()
    }
    drawn = [
        _line(place_of[a], place_of[b])
        if row_of[b] <= row_of[a] + 1
        else _detour(place_of[a], place_of[b], *lane_of[a])
        for a, b in between
    ]
    drawn += [_node(operators[p], *place_of[p]) for p in sorted(place_of)]
    width = max([widest * ACROSS, *(x + LANE for _, x in lane_of.values())])
    height = len(rows) * DOWN + 8
    label = f"{len(operators)} operators below what they read; arrow keys move, + and - zoom"
    return (
        f'<svg viewBox="0 0 {width:g} {height}" style="height: {min(height, TALLEST)}px" '
        f'role="img" tabindex="0" aria-label="{label}">'
        f"{''.join(drawn)}</svg>"
    )


def lanes(
    row_of: Mapping[int, int], between: Iterable[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return (lane, last row) of each operator that is read below the next row.

    All who read it share its lane, and no other has that between its first and its last row.
    """
    ends: dict[int, int] = {}
    for writer, reader in between:
        if row_of[reader] > row_of[writer] + 1:
            ends[writer] = max(ends.get(writer, 0), row_of[reader])
    free_from: list[int] = []  # of each lane, the row
    found = {}
    for writer in sorted(ends, key=lambda place: row_of[place]):
        begin = row_of[writer]
        lane = next((k for k, row in enumerate(free_from) if row <= begin), len(free_from))
        free_from[lane : lane + 1] = [ends[writer]]
        found[writer] = lane, ends[writer]
    return found


def _detour(above: tuple[float, float], below: tuple[float, float], lane: int, side: float) -> str:
    """Return a line that passes the nodes between two rows in a lane beside them."""
    x, y = above[0] + NODE_WIDTH / 2 + 3 * (lane % 8), above[1] + NODE_HEIGHT
    to_x, to_y = below[0] + NODE_WIDTH / 2 + 3 * (lane % 8), below[1]
    turn = 4 + lane % 8
    return f'<path d="M{x:g} {y:g}v{turn}H{side:g}V{to_y - turn:g}H{to_x:g}V{to_y:g}"/>'


def _line(above: tuple[float, float], below: tuple[float, float]) -> str:
    x, y = above[0] + NODE_WIDTH / 2, above[1] + NODE_HEIGHT
    to_x, to_y = below[0] + NODE_WIDTH / 2, below[1]
    bend = max(12.0, (to_y - y) / 2)
    return f'<path d="M{x:g} {y:g}C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}"/>'


def _node(operator: OperatorFacts, x: float, y: float) -> str:
    reads, writes = ", ".join(operator.reads), ", ".join(operator.writes)
    tooltip = escape(f"{operator.type} ({operator.role})\nreads: {reads}\nwrites: {writes}")
    words = escape(" ".join((operator.type, *operator.reads, *operator.writes)).lower())
    short, colour = operator.type, COLOURS.get(operator.role, "#555")
    if len(short) > MOST_LETTERS:
        short = short[: MOST_LETTERS - 1] + "…"
    middle = x + NODE_WIDTH / 2
    return (
        f'<g data-words="{words}"><title>{tooltip}</title><rect x="{x:g}" y="{y:g}" '
        f'width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="4" fill="{colour}"/>'
        f'<text x="{middle:g}" y="{y + 16:g}" text-anchor="middle">{escape(short)}</text></g>'
    )
