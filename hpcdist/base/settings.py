"""Every environment variable that hpcdist reads, declared once: name, type, unit, default, meaning.

Those of Fluid's are in `hpcdist.base.fluid_settings`, and used from here like all others.

No other module reads a setting from ``os.environ``. docs/settings.md is printed from here, by
``python -m hpcdist settings``. Variables that mpirun and srun set to describe the job are not
settings: see `hpcdist.comm.process_manager`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hpcdist.base.errors import SettingError, SettingTypeError
from hpcdist.base.fluid_settings import *  # noqa: F403
from hpcdist.base.fluid_settings import ACCEPTED, OBEYED
from hpcdist.base.nearest import did_you_mean
from hpcdist.base.setting import (
    Integer,
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


# -- hpcdist's -------------------------------------------------------------------------------------
PSERVERS: Setting[int | None] = Setting(
    "HPCDIST_PSERVERS", Integer(0), None, "number of parameter servers; same as `--pservers`"
)
PSERVERS_PER_NODE: Setting[int | None] = Setting(
    "HPCDIST_PSERVERS_PER_NODE",
    Integer(1),
    None,
    "number of parameter servers on each node; same as `--pservers-per-node`",
)
ROLE_MAP: Setting[str | None] = Setting(
    "HPCDIST_ROLE_MAP", Text(), None, "which ranks are servers; same as `--role-map`"
)
UMASK: Setting[int | None] = Setting(
    "HPCDIST_UMASK",
    Mask(),
    None,
    "permissions to remove from all files that the job creates; same as `--umask`",
)
ON_FAILURE: Setting[str | None] = Setting(
    "HPCDIST_ON_FAILURE",
    Word(*ON_FAILURE_WORDS),
    None,
    "whether the job ends or goes on when a trainer dies; same as `--on-failure`",
)
ON_NAN = Setting(
    "HPCDIST_ON_NAN",
    Word("warn", "end"),
    "warn",
    "what to do at the first NaN in a fetched value, in a gradient that a server applies, or in "
    "parameters to be saved; same as `--on-nan`",
)
FEED = Setting(
    "HPCDIST_FEED",
    Word("whole", "local"),
    "whole",
    "what each trainer of a plain script feeds: the whole batch, or its own rows (local); same as "
    "`--feed`",
)
DENSE = Setting(
    "HPCDIST_DENSE",
    Word("pserver", "collective"),
    "pserver",
    "in a job with servers, where all parameters other than distributed tables are kept: on the "
    "servers, or on the trainers, which sum their gradients (collective); same as `--dense`",
)
ALLREDUCE = Setting(
    "HPCDIST_ALLREDUCE", Word(*CARRIERS), "nccl", "which library sums gradients of GPUs"
)
SPARSE_ROWS = Setting(
    "HPCDIST_SPARSE_ROWS",
    Word("fluid", "exact"),
    "exact",
    "exact: momentum and rmsprop use every row of a sparse gradient; fluid: as Fluid 1.8.5, which "
    "misses some rows of an unsorted list, in one process and in scripts that transpile themselves",
)
DATA_HOME = Setting("HPCDIST_DATA_HOME", Text(), "", "first directory to look for data sets")
CERTIFICATE = Setting(
    "HPCDIST_CERTIFICATE",
    Text(),
    "",
    "directory where `data.read` records which rows each step used; empty: not recorded",
)
SEED = Setting(
    "HPCDIST_SEED",
    Integer(0),
    0,
    "seed of random operators without a seed of their own; the launcher sets it from `--seed`",
)
BATCH_NORM = Setting(
    "HPCDIST_BATCH_NORM",
    Word("batch", "local"),
    "batch",
    "which rows batch_norm uses for mean and variance on trainers that share batches: the whole "
    "batch, or each trainer's own rows (local)",
)
KERNELS = Setting(
    "HPCDIST_KERNELS",
    Word("auto", "own", "torch", "fused", "compiled", "measured"),
    "auto",
    "which kernels compute. `own`: hpcdist's. `torch`: PyTorch's for convolutions and gelu. "
    "`fused`: PyTorch's for every run of operators that it can compute as one function. "
    "`compiled`: the same, compiled by inductor. `measured`: the faster of fused and compiled, "
    "measured in the first steps of each Program. `auto`: fused on a GPU if PyTorch with CUDA is "
    "installed, else own. Must be the same on all ranks",
)
TF32 = Setting(
    "HPCDIST_TF32",
    OnOff(),
    False,
    "float32 matrix products and convolutions on a GPU round their operands to TF32",
)
RECORD_MIB = Setting(
    "HPCDIST_RECORD_MIB",
    Integer(0),
    16,
    "memory for a rank's latest events, for traces and reports; 0: nothing is recorded",
    "MiB",
)
METRICS: Setting[str | None] = Setting(
    "HPCDIST_METRICS",
    Text(),
    None,
    "directory where ranks write their progress and metrics; same as `--metrics`",
)
METRICS_ALSO: Setting[tuple[str, ...]] = Setting(
    "HPCDIST_METRICS_ALSO",
    Words("csv", "tensorboard"),
    (),
    "formats of metrics in addition to JSON lines; same as `--metrics-also`",
)
METRICS_EVERY = Setting(
    "HPCDIST_METRICS_EVERY",
    Number(0),
    2.0,
    "time between two writes of a rank's metrics; longer in jobs of more than 100 ranks, so that "
    "all ranks together write 50 files a second",
    "s",
)
PROMETHEUS: Setting[str | None] = Setting(
    "HPCDIST_PROMETHEUS",
    Text(),
    None,
    "directory of a node's Prometheus textfile collector; same as `--prometheus`",
)
RANK: Setting[int | None] = Setting(
    "HPCDIST_RANK", Integer(0), None, "rank of this process; set by the launcher in a job"
)
RUN: Setting[str] = Setting(
    "HPCDIST_RUN", Text(), "", "name of this run of a job; set by the launcher in a job"
)
SITE_FILE = Setting(
    "HPCDIST_ENV", Text(), "", "file that the batch scripts source first; read only by them"
)


# -- the role of a process -------------------------------------------------------------------------
def _role(name: str, kind: ValueKind[T], default: Any, meaning: str) -> Setting[T]:
    return Setting(name, kind, default, meaning, group=Section.ROLE)


PADDLE_ROLE = _role("PADDLE_TRAINING_ROLE", Text(), "", "TRAINER or PSERVER")
TRAINING_ROLE = _role("TRAINING_ROLE", Text(), "", "same, for PaddleCloudRoleMaker")
TRAINER_ID = _role("PADDLE_TRAINER_ID", Integer(0), 0, "number of this trainer")
TRAINERS = _role("PADDLE_TRAINERS", Integer(1), 1, "number of trainers")
TRAINERS_NUM = _role("PADDLE_TRAINERS_NUM", Integer(1), TRAINERS, "same, for PaddleCloudRoleMaker")
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
POD_IP = _role("POD_IP", Text(), "", "same, for PaddleCloudRoleMaker")
PORT = _role("PADDLE_PORT", Text(), "", "port of this process, on POD_IP")


# -- other software's ------------------------------------------------------------------------------
NCCL_SHARED_GPU = Setting(
    "NCCL_MULTI_RANK_GPU_ENABLE",
    Text(),
    "",
    "1: NCCL lets several ranks use one GPU; all NCCL_ variables of rank 0 are passed on to the "
    "other ranks",
    group=Section.OTHER,
)
VISIBLE_GPUS: Setting[str | None] = Setting(
    "CUDA_VISIBLE_DEVICES",
    Text(),
    None,
    "GPUs to divide among the trainers of a host; `--gpus` chooses among them",
    group=Section.OTHER,
)
TORCH_MASTER = Setting(
    "MASTER_ADDR",
    Text(),
    "",
    "if it and `RANK` are set, but not by `--as-torchrun`, torch itself handles its env:// "
    "rendezvous",
    group=Section.OTHER,
)
TORCH_PORT = Setting(
    "MASTER_PORT", Text(), "", "a name, set by `--as-torchrun`: nobody listens", group=Section.OTHER
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
        *OBEYED,
        *(value for value in list(globals().values()) if isinstance(value, Setting)),
        *ACCEPTED,
        *MATH_THREADS,
    )
}
FLAGS = {name: setting for name, setting in ALL.items() if name.startswith("FLAGS_")}
# Wrong values of other settings are refused where they are used: the error then has more context.
_CHECKED_AT_START = (Section.FLUID, Section.HPCDIST)


# -- all of them -----------------------------------------------------------------------------------
def check(environ: Mapping[str, str] | None = None) -> None:
    """Raise SettingError if the value of a setting cannot be read."""
    for setting in ALL.values():
        if setting.group in _CHECKED_AT_START:
            setting.read(environ)


def role_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a process's role that are set, as text."""
    env = environment(environ)
    return {s.name: env[s.name] for s in ALL.values() if s.group is Section.ROLE and s.is_set(env)}


