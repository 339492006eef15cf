"""Loops of linear chains of tags, compiled by numba.

Sequence i has the rows begins[i]:ends[i] of matrices [rows, tags]. Row 0 of the weights is for
where a sequence begins, row 1 for where it ends; row 2 + i has those from tag i to each tag.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit


@jit
def chain_forward(x, weights, labels, begins, ends, alpha, exps, weight_exps, cost) -> None:
    """Compute -log of the probability of each sequence's labels; 0 of an empty sequence.

    ``alpha`` are the forward sums, each row divided so that it adds up to 1; ``exps`` the
    exponentials of ``x``, relative to the largest of each row.
    """
    tags = x.shape[1]
    for i in range(tags + 2):
        for j in range(tags):
            weight_exps[i, j] = np.exp(weights[i, j])
    for s in range(len(begins)):
        begin, end = begins[s], ends[s]
        cost[s] = 0
        if begin == end:
            continue
        likelihood = x[begin, 0] - x[begin, 0]
        for r in range(begin, end):
            largest = x[r].max()
            total = likelihood - likelihood
            for i in range(tags):
                exps[r, i] = np.exp(x[r, i] - largest)
                if r == begin:
                    before = weight_exps[0, i]
                else:
                    before = weight_exps[2, i] * alpha[r - 1, 0]
                    for j in range(1, tags):
                        before += weight_exps[j + 2, i] * alpha[r - 1, j]
                alpha[r, i] = before * exps[r, i]
                total += alpha[r, i]
            for i in range(tags):
                alpha[r, i] /= total
            likelihood -= largest + np.log(total)
            likelihood += x[r, labels[r]]
            if r > begin:
                likelihood += weights[labels[r - 1] + 2, labels[r]]
        last = alpha[end - 1, 0] * weight_exps[1, 0]
        for i in range(1, tags):
            last += alpha[end - 1, i] * weight_exps[1, i]
        likelihood += weights[0, labels[begin]] + weights[1, labels[end - 1]] - np.log(last)
        cost[s] = -likelihood


@jit
def chain_backward(
    labels, begins, ends, alpha, exps, weight_exps, dcost, beta, pairs, dx, dweights
) -> None:
    """Gradients of `chain_forward`: probabilities less what is labelled, times ``dcost``.

    ``beta`` [rows, tags] and ``pairs`` [tags, tags] are to work in.
    """
    tags = alpha.shape[1]
    dx[:] = 0
    dweights[:] = 0
    for s in range(len(begins)):
        begin, end = begins[s], ends[s]
        for r in range(end - 1, begin - 1, -1):
            total = dcost[s] - dcost[s]
            for i in range(tags):
                if r == end - 1:
                    beta[r, i] = weight_exps[1, i]
                else:
                    after = weight_exps[i + 2, 0] * exps[r + 1, 0] * beta[r + 1, 0]
                    for j in range(1, tags):
                        after += weight_exps[i + 2, j] * exps[r + 1, j] * beta[r + 1, j]
                    beta[r, i] = after
                total += beta[r, i]
            for i in range(tags):
                beta[r, i] /= total
        for r in range(begin, end):
            total = dcost[s] - dcost[s]
            for i in range(tags):
                dx[r, i] = alpha[r, i] * beta[r, i]
                total += dx[r, i]
            for i in range(tags):
                dx[r, i] *= dcost[s] / total
            dx[r, labels[r]] -= dcost[s]
            if r == begin:
                continue
            total = dcost[s] - dcost[s]
            for i in range(tags):
                for j in range(tags):
                    pairs[i, j] = alpha[r - 1, i] * weight_exps[i + 2, j] * exps[r, j] * beta[r, j]
                    total += pairs[i, j]
            for i in range(tags):
                for j in range(tags):
                    dweights[i + 2, j] += pairs[i, j] * dcost[s] / total
            dweights[labels[r - 1] + 2, labels[r]] -= dcost[s]
        if begin < end:
            for i in range(tags):
                dweights[0, i] += dx[begin, i]
                dweights[1, i] += dx[end - 1, i]


@jit
def best_path(x, weights, begins, ends, best, came, path) -> None:
    """Find the likeliest tags of each sequence (Viterbi); of equal ones the first.

    ``best`` and ``came`` [rows, tags] are to work in.
    """
    tags = x.shape[1]
    for s in range(len(begins)):
        begin, end = begins[s], ends[s]
        if begin == end:
            continue
        for i in range(tags):
            best[begin, i] = weights[0, i] + x[begin, i]
        for r in range(begin + 1, end):
            for i in range(tags):
                came[r, i] = 0
                best[r, i] = best[r - 1, 0] + weights[2, i]
                for j in range(1, tags):
                    score = best[r - 1, j] + weights[j + 2, i]
                    if score > best[r, i]:
                        best[r, i] = score
                        came[r, i] = j
                best[r, i] += x[r, i]
        tag = 0
        for i in range(1, tags):
            if best[end - 1, i] + weights[1, i] > best[end - 1, tag] + weights[1, tag]:
                tag = i
        for r in range(end - 1, begin - 1, -1):
            path[r] = tag
            if r > begin:
                tag = came[r, tag]


# -- chunks ----------------------------------------------------------------------------------------
@jit
def _ends_before(last_tag: int, last_type: int, tag: int, type: int, scheme) -> bool:
    _, begins, _, ends, single, other = scheme
    if last_type == other:
        return False
    if type != last_type:
        return True
    return last_tag in (ends, single) or tag in (begins, single)


@jit
def _begins_at(last_tag: int, last_type: int, tag: int, type: int, scheme) -> bool:
    _, begins, inside, ends, single, other = scheme
    if type == other:
        return False
    if type != last_type:
        return True
    if tag in (begins, single):
        return True
    return (tag in (inside, ends)) and (last_tag in (ends, single))


@jit
def _chunks(labels, begin: int, end: int, scheme, excluded, at) -> int:
    """Note for each row the chunk that ends there: 1 + its first row * types + type, or 0."""
    kinds, other, count = scheme[0], scheme[5], 0
    tag, type, inside, first = -1, other, False, begin
    for r in range(begin, end + 1):
        last_tag, last_type = tag, type
        if r < end:
            tag, type = labels[r] % kinds, labels[r] // kinds
            at[r] = 0
        if inside and (r == end or _ends_before(last_tag, last_type, tag, type, scheme)):
            inside = False
            counts = True
            for excluded_type in excluded:
                counts = counts and excluded_type != last_type
            if counts:
                at[r - 1] = 1 + first * (other + 1) + last_type
                count += 1
        if r < end and _begins_at(last_tag, last_type, tag, type, scheme):
            inside, first = True, r
    return count


@jit
def count_chunks(
    inferred, labels, begins, ends, scheme, excluded, at_found, at_labels, counts
) -> None:
    """Count chunks that are found, labelled, and both.

    ``scheme``: number of kinds of tags; begin, inside, end, single; number of types of chunks.
    """
    counts[:] = 0
    for s in range(len(begins)):
        counts[0] += _chunks(inferred, begins[s], ends[s], scheme, excluded, at_found)
        counts[1] += _chunks(labels, begins[s], ends[s], scheme, excluded, at_labels)
        for r in range(begins[s], ends[s]):
            if at_found[r] and at_found[r] == at_labels[r]:
                counts[2] += 1
