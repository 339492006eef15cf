"""`hpcdist.data.read`: batches of columnar files, every row once in each epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcdist import settings
from hpcdist.columnar.blocks import BlockReader, Policy, Skip
from hpcdist.columnar.certificate import Certificate, shuffle_facts
from hpcdist.columnar.columns import Column, Ragged, Rules, Target
from hpcdist.columnar.files import Filter, Index, Source, expanded, filter_of, look_into
from hpcdist.columnar.order import Order, Shuffle
from hpcdist.columnar.tables import TABLES
from hpcdist.columnar.text import TEXT, text_schema
from hpcdist.columnar.windows import Batch, batches
from hpcdist.errors import CheckpointError, DataError
from hpcdist.graph.lod import Lod
from hpcdist.lod_tensor import LoDTensor
from hpcdist.reader import buffered

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Columns = Sequence[str] | Mapping[str, str | Sequence[str]]

# Of FLAGS_rpc_deadline: whoever waits for files says so before others give up waiting for it.
_PATIENCE = 0.8


class Rows:
    """Batches of the rows of files; `read` makes it.

    Call it, or loop over it, for what is left of the present epoch: a dict of one array for each
    column. ``epoch`` counts how often all rows have been given, ``position`` how many of this epoch
    have, to all trainers together. `Saver` and `save` take it as ``reader=``; it goes on at that
    position with any number of trainers.
    """

    def __init__(
        self,
        index: Index,
        opened: Any,
        targets: Sequence[Target],
        rules: Rules,
        only: Filter | None,
        shuffle: Shuffle,
        size: int,
        drop_last: bool,
        policy: Policy,
        certificate: Path | None,
    ) -> None:
        self._index, self._opened, self._targets = index, opened, tuple(targets)
        self._rules, self._only, self._shuffle = rules, only, shuffle
        self._size, self._drop_last, self._policy = size, drop_last, policy
        self._directory = certificate
        self._certificate: Certificate | None = None
        self._parent: list[Any] | None = None  # run, epoch and position of a checkpoint
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

        Defaults come from the environment: PADDLE_TRAINERS_NUM or PADDLE_TRAINERS (else 1),
        PADDLE_TRAINER_ID (else 0). Every trainer makes equally many steps.
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
        part = Rows(
            self._index, self._opened, self._targets, self._rules, self._only, self._shuffle,
            self._size, self._drop_last, self._policy, self._directory,
        )  # fmt: skip
        part._trainer, part._trainers = me, trainers
        return part

    # -- batches -------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self()

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Read what is left of the epoch; a loop that was left is gone on with."""
        reader = BlockReader(
            self._index, self._opened, self._targets, self._rules, self._only, self._policy
        )
        order = Order(self._index.sizes, self._shuffle, self.epoch)
        ahead = buffered(
            partial(
                batches, order, self.position, self._end, self._size, reader.read,
                self._trainer, self._trainers,
            ),
            max(2, self._shuffle.window // self._size),
            within_s=settings.RPC_DEADLINE.read() / 1000 * _PATIENCE,
            late=partial(_late, reader),
        )()  # fmt: skip
        try:
            for batch in ahead:
                self._count(batch, reader)
                if len(batch.numbers):
                    yield {name: _fed(column) for name, column in batch.columns.items()}
                elif self._trainers > 1:
                    raise DataError(
                        f"no row of positions {batch.begin}:{batch.end} of epoch {self.epoch} can "
                        "be used, so this trainer has no batch: mend the files, or make batches "
                        "larger"
                    )
            self.epoch, self.position = self.epoch + 1, 0
            if self._certificate is not None:
                self._certificate.end()
        finally:
            ahead.close()
            reader.close()

    def _count(self, batch: Batch, reader: BlockReader) -> None:
        new, reader.skipped = reader.skipped, []
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
        }
        me = self._trainer if self._trainers > 1 else settings.TRAINER_ID.read()
        return Certificate(directory, self._index.digest, files, facts, me)

    # -- checkpoints ---------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Return the position as plain data."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "rows": self._facts(),
            "run": self._certificate.run if self._certificate else None,
        }

    def _facts(self) -> dict[str, Any]:
        """Return what must be equal for a position to mean the same rows."""
        return {
            "data": self._index.digest,
            "filters": self._only.words if self._only else "",
            "shuffle": shuffle_facts(self._shuffle),
        }

    def check(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Raise CheckpointError if these, of all trainers, are no position of this data."""
        for number, state in enumerate(states):
            if "rows" not in state:
                raise CheckpointError(
                    "the checkpoint was saved with resumable() as its reader, not with data.read"
                )
            if (state["epoch"], state["position"]) != (states[0]["epoch"], states[0]["position"]):
                raise CheckpointError(
                    f"trainer {number} had come to row {state['position']} of epoch "
                    f"{state['epoch']}, trainer 0 to row {states[0]['position']} of epoch "
                    f"{states[0]['epoch']}: save after a step of all trainers"
                )
        if not states or states[0]["position"] == 0:
            return  # between epochs everything may change
        now = self._facts()
        for what, was in states[0]["rows"].items():
            if was != now.get(what):
                raise CheckpointError(
                    f"the checkpoint stands in the middle of epoch {states[0]['epoch']}, and the "
                    f"{_FACTS.get(what, what)} were {was}, now {now.get(what)}: which rows are "
                    "left is not known; go on with what it was until the epoch ends"
                )

    def resume(self, state: Mapping[str, Any], current: Any) -> None:
        """Go on from a position."""
        epoch, position = state["epoch"], state["position"]
        if type(epoch) is not int or type(position) is not int or epoch < 0 or position < 0:
            raise ValueError(f"row {position!r:.80} of epoch {epoch!r:.80}")
        if state["run"] is not None:
            self._parent = [str(state["run"]), epoch, position]
        self._certificate = None  # another run begins
        self.epoch, self.position = epoch, position
        if position >= self._end:
            self.epoch, self.position = epoch + 1, 0

    # -- others --------------------------------------------------------------------------------
    def torch(self) -> Any:
        """Return it as an IterableDataset of PyTorch's, for ``DataLoader(it, batch_size=None)``."""
        from hpcdist.columnar.torch_dataset import as_dataset  # torch is an extra

        return as_dataset(self)


_FACTS = {"data": "files", "shuffle": "seed, window, lanes and their chunk"}


def _fed(column: Column) -> Any:
    if isinstance(column, Ragged):
        return LoDTensor(column.values, Lod.of_offsets([column.offsets]))
    return column


def _late(reader: BlockReader, waited_s: float) -> DataError:
    return DataError(
        f"reading {reader.doing} has not ended within {waited_s:g} s: the file system does not "
        "answer; --deadline sets how long to wait"
    )


def read(
    paths: Paths,
    columns: Columns | None = None,
    *,
    batch: int,
    feed_list: Sequence[Any] | None = None,
    shuffle: int | None = None,
    window: int = Shuffle.window,
    lanes: int = 1,
    drop_last: bool = False,
    filters: Any = None,
    nulls: Any = "error",
    buckets: Mapping[str, int] | None = None,
    types: Mapping[str, Any] | None = None,
    on_bad: str = "error",
    retries: int = 3,
    certificate: str | os.PathLike[str] | None = None,
) -> Rows:
    """Read Parquet, Arrow, CSV, JSON lines, HDF5 or .npy files in batches of ``batch`` rows.

    ``paths``: names or patterns, all of one format. ``columns``: names; or name of a variable ->
    its column, or columns that stand side by side, [rows, columns]; default all. ``feed_list``:
    variables, which the arrays then have the dtypes and shapes of; a variable that ``columns`` does
    not mention is the column of its name.

    ``shuffle``: a seed; None keeps the order of the files. ``window``: rows that are shuffled among
    themselves (blocks of the files are shuffled first). ``lanes``: parts of an epoch that every
    batch takes rows from, so that `Rows.shard` need not read all files; a divisor of ``batch``.

    ``filters``: rows to read, [("age", ">=", 18)]. ``nulls``: "error", or a value for them, or a
    dict by column. ``buckets``: column of texts -> how many numbers to hash it to. ``types``: of
    columns of CSV and JSON, such as "float32". ``on_bad``: "error", or "skip" rows that cannot be
    read. ``retries``: of a read that the file system fails. ``certificate``: directory to write
    into which rows were used (default: HPCDIST_CERTIFICATE).

    Raises DataError naming what is wrong with an argument or a file.
    """
    size = _at_least(1, "batch", batch)
    lanes = _at_least(1, "lanes", lanes)
    if size % lanes:
        raise DataError(f"data.read: lanes must divide the batch of {size} rows, got {lanes}")
    if on_bad not in ("error", "skip"):
        raise DataError(f"data.read: on_bad must be 'error' or 'skip', got {on_bad!r}")
    if shuffle is not None and (isinstance(shuffle, bool) or not isinstance(shuffle, int)):
        raise DataError(f"data.read: shuffle must be a seed, a whole number, got {shuffle!r}")
    files = expanded(paths)
    opened = _opener(files, types or {})
    only = filter_of(filters)
    targets = _targets(files[0], opened, columns, feed_list)
    needed = dict.fromkeys(name for target in targets for name in target.columns)
    needed |= dict.fromkeys(only.columns if only else ())
    index = look_into(files, opened, list(needed), only)
    rules = Rules(_fills(nulls), dict(buckets or {}))
    for name, count in rules.buckets.items():
        _at_least(1, f"buckets[{name!r}]", count)
    directory = settings.CERTIFICATE.read() if certificate is None else os.fspath(certificate)
    return Rows(
        index,
        opened,
        targets,
        rules,
        only,
        Shuffle(
            None if shuffle is None else int(shuffle),
            _at_least(1, "window", window),
            lanes,
            size // lanes if lanes > 1 else 1,
        ),
        size,
        drop_last,
        Policy(on_bad == "skip", _at_least(0, "retries", retries)),
        Path(directory) if directory else None,
    )


def _at_least(least: int, what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"data.read: {what} must be a whole number >= {least}, got {value!r}")
    return value


def _opener(files: Sequence[str], types: Mapping[str, Any]) -> Any:
    """Return what opens a file of the one format that all have."""
    endings = {Path(file).suffix.lower(): file for file in files}
    known = [*TABLES, *TEXT]
    for ending, file in endings.items():
        if ending not in known:
            raise DataError(
                f"data.read: {file}: cannot read files that end in {ending!r}, expected one of "
                f"{', '.join(known)}"
            )
    kinds: dict[Any, str] = {TABLES.get(e) or TEXT[e]: file for e, file in endings.items()}
    if len(kinds) > 1:
        raise DataError(
            f"data.read: expected files of one format, got {' and '.join(kinds.values())}"
        )
    (kind,) = kinds
    if kind in TEXT.values():
        return partial(kind, schema=text_schema(kind, files[0], types))
    if types:
        raise DataError("data.read: types= is for CSV and JSON; other files say their types")
    return kind


def _targets(
    file: str, opened: Any, columns: Columns | None, feed_list: Sequence[Any] | None
) -> list[Target]:
    """Return what to read, for variables or as it is in the files."""
    if columns is None and feed_list is None:
        source: Source = opened(file)
        columns = list(source.names())
        source.close()
    if columns is None:
        columns = []
    if isinstance(columns, str):
        columns = [columns]
    given = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    if feed_list is None:
        return [_target(name, chosen) for name, chosen in given.items()]
    targets = []
    for variable in feed_list:
        if not getattr(variable, "shape", None) or not hasattr(variable, "dtype"):
            raise DataError(f"data.read: feed_list must hold variables, got {variable!r:.80}")
        target = _target(variable.name, given.get(variable.name, variable.name))
        targets.append(target.of(variable))
    unused = [name for name in given if name not in {t.name for t in targets}]
    if unused:
        raise DataError(f"data.read: columns names {unused[0]!r}, which is not in feed_list")
    return targets


def _target(name: str, chosen: str | Sequence[str]) -> Target:
    if isinstance(chosen, str):
        return Target(name, (chosen,), False)
    if not chosen:
        raise DataError(f"data.read: columns: {name!r} has no column")
    return Target(name, tuple(chosen), True)


def _fills(nulls: Any) -> dict[str, Any]:
    if isinstance(nulls, str):
        if nulls != "error":
            raise DataError(f"data.read: nulls must be 'error', a number or a dict, got {nulls!r}")
        return {}
    return dict(nulls) if isinstance(nulls, Mapping) else {"": nulls}
