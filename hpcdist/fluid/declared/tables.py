"""Tables as a library: `connect` one, `pull` rows by id, `push` gradients. Without any Program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdist import runtime
from hpcdist.base.errors import LaunchError, TableError
from hpcdist.comm.base import Array
from hpcdist.comm.process_manager import launched_size
from hpcdist.fluid.declared.table_set import TableSet
from hpcdist.ps import arguments as given
from hpcdist.ps.facts import Initial
from hpcdist.ps.row_policy import RowPolicy

if TYPE_CHECKING:
    from hpcdist.checkpoint.rows import Choice

UNIFORM = Initial("uniform", -0.1, 0.1)


@dataclass(frozen=True)
class Push:
    """Gradients on their way to the rows' owners; `Table.push` returns it.

    >>> table = connect("pushed", 2, optimizer="sgd", lr=0.5)
    >>> sent = table.push([3, 5], np.ones((2, 2), np.float32))
    >>> sent.wait()
    >>> table.close()
    """

    _tables: TableSet
    _step: int

    def wait(self) -> None:
        """Return when the rows have been moved by the gradients of all trainers in this step.

        A later `Table.pull` sees them without it. With servers every trainer may wait or not; in
        mode "async" it waits for this trainer's gradients. TableError if another table has not
        been pushed in this step yet.
        """
        self._tables.wait(self._step)


class Table:
    """Rows of float32 by id, on servers, divided among the trainers, or in this process.

    Made by `connect`. Every trainer calls the same methods in the same order; with servers, pulls
    may differ.

    >>> table = connect("example", 2, optimizer="sgd", lr=0.5)
    >>> before = table.pull([3, 5])
    >>> table.push([3, 5], np.ones((2, 2), np.float32)).wait()
    >>> bool(np.allclose(table.pull([3, 5]), before - 0.5))
    True
    >>> table.close()
    """

    def __init__(self, tables: TableSet, name: str) -> None:
        """Refer to a table of the set."""
        self._tables, self.name = tables, name
        self.width = tables.tables[name].width

    def __repr__(self) -> str:
        facts = self._tables
        return f"<Table {self.name!r}: rows of {self.width}, {facts.optimizers[self.name]}>"

    def __enter__(self) -> Table:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    @property
    def lr(self) -> float:
        """The learning rate of the next push; with servers trainer 0's counts."""
        return self._tables.rates[self.name]

    @lr.setter
    def lr(self, value: float) -> None:
        self._open("lr").rates[self.name] = given.learning_rate(self.name, value)

    def pull(self, ids: Any, *, create: bool = True) -> Array:
        """Return the rows of ids, float32 [*ids.shape, width], after all pushes of steps before.

        ids: integers of any shape, with repeats. An id that is new gets a row, whose values follow
        from the seed, the table's name and the id; without ``create`` these are returned and no
        row is made. TableError for ids that are none, or for more than the table has room for.

        >>> rows = table.pull([3, 5, 3])  # doctest: +SKIP
        """
        tables = self._open("pull")
        array = given.ids_of(self.name, ids)
        rows = tables.pull(self.name, array.reshape(-1), create=create)
        return rows.reshape(*array.shape, self.width)

    def push(self, ids: Any, gradients: Any) -> Push:
        """Start to move the rows of ids by their gradients, [*ids.shape, width]; both are copied.

        Gradients of one id are added up. In mode "sync" the mean over all trainers moves a row,
        when all have pushed; in "async" each trainer's does. A step pushes every table once, also
        one without ids, and starts with the last. TableError for gradients of another shape, or
        that hold NaN or infinity: nothing is pushed then.

        >>> table.push([3, 5], numpy.ones((2, 8), "float32")).wait()  # doctest: +SKIP
        """
        tables = self._open("push")
        array = given.ids_of(self.name, ids)
        rows = given.gradients_of(self.name, array, gradients, self.width)
        return Push(tables, tables.push(self.name, array.reshape(-1).copy(), rows))

    def save(self, dirname: str | Path, step: int | None = None, keep: int | None = None) -> Path:
        """Save this table and all that were connected with it; return the checkpoint's directory.

        ``step``: its number, by default that of pushes so far. ``keep``: how many checkpoints stay
        below ``dirname``. Every trainer calls this, between two steps. CheckpointError, on all, if
        it cannot be written.
        """
        return self._open("save").save(dirname, step, keep)

    def restore(self, dirname: str | Path) -> int | None:
        """Restore all these tables from the newest checkpoint in a directory, or from one.

        It does not matter on how many servers or trainers it was saved. Returns the step after
        which it was, None if there is none yet. Learning rates stay the script's. Every trainer
        calls this, between two steps. CheckpointError, on all, for a damaged one, or other tables.
        """
        return self._open("restore").restore(dirname)

    def publish(self) -> None:
        """Publish a version of these tables now, and wait until `hpcdist.serving` can look it up.

        Every trainer calls this, between two steps. TableError if none has ``publish="DIR"``. What
        cannot be written is logged, and put off until the next version.
        """
        self._open("publish").publish()

    def shrink(self) -> dict[str, int]:
        """End a day of these tables: forget rows that have expired by their ``row_policy``.

        Returns how many rows each table with a policy has forgotten on all ranks together. Every
        trainer calls this, between two steps. CheckpointError, on all, if none has a policy.

        >>> table.shrink()["nodes"]  # doctest: +SKIP
        """
        return self._open("shrink").shrink()

    def close(self) -> None:
        """Use the table no more; with the last one, servers may keep others. Every trainer.

        What has changed since the last version is published. At the end of a script tables are
        closed without it, and without that.
        """
        if self.name not in self._tables.closed and self._tables.close(self.name):
            _open.discard(self._tables)

    def _open(self, what: str) -> TableSet:
        if self.name in self._tables.closed:
            raise TableError(
                f"table {self.name!r}, {what}: it was closed; connect it again, and restore a "
                "checkpoint if its rows are still wanted"
            )
        return self._tables


