"""Utilities of Fluid's fleet scripts: ``incubate.fleet.utils.fleet_util``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hpcdist.base.checks import Refused
from hpcdist.base.errors import FleetError
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.fluid.fleet import done_files, fleet, metrics

logger = logging.getLogger("hpcdist.fleet")

_OF_PSLIB = """
    check_two_programs check_vars_and_dump draw_from_program draw_from_program_file
    get_global_metrics load_fleet_model load_fleet_model_one_table load_model
    parse_program_proto print_global_metrics program_type_trans pull_all_dense_params
    save_batch_model save_delta_model save_fleet_model
    save_model save_paddle_inference_model save_paddle_params save_xbox_base_model
"""
_POSITIVE, _NEGATIVE = "_generated_var_2", "_generated_var_3"  # of the first layers.auc


class FleetUtil:
    """Says things once in a job, and counts over all workers.

    What moves tables of Fluid's ``pslib`` is not here. Done-files are written by worker 0, with
    Paddle's lines, below ``output_path``: of this machine, or of HDFS by ``hadoop_home``, if it
    begins with ``hdfs:`` or ``afs:``. All workers call these.
    """

    def __init__(self, mode: str = "pslib") -> None:
        if mode not in ("pslib", "transpiler"):
            raise FleetError(f'FleetUtil: mode must be "pslib" or "transpiler", got {mode!r}')

    def rank0_print(self, s: object) -> None:
        """Print on worker 0."""
        if fleet.worker_index() == 0:
            print(s, flush=True)

    def rank0_info(self, s: object) -> None:
        """Log on worker 0."""
        if fleet.worker_index() == 0:
            logger.info("%s", s)

    def rank0_error(self, s: object) -> None:
        """Log an error on worker 0."""
        if fleet.worker_index() == 0:
            logger.error("%s", s)

    def set_zero(
        self,
        var_name: str,
        scope: Scope | None = None,
        place: object = None,
        param_type: str = "int64",
    ) -> None:
        """Set a variable of this worker's scope to zeros of ``param_type``."""
        variable = (scope or global_scope()).find_var(var_name)
        if variable is None:
            raise FleetError(f"set_zero: the scope has no variable {var_name!r}")
        tensor = variable.get_tensor()
        tensor.set(np.zeros(tensor.shape(), param_type), place)

    def get_global_auc(
        self, scope: Scope | None = None, stat_pos: str = _POSITIVE, stat_neg: str = _NEGATIVE
    ) -> float | None:
        """Return the area under the ROC curve of all workers' rows; None if nothing counts it.

        ``stat_pos``, ``stat_neg`` are the names of the counts of `layers.auc`. Collective.
        """
        scope = scope or global_scope()
        if scope.find_var(stat_pos) is None or scope.find_var(stat_neg) is None:
            self.rank0_print("not found auc bucket")
            return None
        return metrics.auc(stat_pos, stat_neg, scope)

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = _POSITIVE,
        stat_neg: str = _NEGATIVE,
        print_prefix: str = "",
    ) -> None:
        """Print what `get_global_auc` returns, on worker 0. Collective."""
        self.rank0_print(
            f"{print_prefix} global auc = {self.get_global_auc(scope, stat_pos, stat_neg)}"
        )

    def write_model_donefile(
        self,
        output_path: str,
        day: int | str,
        pass_id: int | str,
        xbox_base_key: int | str,
        hadoop_fs_name: str,
        hadoop_fs_ugi: str,
        hadoop_home: str = "$HADOOP_HOME",
        donefile_name: str = done_files.MODELS,
    ) -> None:
        """Add the line of a saved model, unless its pass has one; pass -1: that of a whole day."""
        key, hadoop = (str(day), str(pass_id)), (hadoop_fs_name, hadoop_fs_ugi, hadoop_home)
        line = done_files.model_line(output_path, *key, int(xbox_base_key))
        self._append(f"{output_path}/{donefile_name}", hadoop, line, key, done_files.has_model)

    def write_xbox_donefile(
        self,
        output_path: str,
        day: int | str,
        pass_id: int | str,
        xbox_base_key: int | str,
        data_path: str | list[str],
        hadoop_fs_name: str,
        hadoop_fs_ugi: str,
        monitor_data: Mapping[str, Any] = MappingProxyType({}),
        hadoop_home: str = "$HADOOP_HOME",
        donefile_name: str | None = None,
    ) -> None:
        """Add the line of a delta, pass -1: of a base, unless the last one is as new.

        As in Paddle, ``monitor_data`` is not written.
        """
        key, hadoop = (str(day), str(pass_id)), (hadoop_fs_name, hadoop_fs_ugi, hadoop_home)
        name = donefile_name or (done_files.BASES if key[1] == "-1" else done_files.PATCHES)
        data = done_files.as_text(data_path)
        base_key, workers = int(xbox_base_key), fleet.worker_num()
        line = done_files.xbox_line(output_path, *key, base_key, data, hadoop_fs_name, workers)
        self._append(f"{output_path}/{name}", hadoop, line, key, done_files.has_xbox)

    def save_cache_model(
        self, output_path: str, day: int | str, pass_id: int | str, mode: int = 1, **kwargs: Any
    ) -> int:
        """Save the rows that are shown most beside a delta; see `Fleet.save_cache_model`.

        Others: ``table_id`` (0).
        """
        folder = done_files.xbox_path(output_path, str(day), str(pass_id)).rstrip("/")
        table_id = kwargs.get("table_id", 0)
        return fleet.save_cache_model(folder, mode=int(mode), table_id=table_id)

    def save_cache_base_model(self, output_path: str, day: int | str, **kwargs: Any) -> int:
        """Save the rows that are shown most beside a base; see `save_cache_model`."""
        return self.save_cache_model(output_path, day, -1, 2, **kwargs)

    def write_cache_donefile(
        self,
        output_path: str,
        day: int | str,
        pass_id: int | str,
        key_num: int | str,
        hadoop_fs_name: str,
        hadoop_fs_ugi: str,
        hadoop_home: str = "$HADOOP_HOME",
        donefile_name: str = done_files.CACHE,
        **kwargs: Any,
    ) -> None:
        """Write how many rows a cache model has, unless that is there.

        Others: ``file_num`` (16), ``table_id`` (0).
        """
        key, hadoop = (str(day), str(pass_id)), (hadoop_fs_name, hadoop_fs_ugi, hadoop_home)
        folder = done_files.cache_path(output_path, *key, kwargs.get("table_id", 0))
        files = kwargs.get("file_num", 16)
        lines = f"file_prefix:part\npart_num:{files}\nkey_num:{int(key_num)}"
        self._append(f"{folder}/{donefile_name}", hadoop, lines, key, lambda *_: True)

    def _append(
        self,
        path: str,
        hadoop: tuple[str, str, str],
        lines: str,
        key: tuple[str, str],
        has: Callable[[str, str, str], bool],
    ) -> None:
        if fleet.worker_index() == 0:
            file = done_files.DoneFile(path, *hadoop)
            text = file.read()
            if text and has(text, *key):
                self.rank0_error(f"not written: {path} has {'/'.join(key)} already")
            else:
                file.write("".join(f"{part}\n" for part in (text, lines) if part))
                self.rank0_error(f"{path}: {'/'.join(key)} is written")
        fleet.barrier_worker()

    def get_last_save_model(
        self,
        output_path: str,
        hadoop_fs_name: str,
        hadoop_fs_ugi: str,
        hadoop_home: str = "$HADOOP_HOME",
    ) -> list[Any]:
        """Return day, pass, path and base key of the last model; [-1, -1, "", now] without one."""
        where = f"{output_path}/{done_files.MODELS}"
        text = done_files.DoneFile(where, hadoop_fs_name, hadoop_fs_ugi, hadoop_home).read()
        if not text:
            return [-1, -1, "", int(time.time())]
        day, key, path, number = text.split("\n")[-1].split("\t")[:4]
        return [int(day), int(number), path, int(key)]

    def get_last_save_xbox(
        self,
        output_path: str,
        hadoop_fs_name: str,
        hadoop_fs_ugi: str,
        hadoop_home: str = "$HADOOP_HOME",
    ) -> list[Any]:
        """Return day, pass, path and base key of the last delta; [-1, -1, "", now] without one."""
        where = f"{output_path}/{done_files.PATCHES}"
        text = done_files.DoneFile(where, hadoop_fs_name, hadoop_fs_ugi, hadoop_home).read()
        return [*done_files.last_xbox(text)] if text else [-1, -1, "", int(time.time())]

    def get_last_save_xbox_base(
        self,
        output_path: str,
        hadoop_fs_name: str,
        hadoop_fs_ugi: str,
        hadoop_home: str = "$HADOOP_HOME",
    ) -> list[Any]:
        """Return day, path and key of the last base; [-1, -1, now] without one."""
        where = f"{output_path}/{done_files.BASES}"
        text = done_files.DoneFile(where, hadoop_fs_name, hadoop_fs_ugi, hadoop_home).read()
        if not text:
            return [-1, -1, int(time.time())]
        day, _, path, key = done_files.last_xbox(text)
        return [day, path, key]

    def get_online_pass_interval(
        self,
        days: str,
        hours: str,
        split_interval: int | str,
        split_per_pass: int | str,
        is_data_hourly_placed: bool,
    ) -> list[list[str]]:
        """Return the directories of each pass of a day; ``hours`` as "{0..23}"."""
        return done_files.passes_of(hours, split_interval, split_per_pass, is_data_hourly_placed)


__all__ = ["FleetUtil"]


for _name in _OF_PSLIB.split():
    _refused = Refused(
        "it moves tables and models of pslib; fluid.io and hpcdist.checkpoint save and load them "
        "(docs/checkpoints.md)"
    )
    _refused.__set_name__(FleetUtil, _name)
    setattr(FleetUtil, _name, _refused)
