"""Plots of lines over a grid, as SVG in a figure that tells values under the pointer. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from hpcdist.launch.svg import COLOURS, WIDTH, key, line, svg, text

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 240, 78, 16, 12, 46
MOST_POINTS = 2000  # of a line
TICKS_ACROSS, TICKS_UP = 8, 5

Points = Sequence[tuple[float, float]]


def curve(xs: Sequence[float], ys: Sequence[float], across: str, up: str) -> str:
    """Return a line through points; those that are not finite are left out."""
    return curves({"": list(zip(xs, ys))}, across, up)


def curves(lines: Mapping[str, Points], across: str, up: str, *, from_zero: bool = False) -> str:
    """Return lines through points, by name; those points that are not finite are left out.

    Of lines with more than `MOST_POINTS` points every n-th is drawn, and the last.
    """
    finite = {
        name: _thinned([(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)])
        for name, points in lines.items()
    }
    drawn = {name: points for name, points in finite.items() if len(points) > 1}
    if not drawn:
        return ""
    points = [point for same in drawn.values() for point in same]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    ups = ticks(min(low, 0.0) if from_zero else low, high, TICKS_UP)
    low, high = min(low, ups[0]), max(high, ups[-1])
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + width * (x - first) / ((last - first) or 1),
            TOP + height * (1 - (y - low) / ((high - low) or 1)),
        )

    parts = []
    for value in ups:
        _, y = at(first, value)
        parts += [
            line(LEFT, y, WIDTH - RIGHT, y, "grid"),
            text(LEFT - 8, y + 4, f"{value:.6g}", "end"),
        ]
    for value in ticks(first, last, TICKS_ACROSS):
        if first <= value <= last:
            x, _ = at(value, low)
            parts += [line(x, TOP, x, TOP + height, "grid")]
            parts += [text(x, TOP + height + 17, f"{value:.6g}", "middle")]
    parts += [line(LEFT, TOP, LEFT, TOP + height, "axis")]
    parts += [line(LEFT, TOP + height, WIDTH - RIGHT, TOP + height, "axis")]
    parts += [text(LEFT + width / 2, HEIGHT - 10, across, "middle"), _upwards(up, TOP + height / 2)]
    for number, (name, same) in enumerate(drawn.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in same))
        values = json.dumps([[float(f"{x:.7g}"), float(f"{y:.7g}")] for x, y in same])
        parts.append(
            f'<polyline fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.8" '
            f'points="{path}" data-name="{escape(name)}" data-values="{escape(values)}"/>'
        )
    parts.append(line(LEFT, TOP, LEFT, TOP + height, "mark"))
    names, bottom = key([*drawn], LEFT, HEIGHT + 2) if len(drawn) > 1 else ("", HEIGHT)
    label = f"{up} by {across}: from {points[0][1]:.4g} to {points[-1][1]:.4g}"
    return (
        f'<figure class="plot" tabindex="0" role="group" data-across="{escape(across)}" '
        f'aria-label="{escape(label)}; arrow keys tell values">'
        f"{svg(bottom, ''.join([*parts, names]), label)}<output></output></figure>"
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers that enclose a range, at most about so many; of a point, two around it.

    >>> ticks(0.13, 0.87, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high <= low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * by for by in (1, 2, 5, 10) if size * by >= rough * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(begin, end + 1)]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    stride = -(-len(points) // MOST_POINTS)
    return points if stride < 2 else [*points[:-1:stride], points[-1]]


def _upwards(name: str, y: float) -> str:
    shown = name if len(name) < 30 else name[:28] + "…"
    return (
        f'<text transform="translate(16 {y:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(shown)}</text>"
    )
