"""Distributed tables in checkpoints: rows in runs that any number of servers can divide.

A run is some rows of one writer, sorted by the upper bits of their ids' mix. These bits determine
the server of a row, so each server's rows are contiguous in every run, for any number of servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from hpcdist.base.division import ceil_div
from hpcdist.base.errors import CheckpointError, TableError
from hpcdist.checkpoint.layout import BUCKETS, path_of
from hpcdist.checkpoint.metadata import TablePart
from hpcdist.ps.batch import owners_of, sort_by_mix
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import CLICK, DAY, DELTA, METADATA, SHOW, WIDE
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.table import RowOptimizer, SparseTable
from hpcdist.ps.table_metadata import DECAYS

logger = logging.getLogger("hpcdist.checkpoint")
SORTED = 1 << 16  # the bits that rows are sorted by
RUN_BYTES = 256 << 20
EXPORTED_ROWS = 1 << 16  # rows whose ids are asked for at a time
STORAGE = "storage"  # a fact of rows that are not kept in float32
# Numbers that earlier checkpoints did not have, and what they are there.
_UNSAID = {
    **dict.fromkeys(DECAYS, 0.0),
    "decay": 0.95,
    "momentum": 0.0,
    "centered": False,
    "weight_decay": 0.01,
    "row_wise": False,
}
_FLOAT32 = RowStorage().to_plain()
_WIDE = METADATA[WIDE]
ORDER, BY_MIX = "order", "mix"  # a fact of runs that are sorted by all bits


def runs_of(table: SparseTable, run_bytes: int = RUN_BYTES) -> Iterator[tuple[TablePart, Any]]:
    """Yield a table's runs, then its companions': facts and copies of what is in the datasets.

    A table has at least one run.
    """
    for each in (table, *table.companions):
        yield from _runs_of(each, run_bytes)


def _runs_of(table: SparseTable, run_bytes: int) -> Iterator[tuple[TablePart, Any]]:
    step = max(1, run_bytes // (8 + table.row_bytes + table.state_bytes))
    for number, first in enumerate(range(0, max(1, len(table)), step)):
        ids, rows, state = table.export(first, min(first + step, len(table)))
        upper = owners_of(ids, SORTED).astype(np.uint16)
        order = np.argsort(upper, kind="stable")
        counts = np.bincount(upper // (SORTED // BUCKETS), minlength=BUCKETS)
        begins = (0, *np.cumsum(counts).tolist())
        part = TablePart(
            table.name,
            f"{path_of(table.name)}/{number}",
            table.dim,
            table.state_width,
            begins,
            tuple(float(s) for s in table.shared),
            facts_of(table),
        )
        arrays = [ids[order], rows[order]]
        if part.state_width:
            arrays.append(state[order])
        if rows.dtype == np.uint8:
            part = replace(part, row_bytes=table.row_bytes, state_bytes=table.state_bytes)
            part = replace(part, clock=(table.step, table.day))
        if isinstance(table, PolicyTable):
            clock = table.step, table.day
            part = replace(part, metadata=table.policy.metadata, clock=clock)
            arrays.append(table.metadata(arrays[0]))
        yield part, arrays


@dataclass(frozen=True)
class Choice:
    """Which rows of a table that counts shows and clicks are saved to be looked up.

    Those whose score is at least ``least_score``, that were looked up in the last ``days`` days,
    and shown ``least_show`` times. ``least_delta``, of bases (0) and deltas: also the least score
    of what was counted since a row was last in one; that begins anew when it has been written.

    >>> Choice(least_score=0.5, days=7)
    Choice(least_score=0.5, days=7, least_show=0.0, least_delta=None)
    """

    least_score: float
    days: float
    least_show: float = 0.0
    least_delta: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None and name == "least_delta":
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or value != value or (value < 0 and name in ("days", "least_show")):
                wanted = ", 0 or more" * (name in ("days", "least_show"))
                raise TableError(f"Choice: {name}: expected a number{wanted}, got {value!r}")

    def of(self, table: SparseTable, ids: np.ndarray) -> np.ndarray:
        """Return the chosen ones of some ids of a table: all, if it counts no shows."""
        if not _counts_shows(table):
            return ids
        known = table.metadata(ids)
        floats = known.view(np.float32)
        shows = floats[:, SHOW]
        score = table.policy.score
        assert score is not None, "it counts shows"
        scores = score.of(shows, floats[:, CLICK])
        chosen = scores >= np.float32(self.least_score)
        chosen &= table.day - known[:, DAY].astype(np.int64) <= self.days
        chosen &= shows >= self.least_show
        if self.least_delta is not None:
            chosen &= floats[:, DELTA] >= np.float32(self.least_delta)
        return ids[chosen]


def _counts_shows(table: SparseTable) -> TypeGuard[PolicyTable]:
    return isinstance(table, PolicyTable) and table.policy.score is not None


def hottest(table: SparseTable, choice: Choice, count: int) -> list[float]:
    """Return how many rows are chosen, then the ``count`` largest of their numbers of shows.

    CheckpointError for a table that counts none.
    """
    if not _counts_shows(table):
        raise CheckpointError(
            f"table {table.name!r} counts no shows: give it "
            "row_policy=RowPolicy(score=ClickScore())"
        )
    chosen, shows = 0, np.empty(0, np.float32)
    for first in range(0, len(table), EXPORTED_ROWS):
        ids = choice.of(table, table.export(first, min(first + EXPORTED_ROWS, len(table)))[0])
        chosen += len(ids)
        more = table.metadata(ids).view(np.float32)[:, SHOW]
        shows = np.sort(np.concatenate([shows, more]))[::-1][:count]
    return [float(chosen), *shows.tolist()]


def inference_runs(
    table: SparseTable, choices: Mapping[str, Choice] | None = None
) -> Iterator[tuple[TablePart, Any]]:
    """Yield the one run of a table whose rows are looked up where they lie, without their state.

    It is sorted by all bits of the ids' mix. Rows are made while they are written. ``choices`` by
    the names of tables say which rows, of other tables all.
    """
    pieces = [np.empty(0, np.int64)]
    choice = (choices or {}).get(table.name)
    for first in range(0, len(table), EXPORTED_ROWS):
        exported = table.export(first, min(first + EXPORTED_ROWS, len(table)))[0]
        pieces.append(exported if choice is None else choice.of(table, exported))
    ids = np.concatenate(pieces)
    sort_by_mix(ids)
    begins = np.searchsorted(owners_of(ids, BUCKETS), np.arange(BUCKETS + 1)).tolist()
    beginning = table.without_row.to_plain()
    facts = {**facts_of(table), "state_names": [], "initializer": beginning, ORDER: BY_MIX}
    path = f"{path_of(table.name)}/0"
    yield (
        TablePart(table.name, path, table.dim, 0, tuple(begins), (), facts),
        (ids, _RowsOf(table, ids)),
    )
    # They have been written.
    if choice is not None and choice.least_delta is not None and _counts_shows(table):
        table.begin_deltas(ids)


class _RowsOf:
    """The rows of some ids of a table, as an array that is made while it is written."""

    dtype = np.dtype(np.float32)
    itemsize = dtype.itemsize

    def __init__(self, table: SparseTable, ids: np.ndarray) -> None:
        self._table, self._ids = table, ids
        self.shape = len(ids), table.dim

    @property
    def size(self) -> int:
        """The number of elements, as of an array."""
        return self.shape[0] * self.shape[1]

    def elements(self, first: int, count: int) -> np.ndarray:
        """Read the rows with these elements; return them as float32 [count]."""
        dim = self._table.dim
        begin, end = first // dim, ceil_div(first + count, dim)
        rows = np.empty((end - begin, dim), np.float32)
        self._table.read(self._ids[begin:end], rows)
        return rows.reshape(-1)[first - begin * dim :][:count]


def facts_of(table: SparseTable) -> dict[str, Any]:
    """Return the layout of a table's rows; tables of equal layouts can exchange rows."""
    moved = asdict(table.optimizer)
    del moved["weight_bounds"], moved["clip_norm"]  # of the policy, which may be another one
    kept = table.storage.to_plain()
    return {
        "optimizer": {k: v for k, v in moved.items() if k not in _UNSAID or v != _UNSAID[k]},
        "initializer": table.initializer.to_plain(),
        "seed": int(table.seed),
        "state_names": list(table.optimizer.state_names),
        **({} if kept == _FLOAT32 else {STORAGE: kept}),
    }


