"""h5py, imported on first use, so that the doctor can run without it and report it.

from hpcdist.base.hdf5 import h5py
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import CheckpointError

ADVICE = "python -m pip install --force-reinstall h5py: checkpoints need it"


def problem() -> str:
    """Return why h5py "cannot be used: ..." here, or an empty string."""
    try:
        import_module("h5py")
    except Exception as error:  # a wheel for another HDF5 raises more than ImportError
        return f"cannot be used: {error}"
    return ""


class _Late:
    """Stands for the module; CheckpointError at its first use if it cannot be imported."""

    def __getattr__(self, name: str) -> Any:
        if trouble := problem():
            raise CheckpointError(f"h5py {trouble}: {ADVICE}")
        return getattr(import_module("h5py"), name)


if TYPE_CHECKING:
    import h5py
else:
    h5py = _Late()
