"""Checkpoints in HDF5: complete jobs, saved and restored on any number of ranks.

These names import their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdist.base.lazy import lazy_names

if TYPE_CHECKING:
    from hpcdist.checkpoint.checkpoint import Checkpoint, latest
    from hpcdist.checkpoint.restoring import Restored
    from hpcdist.checkpoint.resume_state import Resumable, resumable
    from hpcdist.checkpoint.rows import Choice
    from hpcdist.checkpoint.saving import busy, wait
    from hpcdist.fluid.checkpoints import Publisher, Saver, restore, save, shrink_tables

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
# Names of the Fluid door, as its scripts find them: what stands in this package knows no Program.
_OF_PROGRAMS = ("Publisher", "Saver", "restore", "save", "shrink_tables")
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(_OF_PROGRAMS, "hpcdist.fluid.checkpoints"),
        "Choice": ".rows",
        **dict.fromkeys(("Checkpoint", "latest"), ".checkpoint"),
        "Restored": ".restoring",
        **dict.fromkeys(("Resumable", "resumable"), ".resume_state"),
        **dict.fromkeys(("busy", "wait"), ".saving"),
    },
)
