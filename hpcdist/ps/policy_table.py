"""A table that admits ids, and forgets rows: by age, by score, and to keep to a budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.admission import (
    admitted,
    by_chance,
    check_shows,
    chosen_looks,
    counted,
    looks_of,
)
from hpcdist.ps.batch import owners_of
from hpcdist.ps.mapped_memory import PAGE_BYTES, lasting
from hpcdist.ps.repeats import merged, single
from hpcdist.ps.row_moves import NO_TURNS
from hpcdist.ps.row_policy import (
    FRACTION,
    SKETCH_ROWS,
    WIDE,
    RowPolicy,
    check_servers,
    quotas_of,
)
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.table import PIECE, RowInitializer, RowOptimizer, SparseTable
from hpcdist.ps.table_arguments import check_finite, check_values, checked_ids

_SGD, _ZEROS = RowOptimizer("sgd"), RowInitializer("constant", 0.0)
_NO_EXPIRY = -1e30  # a score that none is below
_CHANCE = 0x6A09E667F3BCC908  # the square root of 2


class PolicyTable(SparseTable):
    """A table whose rows come and go as a `RowPolicy` says.

    Only `push` changes it, in this order: looks are counted and ids admitted, rows are moved, those
    whose time has come forgotten, then those that are over the budget. So all that look rows up in
    a step see the same ones, in whichever order they come. `step` counts pushes, `day` shrinks.
    A push counts each of its ids once, at however many places and from however many trainers.
    With ``policy.shows`` rows are ``dim + 2`` wide when they are pulled and pushed: the last two
    columns are zeros, and the shows and clicks of a place, which add up.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: RowOptimizer,
        initializer: RowInitializer,
        seed: int,
        dict_size: int | None = None,
        *,
        policy: RowPolicy,
    ) -> None:
        from hpcdist.ps import part_kernels, policy_kernels

        self.policy, self._kernels, self._lists = policy, policy_kernels, part_kernels
        self._words, self._drawn = (
            part_kernels.KEPT + len(policy.metadata),
            int(policy.widen_at > 0),
        )
        stored = policy.storage or RowStorage()
        size = 4 + stored.record_bytes(dim, optimizer.state_widths(dim))
        self._at = size if policy.tier is None else 8
        self.bound = policy.rows_for(size + 4 * self._words)
        self.parts = policy.parts_for(self.bound)
        if self.bound < self.parts and (policy.budget_rows or policy.budget_bytes):
            raise TableError(
                f"table {name!r}: its budget holds {self.bound} rows, expected at least "
                f"{self.parts}, one for each part"
            )
        self.waiting: PolicyTable | None = None  # ids that have no row yet
        self.sketch: SparseTable | None = None  # their counts, one row for each part
        score = policy.score
        if policy.sketch_bytes:
            width = SKETCH_ROWS * policy.sketch_width
            self.sketch = SparseTable(f"{name}@sketch", width, _SGD, _ZEROS, 0)
        elif policy.admit_after > 1:
            kept = RowPolicy(
                expire_steps=policy.expire_steps,
                expire_days=policy.expire_days,
                budget_rows=policy.waiting_ids,
                keep="recent",
                score=score and replace(score, delete_threshold=_NO_EXPIRY),
                parts=policy.parts,
            )
            self.waiting = PolicyTable(f"{name}@waiting", 1, _SGD, _ZEROS, 0, policy=kept)
        keep = {"recent": part_kernels.RECENT, "frequent": part_kernels.FREQUENT}
        coefficients = (score.nonclk_coeff, score.click_coeff) if score else (0, 0)
        self._worth = (  # what the kernels find a row's value by
            self._at,
            keep.get(policy.kept, part_kernels.SCORE),
            np.array(coefficients, np.float32),
        )
        self._quotas = quotas_of(self.bound, self.parts)
        # Another one than initial values follow from.
        self.key = np.uint64(seed % (1 << 64) ^ _CHANCE)
        facts = name, dim, optimizer, initializer, seed, dict_size
        super().__init__(*facts, storage=policy.storage, tier=policy.tier)

    @property
    def companions(self) -> tuple[SparseTable, ...]:
        return tuple(table for table in (self.waiting, self.sketch) if table is not None)

    @property
    def without_row(self) -> RowInitializer:
        return self.beginning if self.policy.until_admitted == "initial" else _ZEROS

    @property
    def sent_width(self) -> int:
        return self.dim + (2 if self.policy.shows else 0)

    @property
    def nbytes(self) -> int:
        used, room = (
            self._parts[:, [self._lists.USED, self._lists.ROOM]].T * self._lists.PLACE_BYTES
        )
        touched = np.minimum(-(-used // PAGE_BYTES) * PAGE_BYTES, room)
        own = self._parts.nbytes + int(touched.sum())
        return super().nbytes + own + sum(table.nbytes for table in self.companions)

    def check_servers(self, servers: int) -> None:
        """Raise TableError if the table's parts cannot be shared by so many servers."""
        for table in (self, self.waiting):
            if table is not None and table.bound:
                check_servers(self.name, table.parts, servers)
        if self.sketch is not None:
            check_servers(self.name, self.policy.parts_for(0), servers)

    def clear(self) -> None:
        super().clear()
        self.day = 0
        self._entered = False  # whether a part may have too many rows
        self._parts = np.zeros((self.parts, 5), np.int64)
        self._places = [np.empty((0, 2), np.uint64)] * self.parts
        for table in self.companions:
            table.clear()

    def pull(self, ids: Array, out: Array, *, create: bool = True) -> None:
        """Write the rows of ``ids``: float32 [n, sent_width]; see `SparseTable.pull`.

        None is made: ids without a row give their initial values, or zeros.
        """
        if not self.policy.shows:
            return super().pull(ids, out, create=False)
        check_values(self.name, out, (len(ids), self.sent_width), "out")
        rows = np.empty((len(ids), self.dim), np.float32)
        super().pull(ids, rows, create=False)
        out[:, : self.dim], out[:, self.dim :] = rows, 0

    def _pull(self, ids: Array, out: Array, *, create: bool, keep: bool = True) -> int:
        if self.policy.until_admitted == "initial":
            return super()._pull(ids, out, create=False, keep=keep)
        ids = checked_ids(self.name, ids, "pull")
        check_values(self.name, out, (len(ids), self.dim), "out")
        for part, records in self._pieces(ids, create=False, keep=keep):
            if self._packed is not None:
                self._packed.read(ids[part], records, out[part], zeros=True)
            else:
                self._kernels.read_or_zeros(records, out[part])
        return len(ids)

    def push(
        self,
        ids: Array,
        grads: Array,
        learning_rate: float,
        scale: float = 1.0,
        *,
        repeats: bool = True,
    ) -> None:
        """Move the rows of ``ids`` that have one, or get one now; see `SparseTable.push`.

        grads: float32 [n, sent_width]. Each id counts as looked up once. Gradients of ids without a
        row are dropped.
        """
        ids = checked_ids(self.name, ids, "push")
        check_values(self.name, grads, (len(ids), self.sent_width), "grads")
        if self.policy.shows:
            check_shows(self, ids, grads)
        rows = np.require(grads[:, : self.dim], requirements=["C", "A", "W"])
        check_finite(self, ids, rows, learning_rate, scale)
        if self.tier is not None:
            self.tier.reserve(len(ids))
        unique, firsts, following = merged(ids) if repeats else single(ids)
        looks = looks_of(self, grads, firsts, following)
        if self.policy.admit_after == 1 and not self._surely_fit(unique):
            with_row = self._locate(unique, create=False) != 0
            self._check_room(unique[with_row | by_chance(self, unique)])
        self.step += 1
        records, bodies = self._noted(unique, looks)
        with_row = records != 0
        if not with_row.all():
            bodies = None
            kept, carried = admitted(self, unique, looks, with_row)
            if not kept.all():
                unique, firsts, records = unique[kept], firsts[kept], records[kept]
                looks = chosen_looks(looks, kept)
            self._make(unique, records, looks, carried)
        turns = self._turns(records)
        if turns.any():
            rows = rows.copy()
            self._rows.narrow_gradients(turns, firsts, following, rows)
        self._step(unique, firsts, following, rows, learning_rate, scale, records, turns, bodies)
        self._pushed += len(ids)
        if self.waiting is not None:
            self.waiting.keep_to_budget()
        if self.policy.shrink_every and self.step % self.policy.shrink_every == 0:
            self.shrink()
        self.keep_to_budget()

    def shrink(self) -> int:
        """End a day: decay shows and clicks, forget what has expired; return how many rows.

        Sketches are emptied.
        """
        policy, before = self.policy, len(self)
        for part in np.flatnonzero(self._parts[:, self._lists.ROWS]).tolist():
            ids, records = self._part(part)
            if policy.score:
                rate = np.float32(policy.score.show_click_decay_rate)
                self._kernels.decay(part, records, rate, *self._worth, self._parts)
            dead = policy.expired(self._metadata_at(records), self.step, self.day)
            self._forget(ids[dead], records[dead])
        if self.waiting is not None:
            self.waiting.step, self.waiting.day = self.step, self.day
            self.waiting.shrink()
        self.day += 1
        if self.sketch is not None:
            self.sketch.clear()
        return before - len(self)

    def keep_to_budget(self) -> int:
        """Forget the least valuable rows of parts that have too many; return how many rows.

        A part forgets somewhat more than it must, so that it does not have to in every step.
        """
        if not (self.bound and self._entered):
            return 0
        self._entered = False
        rows = self._parts[:, self._lists.ROWS]
        which = np.flatnonzero(rows > self._quotas)
        quotas = self._quotas[which]
        counts = rows[which] - (quotas - quotas // FRACTION)
        if len(which):
            self._forget_least(which, counts)
        return int(counts.sum())

    def begin_deltas(self, ids: Array) -> None:
        """Count shows and clicks of rows anew, for the next delta."""
        self._kernels.begin_deltas(self._locate(ids, create=False), self._at)

    def metadata(self, ids: Array) -> Array:
        """Return uint32 [n, columns] as `RowPolicy.metadata` names them; zeros without a row."""
        return self._metadata_at(
            self._locate(checked_ids(self.name, ids, "metadata"), create=False)
        )

    def load(self, ids: Array, rows: Array, state: Array, metadata: Array | None = None) -> None:
        """Set rows, state and ``metadata``; without it rows count as looked up once, just now."""
        super().load(ids, rows, state)
        records = self._locate(ids)
        self._enter(ids, records)
        if metadata is None:
            metadata = np.zeros((len(ids), len(self.policy.metadata)), np.uint32)
            metadata[:, :3] = 1, self.step, self.day
            metadata[:, WIDE:] = 1
        metadata = np.require(metadata, np.uint32, ["C", "A", "W"])
        self._kernels.write_metadata(ids, records, metadata, *self._worth, self._parts)

    # -- inside --

    def _noted(self, ids: Array, looks: Array) -> tuple[Array, Array | None]:
        """Note looks at ids that have a row; return the addresses of their records, 0 of others.

        Second, where their rows are in memory; None if not all are there.
        """
        records, bodies = np.empty((2, len(ids)), np.int64)
        complete = True
        for begin in range(0, len(ids), PIECE):  # which is still in the cache when it is noted
            part = slice(begin, begin + PIECE)
            records[part] = found = self._found(ids[part], create=False)
            self._note(ids[part], found, chosen_looks(looks, part))
            complete &= self.tier is None or self.tier.in_memory(found, bodies[part])
        return records, records if self.tier is None else bodies if complete else None

    def _note(self, ids: Array, records: Array, looks: Array) -> None:
        self._kernels.touch(ids, records, looks, self.step, self.day, *self._worth, self._parts)

    def _make(
        self, ids: Array, records: Array, looks: Array, carried: tuple[Array, Array] | None
    ) -> None:
        """Make rows where ``records`` are 0, and note looks; ``carried``: of `admitted`."""
        new = np.flatnonzero(records == 0)
        for begin in range(0, len(new), PIECE):  # of which entries and records are in the cache
            part = new[begin : begin + PIECE]
            records[part] = made = self._locate(ids[part])
            self._enter(ids[part], made)
            self._note(ids[part], made, chosen_looks(looks, part))
        if carried is not None and len(carried[0]):
            records = self._locate(carried[0])
            self._kernels.write_metadata(carried[0], records, carried[1], *self._worth, self._parts)

    def _turns(self, records: Array) -> Array:
        """Return how wide rows are in this step, and note which widen: uint8 [n], or [0]."""
        if not self.policy.widen_at:
            return NO_TURNS
        turns, least = np.empty(len(records), np.uint8), np.float32(self.policy.widen_at)
        self._kernels.take_turns(records, self._at, least, self._worth[2], turns)
        return turns

    def _enter(self, ids: Array, records: Array) -> None:
        """Put new records into their parts' lists, which get more room if they must."""
        at, lists, self._entered = 0, self._lists, True
        while True:
            memory = self._memory.directory, self._memory.segments, self._memory.chunks
            layout = self._beginning[0]
            at = lists.enter(ids, records, at, self._at, self._parts, *memory, layout)
            if at == len(ids):
                return
            part = int(owners_of(ids[at : at + 1], self.parts)[0])
            before = self._places[part]
            room, most = 16 + len(before) * 5 // 4, int(self._quotas[part]) * 17 // 16
            if len(before) < most and (len(before) or most < room):
                room = most  # what a part with a budget has in the end: pages come when needed
            places = lasting(room * lists.PLACE_BYTES).view(np.uint64).reshape(room, 2)
            places[: len(before)] = before
            self._places[part] = places
            self._parts[part, [lists.LIST, lists.ROOM]] = places.ctypes.data, len(places)

    def _part(self, part: int) -> tuple[Array, Array]:
        """Return the ids and records of a part."""
        ids, records = np.empty((2, self._parts[part, self._lists.ROWS]), np.int64)
        chunks, layout = self._memory.chunks, self._beginning[0]
        self._lists.list_part(part, self._parts, chunks, layout, ids, records)
        return ids, records

    def _metadata_at(self, records: Array) -> Array:
        out = np.empty((len(records), len(self.policy.metadata)), np.uint32)
        self._kernels.read_metadata(records, self._at, out)
        return out

    def _forget(self, ids: Array, records: Array) -> None:
        """Remove rows."""
        self._memory.reserve(len(ids))
        if self.tier is not None:
            self.tier.drop(records)
        self._lists.leave(ids, records, self._at, self._parts, *self._index_of_rows())
        if self.changes is not None:
            self.changes.drop(ids)

    def _forget_least(self, which: Array, counts: Array) -> None:
        """Remove the least valuable rows: ``counts`` of the parts ``which``, int64."""
        count = int(counts.sum())
        self._memory.reserve(count)
        gone = np.empty(count if self.changes is not None else 0, np.int64)
        facts = *self._worth, self._parts, *self._index_of_rows()
        self._lists.forget_least(which, counts, gone, *facts)
        if self.tier is not None:
            self.tier.drop(self._memory.removed_last(count))
        if self.changes is not None:
            self.changes.drop(gone)

    def _index_of_rows(self) -> tuple[Array, ...]:
        memory = self._memory
        return memory.book, memory.directory, memory.segments, memory.chunks, self._beginning[0]

    def _compile(self) -> None:
        super()._compile()
        kernels, ids = self._kernels, np.empty(0, np.int64)
        no_looks = np.empty((0, 3), np.float32)
        worth = *self._worth, self._parts
        kernels.write_metadata(ids, ids, self._metadata_at(ids), *worth)
        self._enter(ids, ids)
        kernels.decay(0, ids, np.float32(1), *worth)
        kernels.begin_deltas(ids, self._at)
        self._turns(ids)
        kernels.touch(ids, ids, no_looks, 0, 0, *worth)
        kernels.read_or_zeros(ids, np.empty((0, self.dim), np.float32))
        kernels.chosen(ids, self.key, self.key, np.empty(0, bool))
        firsts = np.empty(0, np.int32)
        kernels.merged(firsts, firsts, no_looks, no_looks)
        self._part(0)
        self._forget(ids, ids)
        self._forget_least(ids, ids)
        if self.sketch is not None:
            counted(self, ids, no_looks)
