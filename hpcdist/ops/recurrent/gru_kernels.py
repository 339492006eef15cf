"""Loops of the gated recurrent unit, compiled by numba; see `lstm_kernels` for what places are.

Gates of a place are adjacent: update, reset, candidate.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit
from hpcdist.ops.elementwise.activation_kernels import activate, through


@jit
def gru_forward(
    x,
    gate_weight,
    candidate_weight,
    bias,
    has_first: bool,
    origin: bool,
    starts,
    rows,
    befores,
    kinds,
    all_hidden,
    gates,
    resets,
    room,
    candidate_room,
) -> None:
    """Compute the gates and hidden values of all steps.

    ``bias`` has 3 D numbers. ``resets`` [rows, D] are last hidden values times reset gates;
    ``room`` [most rows of a step, 2 D] and ``candidate_room`` [as many, D] are to work in.
    """
    gate_kind, candidate_kind = kinds
    width = all_hidden.shape[1]
    first = len(all_hidden) - len(rows)
    for t in range(len(starts) - 1):
        begin, end = starts[t], starts[t + 1]
        products, candidates = room[: end - begin], candidate_room[: end - begin]
        moves = t > 0 or has_first
        if moves:
            before = befores[begin]
            np.dot(all_hidden[before : before + end - begin], gate_weight, products)
        else:
            products[:] = 0
            candidates[:] = 0
        for i in range(begin, end):
            gate, row, last = gates[i], x[rows[i]], all_hidden[befores[i]]
            for k in range(2 * width):
                gate[k] = row[k] + bias[k] + products[i - begin, k]
            activate(gate_kind, gate[: 2 * width])
            for k in range(width):
                resets[i, k] = last[k] * gate[width + k]
        if moves:
            np.dot(resets[begin:end], candidate_weight, candidates)
        for i in range(begin, end):
            gate, row, last = gates[i], x[rows[i]], all_hidden[befores[i]]
            hidden = all_hidden[first + i]
            for k in range(width):
                gate[2 * width + k] = row[2 * width + k] + bias[2 * width + k]
                gate[2 * width + k] += candidates[i - begin, k]
            activate(candidate_kind, gate[2 * width :])
            if origin:
                for k in range(width):
                    hidden[k] = gate[2 * width + k] + gate[k] * (last[k] - gate[2 * width + k])
            else:
                for k in range(width):
                    hidden[k] = last[k] + gate[k] * (gate[2 * width + k] - last[k])


@jit
def gru_backward(
    gate_weight,
    candidate_weight,
    origin: bool,
    starts,
    befores,
    kinds,
    all_hidden,
    gates,
    all_dhidden,
    dgates,
    dcandidates,
    room,
) -> None:
    """Go through the steps backwards.

    ``all_dhidden`` has the gradients of the results by place, 0 for the initial states. Gradients
    of update and reset gates are written to ``dgates`` [rows, 2 D], those of candidates to
    ``dcandidates`` [rows, D]; ``room`` [most rows of a step, D] is to work in.
    """
    gate_kind, candidate_kind = kinds
    width = all_hidden.shape[1]
    first = len(all_hidden) - len(befores)
    for t in range(len(starts) - 2, -1, -1):
        begin, end = starts[t], starts[t + 1]
        back = room[: end - begin]
        for i in range(begin, end):
            gate, last, dhidden = gates[i], all_hidden[befores[i]], all_dhidden[first + i]
            dgate, dcandidate, dlast = dgates[i], dcandidates[i], all_dhidden[befores[i]]
            for k in range(width):
                towards = dhidden[k] * gate[k]
                away = dhidden[k] - towards
                step = dhidden[k] * (gate[2 * width + k] - last[k])
                if origin:
                    dgate[k] = -step
                    dcandidate[k] = away
                    dlast[k] += towards
                else:
                    dgate[k] = step
                    dcandidate[k] = towards
                    dlast[k] += away
            through(candidate_kind, gate[2 * width :], dcandidate)
        np.dot(dcandidates[begin:end], candidate_weight.T, back)
        for i in range(begin, end):
            gate, last, dlast = gates[i], all_hidden[befores[i]], all_dhidden[befores[i]]
            for k in range(width):
                dgates[i, width + k] = back[i - begin, k] * last[k]
                dlast[k] += back[i - begin, k] * gate[width + k]
            through(gate_kind, gate[: 2 * width], dgates[i])
        np.dot(dgates[begin:end], gate_weight.T, back)
        before = befores[begin]
        for i in range(end - begin):
            for k in range(width):
                all_dhidden[before + i, k] += back[i, k]
