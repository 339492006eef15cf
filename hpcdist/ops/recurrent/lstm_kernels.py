"""Loops of the long short-term memory, compiled by numba: with or without a projection.

Values by place (see `time_steps`) are matrices; those named ``all_...`` begin with the initial
states. Gates of a place are adjacent: candidate, input, forget, output.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit
from hpcdist.ops.elementwise.activation_kernels import activate, through


@jit
def lstm_forward(
    x,
    weight,
    bias,
    peepholes,
    projection,
    has_first: bool,
    starts,
    rows,
    befores,
    kinds,
    clips,
    all_fed,
    all_cells,
    gates,
    active_cells,
    hidden,
) -> None:
    """Compute the gates, cells and outputs of all steps.

    ``all_fed`` [sequences + rows, F] is what goes into the next step: the hidden value, or its
    projection (then ``projection`` [D, F] has columns). ``peepholes`` [3, D] or [0, D];
    ``kinds``: activations of gate, cell, candidate and projection; ``clips``: of cell and
    projection, 0 for none.
    """
    gate_kind, cell_kind, candidate_kind, projection_kind = kinds
    cell_clip, projection_clip = clips
    width = all_cells.shape[1]
    first = len(all_cells) - len(rows)
    for t in range(len(starts) - 1):
        begin, end = starts[t], starts[t + 1]
        if t > 0 or has_first:
            before = befores[begin]
            np.dot(all_fed[before : before + end - begin], weight, gates[begin:end])
        else:
            gates[begin:end] = 0
        for i in range(begin, end):
            gate, row = gates[i], x[rows[i]]
            cell, last = all_cells[first + i], all_cells[befores[i]]
            for k in range(4 * width):
                gate[k] += row[k] + bias[k]
            activate(candidate_kind, gate[:width])
            if len(peepholes):
                for k in range(width):
                    gate[width + k] += last[k] * peepholes[0, k]
                    gate[2 * width + k] += last[k] * peepholes[1, k]
            activate(gate_kind, gate[width : 3 * width])
            for k in range(width):
                cell[k] = gate[k] * gate[width + k] + last[k] * gate[2 * width + k]
            if cell_clip > 0:
                for k in range(width):
                    cell[k] = min(max(cell[k], -cell_clip), cell_clip)
            if len(peepholes):
                for k in range(width):
                    gate[3 * width + k] += cell[k] * peepholes[2, k]
            activate(gate_kind, gate[3 * width :])
            active_cells[i] = cell
            activate(cell_kind, active_cells[i])
            for k in range(width):
                hidden[i, k] = gate[3 * width + k] * active_cells[i, k]
            if not projection.size:
                all_fed[first + i] = hidden[i]
        if projection.size:
            fed = all_fed[first + begin : first + end]
            np.dot(hidden[begin:end], projection, fed)
            for i in range(end - begin):
                activate(projection_kind, fed[i])
                if projection_clip > 0:
                    for k in range(fed.shape[1]):
                        fed[i, k] = min(max(fed[i, k], -projection_clip), projection_clip)


@jit
def lstm_backward(
    weight,
    peepholes,
    projection,
    starts,
    befores,
    kinds,
    clips,
    all_fed,
    all_cells,
    gates,
    active_cells,
    all_dfed,
    all_dcells,
    dgates,
    dhidden,
    carry,
    dpeepholes,
) -> None:
    """Go through the steps backwards.

    ``all_dfed`` has the gradients of the results by place, ``all_dcells`` those of cells that come
    from outside; those of initial states are 0 at first. Gradients by place of gates are written,
    those of peepholes added up. ``carry`` [most rows of a step, F] is room to work in; without
    projection ``dhidden`` is too.
    """
    gate_kind, cell_kind, candidate_kind, projection_kind = kinds
    cell_clip, projection_clip = clips
    width = all_cells.shape[1]
    first = len(all_cells) - len(befores)
    for t in range(len(starts) - 2, -1, -1):
        begin, end = starts[t], starts[t + 1]
        if projection.size:
            dfed = all_dfed[first + begin : first + end]
            for i in range(end - begin):
                fed = all_fed[first + begin + i]
                through(projection_kind, fed, dfed[i])
                if projection_clip > 0:
                    for k in range(len(fed)):
                        if fed[k] >= projection_clip or fed[k] <= -projection_clip:
                            dfed[i, k] = 0
            np.dot(dfed, projection.T, dhidden[begin:end])
        else:
            dhidden[begin:end] = all_dfed[first + begin : first + end]
        for i in range(begin, end):
            gate, dgate, active, dout = gates[i], dgates[i], active_cells[i], dhidden[i]
            cell, last = all_cells[first + i], all_cells[befores[i]]
            dcell, dlast = all_dcells[first + i], all_dcells[befores[i]]
            for k in range(width):
                dgate[3 * width + k] = dout[k] * active[k]
                dout[k] *= gate[3 * width + k]
            through(gate_kind, gate[3 * width :], dgate[3 * width :])
            through(cell_kind, active, dout)
            for k in range(width):
                dcell[k] += dout[k]
            if len(peepholes):
                for k in range(width):
                    dcell[k] += dgate[3 * width + k] * peepholes[2, k]
                    dpeepholes[2, k] += dgate[3 * width + k] * cell[k]
            if cell_clip > 0:
                for k in range(width):
                    if cell[k] >= cell_clip or cell[k] <= -cell_clip:
                        dcell[k] = 0
            for k in range(width):
                dgate[k] = dcell[k] * gate[width + k]
                dgate[width + k] = dcell[k] * gate[k]
                dgate[2 * width + k] = dcell[k] * last[k]
                dlast[k] += dcell[k] * gate[2 * width + k]
            through(candidate_kind, gate[:width], dgate[:width])
            through(gate_kind, gate[width : 3 * width], dgate[width : 3 * width])
            if len(peepholes):
                for k in range(width):
                    dlast[k] += (
                        dgate[width + k] * peepholes[0, k] + dgate[2 * width + k] * peepholes[1, k]
                    )
                    dpeepholes[0, k] += dgate[width + k] * last[k]
                    dpeepholes[1, k] += dgate[2 * width + k] * last[k]
        np.dot(dgates[begin:end], weight.T, carry[: end - begin])
        before = befores[begin]
        for i in range(end - begin):
            for k in range(carry.shape[1]):
                all_dfed[before + i, k] += carry[i, k]
