"""The data sets that scikit-learn carries in its own package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hpcdist.base.errors import DataError


def numbers(file: str, delimiter: str | None = None) -> np.ndarray:
    """Return the numbers of a file of ``sklearn/datasets/data``: float64 [rows, columns].

    sklearn itself is not imported: with scipy.stats that takes half of a small job's start.
    DataError if there is no scikit-learn, or no such file in it.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError(
            f"data set {file} comes with scikit-learn, which is not installed: pip install "
            "scikit-learn"
        )
    path = Path(found.origin).parent / "datasets/data" / file
    try:
        return np.loadtxt(path, delimiter=delimiter, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data set {file} cannot be read from scikit-learn ({error}): pip install "
            "--force-reinstall scikit-learn"
        ) from error
