"""SVG pictures of a page: curves, bars, the timeline of a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from hpcdist.base.trace.critical_path import PathSegment, StepTimes
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob

WIDTH, ROW, LABEL = 900, 26, 210
CURVE_HEIGHT, MARGIN = 160, 70
MOST_POINTS = 2000  # of a line
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d")
OF_KIND = {
    EventKind.STEP: "#dde3ea",
    EventKind.OPERATOR: "#4c78a8",
    EventKind.FEED: "#72b7b2",
    EventKind.FETCH: "#72b7b2",
    EventKind.APPLIED: "#54a24b",
    EventKind.SENT: "#f58518",
    EventKind.RECEIVED: "#eeca3b",
    EventKind.WAIT: "#e9b8b8",
    EventKind.SUM: "#b279a2",
    EventKind.GARBAGE: "#9d755d",
    EventKind.CHECKPOINT: "#9d755d",
}
DRAWN = tuple(OF_KIND)  # in this order, later ones above


def curve(xs: Sequence[float], ys: Sequence[float], across: str, up: str) -> str:
    """Return a line through points; those that are not finite are left out."""
    return curves({"": list(zip(xs, ys))}, across, up)


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    across: str,
    up: str,
    *,
    from_zero: bool = False,
) -> str:
    """Return lines through points, by name; those points that are not finite are left out.

    Of lines with more than `MOST_POINTS` points every n-th is drawn, and the last.
    """
    finite = {
        name: _thinned([(x, y) for x, y in line if y == y and abs(y) != float("inf")])
        for name, line in lines.items()
    }
    drawn = {name: line for name, line in finite.items() if len(line) > 1}
    if not drawn:
        return ""
    points = [point for line in drawn.values() for point in line]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    low = min(low, 0.0) if from_zero else low
    width, height = WIDTH - 2 * MARGIN, CURVE_HEIGHT - 40
    parts = []
    for number, (name, line) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(
            f"{MARGIN + width * (x - left) / ((right - left) or 1):.1f},"
            f"{10 + height * (1 - (y - low) / ((high - low) or 1)):.1f}"
            for x, y in line
        )
        tooltip = f"<title>{escape(name)}</title>" if name else ""
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}">{tooltip}'
            "</polyline>"
        )
    texts = [
        _text(MARGIN - 6, 18, f"{high:.4g}", "end"),
        _text(MARGIN - 6, 10 + height, f"{low:.4g}", "end"),
        _text(MARGIN, CURVE_HEIGHT - 12, f"{left:.4g}"),
        _text(WIDTH - MARGIN, CURVE_HEIGHT - 12, f"{right:.4g}", "end"),
        _text(WIDTH / 2, CURVE_HEIGHT - 12, f"{up} by {across}", "middle"),
    ]
    key, bottom = _key([*drawn], MARGIN, CURVE_HEIGHT + 2) if len(drawn) > 1 else ("", CURVE_HEIGHT)
    return _svg(bottom, "".join([*parts, *texts, key]))


def _thinned(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    stride = -(-len(line) // MOST_POINTS)
    return line if stride < 2 else [*line[:-1:stride], line[-1]]


def bars(labels: Sequence[str], shares: Sequence[Mapping[str, float]], order: Sequence[str]) -> str:
    """Return a bar for each label, in parts that are shares of the whole width; and a key."""
    names = [name for name in order if any(share.get(name) for share in shares)]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    drawn = []
    for i, (label, parts) in enumerate(zip(labels, shares)):
        x = float(LABEL)
        drawn.append(_text(0, i * ROW + 17, label))
        drawn.append(_rect(LABEL, i * ROW + 3, WIDTH - LABEL, ROW - 6, "#eef1f4", ""))
        for name in names:
            width = (WIDTH - LABEL) * parts.get(name, 0.0)
            title = f"{label}: {name} {parts.get(name, 0.0):.1%}"
            drawn.append(_rect(x, i * ROW + 3, width, ROW - 6, colours[name], title))
            x += width
    key, height = _key(names, 0, len(labels) * ROW + 6)
    return _svg(height + 6, "".join([*drawn, key]))


def _key(names: Sequence[str], left: float, top: float) -> tuple[str, float]:
    """Draw the key of the colours, in as many rows as it takes; return where it ends."""
    drawn, x, y = [], float(left), float(top)
    for number, name in enumerate(names):
        width = 30 + 7.2 * len(name)
        if x > left and x + width > WIDTH:
            x, y = float(left), y + 18
        drawn.append(_rect(x, y, 12, 12, COLOURS[number % len(COLOURS)], ""))
        drawn.append(_text(x + 16, y + 11, name))
        x += width
    return "".join(drawn), y + 18


def time_line(step: StepTimes, path: Sequence[PathSegment], ranks: Sequence[RankOfJob]) -> str:
    """Draw what every rank did in a step, a row for each, with the critical path above."""
    row_of = {rank.rank: i for i, rank in enumerate(ranks)}
    scale = (WIDTH - LABEL) / max(step.end - step.begin, 1)

    def place(moment: int) -> float:
        return LABEL + (min(max(moment, step.begin), step.end) - step.begin) * scale

    drawn = [_text(0, row_of[rank.rank] * ROW + 17, str(rank)) for rank in ranks]
    for kind in DRAWN:
        for span in (span for span in step.spans if span.kind == kind):
            x, width = place(span.begin), place(span.end) - place(span.begin)
            title = f"{kind.name.lower()} {span.name}: {(span.end - span.begin) / 1000:.1f} us"
            y = row_of[span.rank] * ROW + 3
            drawn.append(_rect(x, y, max(width, 0.5), ROW - 10, OF_KIND[kind], title))
    before: tuple[float, float] | None = None
    for segment in path:
        y = row_of[segment.rank] * ROW + ROW - 5
        begin, end = place(segment.begin), place(segment.end)
        drawn.append(_rect(begin, y, max(end - begin, 1), 3, "#d62728", "critical path"))
        if before is not None:
            drawn.append(
                f'<line x1="{before[0]:.1f}" y1="{before[1]:.1f}" x2="{begin:.1f}" '
                f'y2="{y + 1:.1f}" stroke="#d62728" stroke-dasharray="3 2"/>'
            )
        before = (end, y + 1)
    height = len(ranks) * ROW
    drawn.append(_text(LABEL, height + 14, "0"))
    took = f"{(step.end - step.begin) / 1e6:.3f} ms"
    drawn.append(_text(WIDTH, height + 14, took, "end"))
    return _svg(height + 20, "".join(drawn))


def _svg(height: float, inner: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="100%" role="img">{inner}</svg>'


def _rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
        f'fill="{colour}">{tooltip}</rect>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
