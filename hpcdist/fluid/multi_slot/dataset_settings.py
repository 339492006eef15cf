"""How scripts of Paddle 2 set up a Dataset: by names, all in one call."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NoReturn

from hpcdist.base.checks import Refused, no_key
from hpcdist.base.errors import DataError, DataNotImplementedError

_METHODS = {
    "batch_size": "set_batch_size",
    "thread_num": "set_thread",
    "use_var": "set_use_var",
    "pipe_command": "set_pipe_command",
    "input_type": "set_input_type",
    "data_feed_type": "set_feed_type",
    "queue_num": "set_queue_num",
    "merge_size": "set_merge_by_lineid",
    "parse_ins_id": "set_parse_ins_id",
    "parse_content": "set_parse_content",
    "fleet_send_batch_size": "set_fleet_send_batch_size",
    "fleet_send_sleep_seconds": "set_fleet_send_sleep_seconds",
}
_INERT = ("fs_name", "fs_ugi")  # of hdfs: and afs: files, which set_filelist refuses
_OTHER = ("download_cmd", "fea_eval", "candidate_size")
_UNSET: dict[str, object] = {"merge_size": -1, "queue_num": -1}  # how Paddle writes "do not"
_DEFAULTS: dict[str, Any] = {
    "batch_size": 1,
    "thread_num": 1,
    "use_var": [],
    "pipe_command": "cat",
}


class DatasetSettings:
    """``init`` and ``update_settings`` of Paddle 2, and ``_set_x`` for each ``set_x``."""

    tdm_sample = Refused("negatives of trees are sampled in the pipe command", "Paddle 2")
    set_date = Refused("set_filelist says which files a pass reads", "Paddle 2")

    def init(self, **kwargs: Any) -> None:
        """Set what is named, and Paddle's defaults for the rest: batches of 1, ``cat``.

        Names are ``batch_size``, ``thread_num``, ``use_var``, ``pipe_command`` and those of
        `update_settings`. DataError for others.
        """
        self.update_settings(**{**_DEFAULTS, **kwargs})

    def update_settings(self, **kwargs: Any) -> None:
        """Set what is named, and leave the rest.

        Beside those of ``init``: ``parse_ins_id``, ``parse_content``, ``merge_size``, ``fea_eval``;
        ``queue_num``, ``fleet_send_*``, ``fs_name``, ``fs_ugi`` change nothing.
        """
        known = (*_METHODS, *_INERT, *_OTHER)
        for name in kwargs:
            if name not in known:
                raise DataError(no_key(type(self).__name__, name, known))
        for name, value in kwargs.items():
            if name in _METHODS and value != _UNSET.get(name, self):
                getattr(self, _METHODS[name])(value)
        if kwargs.get("download_cmd", "cat") != "cat":
            getattr(self, "set_download_cmd")  # noqa: B009 - it is refused by being read
        if kwargs.get("fea_eval"):
            self.set_fea_eval(kwargs.get("candidate_size", 10000), True)

    _init_distributed_settings = update_settings

    def set_input_type(self, input_type: int) -> None:
        """Accept Paddle's number for a sample in each line, and refuse that for a batch."""
        if input_type != 0:
            raise DataError(
                f"input_type: expected 0, a line for each sample, got {input_type!r}: let the pipe "
                "command write a line for each sample of a batch, and set batch_size"
            )

    # -- what changes nothing -------------------------------------------------------------------
    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Do nothing: it is about ``hdfs:`` and ``afs:`` files, which `set_filelist` refuses."""

    def set_queue_num(self, queue_num: int) -> None:
        """Do nothing: there are no queues."""

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Do nothing: `global_shuffle` knows how much to send at once."""

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: int = 0) -> None:
        """Do nothing: `global_shuffle` need not sleep."""

    def set_merge_by_sid(self, merge_by_sid: bool) -> None:
        """Do nothing: it is about page views."""

    def set_use_ps_gpu(self, use_ps_gpu: object) -> None:
        """Do nothing: tables are where embedding() says."""

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name in dir(kind):
            getattr(kind, name)  # one that is refused says so
        if name.startswith("_set_") and name[1:] in dir(kind):
            return getattr(self, name[1:])
        raise AttributeError(f"{kind.__name__} has no {name!r}")


def refuse(name: str, instead: str) -> NoReturn:
    """Raise DataNotImplementedError: what to do in place of ``name``."""
    raise DataNotImplementedError(f"{name}: {instead}")


def at_least_one(name: str, number: int) -> int:
    """Return a setting's number; DataError if it is below 1, or none."""
    if not isinstance(number, Integral) or int(number) < 1:
        raise DataError(f"{name}: expected at least 1, got {number}")
    return int(number)
