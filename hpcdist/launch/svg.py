"""Elements of SVG pictures, in the colours of a page's style, light or dark. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 900
# Each three times as bright or dark as a white and as a black page.
COLOURS = (
    "#4078b4",
    "#d0700c",
    "#3f9142",
    "#d64541",
    "#1f8f8a",
    "#a8609f",
    "#997c0c",
    "#8f6f5c",
)


def svg(height: float, inner: str, label: str) -> str:
    """Return a picture; ``label`` says what is in it to those who do not see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{inner}</svg>"
    )


def rect(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    """Return a rectangle; ``title`` shows under the pointer."""
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
        f'fill="{colour}">{tooltip}</rect>'
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a line of text; ``anchor``: start, middle, or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    """Return a line of a class of the page's style."""
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line class="{kind}" {ends}/>'


def key(names: Sequence[str], left: float, top: float) -> tuple[str, float]:
    """Draw the key of the colours, in as many rows as it takes; return where it ends."""
    drawn, x, y = [], float(left), float(top)
    for number, name in enumerate(names):
        width = 30 + 7.2 * len(name)
        if x > left and x + width > WIDTH:
            x, y = float(left), y + 18
        drawn.append(rect(x, y, 12, 12, COLOURS[number % len(COLOURS)]))
        drawn.append(text(x + 16, y + 11, name))
        x += width
    return "".join(drawn), y + 18
