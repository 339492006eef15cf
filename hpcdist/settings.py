"""Every environment variable that hpcdist reads, declared once: name, type, unit, default, meaning.

No other module reads a setting from ``os.environ``. docs/settings.md is printed from here, by
``python -m hpcdist settings``. What mpirun and srun tell a process about its place in a job is not
a setting: see `hpcdist.comm.process_manager`.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hpcdist.errors import SettingError, SettingTypeError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
TRUE, FALSE = ("1", "true", "on"), ("0", "false", "off")
ON_FAILURE_WORDS = ("end", "continue")
CARRIERS = ("nccl", "mpi", "mpi-cuda-aware")


# -- types -----------------------------------------------------------------------------------------
class Kind(Generic[T_co]):
    """A type of values as text: what is expected, how it is read, which Python types fit."""

    word: str  # in get_flags, set_flags and docs
    expected: str
    types: tuple[type, ...] = (str,)

    def parse(self, text: str) -> T_co:
        """Return the value; ValueError saying what was expected and what was given."""
        try:
            value = self._convert(text)
        except ValueError:
            value = None
        if value is None:
            raise ValueError(f"expected {self.expected}, got {text!r}")
        return value

    def text(self, value: Any) -> str:
        """Return a value as `parse` reads it."""
        return str(value)

    def _convert(self, text: str) -> T_co | None:
        """Return the value; None or ValueError for text that is none."""
        raise NotImplementedError


class Integer(Kind[int]):
    """An integer of at least ``least``."""

    word, types = "int", (int,)

    def __init__(self, least: int) -> None:
        self.least = least
        self.expected = f"an integer >= {least}"

    def _convert(self, text: str) -> int | None:
        value = int(text)
        return value if value >= self.least else None


class Mask(Kind[int]):
    """The permissions that new files do not get, in octal, as `umask` takes them."""

    word, types, expected = "umask", (int,), "an octal number such as 077"

    def text(self, value: Any) -> str:
        """Return a value as `parse` reads it."""
        return f"{value:03o}"

    def _convert(self, text: str) -> int | None:
        value = int(text, 8)
        return value if 0 <= value <= 0o777 else None


class Number(Kind[float]):
    """A finite number, above ``above`` if that is given."""

    word, types = "float", (int, float)

    def __init__(self, above: float = -math.inf) -> None:
        self._above = above
        self.expected = "a number" if above == -math.inf else f"a number > {above:g}"

    def _convert(self, text: str) -> float | None:
        value = float(text)
        return value if math.isfinite(value) and value > self._above else None


class Switch(Kind[bool]):
    """True or false, in any of the usual spellings."""

    word, types = "bool", (bool, int)
    expected = "true or false (1, on; 0, off)"

    def _convert(self, text: str) -> bool | None:
        word = text.strip().lower()
        return word in TRUE if word in TRUE + FALSE else None

    def text(self, value: Any) -> str:
        return str(int(bool(value)))


class Text(Kind[str]):
    """Any text."""

    word, expected = "str", "text"

    def _convert(self, text: str) -> str:
        return text


class Word(Kind[str]):
    """One of some words."""

    word = "str"

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"

    def _convert(self, text: str) -> str | None:
        return text if text in self.words else None


class Integers(Kind[tuple[int, ...]]):
    """Numbers from 0 on, separated by commas."""

    word, expected, types = "str", "numbers separated by commas, such as 0 or 0,1", (str,)

    def _convert(self, text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))


class Group(enum.Enum):
    """A section of docs/settings.md; the value is its heading."""

    FLUID = "Fluid's"
    IGNORED = "Fluid's, without effect"
    HPCDIST = "hpcdist's"
    ROLE = "The role of a process"
    OTHER = "Other software's"


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable. Empty counts as not set; so does a ``default`` that is a Setting,
    whose value is then meant."""

    name: str
    kind: Kind[Any]
    default: T | Setting[T]
    meaning: str
    unit: str = ""
    group: Group = Group.HPCDIST

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the value in ``environ`` (the process's own), or the default.

        SettingError names the variable, what was expected and what was found.
        """
        text = _environ(environ).get(self.name)
        if text:
            value: T = self.parse(text)
            return value
        return self.default.read(environ) if isinstance(self.default, Setting) else self.default

    def is_set(self, environ: Mapping[str, str] | None = None) -> bool:
        """Tell whether the environment has a value."""
        return bool(_environ(environ).get(self.name))

    def parse(self, text: str) -> Any:
        """Return the value of a text; SettingError if it is none."""
        try:
            return self.kind.parse(text)
        except ValueError as error:
            unit = f" ({self.unit})" if self.unit else ""
            raise SettingError(f"{self.name}{unit}: {error}") from None

    def write(self, value: T) -> None:
        """Set the variable, for this process and those that it starts."""
        os.environ[self.name] = self.text(value)

    def text(self, value: Any) -> str:
        """Return a value as the environment has it; SettingTypeError, SettingError for a bad one.

        A bool is no number, whatever Python says.
        """
        wrong_bool = isinstance(value, bool) and bool not in self.kind.types
        if wrong_bool or not isinstance(value, self.kind.types):
            raise SettingTypeError(f"{self.name}: expected {self.kind.word}, got {value!r}")
        text = self.kind.text(value)
        self.parse(text)
        return text


def _environ(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ


# -- Fluid's ---------------------------------------------------------------------------------------
def _fluid(name: str, kind: Kind[T], default: Any, meaning: str, unit: str = "") -> Setting[T]:
    return Setting(name, kind, default, meaning, unit, Group.FLUID)


CPU_NUM = _fluid(
    "CPU_NUM",
    Integer(1),
    1,
    "devices of a ParallelExecutor or CompiledProgram on the CPU; threads of a trainer, in the "
    "defaults of the communicator",
)
RPC_DEADLINE = _fluid(
    "FLAGS_rpc_deadline",
    Integer(1),
    180_000,
    "longest wait for a message from another rank; `--deadline` sets it",
    "ms",
)
WORKER_UPDATE_INTERVAL = _fluid(
    "FLAGS_worker_update_interval_secs",
    Number(0),
    900.0,
    "a trainer that sends nothing for so long is reported; the job goes on",
    "s",
)
SELECTED_GPUS = _fluid(
    "FLAGS_selected_gpus",
    Integers(),
    (),
    "GPUs of this rank, among those that CUDA_VISIBLE_DEVICES shows; the launcher sets it on "
    "trainers",
)
CPU_DETERMINISTIC = _fluid(
    "FLAGS_cpu_deterministic",
    Switch(),
    False,
    "sums of gradients run in rank order",
)
CHECK_NAN_INF = _fluid(
    "FLAGS_check_nan_inf",
    Switch(),
    False,
    "whether an operator that writes NaN or infinity ends the job, naming rank, step, operator and "
    "variable; read when a program is first run",
)
CUDNN_DETERMINISTIC = _fluid(
    "FLAGS_cudnn_deterministic",
    Switch(),
    False,
    "the same as FLAGS_cpu_deterministic",
)
FUSE_MEMORY = _fluid(
    "FLAGS_fuse_parameter_memory_size",
    Number(),
    -1.0,
    "size of a bucket of gradients that are summed together; 0: all in one, below 0: one per layer",
    "MiB",
)
FUSE_GROUPS = _fluid(
    "FLAGS_fuse_parameter_groups_size",
    Integer(1),
    1,
    "most gradients of a bucket, if above 1 and FLAGS_fuse_parameter_memory_size is above 0",
)
COMMUNICATOR_MERGE = _fluid(
    "FLAGS_communicator_max_merge_var_num",
    Integer(1),
    CPU_NUM,
    "gradients of a variable that are merged into one before they are sent",
)
COMMUNICATOR_QUEUE = _fluid(
    "FLAGS_communicator_send_queue_size",
    Integer(1),
    CPU_NUM,
    "gradients of a variable that may be queued or unanswered before a step waits",
)
COMMUNICATOR_RECV_AFTER = _fluid(
    "FLAGS_communicator_min_send_grad_num_before_recv",
    Integer(0),
    CPU_NUM,
    "gradients that are sent before parameters are received again",
)
COMMUNICATOR_THREADS = _fluid(
    "FLAGS_communicator_thread_pool_size",
    Integer(1),
    5,
    "checked only: a rank sends from one thread",
)
COMMUNICATOR_EAGER = _fluid(
    "FLAGS_communicator_independent_recv_thread",
    Switch(),
    True,
    "parameters are taken over as soon as they arrive, not only when the queue is full",
)
COMMUNICATOR_WAIT = _fluid(
    "FLAGS_communicator_send_wait_times",
    Integer(0),
    5,
    "longest wait for further gradients to merge",
    "10 ms",
)
COMMUNICATOR_SUM = _fluid(
    "FLAGS_communicator_is_sgd_optimizer",
    Switch(),
    True,
    "merged gradients are added up; false: averaged",
)


# -- Fluid's, without effect -----------------------------------------------------------------------
_KIND_OF: dict[type, Kind[Any]] = {bool: Switch(), int: Integer(0), float: Number(), str: Text()}
_IGNORED = {
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_conv_workspace_size_limit": 512,
    "FLAGS_cudnn_batchnorm_spatial_persistent": False,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_init_allocated_mem": False,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_inner_op_parallelism": 0,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_rpc_get_thread_num": 12,
    "FLAGS_rpc_prefetch_thread_num": 12,
    "FLAGS_rpc_retry_times": 3,
    "FLAGS_rpc_send_thread_num": 12,
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_use_pinned_memory": True,
    "FLAGS_use_system_allocator": False,
}


# -- hpcdist's -------------------------------------------------------------------------------------
PSERVERS: Setting[int | None] = Setting(
    "HPCDIST_PSERVERS", Integer(0), None, "number of parameter servers, as `--pservers`"
)
PSERVERS_PER_NODE: Setting[int | None] = Setting(
    "HPCDIST_PSERVERS_PER_NODE",
    Integer(1),
    None,
    "number of parameter servers on each node, as `--pservers-per-node`",
)
ROLE_MAP: Setting[str | None] = Setting(
    "HPCDIST_ROLE_MAP", Text(), None, "which ranks are servers, as `--role-map`"
)
UMASK: Setting[int | None] = Setting(
    "HPCDIST_UMASK", Mask(), None, "the permissions that no file of the job gets, as `--umask`"
)
ON_FAILURE: Setting[str | None] = Setting(
    "HPCDIST_ON_FAILURE",
    Word(*ON_FAILURE_WORDS),
    None,
    "what happens when a trainer dies, as `--on-failure`",
)
ON_NAN = Setting(
    "HPCDIST_ON_NAN",
    Word("warn", "end"),
    "warn",
    "what the first NaN in a fetched value, in a gradient that a server applies, or in parameters "
    "to be saved, does, as `--on-nan`",
)
FEED = Setting(
    "HPCDIST_FEED",
    Word("whole", "local"),
    "whole",
    "what each trainer of a plain script feeds, as `--feed`: the whole batch, or rows of its own",
)
ALLREDUCE = Setting(
    "HPCDIST_ALLREDUCE", Word(*CARRIERS), "nccl", "what sums gradients between GPUs"
)
SPARSE_ROWS = Setting(
    "HPCDIST_SPARSE_ROWS",
    Word("fluid", "exact"),
    "fluid",
    "exact: momentum and rmsprop see every row of an unsorted sparse gradient; fluid: as Fluid "
    "1.8.5, whose search misses some",
)
DATA_HOME = Setting("HPCDIST_DATA_HOME", Text(), "", "directory in which data sets are looked for")
SEED = Setting(
    "HPCDIST_SEED",
    Integer(0),
    0,
    "seed of operators that have none; the launcher sets it from `--seed`",
)
BATCH_NORM = Setting(
    "HPCDIST_BATCH_NORM",
    Word("batch", "local"),
    "batch",
    "whose mean and variance batch_norm takes on trainers that share batches: the whole batch's, "
    "or each trainer's own rows'",
)
RANK: Setting[int | None] = Setting(
    "HPCDIST_RANK", Integer(0), None, "rank of this process; the launcher sets it, in a job"
)
SITE_FILE = Setting(
    "HPCDIST_ENV", Text(), "", "file that the batch scripts source first; read by them only"
)


# -- the role of a process -------------------------------------------------------------------------
def _role(name: str, kind: Kind[T], default: Any, meaning: str) -> Setting[T]:
    return Setting(name, kind, default, meaning, group=Group.ROLE)


PADDLE_ROLE = _role("PADDLE_TRAINING_ROLE", Text(), "", "TRAINER or PSERVER")
TRAINING_ROLE = _role("TRAINING_ROLE", Text(), "", "the same, as PaddleCloudRoleMaker reads it")
TRAINER_ID = _role("PADDLE_TRAINER_ID", Integer(0), 0, "number of this trainer")
TRAINERS = _role("PADDLE_TRAINERS", Integer(1), 1, "number of trainers")
TRAINERS_NUM = _role(
    "PADDLE_TRAINERS_NUM", Integer(1), TRAINERS, "the same, as PaddleCloudRoleMaker reads it"
)
PSERVER_IPS = _role("PADDLE_PSERVER_IPS", Text(), "", "hosts of the servers, separated by commas")
PSERVER_PORT = _role("PADDLE_PSERVER_PORT", Text(), "", "port of all servers")
PSERVER_ENDPOINTS = _role(
    "PADDLE_PSERVERS_IP_PORT_LIST", Text(), "", "servers as host:port, separated by commas"
)
TRAINER_ENDPOINTS = _role(
    "PADDLE_TRAINER_ENDPOINTS", Text(), "", "trainers as host:port, separated by commas"
)
CURRENT_ENDPOINT = _role("PADDLE_CURRENT_ENDPOINT", Text(), "", "this process as host:port")
CURRENT_IP = _role("PADDLE_CURRENT_IP", Text(), "", "host of this process")
POD_IP = _role("POD_IP", Text(), "", "the same, as PaddleCloudRoleMaker reads it")
PORT = _role("PADDLE_PORT", Text(), "", "port of this process, to POD_IP")


# -- other software's ------------------------------------------------------------------------------
NCCL_SHARED_GPU = Setting(
    "NCCL_MULTI_RANK_GPU_ENABLE",
    Text(),
    "",
    "1: NCCL lets several ranks use one GPU; other NCCL_ variables of rank 0 are passed on to all",
    group=Group.OTHER,
)
VISIBLE_GPUS: Setting[str | None] = Setting(
    "CUDA_VISIBLE_DEVICES",
    Text(),
    None,
    "GPUs that are shared out to the trainers of a host; `--gpus` chooses among them",
    group=Group.OTHER,
)
MATH_THREADS = tuple(
    Setting(
        name, Text(), "", "if set, hpcdist does not limit the threads of a rank", group=Group.OTHER
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
)

ALL: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (
        *(value for value in list(globals().values()) if isinstance(value, Setting)),
        *(
            Setting(name, _KIND_OF[type(default)], default, "", group=Group.IGNORED)
            for name, default in _IGNORED.items()
        ),
        *MATH_THREADS,
    )
}
FLAGS = {name: setting for name, setting in ALL.items() if name.startswith("FLAGS_")}
# Wrong values of the others are refused where they are used, with what is around them.
_CHECKED_AT_START = (Group.FLUID, Group.HPCDIST)


# -- all of them -----------------------------------------------------------------------------------
def check(environ: Mapping[str, str] | None = None) -> None:
    """Raise SettingError for a setting that is set and cannot be read."""
    for setting in ALL.values():
        if setting.group in _CHECKED_AT_START:
            setting.read(environ)


def role_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return those variables of a process's role that are set, as text."""
    found = _environ(environ)
    return {
        s.name: found[s.name] for s in ALL.values() if s.group is Group.ROLE and s.is_set(found)
    }


def misspelt(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each HPCDIST_ variable that does not exist.

    Of Fluid's flags there are many that hpcdist does not have: those are told that are nearly one.
    """
    found = []
    for name in sorted(set(_environ(environ)) - set(ALL)):
        ours = name.startswith("HPCDIST_")
        if ours or name.startswith("FLAGS_"):
            near = difflib.get_close_matches(name, ALL, n=1, cutoff=0.6 if ours else 0.9)
            meant = f": did you mean {near[0]}?" if near else "; `python -m hpcdist settings`"
            if ours or near:
                found.append(f"hpcdist does not read the environment variable {name}{meant}")
    return found


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags (FLAGS_*) by name, for what begins later in this process; on every rank alike.

    SettingError (a ValueError) for a name that is not known or a value out of bounds,
    SettingTypeError (a TypeError) for a value of another type; nothing is set then.
    """
    if not isinstance(flags, dict):
        raise SettingTypeError(f"set_flags: expected a dict of flags, got {flags!r}")
    os.environ.update({name: flag(name).text(value) for name, value in flags.items()})


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """Return flags (FLAGS_*) by name, given one name or several; SettingError for unknown ones."""
    if not isinstance(flags, (str, list, tuple)):
        raise SettingTypeError(f"get_flags: expected a name or a list of names, got {flags!r}")
    return {name: flag(name).read() for name in ([flags] if isinstance(flags, str) else flags)}


def flag(name: str) -> Setting[Any]:
    """Return one of Fluid's flags; SettingError if there is none of that name."""
    if name not in FLAGS:
        raise SettingError(f"there is no flag {name!r}; the flags are {', '.join(sorted(FLAGS))}")
    return FLAGS[name]


# -- docs ------------------------------------------------------------------------------------------
_HEAD = """\
# Settings

Every environment variable that hpcdist reads. `python -m hpcdist settings` prints this page from
`hpcdist/settings.py`. An empty variable counts as not set. The launcher checks Fluid's and
hpcdist's settings before the script starts, and warns of names that do not exist. In a script,
`fluid.get_flags("FLAGS_rpc_deadline")` and `fluid.set_flags({...})` read and set those that begin
with `FLAGS_`.
"""
_ABOUT = {
    Group.IGNORED: "They tune Fluid's memory, threads and kernels; `get_flags` and `set_flags` know"
    " them.",
    Group.ROLE: "The launcher sets them on every rank; see [launch.md](launch.md). Those that are"
    " set before it starts are kept.",
}


def markdown() -> str:
    """Return the text of docs/settings.md."""
    parts = [_HEAD]
    for group in Group:
        members = [setting for setting in ALL.values() if setting.group is group]
        parts.append("\n".join(filter(None, [f"## {group.value}\n", _ABOUT.get(group, "")])))
        if group is Group.IGNORED:
            parts[-1] += "\n\n" + "\n".join(f"- `{s.name}` ({_default(s)})" for s in members) + "\n"
            continue
        rows = [
            f"| `{s.name}` | {s.kind.expected} | {s.unit} | {_default(s)} | {s.meaning} |"
            for s in members
        ]
        head = ["| variable | value | unit | default | meaning |", "|---|---|---|---|---|"]
        parts[-1] = parts[-1].rstrip() + "\n\n" + "\n".join([*head, *rows]) + "\n"
    return "\n".join(parts)


def _default(setting: Setting[Any]) -> str:
    if isinstance(setting.default, Setting):
        return f"as `{setting.default.name}`"
    if setting.default in (None, "", ()):
        return ""
    return f"`{setting.kind.text(setting.default)}`"
