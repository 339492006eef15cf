"""Checkpoints of Programs, and versions of their tables: the names of `hpcdist.checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdist.base.keywords import name_arguments_in
from hpcdist.checkpoint import restoring, saving
from hpcdist.checkpoint.publisher import TablePublisher
from hpcdist.checkpoint.restoring import SAVED, Restored
from hpcdist.checkpoint.resume_state import Reading
from hpcdist.checkpoint.rows import Choice
from hpcdist.checkpoint.saver import LoopSaver
from hpcdist.checkpoint.shrink import end_day
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program
from hpcdist.ps.published.dense import OnnxModel
from hpcdist.runtime.kept.program import KeptProgram


def save(
    executor: Executor,
    dirname: str | Path,
    step: int,
    main_program: Program | None = None,
    *,
    reader: Reading | None = None,
    extra: object = None,
    keep: int | None = None,
    compression: str | None = None,
    asynchronous: bool = False,
    single_file: bool = False,
    finite: bool = False,
    scope: Scope | None = None,
) -> Path:
    """Save the whole job after a step; return the directory of the checkpoint, below ``dirname``.

    Every trainer calls this after the same step (servers are asked, and save beside each other).
    Saved are the persistable variables of ``main_program`` and what servers keep for it, the
    position of ``reader``, random numbers, and ``extra``, plain data of trainer 0. When it returns,
    the checkpoint is complete and on disk. With ``asynchronous`` only a copy has been made: the
    write goes on beside training, and `wait` tells when it is done; an error comes then, or at the
    next `save`. ``keep`` is how many checkpoints stay. ``compression``: None, "lz4", "zstd". With
    ``single_file`` all servers, or without servers all trainers, write one file together: that
    needs an h5py that was built with MPI. With ``finite`` it is a NotFiniteError if parameters, or
    their optimizer state, are not. Raises CheckpointError, on all trainers, if it cannot be saved:
    older checkpoints stay.

    Examples:
        >>> import os, tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> saved = fluid.checkpoint.save(exe, directory, 7)
        >>> os.listdir(directory)
        ['step-000007', '.lock']
    """
    return saving.save(
        KeptProgram(main_program, scope, executor),
        dirname,
        step,
        reader=reader,
        extra=extra,
        keep=keep,
        compression=compression,
        asynchronous=asynchronous,
        single_file=single_file,
        finite=finite,
    )


def restore(
    executor: Executor,
    dirname: str | Path,
    main_program: Program | None = None,
    *,
    reader: Reading | None = None,
    scope: Scope | None = None,
    partial: bool = False,
    rates: str = SAVED,
) -> Restored | None:
    """Take up a saved job; return what it was, or None if there is no checkpoint yet.

    ``dirname`` is a directory of checkpoints, of which the newest complete one is taken, or one
    checkpoint. Every trainer calls this after the startup program, or later, to go back; servers
    are asked. It does not matter how many servers or trainers had saved it, or whether there were
    servers at all. With ``partial`` another network takes up what fits of it, by name. ``rates``:
    whether learning rates that the script sets are those "saved", or the "script"'s.

    Raises CheckpointError, on all trainers, if something is missing or damaged, or if it is of
    another network, with all differences; other numbers are warnings. Then nothing has changed on
    any rank, unless damaged data is found before the first step: a job that has trained reads
    twice, and compares all checksums first.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> fluid.checkpoint.restore(exe, directory) is None
        True
        >>> saved = fluid.checkpoint.save(exe, directory, 7)
        >>> fluid.checkpoint.restore(exe, directory).step
        7
    """
    kept = KeptProgram(main_program, scope, executor)
    return restoring.restore(kept, dirname, reader=reader, partial=partial, rates=rates)


def shrink_tables(
    main_program: Program | None = None, *, scope: Scope | None = None
) -> dict[str, int]:
    """Forget rows of tables whose `RowPolicy` says that they have expired; it ends a day.

    Every trainer calls this, between the same two steps; servers take part by themselves. Shows and
    clicks decay, then rows are forgotten that were last looked up too long ago, or whose score is
    too low. Returns how many rows each table with a policy has forgotten on all ranks together.
    Raises CheckpointError, on all trainers, if there is no such table.

    Examples:
        >>> words = fluid.data("words", [None, 1], "int64")
        >>> policy = fluid.RowPolicy(expire_days=1)
        >>> rows = fluid.layers.embedding(words, [-1, 4], is_sparse=True, is_distributed=True,
        ...                               param_attr=fluid.ParamAttr("ctr", row_policy=policy))
        >>> updates = fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> results = exe.run(feed={"words": np.array([[7], [-2]])}, fetch_list=[])
        >>> [fluid.checkpoint.shrink_tables()["ctr"] for day in range(3)]
        [0, 0, 2]
    """
    return end_day(KeptProgram(main_program, scope))


class Publisher(TablePublisher):
    """Publishes tables every so many steps: a base, then increments, for `hpcdist.serving.Lookup`.

    Every trainer makes one and calls `after_step` after each step. Versions are written beside
    training. One that cannot be written, as on a full disk, is put off: that is logged once, the
    next one holds its rows too, and training goes on.

    Examples:
        >>> import tempfile
        >>> words = fluid.data("words", [None, 1], "int64")
        >>> rows = fluid.layers.embedding(words, [-1, 4], is_sparse=True, is_distributed=True)
        >>> updates = fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> publisher = fluid.checkpoint.Publisher(published := tempfile.mkdtemp(), every=2)
        >>> for step in range(4):
        ...     results = exe.run(feed={"words": np.array([[step]])}, fetch_list=[])
        ...     publisher.after_step()
        >>> publisher.close()
        >>> with hpcdist.serving.Lookup(published) as lookup:
        ...     lookup.pull("embedding_0.w_0", [0, 1, 2, 3]).shape
        (4, 4)
    """

    def __init__(
        self,
        dirname: str | Path,
        *,
        every: int = 100,
        base_every: int = 24,
        tables: Sequence[str] | None = None,
        dense: OnnxModel | None = None,
        keep: Mapping[str, Choice] | None = None,
        main_program: Program | None = None,
        scope: Scope | None = None,
    ) -> None:
        """``every``: steps from version to version; ``base_every``: versions from base to base.

        ``tables`` are published, None: all of the job; ``dense``: each version has this dense part,
        too, with trainer 0's values; ``keep``: by tables that count shows and clicks, which rows
        are published, None: all. PlanError for numbers that cannot be, TableError for rows that
        cannot be chosen, PublicationError, on trainer 0, for a dense part that cannot be exported.
        """
        super().__init__(
            lambda: KeptProgram(main_program, scope),
            dirname,
            every=every,
            base_every=base_every,
            tables=tables,
            dense=dense,
            keep=keep,
        )


class Saver(LoopSaver):
    """The checkpoints of one training loop, which every trainer runs.

    ``restore`` takes up the latest checkpoint. ``after_step`` follows every step: it saves after
    every ``every`` steps and every ``every_s`` seconds, beside training, and keeps the ``keep``
    newest. ``save`` saves now, ``save_best`` if a metric is the best so far, ``close`` (or the end
    of a ``with``) at the end. When the batch system warns (SIGUSR1, on all ranks), all trainers
    save after the same step and the script ends with exit code 75 (`preemption.AGAIN`), which asks
    to be started again. ``step`` counts the steps since the very beginning.

    Parameters, or their optimizer state, that hold NaN or infinity are not saved: the last finite
    checkpoint stays the latest.

    With ``publish`` the tables are published, too, for `hpcdist.serving.Lookup`.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> with fluid.checkpoint.Saver(exe, tempfile.mkdtemp(), every=2) as saver:
        ...     resumed = saver.restore()
        ...     for step in range(3):
        ...         saver.after_step()
        >>> saver.step
        3
    """

    def __init__(
        self,
        executor: Executor,
        dirname: str | Path,
        *,
        every: int | None = None,
        every_s: float | None = None,
        keep: int = 2,
        best: str = "min",
        on_nan: str | None = None,
        reader: Reading | None = None,
        main_program: Program | None = None,
        compression: str | None = None,
        single_file: bool = False,
        scope: Scope | None = None,
        publish: str | Path | None = None,
        publish_every: int | None = None,
        publish_keep: Mapping[str, Choice] | None = None,
        dense: OnnxModel | None = None,
    ) -> None:
        """``every``, ``every_s``: None saves only when asked, or warned.

        ``best``: whether the "min" or the "max" of a metric is the best. ``on_nan``: what not to
        save is followed by, a "warn"ing or the "end" of training, by a NotFiniteError; None: as
        `--on-nan` says. ``publish``: the directory of versions of the tables, ``publish_every``:
        steps from one to the next, ``publish_keep``: which rows of tables that count shows and
        clicks, ``dense``: the dense part that is published with them. The others are those of
        `save`.
        """
        super().__init__(
            lambda: KeptProgram(main_program, scope, executor),
            dirname,
            every=every,
            every_s=every_s,
            keep=keep,
            best=best,
            on_nan=on_nan,
            reader=reader,
            compression=compression,
            single_file=single_file,
            publish=publish,
            publish_every=publish_every,
            publish_keep=publish_keep,
            dense=dense,
        )


name_arguments_in(__name__)
