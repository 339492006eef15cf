"""Checkpoints in HDF5: complete jobs, saved and restored on any number of ranks."""

from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.restore import Restored, restore
from hpcdist.checkpoint.resume_state import Resumable, resumable
from hpcdist.checkpoint.save import busy, save, wait
from hpcdist.checkpoint.saver import Saver

__all__ = [
    "Checkpoint",
    "Restored",
    "Resumable",
    "Saver",
    "busy",
    "latest",
    "restore",
    "resumable",
    "save",
    "wait",
]