class _Open:
    """The set of tables that the script has connected and not closed, if there is one."""

    def __init__(self) -> None:
        self.tables: TableSet | None = None

    def discard(self, tables: TableSet) -> None:
        """Make the next table begin another set."""
        if self.tables is tables:
            self.tables = None


_open = _Open()


def connect(
    name: str,
    width: int,
    *,
    optimizer: str = "sgd",
    lr: float = 0.01,
    rows: int | None = None,
    initial: Initial = UNIFORM,
    row_policy: RowPolicy | None = None,
    l2_decay: float = 0.0,
    mode: str = "sync",
    max_staleness: int | None = None,
    publish: str | Path | None = None,
    publish_every: int | None = None,
    publish_keep: Choice | None = None,
    **arguments: float,
) -> Table:
    """Return the table ``name``, of rows of ``width`` float32, for any int64 ids.

    ``optimizer``: "sgd", "momentum", "adagrad", "adam", "adamw", "adamax", "rmsprop", "ftrl" or
    "lamb", with ``arguments`` of its own, such as ``epsilon``; ``rows``: the greatest number of
    different ids, None: any; ``initial``: the first values of a row; ``row_policy``: which ids get
    a row, which rows are forgotten, how they are kept. In
    ``mode`` "async", with servers, ``max_staleness`` is how many steps a
    trainer may be ahead of the slowest. ``publish``: a directory to which a version of the table is
    written every ``publish_every`` steps (100), for `hpcdist.serving.Lookup`; ``publish_keep``, a
    `hpcdist.checkpoint.Choice`: with which rows, by shows and clicks, None: all. Every trainer
    connects the same tables before the first pull or push; a server serves in here, and its script
    ends. The same name with the same facts is the same table. TableError or PlanError for what
    cannot be, LaunchError for several processes without our launcher.

    >>> table = hpcdist.ps.connect("nodes", 16, optimizer="adagrad", lr=0.1)  # doctest: +SKIP
    """
    _be_a_trainer()
    facts = given.table_facts(name, width, rows, initial, row_policy)
    moved_by = given.optimizer_facts(facts, optimizer, l2_decay, arguments)
    rate, how = given.learning_rate(name, lr), given.training_mode(mode, max_staleness)
    tables = _open.tables
    if tables is None:
        tables = _open.tables = TableSet(how)
    publishing = given.publishing(name, publish, publish_every)
    if publish_keep is not None:
        if publishing is None:
            raise TableError(f"table {name!r}: publish_keep: say where to: publish='published'")
        from hpcdist.checkpoint.published_rows import check_choices

        kept = check_choices({name: publish_keep}, {name: row_policy})
        publishing = replace(publishing, keep=kept)
    if name in tables.tables:
        known = tables.tables[name], tables.optimizers[name], tables.mode
        if known != (facts, moved_by, how) or name in tables.closed:
            raise TableError(
                f"table {name!r} is connected already, with other facts or closed: "
                f"{known[0]}, {known[1]}, mode {known[2].name!r}; got {facts}, {moved_by}, mode "
                f"{how.name!r}; give the table another name"
            )
        return Table(tables, name)
    if tables.settled:
        raise TableError(
            f"table {name!r}: connect all tables before the first pull or push; connected are "
            f"{', '.join(tables.names)}, until all of them are closed"
        )
    if how != tables.mode:
        raise TableError(
            f"table {name!r}: all tables have one mode, got {how.name!r} where "
            f"{', '.join(tables.names)} have {tables.mode.name!r}"
        )
    if publishing is not None:
        tables.publish_to(publishing)
    tables.add(facts, moved_by, rate)
    return Table(tables, name)


def rank() -> int:
    """Return this trainer's number, from 0; by it a script takes its share of the data.

    >>> mine = data[hpcdist.ps.rank() :: hpcdist.ps.size()]  # doctest: +SKIP
    """
    _be_a_trainer()
    job = runtime.current()
    return 0 if job is None else job.role.index


def size() -> int:
    """Return the number of trainers, of which each has a `rank`; 1 in one process.

    >>> rank(), size()
    (0, 1)
    """
    _be_a_trainer()
    job = runtime.current()
    return 1 if job is None else len(job.cluster.trainers)


def mean(value: Any) -> Any:
    """Return the mean of all trainers' numbers: a float, or float64 of the array's shape.

    Every trainer calls this, with arrays of one shape; the sum is in trainer order. TableError for
    other shapes.

    >>> mean([0.5, 0.25])
    array([0.5 , 0.25])
    """
    _be_a_trainer()
    mine = np.array(value, np.float64)
    came = runtime.everyones(mine.tobytes(), "the other trainers' values")
    for k, data in enumerate(came):
        if len(data) != mine.nbytes:
            raise TableError(
                f"mean: expected arrays of one shape, got {mine.size} numbers here and "
                f"{len(data) // 8} on trainer {k}"
            )
    total = np.zeros_like(mine)
    for data in came:
        total += np.frombuffer(data).reshape(mine.shape)
    total /= len(came)
    return total if mine.ndim else float(total)


def _be_a_trainer() -> None:
    """Return on a trainer; serve on a server, whose script ends with that."""
    job = runtime.current()
    if job is None and (launched_size() or 1) > 1:
        raise LaunchError(
            "several processes were started, but none has a role: mpirun -n N python -m hpcdist "
            "[--pservers P] script.py"
        )
    if runtime.is_server():
        from hpcdist.fluid.declared.servers import serve  # and what executes Programs

        serve()
        raise SystemExit(0)
