"""A table that admits ids, and forgets rows: by age, by score, and to keep to a budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.batch import ids_of_parts, owners_of
from hpcdist.ps.repeats import merged, single
from hpcdist.ps.row_moves import NO_TURNS
from hpcdist.ps.row_policy import FRACTION, SKETCH_ROWS, WIDE, RowPolicy, check_servers
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
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
        shares = np.full(self.parts, self.bound // self.parts)
        self._quotas = shares + (np.arange(self.parts) < self.bound % self.parts)
        # Another one than initial values follow from.
        self._key = np.uint64(seed % (1 << 64) ^ _CHANCE)
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
        own = self._parts.nbytes + sum(places.nbytes for places in self._places)
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
        from hpcdist.ps.looks import check_shows, looks_of

        ids = checked_ids(self.name, ids, "push")
        check_values(self.name, grads, (len(ids), self.sent_width), "grads")
        check_shows(self, ids, grads)
        rows = np.require(grads[:, : self.dim], requirements=["C", "A", "W"])
        check_finite(self, ids, rows, learning_rate, scale)
        if self.tier is not None:
            self.tier.reserve(len(ids))
        unique, firsts, following = merged(ids) if repeats else single(ids)
        looks = looks_of(self, grads, firsts, following)
        records = self._locate(unique, create=False)
        with_row = records != 0
        chosen = with_row | self._by_chance(unique)
        if self.policy.admit_after == 1:
            self._check_room(unique[chosen])
        self.step += 1
        kept, carried = self._admitted(unique, looks, with_row, chosen)
        if not kept.all():
            unique, firsts, looks, records = unique[kept], firsts[kept], looks[kept], records[kept]
        self._look(unique, records, looks, carried)
        turns = self._turns(records)
        if turns.any():
            rows = rows.copy()
            self._rows.narrow_gradients(turns, firsts, following, rows)
        self._step(unique, firsts, following, rows, learning_rate, scale, records, turns)
        self._pushed += len(ids)
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
        if not self.bound:
            return 0
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

    def _by_chance(self, ids: Array) -> Array:
        """Return which ids may have a row: bool [n]."""
        out = np.ones(len(ids), bool)
        if self.policy.admit_probability < 1:
            below = np.uint64(max(0, int(self.policy.admit_probability * (1 << 64)) - 1))
            self._kernels.chosen(ids, self._key, below, out)
        return out

    def _admitted(
        self, ids: Array, looks: Array, with_row: Array, chosen: Array
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Return which ids have a row in this step, and ids that waited, with their metadata."""
        if self.policy.admit_after == 1:
            return chosen, None
        new = np.flatnonzero(chosen & ~with_row)
        counts = self._counted(ids[new], looks[new])
        enough = new[counts >= self.policy.admit_after]
        self._check_room(ids[enough])
        kept = with_row.copy()
        kept[enough] = True
        carried = None
        if self.waiting is not None:
            gone = ids[enough]
            carried = gone, self.waiting.metadata(gone)
            self.waiting._forget(gone, self.waiting._locate(gone, create=False))
            self.waiting.keep_to_budget()
        return kept, carried

    def _counted(self, ids: Array, looks: Array) -> Array:
        """Count looks of ids without a row; return how many there were of each."""
        if self.waiting is not None:
            self.waiting.step, self.waiting.day = self.step, self.day
            records = self.waiting._locate(ids, create=False)
            self.waiting._look(ids, records, looks, None)
            return self.waiting._metadata_at(records)[:, 0]
        assert self.sketch is not None
        parts = self.policy.parts_for(0)
        records = self.sketch._locate(ids_of_parts(parts)[owners_of(ids, parts)])
        counts = np.empty(len(ids), np.float32)
        depth = np.array([SKETCH_ROWS, self.policy.sketch_width])
        most = np.float32(self.policy.admit_after)
        self._kernels.count_in_sketch(ids, looks[:, 0].copy(), records, depth, most, counts)
        return counts

    def _look(
        self, ids: Array, records: Array, looks: Array, carried: tuple[Array, Array] | None
    ) -> None:
        """Make rows where ``records`` are 0, and note looks; ``carried``: of `_admitted`."""
        kernels, new = self._kernels, np.flatnonzero(records == 0)
        records[new] = made = self._locate(ids[new])
        self._enter(ids[new], made)
        worth = *self._worth, self._parts
        kernels.touch(ids, records, looks, self.step, self.day, *worth)
        if carried is not None and len(carried[0]):
            records = self._locate(carried[0])
            kernels.write_metadata(carried[0], records, carried[1], *worth)

    def _turns(self, records: Array) -> Array:
        """Return how wide rows are in this step, and note which widen: uint8 [n], or [0]."""
        if not self.policy.widen_at:
            return NO_TURNS
        turns, least = np.empty(len(records), np.uint8), np.float32(self.policy.widen_at)
        self._kernels.take_turns(records, self._at, least, self._worth[2], turns)
        return turns

    def _enter(self, ids: Array, records: Array) -> None:
        """Put new records into their parts' lists, which get more room if they must."""
        at, lists = 0, self._lists
        while True:
            memory = self._memory.directory, self._memory.segments, self._memory.chunks
            layout = self._beginning[0]
            at = lists.enter(ids, records, at, self._at, self._parts, *memory, layout)
            if at == len(ids):
                return
            part = int(owners_of(ids[at : at + 1], self.parts)[0])
            before = self._places[part]
            room, most = 16 + len(before) * 5 // 4, int(self._quotas[part]) * 17 // 16
            if len(before) < most < room:
                room = most  # what a part with a budget has in the end
            places = np.empty((room, 2), np.uint64)
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
        kernels.chosen(ids, self._key, self._key, np.empty(0, bool))
        firsts = np.empty(0, np.int32)
        kernels.merged(firsts, firsts, no_looks, no_looks)
        self._part(0)
        self._forget(ids, ids)
        self._forget_least(ids, ids)
        if self.sketch is not None:
            self._counted(ids, no_looks)
