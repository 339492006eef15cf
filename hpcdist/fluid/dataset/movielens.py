"""MovieLens: ratings of movies, half a star to five, by users who rated at least 20.

``ml-latest-small-ratings.csv`` is the ``ratings.csv`` of GroupLens's ml-latest-small: userId,
movieId, rating, timestamp. F. Maxwell Harper and Joseph A. Konstan, "The MovieLens Datasets:
History and Context", ACM TiiS 5, 4 (2015); its licence lets research use it, not commerce.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcdist.fluid.dataset.csv_table import CsvTable
from hpcdist.fluid.dataset.files import find, require

__all__ = ["available", "max_movie_id", "max_user_id", "mean_rating", "test", "train"]

FILE = "ml-latest-small-ratings.csv"
SOURCE = "ratings.csv of https://files.grouplens.org/datasets/movielens/ml-latest-small.zip"
TEST_SHARE = 0.1
Sample = tuple[int, int, list[int], float]


@dataclass(frozen=True)
class _Ratings:
    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray
    tested: np.ndarray  # bool
    liked: tuple[tuple[int, ...], ...]  # by user: movies of the training data, best first


def available() -> bool:
    """Return whether the file is on this machine."""
    return find(FILE) is not None


def train(history: int = 10) -> Callable[[], Iterator[Sample]]:
    """Return a reader of (user, movie, movies the user likes most, rating): nine of ten ratings.

    Users and movies count from 0. The third field has up to ``history`` movies, which the user
    rated above the own average in the training data, without the movie itself; it may be empty.
    """
    return _reader(history, tested=False)


def test(history: int = 10) -> Callable[[], Iterator[Sample]]:
    """Return a reader of every tenth rating, drawn once and for all, as ``train``."""
    return _reader(history, tested=True)


def max_user_id() -> int:
    """Return the largest user."""
    return int(_ratings().users.max())


def max_movie_id() -> int:
    """Return the largest movie."""
    return int(_ratings().movies.max())


def mean_rating() -> float:
    """Return the mean rating of the training data."""
    ratings = _ratings()
    return float(ratings.stars[~ratings.tested].mean())


def _ratings() -> _Ratings:
    return _read(require(FILE, SOURCE))


@functools.cache
def _read(path: Path) -> _Ratings:
    table = CsvTable(path, ("userId", "movieId", "rating"))
    ids = table.numbers(("userId", "movieId"), low=0, high=2**53, integers=True)
    stars = table.numbers(("rating",), low=0.5, high=5)[:, 0]
    users = np.unique(ids[:, 0], return_inverse=True)[1]
    movies = np.unique(ids[:, 1], return_inverse=True)[1]
    tested = np.random.default_rng(0).random(len(table)) < TEST_SHARE
    rows = np.flatnonzero(~tested)
    rows = rows[np.argsort(users[rows], kind="stable")]
    ends = np.searchsorted(users[rows], np.arange(1, users.max() + 1))
    liked = tuple(_liked(movies[of], stars[of]) for of in np.split(rows, ends))
    return _Ratings(users, movies, stars, tested, liked)


def _liked(movies: np.ndarray, stars: np.ndarray) -> tuple[int, ...]:
    """Return the movies above a user's average, the best first."""
    if not len(stars):
        return ()
    order = np.argsort(-stars, kind="stable")
    return tuple(movies[order][stars[order] > stars.mean()].tolist())


def _reader(history: int, *, tested: bool) -> Callable[[], Iterator[Sample]]:
    ratings = _ratings()
    rows = np.flatnonzero(ratings.tested == tested)
    # Users stand one after the other in the file: a batch should meet many.
    rows = np.random.default_rng(1).permutation(rows)

    def read() -> Iterator[Sample]:
        for row in rows:
            user, movie = int(ratings.users[row]), int(ratings.movies[row])
            others = [other for other in ratings.liked[user][: history + 1] if other != movie]
            yield user, movie, others[:history], float(ratings.stars[row])

    return read
