"""``paddle.dataset.conll05``: sentences with the roles that their words play for a verb."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from hpcdist.fluid.compat.datasets.common import file_of, reading

__all__ = ["get_dict", "get_embedding", "test"]

MODULE = "conll05st"
FOLDER = "conll05st-release/test.wsj"
AROUND = range(-2, 3)  # words of the context, from the verb


def get_dict() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the numbers of words, verbs and roles; roles B-x, I-x in the order of x, then O."""
    words, verbs, roles = (
        _lines(file_of(MODULE, f"{name}Dict.txt")) for name in ("word", "verb", "target")
    )
    kinds = sorted({role[2:] for role in roles if role[:2] in ("B-", "I-")})
    tags = [f"{place}-{kind}" for kind in kinds for place in "BI"]
    return _numbered(words), _numbered(verbs), _numbered([*tags, "O"])


def get_embedding() -> str:
    """Return the path of the file of trained vectors of words."""
    return str(file_of(MODULE, "emb"))


def test() -> Callable[[], Iterator[Any]]:
    """Return a reader of nine lists, one number for each word of a sentence.

    The word; the five words around the verb, from two before to two behind; the verb; whether the
    word is one of these five; its role.
    """
    dicts, path = get_dict(), file_of(MODULE, "conll05st-tests.tar.gz")

    def read() -> Iterator[Any]:
        with reading(path):
            yield from (_sample(*sentence, *dicts) for sentence in _sentences(path))

    return read


def _sample(
    sentence: list[str],
    verb: str,
    roles: list[str],
    words: Mapping[str, int],
    verbs: Mapping[str, int],
    tags: Mapping[str, int],
) -> tuple[Any, ...]:
    size, at = len(sentence), roles.index("B-V")
    near = [at + step for step in AROUND]
    context = ["bos" if i < 0 else "eos" if i >= size else sentence[i] for i in near]
    return (
        [words.get(word, 0) for word in sentence],
        *([words.get(word, 0)] * size for word in context),
        [verbs.get(verb)] * size,
        [int(i in near) for i in range(size)],
        [tags.get(role) for role in roles],
    )


def _sentences(path: Path) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield each sentence once for each of its verbs, with the verb and the roles of words."""
    with tarfile.open(path) as archive:
        words, props = (
            BytesIO(gzip.decompress(_member(archive, f"{FOLDER}/{kind}/test.wsj.{kind}.gz")))
            for kind in ("words", "props")
        )
    sentence: list[str] = []
    columns: list[list[str]] = []
    # A line ends with a newline: str.splitlines would cut at characters of words, too.
    for word, line in (*zip(words, props, strict=True), (b"", b"")):
        if line.split():
            sentence.append(word.strip().decode())
            columns.append(line.decode().split())
            continue
        if columns:
            verbs, *marks = zip(*columns, strict=True)
            present = [verb for verb in verbs if verb != "-"]
            for verb, marked in zip(present, marks, strict=True):
                yield sentence, verb, _roles(marked)
        sentence, columns = [], []


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, "a plain file"
    return file.read()


def _roles(marks: tuple[str, ...]) -> list[str]:
    """Return B-x, I-x or O for each word of brackets such as (A0* * *)."""
    tags: list[str] = []
    kind = None  # of the bracket that is open
    for mark in marks:
        if mark.startswith("("):
            kind = mark[1 : mark.index("*")]
            tags.append(f"B-{kind}")
        else:
            tags.append("O" if kind is None else f"I-{kind}")
        if mark.endswith(")"):
            kind = None
    return tags


def _lines(path: Path) -> list[str]:
    with reading(path), path.open(encoding="utf-8") as file:
        return [line.strip() for line in file]


def _numbered(names: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}
