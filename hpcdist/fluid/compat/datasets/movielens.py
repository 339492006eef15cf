"""``paddle.dataset.movielens``: MovieLens 1M, ratings of films with facts of users and films."""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hpcdist.fluid.compat.datasets.common import file_of, reading

__all__ = [
    "age_table",
    "get_movie_title_dict",
    "max_job_id",
    "max_movie_id",
    "max_user_id",
    "movie_categories",
    "movie_info",
    "test",
    "train",
    "user_info",
]

Made = TypeVar("Made")

FILE = "ml-1m.zip"
age_table = [1, 18, 25, 35, 45, 50, 56]
TEST_SHARE = 0.1
TITLE = re.compile(r"^(.*)\((\d+)\)$")


@dataclass(frozen=True)
class MovieInfo:
    """A film: its number, its kinds and the words of its title."""

    index: int
    categories: list[str]
    title: str

    def value(self) -> list[Any]:
        """Return the number, and those of the kinds and of the title's words."""
        kinds, words = movie_categories(), get_movie_title_dict()
        return [
            self.index,
            [kinds[kind] for kind in self.categories],
            [words[word.lower()] for word in self.title.split()],
        ]


@dataclass(frozen=True)
class UserInfo:
    """A user: number, sex, the place of the age in ``age_table``, and the job."""

    index: int
    is_male: bool
    age: int
    job_id: int

    def value(self) -> list[Any]:
        """Return the facts as numbers; the second is 0 for a man."""
        return [self.index, int(not self.is_male), self.age, self.job_id]


def _read(name: str, make: Callable[..., Made]) -> Iterator[Made]:
    """Give what ``make`` makes of the fields of each line of a file of the archive."""
    path = file_of("movielens", FILE)
    with (
        reading(path),
        zipfile.ZipFile(path) as archive,
        archive.open(f"ml-1m/{name}.dat") as file,
    ):
        for line in file:
            yield make(*line.decode("latin-1").strip().split("::"))


@functools.cache
def movie_info() -> dict[int, MovieInfo]:
    """Return the films by their numbers."""

    def film(number: str, title: str, kinds: str) -> MovieInfo:
        named = TITLE.match(title)
        return MovieInfo(int(number), kinds.split("|"), named.group(1) if named else title)

    return {movie.index: movie for movie in _read("movies", film)}


@functools.cache
def user_info() -> dict[int, UserInfo]:
    """Return the users by their numbers."""

    def user(number: str, sex: str, age: str, job: str, code: str) -> UserInfo:
        return UserInfo(int(number), sex == "M", age_table.index(int(age)), int(job))

    return {info.index: info for info in _read("users", user)}


@functools.cache
def get_movie_title_dict() -> dict[str, int]:
    """Return the numbers of the words of titles, which follow from the words' order."""
    words = {word.lower() for film in movie_info().values() for word in film.title.split()}
    return {word: i for i, word in enumerate(sorted(words))}


@functools.cache
def movie_categories() -> dict[str, int]:
    """Return the numbers of the kinds of films, which follow from the kinds' order."""
    kinds = {kind for film in movie_info().values() for kind in film.categories}
    return {kind: i for i, kind in enumerate(sorted(kinds))}


def max_movie_id() -> int:
    """Return the largest number of a film."""
    return max(movie_info())


def max_user_id() -> int:
    """Return the largest number of a user."""
    return max(user_info())


def max_job_id() -> int:
    """Return the largest number of a job."""
    return max(user.job_id for user in user_info().values())


def train() -> Callable[[], Iterator[list[Any]]]:
    """Return a reader of [user, sex, age, job, film, kinds, title, [rating from -3 to 5]]."""
    return functools.partial(_ratings, tested=False)


def test() -> Callable[[], Iterator[list[Any]]]:
    """Return a reader of every tenth rating, drawn as Fluid draws, as ``train``."""
    return functools.partial(_ratings, tested=True)


def _ratings(tested: bool) -> Iterator[list[Any]]:
    draws = np.random.RandomState(0)
    users, films = user_info(), movie_info()

    def rating(user: str, film: str, stars: str, seconds: str) -> list[Any] | None:
        if (draws.random_sample() < TEST_SHARE) is not tested:
            return None
        return [*users[int(user)].value(), *films[int(film)].value(), [float(stars) * 2 - 5.0]]

    return filter(None, _read("ratings", rating))
