"""The data sets that scikit-learn carries in its own package."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import DataError


def load(name: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (features [n, k], targets [n]) of ``sklearn.datasets.load_<name>``."""
    try:
        import sklearn.datasets  # not at the top: it takes a second
    except ImportError as error:
        raise DataError(
            f"dataset {name} comes with scikit-learn, which cannot be imported ({error}); "
            "pip install scikit-learn"
        ) from error
    features, targets = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True, **options)
    return features, targets
