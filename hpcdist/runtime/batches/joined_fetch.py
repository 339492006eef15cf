"""The values of one fetch list, joined in every step from the trainers' parts of the batch.

Small ones, losses above all, travel with the keys of the batches (`comm/split_allgather.py`): each
trainer writes them into a note while it trains, and reads the others' notes at the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xxhash

from hpcdist.base.division import round_up
from hpcdist.comm.base import Array
from hpcdist.comm.split_allgather import SplitAllgather
from hpcdist.executor.control import Binding, Fetched
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.graph.rows import How, OfRows
from hpcdist.runtime.batches.analysis import SharedProgram
from hpcdist.runtime.batches.distributed_auc import DistributedAuc
from hpcdist.runtime.batches.gather import join_rows, pack, row_weights, unpack
from hpcdist.runtime.batches.scatter import Division
from hpcdist.runtime.staging import rebound

NOTE_BYTES = 128
CARRIED = {How.MEAN, How.SUM, How.MAX, How.MIN}  # of one shape on all trainers


class _Notes:
    """Where the values of some shapes lie in the notes of a round: in each, [trainers, *shape]."""

    def __init__(self, rounds: SplitAllgather, rank: int, arrays: Sequence[Any]) -> None:
        self._rounds = rounds
        self.shapes = [array.shape for array in arrays]
        self.everyones: list[list[Array]] = []
        for notes in rounds.notes:
            begin, views = 0, []
            for array in arrays:
                raw = notes[:, begin : begin + array.nbytes].view(array.dtype)
                view = raw.reshape(len(notes), *array.shape)
                assert np.may_share_memory(view, notes)  # rows lie apart: only they are kept
                views.append(view)
                begin = round_up(begin + array.nbytes, 8)
            self.everyones.append(views)
        # Of numbers, such as losses, all trainers' as one vector.
        self.numbers = [[_as_numbers(view) for view in views] for views in self.everyones]
        self._rank = rank

    def write(self, arrays: Sequence[Any]) -> None:
        rank, at = self._rank, self._rounds.at
        for array, numbers, everyones in zip(arrays, self.numbers[at], self.everyones[at]):
            if numbers is None:
                everyones[rank] = array
            else:
                numbers[rank] = array.item()


class JoinedFetch:
    """How trainers' values of these names become those of the whole batch.

    Raises FeedError if they cannot be joined. ``key`` differs between fetch lists and Programs.
    """

    def __init__(
        self,
        names: Sequence[str],
        number: int,
        shared: SharedProgram,
        areas: DistributedAuc,
        rank: int,
    ) -> None:
        """``number`` is that of the Program among those that are shared."""
        self.names = names
        self.key = xxhash.xxh3_64_intdigest("\n".join([str(number), *names]).encode())
        self._areas, self._rank = areas, rank
        self.why_whole = shared.why_whole_for(names)  # empty: trainers' parts will do
        self._ofs = [shared.of_rows(name) for name in names]
        self._places = [k for k, of in enumerate(self._ofs) if of.how is not How.SAME]
        # Whether there is anything to join: what all trainers have alike is fetched as it is.
        self.joins = bool(self._places)
        self._small = all(
            self._ofs[k].how in CARRIED and not areas.counts(names[k]) for k in self._places
        )
        self._notes_by_layout: dict[object, _Notes | None] = {}  # by shapes and dtypes
        self._notes: _Notes | None = None  # of the last round; None: nothing was written
        self._divided: Division | None = None  # the last batch, and what its trainers' rows count
        self._weights: list[list[tuple[int, int]] | None] = []

    @property
    def written(self) -> bool:
        """Whether the notes of the last round have all that is to be joined."""
        return self._notes is not None

    def write(self, rounds: SplitAllgather, values: Sequence[Any]) -> None:
        """Write this trainer's values into its note, if there is room for them."""
        arrays = [np.asarray(values[k]) for k in self._places]
        self._notes = self._notes_of(rounds, arrays)
        if self._notes is not None:
            self._notes.write(arrays)

    def early(self, before: Operator, binding: Binding, rounds: SplitAllgather) -> Call | None:
        """Return the call that writes values before this operator; None if some are missing."""
        ops = binding.program.global_block().ops
        at = next((i for i, op in enumerate(ops) if op is before), 0)
        late = {name for op in ops[at:] for name in op.output_arg_names}
        names = [self.names[k] for k in self._places]
        if not self._small or late.intersection(names):
            return None
        if not all(isinstance(binding.arrays.get(name), np.ndarray) for name in names):
            return None  # on a device, or of a shape that only the step knows: read at its end

        def bound() -> Callable[[], None]:
            arrays = [binding.arrays[name] for name in names]
            notes = self._notes_of(rounds, arrays)

            def write() -> None:
                self._notes = notes
                if notes is not None:
                    notes.write(arrays)

            return write

        return rebound(binding, bound)

    def read(self, rounds: SplitAllgather, fetched: Fetched, division: Division) -> list[Any]:
        """Return the values of the whole batch, from everyone's notes."""
        notes = self._notes
        assert notes is not None
        if division is not self._divided:
            self._divided = division
            self._weights = [_mean_weights(self._ofs[k], division) for k in self._places]
        values = [value for _, value in fetched]
        at = rounds.at
        for i, (k, weights) in enumerate(zip(self._places, self._weights)):
            numbers = notes.numbers[at][i]
            if weights is None or numbers is None:
                values[k] = join_rows(notes.everyones[at][i], self._ofs[k], division)
                continue
            means, total, rows = numbers.tolist(), 0.0, 0
            for trainer, count in weights:
                total += means[trainer] * count
                rows += count
            values[k] = joined = np.empty(notes.shapes[i], numbers.dtype)
            joined.fill(total / rows)
        return values

    def pack(self, fetched: Fetched, division: Division, scope: Scope) -> bytes:
        """Return this trainer's message of values that notes have no room for."""
        return pack(self._parts(fetched, scope), self._ofs, division.share)

    def unpack(
        self,
        parts: Sequence[bytes | None],
        fetched: Fetched,
        division: Division,
        scope: Scope,
    ) -> list[Any]:
        """Return the values of the whole batch from what everyone has packed."""
        joined = unpack(parts, self._parts(fetched, scope), self._ofs, division)
        return [self._areas.of_all(n, value, local) for (n, local), value in zip(fetched, joined)]

    def _parts(self, fetched: Fetched, scope: Scope) -> list[Any]:
        return [self._areas.part(name, value, scope) for name, value in fetched]

    def _notes_of(self, rounds: SplitAllgather, arrays: Sequence[Any]) -> _Notes | None:
        if not self._small:
            return None
        key = tuple([(array.shape, array.dtype) for array in arrays])
        if key not in self._notes_by_layout:
            fits = sum(round_up(array.nbytes, 8) for array in arrays) <= NOTE_BYTES
            self._notes_by_layout[key] = _Notes(rounds, self._rank, arrays) if fits else None
        return self._notes_by_layout[key]


def _mean_weights(of: OfRows, division: Division) -> list[tuple[int, int]] | None:
    """Return (trainer, rows) for a mean over rows; None if there are none, or it is no mean.

    Numbers are then averaged as numbers, in double precision and in trainer order as all values
    are: for a loss of every step, arrays would take ten times as long.
    """
    if of.how is not How.MEAN:
        return None
    counts = row_weights(of, division)
    weights = [(k, counts[k]) for k, samples in enumerate(division.counts[""]) if samples]
    return weights if any(count for _, count in weights) else None


def _as_numbers(view: Array) -> Array | None:
    if view.size != len(view) or view.dtype.kind != "f":
        return None
    first: Any = (slice(None), *[0] * (view.ndim - 1))
    numbers: Array = view[first]
    return numbers
