"""What a checkpoint's files say of themselves: JSON of frozen facts. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hpcdist.checkpoint.layout import VERSION
from hpcdist.errors import CheckpointError

PARAMETER, OPTIMIZER, RATE, COUNTER, OTHER = (
    "parameter",
    "optimizer",
    "learning rate",
    "counter",
    "other",
)


@dataclass(frozen=True)
class Stored:
    """An array in a file: chunk i is ``sizes[i]`` bytes from ``offsets[i]``, with a checksum.

    ``chunk`` is the shape of one, ``axis`` where an array is cut, see `layout.Cut`. A chunk that is
    not ``packed`` is its elements, padded to a whole chunk, and 4 bytes of Fletcher-32; or just its
    elements, in a file that several have written together.
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
    powers of Adam, of which every block of a parameter has its own.
    """

    name: str
    role: str
    dtype: str
    whole: tuple[int, ...]
    begin: int
    end: int
    path: str
    copy: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece itself."""
        return self.whole if self.copy else (self.end - self.begin, *self.whole[1:])


@dataclass(frozen=True)
class TablePart:
    """One writer's rows of a table: datasets ``ids``, ``rows`` and ``state`` below ``path``.

    Rows are sorted by the upper 16 bits of their ids' mix; ``begins[b]`` is the first of those in
    bucket b of 1024, ``begins[1024]`` the number of rows. ``shared`` are the numbers that all rows
    of the writer share; ``facts`` say what a row is, as the table does.
    """

    name: str
    path: str
    dim: int
    state_width: int
    begins: tuple[int, ...]
    shared: tuple[float, ...]
    facts: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.begins[-1]


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
    the user's.
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


def to_json(facts: Part | Manifest) -> bytes:
    """Return facts as JSON."""
    kind = type(facts).__name__.lower()
    said = {"format": VERSION, "kind": kind, **asdict(facts)}
    try:
        return json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"what is to be saved is not plain data: {error}; give numbers, text, lists and dicts"
        ) from None


def from_json(data: bytes, file: str) -> Part | Manifest:
    """Return the facts in ``data``; CheckpointError if they are malformed."""
    try:
        said = json.loads(data)
        kind = said["kind"]
        if kind == "part":
            return _part(said)
        if kind == "manifest":
            return _manifest(said)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file}: malformed facts ({error!r})") from None
    raise CheckpointError(f"{file}: expected the facts of a part or a manifest, got {kind!r}")


def _part(said: Any) -> Part:
    return Part(
        str(said["writer"]),
        int(said["step"]),
        str(said["program"]),
        tuple(_piece(p) for p in said["pieces"]),
        tuple(_table(t) for t in said["tables"]),
        {str(path): _stored(s) for path, s in said["stored"].items()},
    )


def _manifest(said: Any) -> Manifest:
    files = tuple(PartFile(f["file"], int(f["bytes"]), str(f["facts"])) for f in said["files"])
    for file in files:
        if not isinstance(file.file, str) or "/" in file.file or file.file.startswith("."):
            raise ValueError(f"a part called {file.file!r}")
    found = Manifest(
        int(said["step"]),
        str(said["program"]),
        files,
        tuple(_piece(p) for p in said["pieces"]),
        _homes(said["homes"], files),
        tuple(_table(t) for t in said["tables"]),
        _homes(said["table_homes"], files),
        tuple(dict(t) for t in said["trainers"]),
        said["extra"],
    )
    if len(found.pieces) != len(found.homes) or len(found.tables) != len(found.table_homes):
        raise ValueError("pieces without a home")
    return found


def _homes(said: Any, files: tuple[PartFile, ...]) -> tuple[int, ...]:
    homes = tuple(int(h) for h in said)
    if any(not 0 <= home < len(files) for home in homes):
        raise ValueError(f"homes {homes} of {len(files)} files")
    return homes


def _piece(said: Any) -> Piece:
    whole = tuple(int(d) for d in said["whole"])
    piece = Piece(
        str(said["name"]),
        str(said["role"]),
        np.dtype(said["dtype"]).name,
        whole,
        int(said["begin"]),
        int(said["end"]),
        str(said["path"]),
        bool(said["copy"]),
    )
    if not whole or min(whole) < 0 or not 0 <= piece.begin <= piece.end:
        raise ValueError(f"piece {piece}")
    return piece


def _table(said: Any) -> TablePart:
    return TablePart(
        str(said["name"]),
        str(said["path"]),
        int(said["dim"]),
        int(said["state_width"]),
        tuple(int(b) for b in said["begins"]),
        tuple(float(s) for s in said["shared"]),
        dict(said["facts"]),
    )


def _stored(said: Any) -> Stored:
    stored = Stored(
        tuple(int(d) for d in said["shape"]),
        np.dtype(said["dtype"]).name,
        tuple(int(d) for d in said["chunk"]),
        int(said["axis"]),
        bool(said["packed"]),
        tuple(int(o) for o in said["offsets"]),
        tuple(int(s) for s in said["sizes"]),
        tuple(str(s) for s in said["sums"]),
    )
    if not len(stored.offsets) == len(stored.sizes) == len(stored.sums):
        raise ValueError("chunks without a checksum")
    if min(stored.offsets, default=0) < 0 or min(stored.sizes, default=1) < 1:
        raise ValueError("chunks outside of the file")
    return stored
