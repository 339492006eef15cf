"""Data sets that scikit-learn carries, read without importing it."""

import numpy as np
import pytest

from hpcdist.errors import DataError
from hpcdist.fluid.dataset import bundled


def test_bundled_numbers_are_scikit_learns():
    from sklearn.datasets import load_diabetes, load_digits

    features, target = load_diabetes(return_X_y=True, scaled=False)
    np.testing.assert_array_equal(bundled.numbers("diabetes_data_raw.csv.gz"), features)
    np.testing.assert_array_equal(bundled.numbers("diabetes_target.csv.gz")[:, 0], target)
    images, labels = load_digits(return_X_y=True)
    expected = np.column_stack([images, labels])
    np.testing.assert_array_equal(bundled.numbers("digits.csv.gz", ","), expected)


def test_a_set_that_scikit_learn_does_not_carry_is_named(monkeypatch):
    with pytest.raises(DataError, match=r"boston\.csv cannot be read from scikit-learn"):
        bundled.numbers("boston.csv")
    monkeypatch.setattr(bundled, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="which is not installed: pip install scikit-learn"):
        bundled.numbers("digits.csv.gz")
