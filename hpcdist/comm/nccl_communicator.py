"""Making an NCCL communicator: ranks agree on library, GPUs and id, or all of them refuse."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import json
import socket
from pathlib import Path
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import CommError
from hpcdist.comm.collective import RankGroup

SHARED_GPU_FROM = 23000  # NCCL 2.30

FAILURES = (RuntimeError, KeyError)  # NcclError; cupy knows no name of NCCL's newest errors


def prepared(group: RankGroup, device_id: int, may_share: bool) -> tuple[Any, Any]:
    """Return cupy with the device in use, and its NCCL, once all ranks are so far. Collective."""
    cupy: Any = None
    nccl: Any = None
    facts = {"problem": "", "gpu": "", "version": 0}
    try:
        cupy = importlib.import_module("cupy")
        preload_nccl(cupy)
        nccl = importlib.import_module("cupy.cuda.nccl")  # cupy does not import it by itself
        if not nccl.available:
            raise CommError("cupy finds no NCCL: install nvidia-nccl-cu12 or nvidia-nccl-cu13")
        device = cupy.cuda.Device(device_id)
        device.use()
        facts["gpu"] = f"{socket.gethostname()} {device.pci_bus_id}"
        facts["version"] = nccl.get_version()
    except Exception as error:
        facts["problem"] = f"{error}" or type(error).__name__
    everyone = [
        json.loads(data)
        for data in group.transport.allgather_bytes(
            json.dumps(facts).encode(), group.deadline_s, "the others' GPUs"
        )
    ]
    _refuse(group, [other["problem"] for other in everyone], "use NCCL")
    users: dict[str, list[int]] = {}
    for peer, other in enumerate(everyone):
        users.setdefault(other["gpu"], []).append(group.names[peer])
    crowded = {gpu: ranks for gpu, ranks in users.items() if len(ranks) > 1}
    version = min(other["version"] for other in everyone)
    if crowded and not (may_share and version >= SHARED_GPU_FROM):
        gpu, ranks = next(iter(crowded.items()))
        raise CommError(
            f"ranks {', '.join(map(str, ranks))} use one GPU ({gpu}): give every rank its own "
            "(fluid.CUDAPlace(int(os.environ['FLAGS_selected_gpus']))), or "
            f"have NCCL 2.30 or newer (this is {_readable(version)}) and "
            f"{settings.NCCL_SHARED_GPU.name}=1, or let MPI carry the sums: "
            f"{settings.ALLREDUCE.name}=mpi"
        )
    return cupy, nccl


def preload_nccl(cupy: Any) -> None:
    """Load the NCCL that pip installed, of whatever version; cupy takes up what is loaded.

    By itself it looks for a wheel no older than the one it was built with, and else finds none.
    """
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    try:
        distribution = importlib.metadata.distribution(f"nvidia-nccl-cu{major}")
    except importlib.metadata.PackageNotFoundError:
        return
    library = distribution.locate_file("nvidia/nccl/lib/libnccl.so.2")
    if Path(str(library)).exists():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def broadcast_id(group: RankGroup, nccl: Any) -> bytes:
    """Return a new communicator's id, made on rank 0. Collective."""
    token, problem = b"", ""
    if group.rank == 0:
        try:
            identifier = nccl.get_unique_id()
            # CuPy 14 gives bytes; CuPy 13 a tuple of signed numbers.
            token = (
                identifier
                if isinstance(identifier, bytes)
                else bytes(part & 0xFF for part in identifier)
            )
        except FAILURES as error:
            problem = str(error)
    all_well(group, problem, "make an NCCL id")
    return group.transport.broadcast_bytes(token, 0)


def new_communicator(nccl: Any, size: int, token: bytes, rank: int) -> Any:
    """Return this rank's communicator; CommError if NCCL cannot make it. Collective."""
    try:
        return nccl.NcclCommunicator(size, token, rank)
    except TypeError:  # CuPy 13 wants what its get_unique_id gives
        signed = tuple(part - 256 if part > 127 else part for part in token)
        return nccl.NcclCommunicator(size, signed, rank)


def all_well(group: RankGroup, problem: str, doing: str) -> None:
    """Raise on all ranks if there is a problem on one. Collective."""
    problems = group.transport.allgather_bytes(
        problem.encode(), group.deadline_s, "the others' word"
    )
    _refuse(group, [text.decode() for text in problems], doing)


def _refuse(group: RankGroup, problems: list[str], doing: str) -> None:
    troubled = [f"rank {group.names[k]}: {text}" for k, text in enumerate(problems) if text]
    if troubled:
        raise CommError(f"cannot {doing}: {'; '.join(troubled)}")


def _readable(version: int) -> str:
    """Return NCCL's version as people write it: 22105 is 2.21.5."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
