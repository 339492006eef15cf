"""Fluid's Datasets: files that `Executor.train_from_dataset` trains from, batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np

from hpcdist.base import settings
from hpcdist.base.checks import Refused
from hpcdist.base.errors import DataError, DataNotImplementedError
from hpcdist.base.trace.events import Count
from hpcdist.data.reader import buffered, xmap_readers
from hpcdist.executor import control
from hpcdist.fluid.multi_slot.dataset_settings import DatasetSettings, at_least_one, refuse
from hpcdist.fluid.multi_slot.descriptions import Message, written
from hpcdist.fluid.multi_slot.global_shuffle import (
    by_ids_among,
    check_agreed,
    counts_of_all,
    shuffled_among,
)
from hpcdist.fluid.multi_slot.merging import id_keys, merged
from hpcdist.fluid.multi_slot.samples import (
    LINE_ID,
    Samples,
    SampleSlot,
    arranged,
    batches,
    concatenated,
    no_samples,
    shuffled,
    slot_of,
    slots_shuffled,
    with_as_many_batches,
)
from hpcdist.graph.variable import Variable

logger = logging.getLogger("hpcdist.multi_slot")

AHEAD = 8  # batches
FLUIDS_BATCH_SIZE = 32  # where the script says none

# What to use instead of what Fluid's packages have for programs that are not in them.
_PAGE_VIEWS = "samples are not joined to page views: join them before, or in the pipe command"
_TABLES = "embedding(is_sparse=True, is_distributed=True) takes any id"


class DatasetBase(DatasetSettings):
    """Files of multi-slot text, what to pipe them through, and the variables they feed.

    Files are read in the order of the list, and samples keep their order: ``set_thread`` says only
    how many files are read at once where that changes nothing.
    """

    _feed = "MultiSlotDataFeed"  # Fluid's name for what reads the text

    set_download_cmd = Refused(
        "mount the file system, or read with a pipe command, of files that say what to download"
    )
    set_rank_offset = Refused(_PAGE_VIEWS)
    set_pv_batch_size = Refused(_PAGE_VIEWS)

    def __init__(self) -> None:
        self._files: list[str] | None = None
        self._command = "cat"
        self._batch_size: int | None = None
        self._threads = 1
        self._slots: list[SampleSlot] = []
        self._evaluates = False

    # -- settings ------------------------------------------------------------------------------
    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files; in a fleet those of this worker (``fleet.split_files``), perhaps none."""
        if not isinstance(filelist, (list, tuple)) or not all(
            isinstance(name, str) for name in filelist
        ):
            raise DataError(f"set_filelist: expected a list of files, got {filelist!r:.80}")
        for name in filelist:
            if name.startswith(("hdfs:", "afs:")):
                refuse(
                    f"set_filelist: {name}",
                    "mount the file system, or read with a pipe command ('hadoop fs -cat ...') "
                    "over files that hold names",
                )
        self._files = list(filelist)

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """Set the data variables, int64 or float32, in the order of the slots of a line.

        One with ``lod_level`` 1 takes any number of values of each sample, others as many as
        their shape says.
        """
        if not isinstance(var_list, (list, tuple)) or not all(
            isinstance(variable, Variable) for variable in var_list
        ):
            raise DataError(f"set_use_var: expected a list of variables, got {var_list!r:.80}")
        self._slots = [slot_of(variable) for variable in var_list]

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set what bash pipes each file through; it writes multi-slot text."""
        if not isinstance(pipe_command, str):
            raise DataError(f"set_pipe_command: expected a string, got {pipe_command!r:.80}")
        self._command = pipe_command

    def set_batch_size(self, batch_size: int) -> None:
        """Set the number of samples in a batch."""
        self._batch_size = at_least_one("set_batch_size", batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Set how many files may be read at once."""
        self._threads = at_least_one("set_thread", thread_num)

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allow `slots_shuffle`; all samples are its candidates, whatever their number."""
        self._evaluates = bool(fea_eval)

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Refuse: only samples in memory can be shuffled."""
        raise DataNotImplementedError(
            f"{type(self).__name__} cannot be shuffled: use InMemoryDataset"
        )

    def local_shuffle(self) -> None:
        """Refuse: only samples in memory can be shuffled."""
        self.slots_shuffle([])

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Refuse: only samples in memory can be shuffled."""
        self.slots_shuffle([])

    def desc(self) -> str:
        """Return the settings as Fluid's text."""
        slots: list[Message] = []
        for slot in self._slots:
            kind = "uint64" if slot.dtype == "int64" else "float"
            dense = {} if slot.shape is None else {"is_dense": True, "shape": [-1, *slot.shape]}
            slots.append({"name": slot.name, "type": kind, "is_used": True} | dense)
        message: Message = {"name": self._feed, "pipe_command": self._command}
        message |= {} if self._batch_size is None else {"batch_size": self._batch_size}
        return written(message | ({"multi_slot_desc": {"slots": slots}} if slots else {}))

    # -- reading -------------------------------------------------------------------------------
    def batches(self, drop_last: bool = False) -> Iterator[dict[str, Any]]:
        """Begin a pass: yield what the variables are fed in each step, read ahead by a thread."""
        size = self._batch_size or FLUIDS_BATCH_SIZE
        parts = [batches(pieces, n, drop_last) for pieces, n in self._parts(size, drop_last)]
        return buffered(lambda: chain(*parts), AHEAD, counted=Count.BATCHES_AHEAD)()

    def _parts(self, size: int, drop_last: bool) -> list[tuple[Iterator[Samples], int]]:
        """Return the samples in parts that have no batch in common, with their batches' size."""
        return [(self._pieces(), size)]

    def _pieces(self) -> Iterator[Samples]:
        """Return all samples, some at a time."""
        raise DataNotImplementedError("use DatasetFactory().create_dataset(...)")

    def _read(self) -> tuple[list[str], str, list[SampleSlot]]:
        """Return the files to read; DataError if none are given."""
        if self._files is None:
            raise DataError(f"{type(self).__name__}: call set_filelist first")
        if not self._slots:
            raise DataError(f"{type(self).__name__}: call set_use_var with variables first")
        if not self._files:
            logger.warning("%s: set_filelist gave this process no files", type(self).__name__)
        return self._files, self._command, self._slots


