"""Settings of a trainer's communicator: queue lengths, merging, waiting."""

from __future__ import annotations

import logging

from hpcdist.base import settings
from hpcdist.transpiler import DistributedMode

logger = logging.getLogger("hpcdist.fleet")

_NAMES = (
    "communicator_independent_recv_thread",
    "communicator_thread_pool_size",
    "communicator_send_wait_times",
    "communicator_is_sgd_optimizer",
    "rpc_deadline",
    "rpc_retry_times",
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


class TrainerRuntimeConfig:
    """Settings of the communicator by name; the environment's FLAGS_<name> are the defaults.

    ``runtime_configs`` may be changed in place. ``mode`` None means asynchronous.
    """

    def __init__(self) -> None:
        self.mode: DistributedMode | None = None
        flags = {name: settings.flag(f"FLAGS_{name}") for name in _NAMES}
        self.runtime_configs = {name: flag.text(flag.read()) for name, flag in flags.items()}

    def get_communicator_flags(self) -> dict[str, str]:
        """Return the settings that the mode uses, checked; a joint mode fixes some to CPU_NUM."""
        used = _USED.get(self.mode) if self.mode is not None else None
        flags = {name: str(self.runtime_configs[name]) for name in used or self.runtime_configs}
        for name, value in flags.items():
            settings.flag(f"FLAGS_{name}").parse(value)
        if self.mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC):
            threads = str(settings.CPU_NUM.read())
            for name in _JOINT:
                if flags[name] != threads:
                    logger.warning(
                        "%s: in %s mode it is CPU_NUM = %s, not %s",
                        name,
                        self.mode.name.lower(),
                        threads,
                        flags[name],
                    )
                    flags[name] = threads
        return flags

    def __repr__(self) -> str:
        flags = self.get_communicator_flags()
        return "\n".join(["TrainerRuntimeConfig", *(f"  {n}: {v}" for n, v in flags.items())])
