"""`hpcdist.data.read`: batches of columnar files, every row once in each epoch."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import CheckpointError, DataError
from hpcdist.base.extras import install_command
from hpcdist.base.trace.events import Count
from hpcdist.data.columnar.blocks import BlockReader, Policy, Skip
from hpcdist.data.columnar.certificate import Certificate, shuffle_facts
from hpcdist.data.columnar.columns import Column, Ragged, Rules
from hpcdist.data.columnar.decoding import Decoding
from hpcdist.data.columnar.files import Filter, Index
from hpcdist.data.columnar.order import Order, Shuffle
from hpcdist.data.columnar.targets import ColumnTarget
from hpcdist.data.columnar.windows import Batch, batches, windows
from hpcdist.data.reader import buffered
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_DECODED_AHEAD = 2  # batches

# Of FLAGS_rpc_deadline: the error about a file comes before other ranks give up waiting.
_PATIENCE = 0.8


class Rows:
    """Batches of the rows of files; `read` makes it.

    Call it, or loop over it, for what is left of the present epoch: a dict of one array for each
    column. ``epoch`` counts how often all rows have been given, ``position`` how many of this epoch
    have, to all trainers together. `Saver` and `save` take it as ``reader=``; it continues at that
    position with any number of trainers.
    """

    def __init__(
        self,
        index: Index,
        opened: Any,
        targets: Sequence[ColumnTarget],
        rules: Rules,
        only: Filter | None,
        shuffle: Shuffle,
        size: int,
        drop_last: bool,
        policy: Policy,
        certificate: Path | None,
        decoding: Decoding | None = None,
    ) -> None:
        self._index, self._opened, self._targets = index, opened, tuple(targets)
        self._rules, self._only, self._shuffle = rules, only, shuffle
        self._size, self._drop_last, self._policy = size, drop_last, policy
        self._decoding, self._directory = decoding, certificate
        self._certificate: Certificate | None = None
        self._parent: list[Any] | None = None  # run, epoch and position of a checkpoint
        self._replaced: list[str] = []  # runs that a checkpoint ended here
        self._loops = 0  # the last one that began is the one that may continue
        self._trainer, self._trainers = 0, 1
        self.rows = sum(index.sizes)
        self.epoch = 0
        self.position = 0
        self.skipped: list[Skip] = []  # what has been left out, in all epochs

    @property
    def names(self) -> list[str]:
        """The names under which a batch has its arrays."""
        return [target.name for target in self._targets]

    @property
    def files(self) -> list[str]:
        """The files that are read, in order."""
        return [file.path for file in self._index.files]

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return -(-self._end // self._size)

    @property
    def _end(self) -> int:
        return self.rows - self.rows % self._size if self._drop_last else self.rows

    def shard(self, num_trainers: int | None = None, trainer_id: int | None = None) -> Rows:
        """Return the same, giving this trainer's rows of every batch; for scripts that divide data.

        It begins at the present position. Defaults come from the environment: PADDLE_TRAINERS_NUM
        or PADDLE_TRAINERS (else 1), PADDLE_TRAINER_ID (else 0). Every trainer makes equally many
        steps.
        """
        trainers = settings.TRAINERS_NUM.read() if num_trainers is None else int(num_trainers)
        me = settings.TRAINER_ID.read() if trainer_id is None else int(trainer_id)
        if trainers < 1 or not 0 <= me < trainers:
            raise DataError(f"shard: trainer_id must be 0..{trainers - 1}, got {me}")
        for size in {min(self._size, self._end), self._end % self._size or self._size}:
            if 0 < size < trainers:
                raise DataError(
                    f"shard: a batch of {size} rows cannot be divided among {trainers} trainers "
                    f"({self.rows} rows, batches of {self._size}); "
                    "drop_last=True leaves a short last batch out"
                )
        part = copy.copy(self)
        part._trainer, part._trainers = me, trainers
        part._certificate, part.skipped = None, []
        part.resume(self.state(), None)
        return part

    # -- batches -------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self()

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Read what is left of the epoch; a loop that was left is gone on with.

        Only the loop that began last may continue: DataError in others.
        """
        self._loops += 1
        loop = self._loops
        as_read = [
            target.as_in_files() if self._rules.encoded & set(target.columns) else target
            for target in self._targets
        ]
        reader = BlockReader(
            self._index, self._opened, as_read, self._rules, self._only, self._policy
        )
        patience_s = settings.RPC_DEADLINE.read() / 1000 * _PATIENCE
        late = partial(_late, reader, self._decoding)
        order = Order(self._index.sizes, self._shuffle, self.epoch)
        extent = (order, self.position, self._end, self._size)
        trainer = (self._trainer, self._trainers)
        # Windows are handed over, not batches: threads that wake each other for each batch take
        # more time than to cut it.
        ahead = buffered(
            partial(windows, *extent, reader.read, *trainer),
            self.windows_ahead,
            patience_s,
            late,
            Count.WINDOWS_AHEAD,
        )

        def cut() -> Generator[Batch, None, None]:
            with closing(ahead()) as loaded:
                yield from batches(*extent, loaded, *trainer)

        batches_in = cut()
        if self._decoding is not None:
            decoded = partial(self._decoding.batches, cut, self.epoch, reader.refuse_or_note)
            batches_in = buffered(decoded, _DECODED_AHEAD, patience_s, late, Count.BATCHES_AHEAD)()
        from_start, used, before = self.position == 0, 0, len(self.skipped)
        try:
            for batch in batches_in:
                self._refuse_older(loop)
                self._count(batch, reader)
                used += len(batch.numbers)
                if len(batch.numbers):
                    yield {name: _fed(column) for name, column in batch.columns.items()}
                elif self._trainers > 1:
                    raise DataError(
                        f"no row of positions {batch.begin}:{batch.end} of epoch {self.epoch} can "
                        "be used, so this trainer has no batch: fix the files, or make batches "
                        "larger"
                    )
            self._refuse_older(loop)
            if from_start and not used:  # a script that counts steps would never end
                raise DataError(
                    f"not one of the {self._end} rows of epoch {self.epoch} can be used; the first "
                    f"to be left out was {self.skipped[before]}"
                )
            self.epoch, self.position = self.epoch + 1, 0
            if self._certificate is not None:
                self._certificate.end()
        finally:
            batches_in.close()
            reader.close()

    @property
    def windows_ahead(self) -> int:
        """How many windows may wait: as many rows as one has; in files' order each is a block."""
        if self._shuffle.seed is not None:
            return self._shuffle.lanes
        blocks = self._shuffle.window * len(self._index.sizes) // max(self.rows, 1)
        return max(self._shuffle.lanes, blocks)

    def _refuse_older(self, loop: int) -> None:
        if loop != self._loops:
            raise DataError(
                "another loop over the same rows has begun, or they were restored, since this loop "
                "began: its rows would be used twice; read each epoch in one loop, or have a "
                "data.read for each"
            )

    def _count(self, batch: Batch, reader: BlockReader) -> None:
        new = [reader.skipped.popleft() for _ in range(len(reader.skipped))]
        self.skipped += new
        if self._certificate is None and self._directory is not None:
            self._certificate = self._certified(self._directory)
        if self._certificate is not None:
            self._certificate.batch(self.epoch, batch, new)
        self.position = batch.upto

    def _certified(self, directory: Path) -> Certificate:
        files = [(f.path, [block.rows for block in f.blocks]) for f in self._index.files]
        facts = {
            "shuffle": shuffle_facts(self._shuffle),
            "end": self._end,
            "of": self._trainers,
            "from": [self.epoch, self.position],
            "parent": self._parent,
            "replaced": self._replaced,
        }
        me = self._trainer if self._trainers > 1 else settings.TRAINER_ID.read()
        return Certificate(directory, self._index.digest, files, facts, me)

    # -- checkpoints ---------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Return the position as plain data."""
        over = self.position >= self._end  # all rows were given, though the loop has not ended
        return {
            "epoch": self.epoch + over,
            "position": 0 if over else self.position,
            "files": self._index.words,
            "rows": self._facts(),
            "run": self._certificate.run if self._certificate else None,
        }

    def _facts(self) -> dict[str, Any]:
        """Return the facts that must be equal for a position to mean the same rows."""
        return {
            "data": self._index.digest,
            "filters": self._only.words if self._only else "",
            "shuffle": shuffle_facts(self._shuffle),
        }

    def check(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Raise CheckpointError if these, of all trainers, are no position of this data."""
        for number, state in enumerate(states):
            if isinstance(state, Mapping) and "rows" not in state:
                raise CheckpointError(
                    "the checkpoint was saved with resumable() as its reader, not with data.read"
                )
            if not _is_position(state):
                raise CheckpointError(
                    f"expected a position that data.read has saved, got {state!r:.80}"
                )
            if (state["epoch"], state["position"]) != (states[0]["epoch"], states[0]["position"]):
                raise CheckpointError(
                    f"trainer {number} was at row {state['position']} of epoch {state['epoch']}, "
                    f"trainer 0 at row {states[0]['position']} of epoch {states[0]['epoch']}: save "
                    "after a step of all trainers"
                )
        if not states or states[0]["position"] == 0:
            return  # between epochs everything may change
        now = self._facts()
        for fact, was in states[0]["rows"].items():
            if was != now.get(fact):
                if fact == "data":
                    was, now[fact] = states[0].get("files", "others"), self._index.words
                raise CheckpointError(
                    f"the checkpoint is from the middle of epoch {states[0]['epoch']}; its "
                    f"{_FACTS.get(fact, fact)} were {was}, now {now.get(fact)}: the remaining rows "
                    "are unknown; keep the former value until the epoch ends"
                )

    def resume(self, state: Mapping[str, Any], current: Any) -> None:
        """Go on from a position."""
        if not _is_position(state):
            raise ValueError(f"no position: {state!r:.80}")
        epoch, position = state["epoch"], state["position"]
        if state["run"] is not None:
            self._parent = [str(state["run"]), epoch, position]
        if self._certificate is not None:
            self._replaced = [*self._replaced, self._certificate.run]
        self._certificate = None  # another run begins
        self._loops += 1
        self.epoch, self.position = epoch, position
        if position >= self._end:
            self.epoch, self.position = epoch + 1, 0

    # -- others --------------------------------------------------------------------------------
    def torch(self) -> Any:
        """Return it as an IterableDataset of PyTorch's, for ``DataLoader(it, batch_size=None)``."""
        try:
            from hpcdist.data.columnar.torch_dataset import as_dataset  # torch is an extra
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise DataError(f"rows.torch() needs torch: {install_command('torch')}") from None
        return as_dataset(self)


_FACTS = {"data": "files", "shuffle": "seed, window, lanes and their chunk"}


def _is_position(state: object) -> bool:
    """Return whether this is what `Rows.state` may have returned."""
    if not isinstance(state, Mapping) or not isinstance(state.get("rows", {}), Mapping):
        return False
    numbers = (state.get("epoch"), state.get("position"))
    return "run" in state and all(type(number) is int and number >= 0 for number in numbers)


def _fed(column: Column) -> Any:
    if isinstance(column, Ragged):
        return LoDTensor(column.values, Lod.of_offsets([column.offsets]))
    return column


def _late(reader: BlockReader, decoding: Decoding | None, waited_s: float) -> DataError:
    if decoding is not None and decoding.doing:
        return DataError(
            f"decoding {decoding.doing} did not finish within {waited_s:g} s: an image, or the "
            "function passed as decode=; --deadline sets how long to wait"
        )
    return DataError(
        f"reading {reader.doing} did not finish within {waited_s:g} s: the file system does not "
        "respond; --deadline sets how long to wait"
    )
