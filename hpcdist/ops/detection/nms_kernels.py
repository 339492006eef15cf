"""Loops that keep the best of boxes that overlap, compiled by numba."""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit


@jit
def shared_part(a, b, more: float) -> float:
    """Return |a and b| / |a or b| of two boxes; ``more`` is 1 where pixels count as wide.

    NaN, as in Fluid, of one point and itself, which it does not keep apart.
    """
    if b[0] > a[2] or b[2] < a[0] or b[1] > a[3] or b[3] < a[1]:
        return 0.0
    width = min(a[2], b[2]) - max(a[0], b[0]) + more
    height = min(a[3], b[3]) - max(a[1], b[1]) + more
    inside = width * height
    area = 0.0
    for box in (a, b):
        if not (box[2] < box[0] or box[3] < box[1]):  # as Fluid, where it is not a number
            area += (box[2] - box[0] + more) * (box[3] - box[1] + more)
    return inside / (area - inside)


@jit
def keep_apart(boxes, threshold: float, eta: float, more: float, most: int, places) -> int:
    """Keep boxes, the best first, that share no more than a part with those kept before.

    ``places``: takes their places. ``most``: of how many at most. Return how many there are.
    After each the part shrinks by ``eta`` as long as it is above a half (adaptive suppression).
    """
    count = 0
    for i in range(len(boxes)):
        apart = True
        for k in range(count):
            if not shared_part(boxes[i], boxes[places[k]], more) <= threshold:
                apart = False
                break
        if apart:
            places[count] = i
            count += 1
            if count == most:
                break
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return count


@jit
def decay(boxes, scores, more: float, sigma: float, out) -> None:
    """Lower the scores of boxes, sorted by these, by what better ones cover (Matrix NMS).

    ``sigma``: of a Gauss curve; 0 stands for a linear decay.
    """
    most = np.zeros(len(boxes), boxes.dtype)
    for i in range(len(boxes)):
        lowest = 1.0
        for j in range(i):
            shared = shared_part(boxes[i], boxes[j], more)
            most[i] = max(most[i], shared)
            if sigma > 0:
                factor = np.exp((most[j] * most[j] - shared * shared) * sigma)
            else:
                factor = (1 - shared) / (1 - most[j])
            lowest = min(lowest, factor)
        out[i] = lowest * scores[i]


# -- polygons --------------------------------------------------------------------------------------
@jit
def _area(points, count: int) -> float:
    total = 0.0
    for i in range(count):
        j = (i + 1) % count
        total += points[i, 0] * points[j, 1] - points[j, 0] * points[i, 1]
    return total / 2


@jit
def _shared_polygon(a, b, room) -> float:
    """Return the same as `shared_part` of two convex polygons [corners, 2] (Sutherland, Hodgman).

    ``room`` [2, the corners of both, 2] is to work in.
    """
    now, other = room[0], room[1]
    count = len(a)
    now[:count] = a
    turn = 1.0 if _area(b, len(b)) >= 0 else -1.0
    for e in range(len(b)):
        x, y = b[e]
        dx, dy = b[(e + 1) % len(b), 0] - x, b[(e + 1) % len(b), 1] - y
        corners = 0
        for i in range(count):
            p, q = now[i], now[(i + 1) % count]
            at_p = turn * (dx * (p[1] - y) - dy * (p[0] - x))
            at_q = turn * (dx * (q[1] - y) - dy * (q[0] - x))
            if at_p >= 0:
                other[corners] = p
                corners += 1
            if (at_p > 0 and at_q < 0) or (at_p < 0 and at_q > 0):
                other[corners] = p + (q - p) * (at_p / (at_p - at_q))
                corners += 1
        now, other = other, now
        count = corners
        if count == 0:
            return 0.0
    inside = abs(_area(now, count))
    union = abs(_area(a, len(a))) + abs(_area(b, len(b))) - inside
    return inside / union if union > 0 else 0.0


@jit
def _shared(a, b, more: float, room) -> float:
    if len(a) == 2:
        return shared_part(a.reshape(4), b.reshape(4), more)
    return _shared_polygon(a, b, room)


@jit
def merge_neighbours(boxes, scores, threshold: float, more: float, room, last) -> None:
    """Merge each of [n, corners, 2] into the one before it that it shares much with, by scores.

    ``boxes`` and ``scores`` are changed; ``last`` tells which nothing is merged into any more.
    """
    at = -1
    for i in range(len(boxes)):
        if at >= 0 and _shared(boxes[i], boxes[at], more, room) > threshold:
            total = scores[i] + scores[at]
            boxes[at] = (boxes[i] * scores[i] + boxes[at] * scores[at]) / total
            scores[at] = total
            continue
        if at >= 0:
            last[at] = True
        at = i
    if at >= 0:
        last[at] = True


@jit
def keep_polygons_apart(boxes, threshold: float, eta: float, more: float, room, places) -> int:
    """Do as `keep_apart` with boxes [n, corners, 2]."""
    count = 0
    for i in range(len(boxes)):
        apart = True
        for k in range(count):
            if not _shared(boxes[i], boxes[places[k]], more, room) <= threshold:
                apart = False
                break
        if apart:
            places[count] = i
            count += 1
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return count