class QueueDataset(DatasetBase):
    """Files that are read while the Program trains; every pass reads them again."""

    def _pieces(self) -> Iterator[Samples]:
        from hpcdist.fluid.multi_slot.text import samples_of_file  # numba takes 0.3 s to import

        files, command, slots = self._read()
        return (piece for path in files for piece in samples_of_file(path, command, slots))


class FileInstantDataset(QueueDataset):
    """The same under another name of Fluid's."""


class InMemoryDataset(DatasetBase):
    """Samples that are loaded once, and may be shuffled, here or over all workers.

    As in Fluid zeros of ragged slots are left out; of a slot that has nothing else one is kept.
    Shuffles follow from HPCDIST_SEED and how many there have been: ``shuffles``, which a job that
    goes on may set.
    """

    _feed = "MultiSlotInMemoryDataFeed"

    set_current_phase = Refused(_PAGE_VIEWS)
    preprocess_instance = Refused(_PAGE_VIEWS)
    postprocess_instance = Refused(_PAGE_VIEWS)
    get_pv_data_size = Refused(_PAGE_VIEWS)
    set_generate_unique_feasigns = Refused(_TABLES)
    generate_local_tables_unlock = Refused(_TABLES)

    def __init__(self) -> None:
        super().__init__()
        self._samples: Samples | None = None
        self._loading: Future[Samples] | None = None
        self.shuffles = 0
        self._least = 0  # samples that a worker has, since all shuffled together
        self._has_ids = self._has_contents = False
        self._merge_size: int | None = None  # None: samples are not merged

    # -- loading -------------------------------------------------------------------------------
    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """Read all files, as many at once as there are threads; then shuffle them if asked."""
        self._samples, self._least = self._load(self._threads), 0
        if is_shuffle:
            self.local_shuffle()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read all files while the script continues; `wait_preload_done` ends it."""
        threads = self._threads if thread_num is None else at_least_one("thread_num", thread_num)
        pool = ThreadPoolExecutor(1, "hpcdist-preload")
        self._loading = pool.submit(self._load, threads)
        pool.shutdown(wait=False)

    def wait_preload_done(self) -> None:
        """Wait until all is read; raises what went wrong."""
        if self._loading is None:
            raise DataError("wait_preload_done: call preload_into_memory first")
        loading, self._loading = self._loading, None
        self._samples, self._least = loading.result(), 0

    def release_memory(self) -> None:
        """Forget the samples."""
        self._samples = None

    def set_feed_type(self, data_feed_type: str) -> None:
        """Accept Fluid's name for multi-slot text, and refuse others."""
        if data_feed_type != self._feed:
            refuse("set_feed_type", "write multi-slot text, in the pipe command")

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """Declare that each line begins with an id, as ``1 id``."""
        self._has_ids = bool(parse_ins_id)

    def set_parse_content(self, parse_content: bool) -> None:
        """Declare that each line has a text before its slots, as ``1 text``, after an id.

        Nothing is made of it.
        """
        self._has_contents = bool(parse_content)

    def set_parse_logkey(self, parse_logkey: bool) -> None:
        """Refuse lines that begin with keys of page views."""
        if parse_logkey:
            refuse("set_parse_logkey", "leave keys of lines out, in the pipe command")

    def set_enable_pv_merge(self, enable_pv_merge: bool) -> None:
        """Refuse to join samples to page views."""
        if enable_pv_merge:
            refuse("set_enable_pv_merge", "join samples before, or in the pipe command")

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Make the next `global_shuffle` merge lines of one id into one sample; see `merged`.

        Each line begins with its id, as ``1 id``; ``merge_size`` (0: any number) lines have it.
        """
        if not isinstance(merge_size, Integral) or merge_size < 0:
            raise DataError(f"set_merge_by_lineid: expected at least 0, got {merge_size}")
        if self._samples is not None or self._loading is not None:
            raise DataError("set_merge_by_lineid: call it before samples are loaded")
        self._merge_size = int(merge_size)
        self._has_ids = True

    def _load(self, threads: int) -> Samples:
        from hpcdist.fluid.multi_slot.text import samples_of_file  # numba takes 0.3 s to import

        files, command, slots = self._read()
        texts = self._has_ids + self._has_contents
        if self._has_ids and self._merge_size is not None:
            slots = [*slots, LINE_ID]

        def load(path: str) -> Samples | None:
            pieces = [p.without_zeros() for p in samples_of_file(path, command, slots, texts)]
            return concatenated(pieces) if pieces else None

        read: Iterable[Samples | None]
        read = xmap_readers(load, lambda: iter(files), threads, 2 * threads, order=True)()
        loaded = [samples for samples in read if samples is not None]
        return concatenated(loaded) if loaded else no_samples(slots)

    def _loaded(self) -> Samples:
        if self._samples is None:
            raise DataError("InMemoryDataset: nothing is loaded: call load_into_memory first")
        return self._samples

    def _pieces(self) -> Iterator[Samples]:
        return iter([self._loaded()])

    def _parts(self, size: int, drop_last: bool) -> list[tuple[Iterator[Samples], int]]:
        parts = with_as_many_batches(self._loaded(), size, 0 if drop_last else self._least)
        return [(iter([part]), n) for part, n in parts]

    # -- shuffling -----------------------------------------------------------------------------
    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Shuffle some slots' values among the samples of this process: how much do they tell?"""
        if not self._evaluates:
            raise DataError("slots_shuffle: call set_fea_eval(candidates, True) first")
        names_of_slots, chosen = {slot.name for slot in self._slots}, set(slots)
        if isinstance(slots, str) or not chosen <= names_of_slots:
            raise DataError(
                f"slots_shuffle: expected a list of slots, of {sorted(names_of_slots)}, got "
                f"{slots!r:.200}"
            )
        self._shuffle(partial(slots_shuffled, names=chosen))

    def local_shuffle(self) -> None:
        """Shuffle the samples of this process."""
        self._shuffle(shuffled)

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Shuffle the samples of all workers of ``fleet``; without it those of this process.

        Collective among workers. The order of all samples, worker 0's first, does not depend on
        the number of workers: each gets an equal part of the same permutation. Behind
        `set_merge_by_lineid` samples that have been loaded since are merged before.
        """
        peers = None if fleet is None else _peers()

        def shuffle(samples: Samples, random: np.random.Generator) -> Samples:
            merge_size = self._merge_size if LINE_ID in samples.slots else None
            if peers is not None:
                settled = {
                    "HPCDIST_SEED": settings.SEED.read(),
                    "the number of its shuffles, with this one,": self.shuffles,
                    "what set_merge_by_lineid has to merge (-1: nothing)": (
                        -1 if merge_size is None else merge_size
                    ),
                }
                check_agreed(peers.group, settled, peers.deadline_s)
            if merge_size is not None:
                if peers is None:
                    by_ids = arranged(samples, np.argsort(id_keys(samples), kind="stable"))
                else:
                    by_ids = by_ids_among(peers.group, samples, peers.deadline_s)
                samples = merged(by_ids, merge_size)
            if peers is None:
                return shuffled(samples, random)
            return shuffled_among(peers.group, samples, random, peers.deadline_s)

        self._shuffle(shuffle)
        counts = self._counts(peers)
        self._least = min(counts)

    def _shuffle(self, shuffled: Callable[[Samples, np.random.Generator], Samples]) -> None:
        """Shuffle the samples, which ``shuffled`` uses up: where it fails, none are left."""
        loaded, self._samples = self._loaded(), None
        used_up = Samples(loaded.slots, [*loaded.columns])  # a loop may still be reading the others
        del loaded
        self.shuffles += 1
        self._samples = shuffled(
            used_up, np.random.default_rng([settings.SEED.read(), self.shuffles])
        )

    # -- sizes ---------------------------------------------------------------------------------
    def get_memory_data_size(self, fleet: Any = None) -> int:
        """Return the number of samples in memory; with ``fleet`` those of all workers."""
        return sum(self._counts(None if fleet is None else _peers()))

    def _counts(self, peers: control.ProgramPeers | None) -> list[int]:
        """Return how many samples each worker has; without peers this one."""
        count = 0 if self._samples is None else len(self._samples)
        return [count] if peers is None else counts_of_all(peers.group, count, peers.deadline_s)

    def get_shuffle_data_size(self, fleet: Any = None) -> int:
        """Return the number of samples that were shuffled; with ``fleet`` of all workers."""
        return self.get_memory_data_size(fleet)


class DatasetFactory:
    """Makes Datasets by the name of their class."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> Any:
        """Return a new QueueDataset, InMemoryDataset or FileInstantDataset."""
        classes = (QueueDataset, InMemoryDataset, FileInstantDataset)
        kinds = {kind.__name__: kind for kind in classes}
        if datafeed_class not in kinds:
            raise DataError(f"create_dataset: expected one of {list(kinds)}, got {datafeed_class}")
        return kinds[datafeed_class]()


def _peers() -> control.ProgramPeers | None:
    """Return the other trainers of a job; None if there are none."""
    job = control.installed()
    peers = None if job is None else job.peers()
    return peers if peers is not None and peers.trainers > 1 else None
