"""What a trainer's communicator is told: queue lengths, merging, waiting."""

from __future__ import annotations

import logging
import os

from hpcdist.errors import FleetError
from hpcdist.transpiler import DistributedMode

logger = logging.getLogger("hpcdist.fleet")

_FIXED = {
    "communicator_independent_recv_thread": "1",
    "communicator_thread_pool_size": "5",
    "communicator_send_wait_times": "5",
    "communicator_is_sgd_optimizer": "1",
    "rpc_deadline": "180000",
    "rpc_retry_times": "3",
}
_BY_THREADS = (
    "communicator_max_merge_var_num",
    "communicator_send_queue_size",
    "communicator_min_send_grad_num_before_recv",
)
# Threads that meet at a barrier send one gradient each, which are merged: no more, no fewer.
_JOINT = ("communicator_max_merge_var_num", "communicator_send_queue_size")
_POOL = ("communicator_thread_pool_size", "communicator_send_wait_times")
_USED = {
    DistributedMode.SYNC: (*_JOINT, *_POOL),
    DistributedMode.HALF_ASYNC: (*_JOINT, *_POOL),
    DistributedMode.GEO: _POOL,
}


def cpu_num() -> str:
    """Return how many threads of a trainer compute, as CPU_NUM says."""
    return os.environ.get("CPU_NUM", "1")


class TrainerRuntimeConfig:
    """Settings of the communicator by name; the environment's FLAGS_<name> are the defaults.

    ``runtime_configs`` may be changed in place. ``mode`` None means asynchronous.
    """

    def __init__(self) -> None:
        self.mode: DistributedMode | None = None
        defaults = _FIXED | dict.fromkeys(_BY_THREADS, cpu_num())
        self.runtime_configs = {
            name: os.environ.get(f"FLAGS_{name}", value) for name, value in defaults.items()
        }

    def get_communicator_flags(self) -> dict[str, str]:
        """Return the settings that the mode uses, checked; a joint mode fixes some to CPU_NUM."""
        used = _USED.get(self.mode) if self.mode is not None else None
        flags = {name: str(self.runtime_configs[name]) for name in used or self.runtime_configs}
        for name, value in flags.items():
            if not value.isdigit():
                raise FleetError(f"FLAGS_{name}: expected a number, got {value!r}")
        if self.mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC):
            for name in _JOINT:
                if flags[name] != cpu_num():
                    logger.warning(
                        "%s: in %s mode it is CPU_NUM = %s, not %s",
                        name,
                        self.mode.name.lower(),
                        cpu_num(),
                        flags[name],
                    )
                    flags[name] = cpu_num()
        return flags

    def __repr__(self) -> str:
        flags = self.get_communicator_flags()
        return "\n".join(["TrainerRuntimeConfig", *(f"  {n}: {v}" for n, v in flags.items())])
