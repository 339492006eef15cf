"""The facts in a checkpoint's files: frozen dataclasses, written as JSON. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.base.plain_data import MAX_INTEGER, no_number, typed
from hpcdist.checkpoint.described import Described
from hpcdist.checkpoint.divided import KINDS
from hpcdist.checkpoint.layout import BUCKETS, MAX_FACTS, VERSION, ChunkCut

PARAMETER, OPTIMIZER, RATE, COUNTER, OTHER = (
    "parameter",
    "optimizer",
    "learning rate",
    "counter",
    "other",
)
# A file says what it holds in JSON, which takes many times its bytes of memory once it is read.
MAX_VALUES = 1 << 24
MAX_CONTAINERS = 1 << 20
MAX_DIMENSIONS = 32
MAX_CHUNK = 16 << 20  # bytes of a chunk's elements
MORE_THAN_PACKED = 1 << 16  # what compressing may add where nothing can be saved


@dataclass(frozen=True)
class Stored:
    """An array in a file: chunk i is ``sizes[i]`` bytes from ``offsets[i]``, with a checksum.

    ``chunk`` is the shape of one, ``axis`` where an array is cut, see `layout.ChunkCut`. A chunk
    that is not ``packed`` (compressed) is its elements; or, as earlier releases wrote it, its
    elements padded to a whole chunk and 4 bytes of Fletcher-32.
    """

    shape: tuple[int, ...]
    dtype: str
    chunk: tuple[int, ...]
    axis: int
    packed: bool
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    sums: tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """Rows ``begin:end`` of a variable of shape ``whole``, in the dataset ``path`` of a part.

    A ``copy`` is a whole variable that belongs to rows ``begin:end`` of a parameter: the beta
    powers of Adam, of which every block of a parameter has its own. Of what trainers ``divided``
    each has a piece, under its own name.
    """

    name: str
    role: str
    dtype: str
    whole: tuple[int, ...]
    begin: int
    end: int
    path: str
    copy: bool = False
    divided: str = ""  # how trainers divide it, see `divided.KINDS`; "": earlier releases' files

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece itself."""
        return self.whole if self.copy else (self.end - self.begin, *self.whole[1:])


@dataclass(frozen=True)
class TablePart:
    """One writer's rows of a table: datasets ``ids``, ``rows``, ... below ``path``.

    Rows are sorted by the upper 16 bits of their ids' mix; ``begins[b]`` is the first of those in
    bucket b of 1024, ``begins[1024]`` the number of rows. ``shared`` are the numbers that all rows
    of the writer share; ``facts`` say what a row is, as the table does. ``state`` is there if
    the optimizer has some. Tables with a policy have ``metadata`` of their rows, in columns of
    these names, and a ``clock``: their step and day. If ``row_bytes`` is not 0, rows and state are
    bytes, so many of each, as the fact ``storage`` says (`ps.row_storage`).
    """

    name: str
    path: str
    dim: int
    state_width: int
    begins: tuple[int, ...]
    shared: tuple[float, ...]
    facts: Mapping[str, Any]
    metadata: tuple[str, ...] = ()
    clock: tuple[int, ...] = ()
    row_bytes: int = 0
    state_bytes: int = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.begins[-1]

    @property
    def datasets(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """(name, dtype, shape) of what stands below ``path``."""
        dtype = "uint8" if self.row_bytes else "float32"
        described = [
            ("ids", "int64", (self.count,)),
            ("rows", dtype, (self.count, self.row_bytes or self.dim)),
        ]
        if self.state_width:
            width = self.state_bytes if self.row_bytes else self.state_width
            described.append(("state", dtype, (self.count, width)))
        if self.metadata:
            described.append(("metadata", "uint32", (self.count, len(self.metadata))))
        return tuple(described)


@dataclass(frozen=True)
class Part:
    """What one writer has written."""

    writer: str
    step: int
    program: str
    pieces: tuple[Piece, ...] = ()
    tables: tuple[TablePart, ...] = ()
    stored: Mapping[str, Stored] = field(default_factory=dict)


@dataclass(frozen=True)
class PartFile:
    """A part as the manifest knows it: ``facts`` is the checksum of its facts."""

    file: str
    bytes: int
    facts: str


@dataclass(frozen=True)
class Manifest:
    """What joins the parts. ``pieces`` are of all parts: ``homes[i]`` holds ``pieces[i]``.

    ``trainers[k]`` is what trainer k keeps for itself (random state, reader position); ``extra`` is
    the user's, and ``described`` is the Program, if it can be compared with others.
    """

    step: int
    program: str
    files: tuple[PartFile, ...] = ()
    pieces: tuple[Piece, ...] = ()
    homes: tuple[int, ...] = ()
    tables: tuple[TablePart, ...] = ()
    table_homes: tuple[int, ...] = ()
    trainers: tuple[Mapping[str, Any], ...] = ()
    extra: Any = None
    described: Described | None = None


def to_json(facts: Part | Manifest) -> bytes:
    """Return facts as JSON."""
    kind = type(facts).__name__.lower()
    record = {"format": VERSION, "kind": kind, **asdict(facts)}
    try:
        data = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"what is to be saved is not plain data: {error}; give numbers, text, lists and dicts"
        ) from None
    from_json(data, "what is to be saved")  # so that it can be read again
    return data


