"""SVG pictures of a page: bars, the timeline of a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcdist.base.trace.critical_path import PathSegment, StepTimes
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob
from hpcdist.launch.svg import COLOURS, WIDTH, key, rect, svg, text

ROW, LABEL = 26, 210
OF_KIND = {
    EventKind.STEP: "var(--track)",
    EventKind.OPERATOR: "#4078b4",
    EventKind.FEED: "#1f8f8a",
    EventKind.FETCH: "#1f8f8a",
    EventKind.APPLIED: "#3f9142",
    EventKind.SENT: "#d0700c",
    EventKind.RECEIVED: "#997c0c",
    EventKind.WAIT: "var(--wait)",
    EventKind.SUM: "#a8609f",
    EventKind.GARBAGE: "#8f6f5c",
    EventKind.CHECKPOINT: "#8f6f5c",
}
DRAWN = tuple(OF_KIND)  # in this order, later ones above


def bars(labels: Sequence[str], shares: Sequence[Mapping[str, float]], order: Sequence[str]) -> str:
    """Return a bar for each label, in parts that are shares of the whole width; and a key."""
    names = [name for name in order if any(share.get(name) for share in shares)]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    drawn, told = [], []
    for i, (label, parts) in enumerate(zip(labels, shares)):
        x = float(LABEL)
        told.append(f"{label}: " + ", ".join(f"{n} {parts[n]:.1%}" for n in names if n in parts))
        drawn.append(text(0, i * ROW + 17, label))
        drawn.append(rect(LABEL, i * ROW + 3, WIDTH - LABEL, ROW - 6, "var(--track)"))
        for name in names:
            width = (WIDTH - LABEL) * parts.get(name, 0.0)
            title = f"{label}: {name} {parts.get(name, 0.0):.1%}"
            drawn.append(rect(x, i * ROW + 3, width, ROW - 6, colours[name], title))
            x += width
    names_of, height = key(names, 0, len(labels) * ROW + 6)
    return svg(height + 6, "".join([*drawn, names_of]), "; ".join(told))


def time_line(step: StepTimes, path: Sequence[PathSegment], ranks: Sequence[RankOfJob]) -> str:
    """Draw what every rank did in a step, a row for each, with the critical path above."""
    row_of = {rank.rank: i for i, rank in enumerate(ranks)}
    scale = (WIDTH - LABEL) / max(step.end - step.begin, 1)

    def place(moment: int) -> float:
        return LABEL + (min(max(moment, step.begin), step.end) - step.begin) * scale

    drawn = [text(0, row_of[rank.rank] * ROW + 17, str(rank)) for rank in ranks]
    for kind in DRAWN:
        for span in (span for span in step.spans if span.kind == kind):
            x, width = place(span.begin), place(span.end) - place(span.begin)
            title = f"{kind.name.lower()} {span.name}: {(span.end - span.begin) / 1000:.1f} us"
            y = row_of[span.rank] * ROW + 3
            drawn.append(rect(x, y, max(width, 0.5), ROW - 10, OF_KIND[kind], title))
    before: tuple[float, float] | None = None
    for segment in path:
        y = row_of[segment.rank] * ROW + ROW - 5
        begin, end = place(segment.begin), place(segment.end)
        drawn.append(rect(begin, y, max(end - begin, 1), 3, "var(--bad)", "critical path"))
        if before is not None:
            drawn.append(
                f'<line x1="{before[0]:.1f}" y1="{before[1]:.1f}" x2="{begin:.1f}" '
                f'y2="{y + 1:.1f}" stroke="var(--bad)" stroke-dasharray="3 2"/>'
            )
        before = (end, y + 1)
    height = len(ranks) * ROW
    drawn.append(text(LABEL, height + 14, "0"))
    took = f"{(step.end - step.begin) / 1e6:.3f} ms"
    drawn.append(text(WIDTH, height + 14, took, "end"))
    label = f"what {len(ranks)} ranks did in a step of {took}, and its critical path"
    return svg(height + 20, "".join(drawn), label)