def forget_role() -> None:
    """Unset the variables of this process's role, which another job has left."""
    for name in role_variables():
        del os.environ[name]


def put_on_childrens_path(folder: str, present: bool) -> None:
    """Put a folder first in PYTHONPATH, for processes that this one starts; or take it out."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    remaining = [other for other in folders if other not in ("", folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder] * present + remaining)


def misspelt(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each HPCDIST_ variable that does not exist.

    Fluid has many flags that hpcdist does not: for these only names that look like a misspelling
    give a warning.
    """
    warnings = []
    for name in sorted(set(environment(environ)) - set(ALL)):
        ours = name.startswith("HPCDIST_")
        if ours or name.startswith("FLAGS_"):
            meant = did_you_mean(name, ALL, cutoff=0.6 if ours else 0.9)
            if ours or meant:
                meant = meant or "; `python -m hpcdist settings`"
                warnings.append(f"hpcdist does not read the environment variable {name}{meant}")
    return warnings


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags (FLAGS_*) by name, for this process from now on; call it on every rank.

    SettingError (a ValueError) for an unknown name or a value out of bounds, SettingTypeError (a
    TypeError) for a value of another type; nothing is set then.
    """
    if not isinstance(flags, dict):
        raise SettingTypeError(f"set_flags: expected a dict of flags, got {flags!r}")
    os.environ.update({name: _public(name).text(value) for name, value in flags.items()})


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """Return flags (FLAGS_*) by name, given one name or several.

    SettingError for unknown ones, and for what Fluid itself keeps private.
    """
    if not isinstance(flags, (str, list, tuple)):
        raise SettingTypeError(f"get_flags: expected a name or a list of names, got {flags!r}")
    return {name: _public(name).read() for name in ([flags] if isinstance(flags, str) else flags)}


def _public(name: str) -> Setting[Any]:
    if name == "FLAGS_use_mkldnn":
        raise SettingError(
            f"flag {name} is not public: it cannot be read or set by scripts, as in Fluid"
        )
    return flag(name)


def flag(name: str) -> Setting[Any]:
    """Return one of Fluid's flags; SettingError if there is none of that name."""
    if name not in FLAGS:
        raise SettingError(f"there is no flag {name!r}; the flags are {', '.join(sorted(FLAGS))}")
    return FLAGS[name]


def tell_cupy() -> None:
    """Set cupy's own variable for TF32; call it before cupy is imported."""
    if TF32.read():
        os.environ["CUPY_TF32"] = "1"  # cupy reads it at its first product


def tell_cublas() -> None:
    """Declare cuBLAS deterministic to PyTorch: as it is set up, it adds in one order."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # no memory shared by streams
