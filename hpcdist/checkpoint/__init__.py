"""Checkpoints in HDF5: complete jobs, saved and restored on any number of ranks."""

from typing import TYPE_CHECKING, Any

from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.restore import Restored, restore
from hpcdist.checkpoint.resume_state import Resumable, resumable
from hpcdist.checkpoint.save import busy, save, wait
from hpcdist.checkpoint.saver import Saver

if TYPE_CHECKING:
    from hpcdist.checkpoint.publisher import Publisher
    from hpcdist.checkpoint.shrink import shrink_tables

__all__ = [
    "Checkpoint",
    "Publisher",
    "Restored",
    "Resumable",
    "Saver",
    "busy",
    "latest",
    "restore",
    "resumable",
    "save",
    "shrink_tables",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name == "Publisher":  # few jobs publish
        from hpcdist.checkpoint.publisher import Publisher

        return Publisher
    if name == "shrink_tables":
        from hpcdist.checkpoint.shrink import shrink_tables

        return shrink_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
