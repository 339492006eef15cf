"""The layout of a checkpoint on disk: names, chunks, and the head of every file. Pure.

A file begins with a user block of 512 bytes: the position of its facts (JSON, in a dataset of the
file), and checksums of the facts and of everything that is not data. The facts contain a checksum
of every chunk of data. So every byte is covered, and reading needs no HDF5 library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xxhash

from hpcdist.base.division import ceil_div
from hpcdist.base.errors import CheckpointError

VERSION = 1
HEAD_BYTES = 512  # of the user block; HDF5 asks for a power of two, at least 512
MAGIC = "hpcdist checkpoint"
MANIFEST = "manifest.h5"
FACTS = "@checkpoint/facts"  # the dataset that holds a file's facts
TABLES = "@checkpoint/tables"  # the group of a part's rows of tables
_ESCAPED = {
    "": "%",
    ".": "%2E",
    "..": "%2E%2E",
    "@checkpoint": "%40checkpoint",
    MANIFEST: "manifest%2Eh5",
    "__model__": "%5F_model__",
}
CHUNK_BYTES = 1 << 20
MAX_FACTS = 256 << 20
BUCKETS = 1024  # of a table's rows, by the upper bits of their ids' mix


def path_of(name: str) -> str:
    """Return a relative path, of a dataset or a file, that is a variable's alone.

    It is the variable's name, unless that would lead elsewhere (``..``, a slash in front), is one
    of ours, or cannot be a name.
    """
    escaped = [part.replace("%", "%25").replace("\0", "%00") for part in name.split("/")]
    return "/".join(_ESCAPED.get(part, part) for part in escaped)


def name_of(path: str) -> str:
    """Return the variable whose `path_of` is ``path``; of other paths the variable Fluid means."""
    unescaped = {escape: part for part, escape in _ESCAPED.items()}
    parts = [unescaped.get(part, part) for part in path.split("/")]
    return "/".join(part.replace("%00", "\0").replace("%25", "%") for part in parts)


def conflict(names: list[str]) -> tuple[str, str] | None:
    """Return two names of which one would be a group around the other, if there are such."""
    paths = {path_of(name): name for name in names}
    for path, name in paths.items():
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            above = "/".join(parents[:depth])
            if above in paths:
                return paths[above], name
    return None


@dataclass(frozen=True)
class ChunkCut:
    """How an array is cut into chunks: ``shape`` of one, and the elements of each in C order.

    A chunk is one piece of the array's memory. The last along ``axis`` may be short: it is padded
    in the file.
    """

    shape: tuple[int, ...]
    axis: int
    extent: int  # of the array along ``axis``

    @property
    def size(self) -> int:
        """Elements of a whole chunk."""
        return math.prod(self.shape)

    def count(self, total: int) -> int:
        """Return the number of chunks of an array of ``total`` elements."""
        if not total:
            return 0
        groups = total // (self.extent * math.prod(self.shape[self.axis + 1 :]))
        return groups * ceil_div(self.extent, self.shape[self.axis])

    def pieces(self, total: int) -> list[tuple[int, int]]:
        """Return (first element, number of elements) of each chunk of an array of ``total``."""
        width = math.prod(self.shape[self.axis + 1 :])
        group, step = self.extent * width, self.shape[self.axis] * width
        if not total:
            return []
        return [
            (begin + first, min(step, group - first))
            for begin in range(0, total, group)
            for first in range(0, group, step)
        ]


def cut(shape: tuple[int, ...], itemsize: int, chunk_bytes: int = CHUNK_BYTES) -> ChunkCut:
    """Cut an array of at least one dimension into chunks of about ``chunk_bytes``."""
    axis = 0
    while axis < len(shape) - 1 and math.prod(shape[axis + 1 :]) * itemsize > chunk_bytes:
        axis += 1
    extent = max(1, shape[axis])
    row = max(1, math.prod(shape[axis + 1 :])) * itemsize
    count = max(1, ceil_div(extent * row, chunk_bytes))
    rows = ceil_div(extent, count)
    rest = tuple(max(1, d) for d in shape[axis + 1 :])
    return ChunkCut((1,) * axis + (rows, *rest), axis, extent)


def corner(shape: tuple[int, ...], element: int) -> tuple[int, ...]:
    """Return the index of an element by its number in C order."""
    return tuple(int(i) for i in np.unravel_index(element, shape))


# -- the head of a file ----------------------------------------------------------------------------
def digest(*parts: bytes | memoryview) -> str:
    """Return the checksum of bytes that come in parts: XXH3, 128 bits, in hexadecimal."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return str(state.hexdigest())


@dataclass(frozen=True)
class Head:
    """What a file's user block says: where its facts lie, their checksum and that of the rest.

    ``rest`` covers all bytes after the head that no chunk listed in the facts covers.
    """

    facts_offset: int
    facts_bytes: int
    facts: str
    file_bytes: int
    rest: str

    def encode(self) -> bytes:
        """Return the user block: lines of text, then zeros."""
        lines = (
            f"{MAGIC} {VERSION}\n"
            f"facts {self.facts_offset} {self.facts_bytes} {self.facts}\n"
            f"file {self.file_bytes} {self.rest}\n"
        )
        text = f"{lines}head {digest(lines.encode())}\n".encode()
        return text.ljust(HEAD_BYTES, b"\0")


def parse_head(data: bytes, file: str) -> Head:
    """Parse a user block; CheckpointError if it is none, or damaged."""
    text = data.rstrip(b"\0").decode("latin-1")
    lines = text.split("\n")
    if not lines[0].startswith(MAGIC):
        raise CheckpointError(
            f"{file}: not a checkpoint of hpcdist (it does not begin with {MAGIC!r})"
        )
    try:
        magic, facts, sizes, _head, _end = lines
        version = magic.removeprefix(MAGIC).strip()
        if version != str(VERSION):
            raise CheckpointError(
                f"{file}: written in version {version!r} of the format, this release reads "
                f"version {VERSION}"
            )
        _, offset, length, facts_sum = facts.split(" ")
        _, total, rest = sizes.split(" ")
        head = Head(int(offset), int(length), facts_sum, int(total), rest)
    except CheckpointError:
        raise
    except ValueError:
        raise damaged(file, "its head") from None
    if head.encode() != data:
        raise damaged(file, "its head")
    return head


def damaged(file: str, section: str) -> CheckpointError:
    """Return the error of a file whose bytes are not those that were written."""
    return CheckpointError(
        f"{file}: {section} is damaged (its checksum differs): take an older checkpoint"
    )