def storage_of(facts: Mapping[str, Any]) -> RowStorage | None:
    """Return how rows with these facts are kept, None: in float32."""
    return RowStorage.from_plain(facts[STORAGE]) if STORAGE in facts else None


def _kept(part: TablePart) -> RowStorage | None:
    return storage_of(part.facts) if part.row_bytes else None


def decoded(part: TablePart, rows: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return saved rows and state in float32. CheckpointError for bytes that no rows have."""
    if not part.row_bytes:
        return rows, state
    columns = len(part.facts.get("state_names", ())) or 1
    widths = (part.state_width // columns,) * (columns if part.state_width else 0)
    try:
        stored = _kept(part)
        if stored is None or (part.row_bytes, part.state_bytes) != (
            stored.row_bytes(part.dim),
            stored.state_bytes(widths),
        ):
            raise TableError(f"{part.row_bytes} and {part.state_bytes} bytes of a row and state")
    except (TableError, AttributeError) as error:
        raise CheckpointError(f"table {part.name!r}: malformed facts: {error}") from None
    return stored.rows_of(rows, part.dim), stored.state_of(state, widths)


def stretch(begins: tuple[int, ...], server: int, servers: int) -> tuple[int, int]:
    """Return the rows (begin, end) of a run that hold all rows of a server, and a few others."""
    first = server * BUCKETS // servers
    last = ceil_div((server + 1) * BUCKETS, servers)
    return begins[first], begins[last]


def check_order(part: TablePart, first: int, ids: np.ndarray, file: str) -> None:
    """Raise CheckpointError unless ids from row ``first`` on are in the buckets they belong to.

    Otherwise a server that looks for its rows would not find them all.
    """
    rows = np.arange(first, first + len(ids))
    buckets = np.searchsorted(part.begins, rows, side="right") - 1
    if (owners_of(ids, BUCKETS) != buckets).any():
        raise CheckpointError(f"{file}: table {part.name!r}: its rows are out of order")


def check_fits(table: SparseTable, part: TablePart, file: str) -> None:
    """Raise CheckpointError if saved rows are not rows of this table."""
    width = table.optimizer.state_width(table.dim)
    if (part.dim, part.state_width) != (table.dim, width):
        raise CheckpointError(
            f"{file}: table {table.name!r} has rows of {part.dim} elements with {part.state_width} "
            f"of optimizer state, expected {table.dim} with {width}: the program differs"
        )
    if len(part.shared) != len(table.shared):
        raise CheckpointError(
            f"{file}: table {table.name!r} has {len(part.shared)} values shared by all rows, "
            f"wanted {len(table.shared)}: the program differs"
        )
    ours = facts_of(table)
    for fact, saved in part.facts.items():
        if (
            fact in ours
            and fact != STORAGE
            and not _alike(fact, ours[fact], saved, file, table.name)
        ):
            raise CheckpointError(
                f"{file}: table {table.name!r} was saved with {fact} {saved}, the program has "
                f"{ours[fact]}: "
                + (
                    "start the job with the same --seed"
                    if fact == "seed"
                    else "build it as it was saved, or take what fits with partial=True"
                )
            )


def _alike(fact: str, ours: Any, saved: Any, file: str, table: str) -> bool:
    """Return whether rows may be exchanged; numbers of an optimizer may be others: the program's.

    A warning names both.
    """
    if fact != "optimizer" or not isinstance(saved, dict):
        return bool(ours == saved)
    for name in sorted(ours.keys() | saved.keys()):
        now, then = ours.get(name), saved.get(name)
        if now != then and not (_is_number(now) and _is_number(then)):
            return False
        if now != then:
            logger.warning(
                "%s: table %r: the program says %s %s, the checkpoint %s: the program's counts",
                *(file, table, name, now, then),
            )
    return True


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def fits_in_part(table: SparseTable, part: TablePart) -> str:
    """Return, in words, what a table takes up of saved rows that may be others."""
    if part.dim != table.dim:
        both = min(part.dim, table.dim)
        return f"{both} elements of rows of {table.dim}, saved as {part.dim}, without their state"
    return "whole" if _has_state(table, part) else "rows without their state"


def _has_state(table: SparseTable, part: TablePart) -> bool:
    return (part.dim, part.state_width, part.facts.get("state_names")) == (
        table.dim,
        table.optimizer.state_width(table.dim),
        list(table.optimizer.state_names),
    )


def adapted(
    table: SparseTable,
    part: TablePart,
    ids: np.ndarray,
    rows: np.ndarray,
    state: np.ndarray,
    metadata: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and state as a table has them; what was not saved is as of new rows.

    metadata: uint32 [n, len(part.metadata)]. Narrow rows become whole in a table that has none.
    """
    whole = np.ones(len(ids), bool)
    if _WIDE in part.metadata:
        whole = metadata[:, part.metadata.index(_WIDE)] != 0
    widens = not (whole.all() or (isinstance(table, PolicyTable) and table.policy.widen_at))
    same = _has_state(table, part) and table.storage.same_bytes(_kept(part))
    if widens or not same:
        rows, state = decoded(part, rows, state)
    if widens or part.dim != table.dim:
        saved, rows = rows, _first_values(table, ids)
        both = min(part.dim, table.dim)
        rows[whole, :both] = saved[whole, :both]
        rows[:, 0] = saved[:, 0]
        rows[~whole, 1:] *= widens
    if not _has_state(table, part):
        state = new_state(table, len(ids))
    return rows, state


def _first_values(table: SparseTable, ids: np.ndarray) -> np.ndarray:
    """Return the first values of whole rows: float32 [len(ids), dim]."""
    facts = table.name, table.dim, RowOptimizer("sgd"), table.initializer, table.seed
    rows = np.empty((len(ids), table.dim), np.float32)
    SparseTable(*facts).read(ids, rows)
    return rows


def metadata_as(table: PolicyTable, part: TablePart, saved: np.ndarray) -> np.ndarray | None:
    """Return saved metadata in the columns of a table, zeros in those it did not have.

    saved: uint32 [n, len(part.metadata)]. None for rows that were saved without. All rows were wide
    if nothing was said of that.
    """
    if not part.metadata:
        return None
    out = np.zeros((len(saved), len(table.policy.metadata)), np.uint32)
    out[:, WIDE:] = 1
    for column, name in enumerate(table.policy.metadata):
        if name in part.metadata:
            out[:, column] = saved[:, part.metadata.index(name)]
    return out


def new_state(table: SparseTable, count: int) -> np.ndarray:
    """Return the state that rows of a table begin with."""
    width = table.optimizer.state_width(table.dim)
    return np.full((count, width), table.optimizer.first_state, np.float32)
