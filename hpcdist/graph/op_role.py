"""The role of an operator in a Program: the op_role attribute, with Fluid's values."""

from __future__ import annotations

from enum import IntFlag

ROLE_ATTR = "op_role"
DEVICE_ATTR = "op_device"  # as `device_guard` says: operators of one device may form a stage
WITHOUT_SERVERS = "without_servers"  # what moves parameters where servers do not know of it
AFTER_UPDATES = "after_updates"  # what keeps averages of parameters: once these have moved
# Where gradients of several steps are merged: on the operator that begins to count them anew, how
# many; and on all that only the last of them runs.
MERGED_STEPS = "merged_steps"
OF_LAST_STEP = "of_last_merged_step"
MERGE_COUNTER = "_gradient_merge_step"  # in the name of what counts the steps that are merged
ROLE_VAR_ATTR = "op_role_var"  # [parameter, gradient, parameter, gradient, ...]


class OpRole(IntFlag):
    """Role of an operator; LOSS is a flag on top of FORWARD or BACKWARD."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZE = 2
    RPC = 4
    DIST = 8
    LR_SCHED = 16
    LOSS = 256
