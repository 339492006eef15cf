"""Words in a row, with the functions of Fluid's ``imikolov``: a dictionary, and n-grams of words.

The text is Shakespeare's (``tinyshakespeare.txt``, 1.1 MB), or any other file.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from hpcdist.base.errors import DataError
from hpcdist.fluid.dataset.files import RemoteFile, fetch, local_path

__all__ = ["DataType", "available", "build_dict", "test", "train"]

FILE = RemoteFile(
    "tinyshakespeare.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
UNKNOWN, BEGIN, END = "<unk>", "<s>", "<e>"
TRAIN_SHARE = 0.9


class DataType(IntEnum):
    """What a sample is: ``NGRAM``, n words in a row; ``SEQ``, a line without and with its end."""

    NGRAM = 1
    SEQ = 2


def available() -> bool:
    """Return, without network, whether Shakespeare's text is on this machine."""
    return local_path(FILE) is not None


def build_dict(min_word_freq: int = 50, path: str | None = None) -> dict[str, int]:
    """Return word -> id for the words of the text that occur more often than ``min_word_freq``.

    The most frequent word has id 0, ties go by the alphabet; the last id is of all other words.
    """
    counts = Counter(word for line in _lines(path) for word in (BEGIN, *line, END))
    frequent = [(-n, word) for word, n in counts.items() if n > min_word_freq and word != UNKNOWN]
    words = [word for _, word in sorted(frequent)]
    return {word: k for k, word in enumerate((*words, UNKNOWN))}


def train(
    word_idx: Mapping[str, int],
    n: int,
    data_type: DataType = DataType.NGRAM,
    path: str | None = None,
) -> Callable[[], Iterator[Any]]:
    """Return a reader of the first nine tenths of the lines.

    NGRAM: tuples of ``n`` ids, of every n words in a row of a line with its begin and end marks.
    SEQ: (ids with the begin mark, ids with the end mark), without lines longer than n if n > 0.
    """
    return _reader(word_idx, n, data_type, path, tested=False)


def test(
    word_idx: Mapping[str, int],
    n: int,
    data_type: DataType = DataType.NGRAM,
    path: str | None = None,
) -> Callable[[], Iterator[Any]]:
    """Return a reader of the last tenth of the lines, as ``train``."""
    return _reader(word_idx, n, data_type, path, tested=True)


@functools.cache
def _lines(path: str | None) -> tuple[tuple[str, ...], ...]:
    """Return the words of every line that has any: lower case, punctuation by itself."""
    source = Path(path) if path else fetch(FILE)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DataError(f"cannot read the text {source}: {error}") from error
    words = (re.findall(r"[\w'-]+|[^\w\s]", line.lower()) for line in text.splitlines())
    return tuple(tuple(line) for line in words if line)


def _reader(
    word_idx: Mapping[str, int], n: int, data_type: DataType, path: str | None, *, tested: bool
) -> Callable[[], Iterator[Any]]:
    if data_type == DataType.NGRAM and n < 1:
        raise DataError(f"n-grams need n of at least 1, got {n}")
    lines = _lines(path)
    cut = int(len(lines) * TRAIN_SHARE)
    part = lines[cut:] if tested else lines[:cut]
    return lambda: samples_of(part, word_idx, n, data_type)


def samples_of(
    lines: Iterable[Sequence[Any]], word_idx: Mapping[Any, int], n: int, data_type: int
) -> Iterator[Any]:
    """Yield what ``train`` says of lines of words."""
    begin, end, unknown = (word_idx.get(mark, word_idx[UNKNOWN]) for mark in (BEGIN, END, UNKNOWN))
    for line in lines:
        words = [word_idx.get(word, unknown) for word in line]
        if data_type == DataType.NGRAM:
            marked = (begin, *words, end)
            yield from (marked[i : i + n] for i in range(len(marked) - n + 1))
        elif not 0 < n < len(words) + 1:
            yield [begin, *words], [*words, end]
