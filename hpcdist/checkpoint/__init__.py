"""Checkpoints in HDF5: complete jobs, saved and restored on any number of ranks.

These names import their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdist.base.lazy import lazy_names

if TYPE_CHECKING:
    from hpcdist.checkpoint.checkpoint import Checkpoint, latest
    from hpcdist.checkpoint.publisher import Publisher
    from hpcdist.checkpoint.restoring import Restored, restore
    from hpcdist.checkpoint.resume_state import Resumable, resumable
    from hpcdist.checkpoint.rows import Choice
    from hpcdist.checkpoint.saver import Saver
    from hpcdist.checkpoint.saving import busy, save, wait
    from hpcdist.checkpoint.shrink import shrink_tables

__all__ = [
    "Checkpoint",
    "Choice",
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
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Choice": ".rows",
        "Publisher": ".publisher",
        "Saver": ".saver",
        "shrink_tables": ".shrink",
        **dict.fromkeys(("Checkpoint", "latest"), ".checkpoint"),
        **dict.fromkeys(("Restored", "restore"), ".restoring"),
        **dict.fromkeys(("Resumable", "resumable"), ".resume_state"),
        **dict.fromkeys(("busy", "save", "wait"), ".saving"),
    },
)
