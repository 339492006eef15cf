"""Data sets: each a module with ``train()`` and ``test()``, which return readers.

``uci_housing``, ``mnist`` and ``text`` are files (HPCDIST_DATA_HOME, the cache, or a download), as
are ``adult`` and ``movielens``, which are not downloaded; ``diabetes`` and ``digits`` come with
scikit-learn and need no network; ``synthetic`` makes up images, ``clicks`` rows of advertisements.
"""

from __future__ import annotations

from types import ModuleType

from hpcdist.fluid.dataset import (
    adult,
    clicks,
    diabetes,
    digits,
    mnist,
    movielens,
    synthetic,
    text,
    uci_housing,
)

__all__ = [
    "adult",
    "clicks",
    "diabetes",
    "digits",
    "mnist",
    "movielens",
    "regression",
    "synthetic",
    "text",
    "uci_housing",
]


def regression() -> ModuleType:
    """Return ``uci_housing`` if its file is on this machine, else ``diabetes``.

    Both have ``feature_num``, ``train`` and ``test``. The choice depends on this machine's files:
    on several hosts give all of them the same HPCDIST_DATA_HOME.
    """
    return uci_housing if uci_housing.available() else diabetes
