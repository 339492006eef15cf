"""A version as a reader has it: mapped bases, increments merged over them. It never changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import PublicationError, TableError
from hpcdist.base.nearest import did_you_mean
from hpcdist.base.plain_data import typed
from hpcdist.ps.published.files import open_layers, read_dense
from hpcdist.ps.published.members import Member, MemberChain, TableKind, link_of
from hpcdist.ps.published.sorted_rows import (
    Ids,
    Kept,
    Keys,
    Layer,
    Places,
    Rows,
    ids_of,
    merged,
    mixes_of,
)

INITIAL, ZEROS, ERROR = "initial", "zeros", "error"


class PublishedTable:
    """A table's rows in one version: those of the base, by owner, and all increments over them."""

    def __init__(self, name: str, kind: TableKind, base: tuple[Layer, ...], over: Layer) -> None:
        """Put increments over the layers of a base."""
        self.name, self.kind, self.base, self.over = name, kind, base, over
        firsts = [layer.index.keys[0] for layer in base if len(layer)]
        self._base = [layer for layer in base if len(layer)]
        self._firsts = np.array(firsts, np.uint64)
        if any(a.index.keys[-1] >= b.index.keys[0] for a, b in itertools.pairwise(self._base)):
            raise PublicationError(f"table {name!r}: the files of its base overlap")
        self._beginning: Any = None
        self._storage = kind.storage

    def pull(self, ids: Ids, missing: str) -> Rows:
        """Return the rows, float32 [n, width], of ids (int64 [n])."""
        kept, there = self.kept(ids)
        if self._storage is not None:
            kept[~there] = 0  # whatever was in that memory is no row
        rows: Rows = kept if self._storage is None else self._storage.rows_of(kept, self.kind.width)
        if not there.all():
            self._fill(ids, rows, np.flatnonzero(~there), missing)
        return rows

    def kept(self, ids: Ids) -> tuple[Kept, np.ndarray]:
        """Return the rows of ids as they are published, and which ids have one: bool [n]."""
        keys = mixes_of(ids)
        rows = self.kind.space(len(ids))
        places = self.over.index.find(keys)
        changed = places >= 0
        there = changed.copy()
        if changed.any():
            rows[changed] = self.over.rows.take(places[changed], axis=0)
            assert self.over.gone is not None, "increments are merged"
            there[changed] = ~self.over.gone[places[changed]]
            rest = np.flatnonzero(~changed)
            there[rest] = self._pull_base(keys[rest], rows, rest)
        else:
            there = self._pull_base(keys, rows, None)
        return rows, there

    def _pull_base(self, keys: Keys, rows: Kept, where: Places | None) -> np.ndarray:
        """Write rows of the base, to ``where`` in ``rows``; return which keys it has."""
        if len(self._base) == 1:
            return _take(self._base[0], keys, rows, where)
        found = np.zeros(len(keys), bool)
        owners = np.searchsorted(self._firsts, keys, side="right") - 1
        for k, layer in enumerate(self._base):
            chosen = np.flatnonzero(owners == k)
            target = chosen if where is None else where[chosen]
            found[chosen] = _take(layer, keys[chosen], rows, target)
        return found

    def _fill(self, ids: Ids, rows: Rows, places: Places, missing: str) -> None:
        if missing == ERROR:
            raise TableError(
                f"table {self.name!r}: this version has no row of id {ids[places[0]]} and "
                f"{len(places) - 1} others that were looked up"
            )
        if missing == ZEROS:
            rows[places] = 0
            return
        new = np.empty((len(places), self.kind.width), np.float32)
        self._first_values(ids[places], new)
        rows[places] = new

    def _first_values(self, ids: Ids, out: Rows) -> None:
        initializer = dict(self.kind.initializer)
        storage = initializer.pop("storage", None)  # of rows that are not kept in float32
        initializer.pop("row_bytes", None)
        if initializer.get("kind") == "constant" and storage is None:
            out[:] = 0
            out[:, : initializer.get("drawn") or None] = initializer["a"]
            return
        if self._beginning is None:  # its kernels are numba's, which takes long to import
            from hpcdist.ps.row_storage import RowStorage
            from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable

            begin = typed(RowInitializer, initializer)
            facts = self.name, self.kind.width, RowOptimizer("sgd"), begin, self.kind.seed
            kept = None if storage is None else RowStorage.from_plain(storage)
            self._beginning = SparseTable(*facts, storage=kept)
        self._beginning.read(np.ascontiguousarray(ids), out)

    def ids(self) -> Ids:
        """Return all ids that have rows, in the order of their mixes."""
        layers = [Layer(b.index.keys, np.empty((len(b), 0), np.float32)) for b in self._base]
        over = Layer(
            self.over.index.keys, np.empty((len(self.over), 0), np.float32), self.over.gone
        )
        together = merged([*layers, over], np.empty((0, 0), np.float32))
        assert together.gone is not None
        return ids_of(together.index.keys[~together.gone])


