"""Data sets: each a module with ``train()`` and ``test()``, which return readers.

``uci_housing`` and ``mnist`` are files (HPCDIST_DATA_HOME, the cache, or a download); ``diabetes``
and ``digits`` come with scikit-learn and need no network.
"""

from __future__ import annotations

from types import ModuleType

from hpcdist.dataset import diabetes, digits, mnist, uci_housing

__all__ = ["diabetes", "digits", "mnist", "regression", "uci_housing"]


def regression() -> ModuleType:
    """Return ``uci_housing`` if its file is on this machine, else ``diabetes``.

    Both have ``feature_num``, ``train`` and ``test``. The choice depends on this machine's files:
    on several hosts give all of them the same HPCDIST_DATA_HOME.
    """
    return uci_housing if uci_housing.available() else diabetes
