"""Checkpoints in HDF5: complete jobs, saved and restored on any number of ranks."""

from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.publisher import Publisher
from hpcdist.checkpoint.restore import Restored, restore
from hpcdist.checkpoint.resume_state import Resumable, resumable
from hpcdist.checkpoint.save import busy, save, wait
from hpcdist.checkpoint.saver import Saver
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