def _take(layer: Layer, keys: Keys, rows: Kept, where: Places | None) -> np.ndarray:
    """Write a layer's rows of keys; return which it has."""
    places = layer.index.find(keys)
    found = places >= 0
    if where is None and found.all():
        np.take(layer.rows, places, axis=0, out=rows, mode="clip")  # which writes at once
        return found
    target = np.flatnonzero(found) if where is None else where[found]
    rows[target] = layer.rows.take(places[found], axis=0)
    return found


class Version:
    """A complete version. All its look-ups are of the same rows, whatever is published meanwhile.

    ``number`` counts versions, ``step`` is the training step, ``tables`` are names with widths.
    ``dense`` is the dense part in ONNX, None if none is published. `Lookup.current` is one.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> table = hpcdist.ps.connect("users", 2, publish=directory, publish_every=1)
    >>> for step in range(2):
    ...     table.push([3, 5 + step], np.ones((2, 2), np.float32)).wait()
    >>> table.close()
    >>> with hpcdist.serving.Lookup(directory) as lookup:
    ...     lookup.current.tables, lookup.current.pull("users", [[3], [6]]).shape
    ({'users': 2}, (2, 1, 2))
    """

    def __init__(
        self, chain: MemberChain, tables: Mapping[str, PublishedTable], dense: bytes | None = None
    ) -> None:
        """Hold the tables of a chain, and the dense part of its last member."""
        self.chain, self._tables, self.dense = chain, dict(tables), dense
        self.number, self.step = chain.version, chain.last.step
        self.tables = {name: kind.width for name, kind in chain.last.tables.items()}

    def __repr__(self) -> str:
        return f"<Version {self.number} of step {self.step}: {', '.join(self.tables)}>"

    def table(self, name: str) -> PublishedTable:
        """Return one table; TableError for a name that is none."""
        if name not in self._tables:
            raise TableError(
                f"this version has no table {name!r}{did_you_mean(str(name), self._tables)} "
                f"(it has {', '.join(sorted(self._tables))})"
            )
        return self._tables[name]

    def pull(self, table: str, ids: Any, *, missing: str = INITIAL) -> Rows:
        """Return the rows of ids, float32 [*ids.shape, width]; see `Lookup.pull`."""
        if missing not in (INITIAL, ZEROS, ERROR):
            raise TableError(f"missing: expected initial, zeros or error, got {missing!r}")
        array = np.asarray(ids)
        if not array.size and not isinstance(ids, np.ndarray):
            array = array.astype(np.int64)
        if array.dtype.kind not in "iu" or not np.can_cast(array.dtype, np.int64):
            raise TableError(
                f"table {table!r}: ids: expected integers that fit into int64, got {array.dtype} "
                f"{list(array.shape)}"
            )
        found = self.table(table)
        flat = np.ascontiguousarray(array, np.int64).reshape(-1)
        return found.pull(flat, missing).reshape(*array.shape, found.kind.width)

    def feeds(self, values: Mapping[str, Any], *, missing: str = INITIAL) -> dict[str, Any]:
        """Return the feeds of a session of ``dense``: ``values`` by name, rows in place of ids.

        TableError for a value that is missing; PublicationError without a dense part.
        """
        dense = self.chain.last.dense
        if dense is None:
            raise PublicationError(f"{self!r} has no dense part: publish with dense=")
        needed = {
            name: dense.rows[name].ids if name in dense.rows else name for name in dense.inputs
        }
        lacking = sorted({*needed.values()} - values.keys())
        if lacking:
            raise TableError(f"feeds: expected {', '.join(lacking)} too, got {', '.join(values)}")
        fed = {}
        for name, given in needed.items():
            fed[name] = values[given]
            if name in dense.rows:
                wanted = dense.rows[name]
                ids = np.asarray(values[given])
                ids = ids[..., 0] if wanted.last_is_one else ids
                fed[name] = self.pull(wanted.table, ids, missing=missing)
                if wanted.padding is not None:
                    fed[name][ids == wanted.padding] = 0
        return fed


def load(directory: Path, chain: MemberChain, before: Version | None) -> Version:
    """Map a chain; what ``before`` has of it is not read again. PublicationError if damaged."""
    known = _common(chain, before)
    tables: dict[str, PublishedTable] = {}
    opened = [open_layers(directory, member) for member in chain.members[known:]]
    for name, kind in chain.last.tables.items():
        layers = [layers for member in opened for layers in member[name]]
        if before is not None and known:
            old = before.table(name)
            base, over = old.base, [old.over, *layers]
        else:
            base, over = tuple(opened[0][name]), [ls for m in opened[1:] for ls in m[name]]
        try:
            tables[name] = PublishedTable(name, kind, base, merged(over, kind.space(0)))
        except PublicationError as error:
            raise PublicationError(f"{chain.members[0].name}: {error}") from None
    return Version(chain, tables, read_dense(directory, chain.last))


def _common(chain: MemberChain, before: Version | None) -> int:
    """Return how many members at the beginning of a chain a version has read already."""
    if before is None:
        return 0
    old: tuple[Member, ...] = before.chain.members
    if len(old) > len(chain.members):
        return 0
    same = all(a == b and link_of(a) == link_of(b) for a, b in zip(old, chain.members))
    return len(old) if same else 0
