"""The largest numbers of rows on a CPU."""

from __future__ import annotations

from hpcdist.base.jit import jit


@jit
def largest(x, out, indices):
    """Write the k largest of each row of [n, columns], descending, and where they are: [n, k].

    Of equal ones those with the lower indices, in their order; NaN is less than any number.
    """
    k = out.shape[1]
    for row in range(x.shape[0]):
        best, places, count = out[row], indices[row], 0
        for column in range(x.shape[1]):
            value = x[row, column]
            if count < k:
                at = count
                count += 1
            elif value > best[k - 1] or (best[k - 1] != best[k - 1] and value == value):
                at = k - 1
            else:
                continue
            while at > 0 and (
                value > best[at - 1] or (best[at - 1] != best[at - 1] and value == value)
            ):
                best[at], places[at] = best[at - 1], places[at - 1]
                at -= 1
            best[at], places[at] = value, column
