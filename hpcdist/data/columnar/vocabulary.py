"""A vocabulary: words and their ids."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcdist.base.errors import DataError
from hpcdist.base.replaced import write_whole
from hpcdist.data.columnar.optional_pyarrow import needing_pyarrow

Split = Callable[[str], Sequence[str]]


class Vocabulary:
    """Words and their ids 0, 1, ...; the last id, ``unknown``, is of all other words.

    Called with a text it returns the ids of its words: `read` takes it in ``decode``. ``split``
    cuts a text into words; it must be the one that the words were counted with.

    >>> words = Vocabulary(["blue", "red"])
    >>> words("red or blue"), words.unknown
    ([1, 2, 0], 2)
    """

    def __init__(self, words: Iterable[str], split: Split = str.split) -> None:
        self.words = tuple(words)
        for word in self.words:
            if not isinstance(word, str):
                raise DataError(f"Vocabulary: a word must be text, got {word!r:.80}")
        if not callable(split):
            raise DataError(f"Vocabulary: split must be a function of a text, got {split!r:.80}")
        self._ids = {word: number for number, word in enumerate(self.words)}
        self._split = split
        if len(self._ids) < len(self.words):
            ((twice, _),) = Counter(self.words).most_common(1)
            raise DataError(f"Vocabulary: the word {twice!r} appears twice")

    def __len__(self) -> int:
        """Number of ids, that of unknown words among them: the size of an embedding."""
        return len(self.words) + 1

    @property
    def unknown(self) -> int:
        """The id of all words that are not in the vocabulary."""
        return len(self.words)

    def __call__(self, text: str) -> list[int]:
        """Return the ids of the words of a text."""
        id_of, unknown = self._ids.get, self.unknown
        return [id_of(word, unknown) for word in self._split(text)]

    @classmethod
    def count(
        cls,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        column: str,
        size: int | None = None,
        least: int = 1,
        split: Split = str.split,
        **how: Any,
    ) -> Vocabulary:
        """Return the words of a column of files that are there at least ``least`` times.

        The most frequent ``size`` of them, most frequent first, ties by the alphabet. Reads all
        files, which `read` could; rows of text files that are malformed are not counted. ``how``:
        ``format``, ``names``, ``delimiter``, ``encoding`` and ``strip`` of `read`.
        """
        for argument, number in (("size", size), ("least", least)):
            if number is not None and (type(number) is not int or number < 1):
                raise DataError(f"Vocabulary: {argument} must be an integer >= 1, got {number!r}")
        counts: Counter[str] = Counter()
        for text in needing_pyarrow("texts", "Vocabulary.count").texts_of(paths, column, **how):
            counts.update(split(text))
        most_frequent = sorted((-n, word) for word, n in counts.items() if n >= least)
        return cls([word for _, word in most_frequent[:size]], split)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the words, one in each line, UTF-8; the file is complete, or not there."""
        if not self.words:
            raise DataError(f"Vocabulary: no words to save to {path}")
        _check_lines(self.words)
        write_whole(Path(path), "".join(f"{word}\n" for word in self.words), durable=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], split: Split = str.split) -> Vocabulary:
        """Return the vocabulary that `save` wrote; DataError if the file is none."""
        try:
            text = Path(path).read_bytes().decode()
        except (OSError, ValueError) as error:
            raise DataError(f"Vocabulary: cannot read {path}: {error}") from None
        if not text.endswith("\n"):
            raise DataError(f"Vocabulary: {path} does not end with a line end: it may be truncated")
        words = text.removesuffix("\n").split("\n")
        try:
            _check_lines(words)
            return cls(words, split)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def _check_lines(words: Iterable[str]) -> None:
    """Raise DataError for a word that is no line; files from Windows have a carriage return."""
    for word in words:
        if not word or "\n" in word or "\r" in word:
            raise DataError(f"Vocabulary: the word {word!r:.80} cannot be a line of a file")
