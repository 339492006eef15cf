"""Every environment variable that hpcdist reads, declared once: name, type, unit, default, meaning.

No other module reads a setting from ``os.environ``. docs/settings.md is printed from here, by
``python -m hpcdist settings``. What mpirun and srun tell a process about its place in a job is not
a setting: see `hpcdist.comm.process_manager`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hpcdist.errors import SettingError, SettingTypeError
from hpcdist.setting import (
    Integer,
    Integers,
    Mask,
    Number,
    OnOff,
    Section,
    Setting,
    Text,
    ValueKind,
    Word,
    Words,
    environment,
)

T = TypeVar("T")
ON_FAILURE_WORDS = ("end", "continue")
CARRIERS = ("nccl", "mpi", "mpi-cuda-aware")


# -- Fluid's ---------------------------------------------------------------------------------------
def _fluid(name: str, kind: ValueKind[T], default: Any, meaning: str, unit: str = "") -> Setting[T]:
    return Setting(name, kind, default, meaning, unit, Section.FLUID)


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
    OnOff(),
    False,
    "sums of gradients run in rank order",
)
CHECK_NAN_INF = _fluid(
    "FLAGS_check_nan_inf",
    OnOff(),
    False,
    "whether an operator that writes NaN or infinity ends the job, naming rank, step, operator and "
    "variable; read when a program is first run",
)
CUDNN_DETERMINISTIC = _fluid(
    "FLAGS_cudnn_deterministic",
    OnOff(),
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
    OnOff(),
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
    OnOff(),
    True,
    "merged gradients are added up; false: averaged",
)


# -- Fluid's, without effect -----------------------------------------------------------------------
_KIND_OF: dict[type, ValueKind[Any]] = {
    bool: OnOff(),
    int: Integer(0),
    float: Number(),
    str: Text(),
}
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
DENSE = Setting(
    "HPCDIST_DENSE",
    Word("pserver", "collective"),
    "pserver",
    "where parameters live that are no distributed tables, in a job with servers, as `--dense`: on "
    "these, or on the trainers, which sum their gradients",
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
CERTIFICATE = Setting(
    "HPCDIST_CERTIFICATE",
    Text(),
    "",
    "directory into which `data.read` writes which rows each step used; empty: nowhere",
)
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
KERNELS = Setting(
    "HPCDIST_KERNELS",
    Word("auto", "own", "torch", "fused", "compiled", "measured"),
    "auto",
    "whose kernels compute: hpcdist's own; PyTorch's for convolutions and gelu (`torch`), for all "
    "runs of operators that it can compute as one (`fused`), or these compiled by inductor "
    "(`compiled`); or the faster of these two, found out in the first steps of each Program "
    "(`measured`). `auto` is `fused` on a GPU, if PyTorch with CUDA is installed, else `own`. The "
    "same on all ranks of a job",
)
TF32 = Setting(
    "HPCDIST_TF32",
    OnOff(),
    False,
    "whether matrix products and convolutions of float32 on a GPU round their operands to TF32",
)
RECORD_MIB = Setting(
    "HPCDIST_RECORD_MIB",
    Integer(0),
    16,
    "memory in which a rank keeps its latest events, for traces and reports; 0: it notes nothing",
    "MiB",
)
METRICS: Setting[str | None] = Setting(
    "HPCDIST_METRICS",
    Text(),
    None,
    "directory into which ranks write how far they are, and their metrics, as `--metrics`",
)
METRICS_ALSO: Setting[tuple[str, ...]] = Setting(
    "HPCDIST_METRICS_ALSO",
    Words("csv", "tensorboard"),
    (),
    "in what other forms than JSON lines metrics are written, as `--metrics-also`",
)
METRICS_EVERY = Setting(
    "HPCDIST_METRICS_EVERY",
    Number(0),
    2.0,
    "how often a rank writes; in jobs of more than 100 ranks less often, 50 files a second in all",
    "s",
)
PROMETHEUS: Setting[str | None] = Setting(
    "HPCDIST_PROMETHEUS",
    Text(),
    None,
    "directory of a node's Prometheus textfile collector, as `--prometheus`",
)
RANK: Setting[int | None] = Setting(
    "HPCDIST_RANK", Integer(0), None, "rank of this process; the launcher sets it, in a job"
)
RUN: Setting[str] = Setting(
    "HPCDIST_RUN", Text(), "", "what names this run of a job; the launcher sets it, in a job"
)
SITE_FILE = Setting(
    "HPCDIST_ENV", Text(), "", "file that the batch scripts source first; read by them only"
)


# -- the role of a process -------------------------------------------------------------------------
def _role(name: str, kind: ValueKind[T], default: Any, meaning: str) -> Setting[T]:
    return Setting(name, kind, default, meaning, group=Section.ROLE)


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
    group=Section.OTHER,
)
VISIBLE_GPUS: Setting[str | None] = Setting(
    "CUDA_VISIBLE_DEVICES",
    Text(),
    None,
    "GPUs that are shared out to the trainers of a host; `--gpus` chooses among them",
    group=Section.OTHER,
)
TORCH_MASTER = Setting(
    "MASTER_ADDR",
    Text(),
    "",
    "if it and `RANK` are set, and not by `--as-torchrun`, torch's rendezvous at env:// is left "
    "to torch",
    group=Section.OTHER,
)
TORCH_RANK = Setting("RANK", Text(), "", "see `MASTER_ADDR`", group=Section.OTHER)
MATH_THREADS = tuple(
    Setting(
        name,
        Text(),
        "",
        "if set, hpcdist does not limit the threads of a rank",
        group=Section.OTHER,
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
)

ALL: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (
        *(value for value in list(globals().values()) if isinstance(value, Setting)),
        *(
            Setting(name, _KIND_OF[type(default)], default, "", group=Section.IGNORED)
            for name, default in _IGNORED.items()
        ),
        *MATH_THREADS,
    )
}
FLAGS = {name: setting for name, setting in ALL.items() if name.startswith("FLAGS_")}
# Wrong values of the others are refused where they are used, with what is around them.
_CHECKED_AT_START = (Section.FLUID, Section.HPCDIST)


# -- all of them -----------------------------------------------------------------------------------
def check(environ: Mapping[str, str] | None = None) -> None:
    """Raise SettingError for a setting that is set and cannot be read."""
    for setting in ALL.values():
        if setting.group in _CHECKED_AT_START:
            setting.read(environ)


def role_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return those env of a process's role that are set, as text."""
    env = environment(environ)
    return {s.name: env[s.name] for s in ALL.values() if s.group is Section.ROLE and s.is_set(env)}


def find_in_children(folder: str, found: bool) -> None:
    """Let Python processes that this one starts find the modules of a folder first, or no more."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [other for other in folders if other not in ("", folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder] * found + others)


def misspelt(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each HPCDIST_ variable that does not exist.

    Of Fluid's flags there are many that hpcdist does not have: those are told that are nearly one.
    """
    found = []
    for name in sorted(set(environment(environ)) - set(ALL)):
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


def tell_cupy() -> None:
    """Have cupy, which is about to be imported, round to TF32 if that is wished."""
    if TF32.read():
        os.environ["CUPY_TF32"] = "1"  # its own variable, read at its first product
