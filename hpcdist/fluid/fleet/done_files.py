"""Done-files of online jobs: which models are complete, a line each, as Paddle writes them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdist.base.errors import FleetError
from hpcdist.base.replaced import make_folders, write_whole
from hpcdist.base.temporary import temporary_folder
from hpcdist.fluid.fleet.file_systems import HDFSClient

MODELS, BASES, PATCHES = "donefile.txt", "xbox_base_done.txt", "xbox_patch_done.txt"
CACHE = "sparse_cache.meta"
REMOTE = ("hdfs:", "afs:")


class DoneFile:
    """A text file of lines, here or, of ``hdfs:`` and ``afs:``, there."""

    def __init__(self, path: str, fs_name: str, fs_ugi: str, hadoop_home: str) -> None:
        """Name the file; the others are what hadoop is told, where it is needed."""
        self.path = path
        self._client: HDFSClient | None = None
        if path.startswith(REMOTE):
            configs = {"fs.default.name": fs_name, "hadoop.job.ugi": fs_ugi}
            self._client = HDFSClient(hadoop_home, configs)

    def read(self) -> str | None:
        """Return the text without its last line's end; None if there is no file."""
        if self._client is not None:
            there = self._client.is_file(self.path)
            return self._client.cat(self.path).rstrip("\n") if there else None
        try:
            return Path(self.path).read_text().rstrip("\n")
        except FileNotFoundError:
            return None

    def write(self, text: str) -> None:
        """Replace the file, or make it and its folders."""
        if self._client is None:
            make_folders(Path(self.path).parent)
            write_whole(Path(self.path), text)
            return
        above, _, name = self.path.rpartition("/")
        with temporary_folder() as folder:
            write_whole(Path(folder, name), text)
            if self._client.is_file(self.path):
                self._client.delete(self.path)
            self._client.upload(str(Path(folder, name)), above)


def model_path(output_path: str, day: str, pass_id: str) -> str:
    """Return where the model of a pass is saved; pass -1 is the whole day's."""
    return f"{output_path.rstrip('/')}/{day}/{0 if pass_id == '-1' else pass_id}/"


def xbox_path(output_path: str, day: str, pass_id: str) -> str:
    """Return where a delta is saved; pass -1 is the base."""
    name = "base" if pass_id == "-1" else f"delta-{pass_id}"
    return f"{output_path.rstrip('/')}/{day}/{name}/"


def cache_path(output_path: str, day: str, pass_id: str, table_id: int) -> str:
    """Return where the rows of a table that are shown most are saved, beside a delta or base."""
    return f"{xbox_path(output_path, day, pass_id)}{table_id:03d}_cache"


def model_line(output_path: str, day: str, pass_id: str, key: int) -> str:
    """Return the line of a model: day, key of its base, path, pass, 0."""
    return f"{day}\t{key}\t{model_path(output_path, day, pass_id)}\t{pass_id}\t0"


def has_model(text: str, day: str, pass_id: str) -> bool:
    """Return whether one of the lines is that of a pass."""
    return any(
        (int(day), int(pass_id)) == (int(fields[0]), int(fields[3]))
        for fields in (line.split("\t") for line in text.split("\n"))
    )


def xbox_line(
    output_path: str, day: str, pass_id: str, key: int, data_path: str, fs_name: str, workers: int
) -> str:
    """Return the line of a base or delta: JSON of what Paddle's serving reads."""
    where = xbox_path(output_path, day, pass_id)
    if where.startswith(REMOTE):
        where = where[where.find(":") + 1 :]
    job, instance = (os.environ.get(name, "").strip() for name in ("JOB_ID", "INSTANCE_ID"))
    begin, end = instance.find(job), instance.find("--")
    facts = {
        "id": str(key if pass_id == "-1" else int(time.time())),
        "key": str(key),
        "input": f"{fs_name}{where.rstrip('/')}/000",
        "record_count": "111111",
        "partition_type": "2",
        "job_name": "default_job_name",
        "ins_tag": "feasign",
        "ins_path": data_path,
        "job_id": instance[begin:end] if begin != -1 and end != -1 else job,
        "monitor_data": "",
        "monitor_path": f"{output_path.rstrip('/')}/monitor/{day}.txt",
        "mpi_size": str(workers),
    }
    return json.dumps(facts)


def last_xbox(text: str) -> tuple[int, int, str, int]:
    """Return day, pass (-1: a base), path and key of the last line."""
    facts = json.loads(text.split("\n")[-1])
    *above, day, name, _ = facts["input"].split("/")
    number = name.split("-")[-1]
    path, key = "/".join([*above, day, name]), int(facts["key"])
    return int(day), -1 if number == "base" else int(number), path, key


def has_xbox(text: str, day: str, pass_id: str) -> bool:
    """Return whether the last line is of this pass, or of a later one."""
    return (int(day), int(pass_id)) <= last_xbox(text)[:2]


def passes_of(hours: Any, interval: Any, per_pass: Any, hourly: bool) -> list[list[str]]:
    """Return the directories of each pass of a day, of hours as "{0..23}" or "{7}"."""
    found = re.fullmatch(r"\{?(\d+)(?:\.\.(\d+))?\}?", str(hours))
    if found is None:
        raise FleetError(f'get_online_pass_interval: expected hours as "{{0..23}}", got {hours!r}')
    first = int(found[1])
    last = int(found[2] or first)
    minutes, count = int(interval), int(per_pass)
    # As in Paddle: as many passes as these hours have, of the hours from midnight on.
    number = (last - first + 1) * 60 // minutes
    begins = [divmod(k * minutes, 60) for k in range(number)]
    names = [
        f"{hour:02d}" if hourly else f"{hour:02d}{minute:02d}"
        for hour, minute in begins
        if first <= hour <= last
    ]
    passes = number // count
    if passes * count > len(names):
        raise FleetError(
            f"get_online_pass_interval: hours {hours!r}: expected hours from 0 on: "
            "directories are counted from midnight on"
        )
    return [names[k * count : (k + 1) * count] for k in range(passes)]


def as_text(paths: str | Sequence[str]) -> str:
    """Return paths as a done-file has them, with commas between."""
    return paths if isinstance(paths, str) else ",".join(paths)