def from_json(data: bytes, file: str) -> Part | Manifest:
    """Return the facts in ``data``, from anybody; CheckpointError if they are malformed."""
    try:
        if len(data) > MAX_FACTS or data.count(b",") > MAX_VALUES:
            raise ValueError("too long")
        if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
            raise ValueError("too many lists")
        record = json.loads(data, parse_constant=no_number)
        kind = record["kind"]
        if kind not in ("part", "manifest"):
            raise ValueError(f"expected a part or a manifest, got {kind!r}")
        facts: Part | Manifest = typed(Part if kind == "part" else Manifest, record)
        _check(facts)
        return facts
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: malformed facts ({error!r})") from None


# -- what the types do not say ---------------------------------------------------------------------
def _check(facts: Part | Manifest) -> None:
    """Raise ValueError for facts that cannot be true."""
    for piece in facts.pieces:
        _check_array(piece.whole, piece.dtype)
        if (
            not piece.begin <= piece.end
            or not piece.role.isprintable()
            or piece.divided not in {"", *KINDS}
        ):
            raise ValueError(f"piece {piece}")
    for table in facts.tables:
        if (
            len(table.begins) != BUCKETS + 1
            or table.begins[0] != 0
            or any(low > high for low, high in pairwise(table.begins))
        ):
            raise ValueError(f"table {table.name!r}: its buckets are out of order")
        timed = table.metadata or table.row_bytes
        if len(table.clock) != (2 if timed else 0) or max(table.clock, default=0) >> 32:
            raise ValueError(f"table {table.name!r}: its clock is {table.clock}")
        _check_array((table.count, table.dim), "float32")
        _check_array((table.count, table.state_width), "float32")
        _check_array((table.count, table.row_bytes + table.state_bytes), "uint8")
    if isinstance(facts, Part):
        if not facts.writer.isprintable():
            raise ValueError(f"writer {facts.writer!r}")
        for stored in facts.stored.values():
            _check_stored(stored)
        return
    for file in facts.files:
        if file.file.startswith(".") or "/" in file.file or not file.file.isprintable():
            raise ValueError(f"a part called {file.file!r}")
    for homes, of in ((facts.homes, facts.pieces), (facts.table_homes, facts.tables)):
        if len(homes) != len(of) or any(home >= len(facts.files) for home in homes):
            raise ValueError("pieces that no file is named for")


def _check_array(shape: tuple[int, ...], dtype: str) -> None:
    """Raise ValueError unless numpy can have such an array of plain numbers."""
    parsed = np.dtype(dtype)
    if parsed.name != dtype or parsed.kind not in "biuf":
        raise ValueError(f"elements of type {dtype!r}")
    if not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise ValueError(f"an array of {len(shape)} dimensions")
    if math.prod(max(1, d) for d in shape) * parsed.itemsize >= MAX_INTEGER:
        raise ValueError(f"an array of shape {shape}")


def _check_stored(stored: Stored) -> None:
    """Raise ValueError unless the chunks are those of an array of this shape, and are not large."""
    _check_array(stored.shape, stored.dtype)
    itemsize = np.dtype(stored.dtype).itemsize
    axis = stored.axis
    if (
        len(stored.chunk) != len(stored.shape)
        or axis >= len(stored.shape)
        or any(c != 1 for c in stored.chunk[:axis])
        or not 1 <= stored.chunk[axis] <= max(1, stored.shape[axis])
        or stored.chunk[axis + 1 :] != tuple(max(1, d) for d in stored.shape[axis + 1 :])
        or math.prod(stored.chunk) * itemsize > MAX_CHUNK
    ):
        raise ValueError(f"chunks of {stored.chunk} in an array of {stored.shape}")
    cut, size = cut_of(stored), math.prod(stored.shape)
    count = cut.count(size)
    if not len(stored.offsets) == len(stored.sizes) == len(stored.sums) == count:
        raise ValueError(f"{len(stored.offsets)} offsets for {count} chunks")
    if not count:
        return
    limit = math.prod(stored.chunk) * itemsize + MORE_THAN_PACKED
    if min(stored.sizes) < 1 or max(stored.sizes) > limit:
        raise ValueError("chunks that are empty or too large")
    if not stored.packed:
        padded = math.prod(stored.chunk) * itemsize + 4
        for nbytes, (_, elements) in zip(stored.sizes, cut.pieces(size)):
            if nbytes not in (padded, elements * itemsize):
                raise ValueError(f"a chunk of {nbytes} bytes for {elements} elements")


def cut_of(stored: Stored) -> ChunkCut:
    """Return how a stored array is cut."""
    return ChunkCut(stored.chunk, stored.axis, max(1, stored.shape[stored.axis]))
