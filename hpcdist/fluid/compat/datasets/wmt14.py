"""``paddle.dataset.wmt14``: French sentences with their English translations, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from hpcdist.fluid.compat.datasets.common import file_of, lines_of

__all__ = ["get_dict", "test", "train"]

FILE = "wmt14.tgz"
START, END = "<s>", "<e>"
UNKNOWN = 2
LONGEST = 80  # words
Sample = tuple[list[int], list[int], list[int]]


def train(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """Return a reader of (source, <s> and target, target and <e>), of the commonest words."""
    return _reader("train/train", dict_size)


def test(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the sentences to test with, as ``train``."""
    return _reader("test/test", dict_size)


def gen(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the sentences to translate, as ``train``."""
    return _reader("gen/gen", dict_size)


def get_dict(dict_size: int, reverse: bool = True) -> tuple[dict, dict]:
    """Return the words of both languages by their numbers; not reversed, numbers by words."""
    dictionaries = [
        {word: i for i, word in enumerate(islice(lines_of(file_of("wmt14", FILE), end), dict_size))}
        for end in ("src.dict", "trg.dict")
    ]
    if reverse:
        dictionaries = [{number: word for word, number in words.items()} for words in dictionaries]  # type: ignore
    return dictionaries[0], dictionaries[1]


def _reader(part: str, dict_size: int) -> Callable[[], Iterator[Sample]]:
    path = file_of("wmt14", FILE)

    def read() -> Iterator[Sample]:
        source, target = get_dict(dict_size, reverse=False)
        for line in lines_of(path, part):
            columns = line.split("\t")
            if len(columns) != 2:
                continue
            words = [source.get(w, UNKNOWN) for w in (START, *columns[0].split(), END)]
            meant = [target.get(w, UNKNOWN) for w in columns[1].split()]
            if max(len(words), len(meant)) <= LONGEST:
                yield words, [target[START], *meant], [*meant, target[END]]

    return read
