"""``paddle.dataset.wmt16``: English sentences with their German translations, as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hpcdist.base.errors import DataError
from hpcdist.fluid.compat.datasets.common import file_of, lines_of

__all__ = ["get_dict", "test", "train", "validation"]

FILE = "wmt16.tar.gz"
LANGUAGES = {"en": 11250, "de": 19220}  # words there are
MARKS = ("<s>", "<e>", "<unk>")
Sample = tuple[list[int], list[int], list[int]]


def train(
    src_dict_size: int, trg_dict_size: int, src_lang: str = "en"
) -> Callable[[], Iterator[Sample]]:
    """Return a reader of (<s> source <e>, <s> target, target <e>), of the commonest words."""
    return _reader("wmt16/train", src_dict_size, trg_dict_size, src_lang)


def test(
    src_dict_size: int, trg_dict_size: int, src_lang: str = "en"
) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the sentences to test with, as ``train``."""
    return _reader("wmt16/test", src_dict_size, trg_dict_size, src_lang)


def validation(
    src_dict_size: int, trg_dict_size: int, src_lang: str = "en"
) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the sentences to validate with, as ``train``."""
    return _reader("wmt16/val", src_dict_size, trg_dict_size, src_lang)


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict:
    """Return the numbers of the commonest words of a language by the words, or reversed.

    Words that are equally common follow in their order in the training data.
    """
    if lang not in LANGUAGES:
        raise DataError(f"wmt16: expected a language of {', '.join(LANGUAGES)}, got {lang!r}")
    counts: Counter[str] = Counter()
    for columns in _pairs("wmt16/train"):
        counts.update(columns[lang != "en"].split())
    most = min(dict_size, LANGUAGES[lang]) - len(MARKS)
    words = [*MARKS, *(word for word, _ in counts.most_common(max(most, 0)))]
    return dict(enumerate(words)) if reverse else {word: i for i, word in enumerate(words)}


def _pairs(part: str) -> Iterator[list[str]]:
    for line in lines_of(file_of("wmt16", FILE), part):
        columns = line.split("\t")
        if len(columns) == 2:
            yield columns


def _reader(
    part: str, src_dict_size: int, trg_dict_size: int, src_lang: str
) -> Callable[[], Iterator[Sample]]:
    source = get_dict(src_lang, src_dict_size)
    target = get_dict("de" if src_lang == "en" else "en", trg_dict_size)
    column = int(src_lang != "en")
    start, end, unknown = (source[mark] for mark in MARKS)

    def read() -> Iterator[Sample]:
        for pair in _pairs(part):
            words = [source.get(word, unknown) for word in pair[column].split()]
            meant = [target.get(word, unknown) for word in pair[1 - column].split()]
            yield [start, *words, end], [start, *meant], [*meant, end]

    return read
