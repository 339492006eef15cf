"""Loops that align two sequences, compiled by numba: edit distances, and CTC.

Sequence i has the rows begins[i]:ends[i].
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit


@jit
def edit_distances(
    hyps, found_begins, found_ends, refs, wanted_begins, wanted_ends, room, out
) -> None:
    """Count insertions, deletions and substitutions from ``hyps`` to ``refs`` (Levenshtein).

    ``room`` has one number more than the longest of ``refs``.
    """
    for s in range(len(out)):
        begin, end = wanted_begins[s], wanted_ends[s]
        for j in range(end - begin + 1):
            room[j] = j
        for i in range(found_begins[s], found_ends[s]):
            corner = room[0]
            room[0] += 1
            for j in range(1, end - begin + 1):
                cost = corner if hyps[i] == refs[begin + j - 1] else corner + 1
                corner = room[j]
                room[j] = min(cost, min(corner, room[j - 1]) + 1)
        out[s] = room[end - begin]


@jit
def _log_add(a: float, b: float) -> float:
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@jit
def ctc(
    logits,
    begins,
    ends,
    step: int,
    labels,
    label_begins,
    label_ends,
    blank: int,
    room,
    states,
    loss,
    grad,
) -> None:
    """Compute -log of the probability of labels (Graves 2006), and gradients by ``logits``.

    Row t of sequence s is begins[s] + t * step of ``logits`` [rows, classes], up to ends[s].
    ``room`` [2, longest, states] and ``states`` [most states] are to work in. A sequence that is
    too short for its labels has loss 0 and no gradient, as Baidu's warp-ctc has it.
    """
    for s in range(len(begins)):
        count = label_ends[s] - label_begins[s]
        steps = (ends[s] - begins[s] + step - 1) // step
        repeats = 0
        for k in range(count):
            states[2 * k] = blank
            states[2 * k + 1] = labels[label_begins[s] + k]
            if k > 0 and states[2 * k + 1] == states[2 * k - 1]:
                repeats += 1
        states[2 * count] = blank
        loss[s] = 0
        if steps == 0:
            continue
        size = 2 * count + 1
        for t in range(steps):  # softmax, in place of the gradient
            row, out = logits[begins[s] + t * step], grad[begins[s] + t * step]
            largest, total = row.max(), 0.0
            for k in range(len(row)):
                out[k] = np.exp(row[k] - largest)
                total += out[k]
            for k in range(len(row)):
                out[k] /= total
        if count + repeats > steps:
            for t in range(steps):
                grad[begins[s] + t * step] = 0
            continue
        alpha, beta = room[0], room[1]
        for t in range(steps):
            out = grad[begins[s] + t * step]
            for i in range(size):
                before = -np.inf
                if t == 0:
                    before = 0.0 if i < 2 else -np.inf
                else:
                    before = alpha[t - 1, i]
                    if i > 0:
                        before = _log_add(before, alpha[t - 1, i - 1])
                    if i > 1 and states[i] != blank and states[i] != states[i - 2]:
                        before = _log_add(before, alpha[t - 1, i - 2])
                alpha[t, i] = before + np.log(out[states[i]])
        log_total = alpha[steps - 1, size - 1]
        if size > 1:
            log_total = _log_add(log_total, alpha[steps - 1, size - 2])
        loss[s] = -log_total
        for t in range(steps - 1, -1, -1):
            for i in range(size):
                after = -np.inf
                if t == steps - 1:
                    after = 0.0 if i >= size - 2 else -np.inf
                else:
                    out = grad[begins[s] + (t + 1) * step]
                    after = beta[t + 1, i] + np.log(out[states[i]])
                    if i + 1 < size:
                        after = _log_add(after, beta[t + 1, i + 1] + np.log(out[states[i + 1]]))
                    if i + 2 < size and states[i] != blank and states[i] != states[i + 2]:
                        after = _log_add(after, beta[t + 1, i + 2] + np.log(out[states[i + 2]]))
                beta[t, i] = after
        for t in range(steps):
            out = grad[begins[s] + t * step]
            for i in range(size):
                share = alpha[t, i] + beta[t, i] - log_total
                if share > -80:
                    out[states[i]] -= np.exp(share)
